"""The public contract suite: robustfl's own methods pass it, and every broken promise is found and named."""

from __future__ import annotations

import dataclasses
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robustfl import registry
from robustfl.contracts import Method
from robustfl.errors import UsageError
from robustfl.testing import Check, check, check_attack, check_defense, laws
from robustfl.testing.state import changed, kept_state

KINDS = ("attack", "evasion", "defense", "norm", "algorithm", "objective")
OWN = [e for kind in KINDS for e in registry.entries(kind) if not e.origin]
UNUSUAL = {"inf": {"finite"}, "nan": {"finite"}, "sign-majority": {"no harm"}}  # what their exempt should name
CHEAP = {"steps": 2, "iterations": 2, "queries": 5, "restarts": 1, "of": "fgsm+square(queries=5)"}

HEAD = '''
import copy, os, random, time
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import torch
from torch import nn
from robustfl.contracts import *
from robustfl.contracts import NormLayer, StatisticsLayer
from robustfl.norms.layers import OwnBatchNorm
from robustfl.norms.merging import merge_layers
from robustfl.attacks.evasion.whitebox import frozen, input_gradient
from robustfl.registry import register

MEMORY = {{}}
CALLS = 0

{before}

@register("bad-{kind}", version=1)
@dataclass(frozen=True)
class Bad({base}):
    """A plug-in."""
    {facts}
    {method}
        {body}
    {more}
'''
SIGNATURES = {
    "attack": ("Attack", "def forge(self, view, *, generator):"),
    "aggregator": ("Aggregator", "def aggregate(self, X, *, f, context):"),
    "step": ("Step", "def mix(self, gram, *, f, context):"),
    "evasion": ("Evasion", "def perturb(self, model, x, y, *, generator=None):"),
    "norm": ("Norm", "def layer(self, channels):"),
}
MEAN = "view.honest.mean(0).expand(view.f, -1)"
CLIENTS = "def min_clients(self, f): return 2 * f + 1"


pytestmark = pytest.mark.usefixtures("clean_registry")


@pytest.fixture
def plug_in(tmp_path: Path) -> Any:
    """Writes and loads a plug-in of one method, and returns its class."""

    def load(kind: str, body: str, *, facts: str = "pass", more: str = "", before: str = "") -> type[Method]:
        base, method = SIGNATURES[kind]
        more = more or (CLIENTS if kind in ("aggregator", "step") else "")
        body, more = body.replace("\n", "\n        "), more.replace("\n", "\n    ")
        text = HEAD.format(kind=kind, base=base, method=method, body=body, facts=facts, more=more, before=before)
        file = tmp_path / f"bad_{kind}.py"
        file.write_text(text, encoding="utf-8")
        (entry,) = registry.load_file(file)
        return entry.cls

    return load


def failed(checks: list[Check]) -> dict[str, str]:
    return {c.name: c.reason for c in checks if not c.passed}


# --- robustfl's own --------------------------------------------------------------------------------------------------


def cheap(cls: type[Method]) -> Method:
    method = cls()
    small = {f.name: CHEAP[f.name] for f in dataclasses.fields(method) if f.name in CHEAP}  # type: ignore[arg-type]
    return dataclasses.replace(method, **small)  # type: ignore[type-var]


# The other kinds have the laws of tests/contracts by default.
QUICK = ("algorithm", "objective")


@pytest.mark.parametrize(
    "entry",
    [pytest.param(e, marks=[] if e.kind in QUICK else pytest.mark.slow, id=f"{e.kind}-{e.name}") for e in OWN],
)
def test_robustfls_own_methods_keep_their_contract(entry: registry.Entry) -> None:
    try:
        method = cheap(entry.cls)
    except TypeError:
        pytest.skip("it has no defaults")
    assert failed(check(method)).keys() == UNUSUAL.get(entry.name, set()) - set(entry.cls.exempt)


def test_every_law_has_a_sentence_and_a_name_of_its_own() -> None:
    for entry in OWN:
        found = laws(entry.cls)
        assert len({law.name for law in found}) == len(found) > 5
        assert all(law.says for law in found)


def test_global_generators_are_as_before() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    before = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    check_attack("gaussian")
    assert (torch.rand(1), random.random(), np.random.rand()) == before


# --- broken promises -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "words", "body"),
    [
        ("shape", "(2, 3), not (2, 6)", "return torch.zeros(view.f, 3, dtype=view.honest.dtype)"),
        ("shape", "(1, 6), not (2, 6)", "return view.honest.mean(0, keepdim=True)"),
        ("dtype and device", "float32, not torch.float64", f"return ({MEAN}).float()"),
        ("finite", "NaN", f"return {MEAN} * float('nan')"),
        ("inputs untouched", "view.honest was written to", f"view.honest.mul_(2)\nreturn {MEAN}"),
        ("inputs untouched", "view.honest was written to", f"view.honest.numpy()[:] = 7\nreturn {MEAN}"),
        ("inputs untouched", "return a clone", "return view.honest[:1].expand(view.f, -1)"),
        ("inputs untouched", "view.previous was written to",
         f"if view.previous is not None: view.previous.mul_(-1)\nreturn {MEAN}"),
        ("inputs untouched", "return a clone",
         f"return {MEAN} if view.previous is None else view.previous.expand(view.f, -1)"),
        ("dtype and device", "requires a gradient; return it with .detach()", f"return ({MEAN}).requires_grad_()"),
        ("no memory", "bad_attack", f"MEMORY['seen'] = view.round + len(MEMORY)\nreturn {MEAN}"),
        ("no memory", "Bad.seen", f"type(self).seen = getattr(self, 'seen', 0) + 1\nreturn {MEAN}"),
        ("no memory", "the instance's scale", f"object.__setattr__(self, 'scale', 2.5)\nreturn {MEAN}"),
        ("no memory", "the instance's last", f"object.__setattr__(self, 'last', 1)\nreturn {MEAN}"),
        ("no global randomness", "torch", f"torch.rand(1)\nreturn {MEAN}"),
        ("no global randomness", "numpy", f"np.random.rand()\nreturn {MEAN}"),
        ("no global randomness", "random", f"random.random()\nreturn {MEAN}"),
        ("no global randomness", "seeded", f"torch.manual_seed(0)\nreturn {MEAN}"),
        ("no global settings", "default dtype", f"torch.set_default_dtype(torch.float16)\nreturn {MEAN}"),
        ("no global settings", "grad mode", f"torch.set_grad_enabled(False)\nreturn {MEAN}"),
        ("poison", "poisons_data is False", f"return {MEAN}"),
        ("statistics", "variance", f"return {MEAN} if view.channel == 'update' else torch.zeros(1, 1)"),
    ],
)  # fmt: skip
def test_a_broken_attack_fails_its_law(law: str, words: str, body: str, plug_in: Any) -> None:
    more = "def poison(self, x, y, *, classes, generator, attacker, round): return x, y * 0" if law == "poison" else ""
    found = failed(check(plug_in("attack", body, more=more, facts="scale: float = 1.5")))
    if law == "statistics":
        words = "shape"
    assert next(iter(found)) == law
    assert words in found[law]


def test_what_depends_on_time_is_not_deterministic(plug_in: Any) -> None:
    found = failed(check(plug_in("attack", f"return {MEAN} + time.perf_counter()")))
    assert "two calls" in found["deterministic"]


def test_a_counter_that_changes_the_third_result_only_is_found(plug_in: Any) -> None:
    body = f"global CALLS\nCALLS += 1\nreturn {MEAN} * (2 if CALLS % 7 == 0 else 1)"
    assert "no memory" in failed(check(plug_in("attack", body)))


def test_draws_under_a_forked_global_generator_are_found(plug_in: Any) -> None:
    body = f"with torch.random.fork_rng(devices=[]):\n    noise = torch.rand(1)\nreturn {MEAN} + noise"
    assert "depends on the seeds" in failed(check(plug_in("attack", body)))["no global randomness"]


def test_an_attack_that_looks_at_more_than_it_declares_is_told_what_it_sees(plug_in: Any) -> None:
    found = failed(check(plug_in("attack", f"return {MEAN}", facts="knowledge: ClassVar = 'blind'")))
    assert "knowledge='blind'" in found["runs"]
    assert "the view holds n, f" in found["runs"]
    assert list(found) == ["runs"]


def test_an_error_is_reported_with_its_place(plug_in: Any) -> None:
    found = failed(check(plug_in("attack", "raise RuntimeError('my bug')")))
    assert "my bug" in found["runs"]
    assert "bad_attack.py:" in found["runs"]


def test_an_attack_without_a_docstring_is_undocumented(plug_in: Any) -> None:
    found = failed(check(plug_in("attack", f"return {MEAN}", before="", facts="__doc__ = None")))
    assert list(found) == ["documented"]


def test_what_does_not_end_is_stopped(plug_in: Any) -> None:
    found = failed(
        check(
            plug_in("attack", "while True:\n    try:\n        time.sleep(0.01)\n    except Exception: pass"), limit=0.3
        )
    )
    assert "still running after 0.3 s" in found["runs"]


@pytest.mark.parametrize(
    ("law", "words", "body"),
    [
        ("shape, dtype and device", "(1, 6), not (6,)", "return X.mean(0, keepdim=True)"),
        ("shape, dtype and device", "float64, not torch.float32", "return X.double().mean(0)"),
        ("inputs untouched", "X was written to", "X.sub_(0)\nreturn X.mean(0)"),
        ("inputs untouched", "return a clone", "return X[f]"),
        ("finite", "infinite", "return X.mean(0) / 0"),
        ("no harm", "rows that all lie", "return -X.mean(0)"),
        ("precision", "differ by", "return X.half().mean(0).to(X.dtype) if X.dtype == torch.float32 else X.mean(0)"),
        ("state", "context.state['v'] was written to",
         "v = context.state.get('v', torch.zeros(1))\nv.add_(1)\nreturn Aggregated(X.mean(0), {'v': v})"),
        ("state", "a round later", "return Aggregated(X.mean(0), {} if context.state else {'v': X[0].clone()})"),
    ],
)  # fmt: skip
def test_a_broken_rule_fails_its_law(law: str, words: str, body: str, plug_in: Any) -> None:
    found = failed(check(plug_in("aggregator", body)))
    assert next(iter(found)) == law
    assert words in found[law]


def test_a_rule_that_promises_too_much_about_clients_is_found(plug_in: Any) -> None:
    body = "assert len(X) > 4\nreturn X.mean(0)"
    found = failed(check(plug_in("aggregator", body)))
    assert list(found) == ["clients"]
    found = failed(
        check(plug_in("step", "return torch.eye(len(gram))", more="def min_clients(self, f): return 1.0 * f"))
    )
    assert "not an int" in found["runs"]


def test_a_step_returns_as_many_rows_as_it_says(plug_in: Any) -> None:
    found = failed(check(plug_in("step", "return torch.eye(len(gram))[1:]")))
    assert "(6, 7), not (7, 7)" in found["shape"]


ASCEND = "with frozen(model): g, _ = input_gradient(model, x, y)\n"
STEP = "return (x + self.eps * g.sign()).clamp(0, 1)"


@pytest.mark.parametrize(
    ("law", "words", "body"),
    [
        ("shape, dtype and device", "(4, 192)", "return x.flatten(1)"),
        ("pixels", "pixels lie in [0, 1]", ASCEND + "return x + self.eps * g.sign()"),
        ("ball", "eps is 0.1", ASCEND + "return (x + 2 * self.eps * g.sign()).clamp(0, 1)"),
        ("inputs untouched", "x was written to", ASCEND + "x.add_(self.eps * g.sign()).clamp_(0, 1)\nreturn x.clone()"),
        ("model untouched", "mode of model was True and is False",
         "model.eval()\ng, _ = input_gradient(model, x, y)\n" + STEP),
        ("model untouched after an error", "mode of model was True",
         "was = [m for m in model.modules() if m.training]\nmodel.eval()\nz = model(x)\n"
         "for m in was: m.training = True\nreturn x.clone()"),
        ("evaluation mode", "training mode",
         "copied = copy.deepcopy(model)\nwith torch.no_grad(): copied(x)\nreturn x.clone()"),
        ("empty batch", "no rows", "if len(x) == 0: raise ValueError('no rows')\nreturn x.clone()"),
        ("no generator", "NoneType", "generator.initial_seed()\nreturn x.clone()"),
    ],
)  # fmt: skip
def test_a_broken_evasion_fails_its_law(law: str, words: str, body: str, plug_in: Any) -> None:
    found = failed(check(plug_in("evasion", body, facts="eps: float = 0.1")))
    assert law in found
    assert words in found[law]


BATCH = """
class Layer(OwnBatchNorm):
    def forward(self, x):
        {body}
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("law", "words", "body", "before"),
    [
        ("entries", "no StatisticsLayer", "return nn.BatchNorm2d(channels)", ""),
        ("entries", "derives from LockstepNorm",
         "return UnionBatchNorm(channels, momentum=0.1, eps=1e-5, backward_too=True)",
         "from robustfl.norms.lockstep import UnionBatchNorm"),
        ("runs", "not a module", "return None", ""),
        ("inputs untouched", "running_mean was written to", "return Layer(channels, momentum=0.1, eps=1e-5)",
         BATCH.format(body="self.running_mean.add_(1)")),
        ("inputs untouched", "x was written to", "return Layer(channels, momentum=0.1, eps=1e-5)",
         BATCH.format(body="x.detach().add_(1)")),
        ("clients apart", "each client alone", "return Layer(channels, momentum=0.1, eps=1e-5)",
         BATCH.format(body="x = x + x.mean(0, keepdim=True) if self.training else x")),
        ("report", "no running_mean", "return nn.GroupNorm(1, channels)", ""),
        ("merge", "merged variance is -1", "return OwnBatchNorm(channels, momentum=0.1, eps=1e-5)", ""),
    ],
)  # fmt: skip
def test_a_broken_norm_fails_its_law(law: str, words: str, body: str, before: str, plug_in: Any) -> None:
    merged = "-torch.ones_like(previous)" if law == "merge" else "messages.mean(0)"
    merge = f"def merge(self, messages, counts, previous, layers, defense): return {merged}"
    cls = plug_in("norm", body, more=merge, before=before)
    found = failed(check(cls))
    assert law in found
    assert words in found[law]


MERGE = "def merge(self, messages, counts, previous, layers, defense): return messages.mean(0)"


@pytest.mark.parametrize(
    ("exempt", "where", "laws"),
    [(False, "self.training", ["gradient"]), (True, "self.training", []), (True, "True", ["served"])],
)
def test_a_norm_may_hold_a_part_of_the_backward_pass_constant_in_training_alone(
    exempt: bool, where: str, laws: list[str], plug_in: Any
) -> None:
    """As batch renormalization does with its correction."""
    before = BATCH.format(body=f"y = super().forward(x)\n        return y + 0.5 * (y.detach() - y) if {where} else y")
    facts = "exempt: ClassVar = {'gradient': 'renormalised'}" if exempt else ""
    checks = check(
        plug_in("norm", "return Layer(channels, momentum=0.1, eps=1e-5)", more=MERGE, before=before, facts=facts)
    )
    assert list(failed(checks)) == laws
    assert (Check("gradient", True, "exempt: renormalised") in checks) is exempt


# --- what suits a plug-in author -------------------------------------------------------------------------------------


def test_an_exemption_is_reported_with_its_reason(plug_in: Any) -> None:
    facts = "exempt: ClassVar = {'finite': 'NaN on purpose'}"
    checks = check(plug_in("attack", f"return {MEAN} * float('nan')", facts=facts))
    assert failed(checks) == {}
    assert Check("finite", True, "exempt: NaN on purpose") in checks


def test_most_laws_cannot_be_waived(plug_in: Any) -> None:
    facts = "exempt: ClassVar = {'no memory': 'I like it'}"
    found = failed(check(plug_in("attack", f"MEMORY[len(MEMORY)] = 1\nreturn {MEAN}", facts=facts)))
    assert "cannot be waived" in found["exempt"]
    assert "MEMORY" in found["no memory"]


def test_a_method_is_given_by_spec_class_or_instance() -> None:
    import robustfl

    method = robustfl.attack("foe", eta=3)
    for checks in (
        check_attack("foe(eta=3)"),
        check_attack("foe", eta=3),
        check_attack(method),
        check_attack(type(method)),
    ):
        assert failed(checks) == {}
    with pytest.raises(UsageError, match="is no defense"):
        check_defense(method)  # type: ignore[arg-type]


def test_every_kind_has_laws_of_its_own() -> None:
    for kind in registry.KINDS:
        assert len(laws(registry.entries(kind)[0].cls)) > 8


# --- what a class could remember --------------------------------------------------------------------------------------

AROUND = "def make():\n    n = {}\n    def seen():\n        {}\n    return seen\nseen = make()"
HIDDEN = {
    "closure": (AROUND.format("[0]", "n[0] += 1"), r"seen\(n\)"),
    "nonlocal": (AROUND.format("0", "nonlocal n; n += 1"), r"seen\(n\)"),
    "default": ("def seen(a=1, b=[]):\n    b.append(a)", r"seen\(b\)"),
    "keyword": ("def seen(*, b={}):\n    b[len(b)] = 1", r"seen\(b\)"),
    "object": ("class Notes:\n    pass\nNOTES = Notes()\ndef seen():\n    NOTES.n = len(vars(NOTES))", r"NOTES\.n"),
    "default after another": ("def add(a, b=[]):\n    b.append(a)\ndef seen():\n    add(1)", r"add\(b\)"),
    "attribute": ("def seen():\n    seen._n = getattr(seen, '_n', 0) + 1", "seen"),
    "recursion": (AROUND.format("0", "nonlocal n; n += 1; n > 1 or seen()"), r"seen\(n\)"),
    "object of itself": (
        "class Notes:\n    pass\nNOTES = Notes()\nNOTES.n, NOTES.me = 0, NOTES\ndef seen():\n    NOTES.n += 1",
        r"NOTES\.n",
    ),
    "attribute of a cached function": (
        "import functools\n@functools.cache\ndef add():\n    return 0\nadd.n = []\ndef seen():\n    add.n.append(1)",
        "add",
    ),
    "default of a cached function": (
        "import functools\n@functools.lru_cache(1)\ndef add(a, b=[]):\n    b.append(a)\ndef seen():\n    add(1)",
        r"add\(b\)",
    ),
    "namespace": ("import types\nBOX = types.SimpleNamespace(n=0)\ndef seen():\n    BOX.n += 1", r"BOX\.n"),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_state_hidden_in_closures_defaults_and_objects_is_found_and_named(where: str, plug_in: Any) -> None:
    before, name = HIDDEN[where]
    cls = plug_in("attack", f"seen()\nreturn {MEAN}", before=before)
    assert kept_state(cls) == kept_state(cls)
    seen = vars(sys.modules[cls.__module__])["seen"]
    before_it, _ = kept_state(cls), seen()
    assert any(re.search(rf"\w+\.{name}", place) for place in changed(before_it, kept_state(cls)))
