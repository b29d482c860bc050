"""The public contract suite: robustfl's own methods pass it, and laws find the mistakes that they are for."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robustfl
from robustfl import registry
from robustfl.contracts import Method
from robustfl.errors import UsageError
from robustfl.testing import Check, check, check_attack, check_defense, laws

KINDS = ("attack", "evasion", "defense", "norm", "algorithm", "objective")
OWN = [e for kind in KINDS for e in registry.entries(kind) if not e.origin]
UNUSUAL = {"inf": {"finite"}, "nan": {"finite"}, "sign-majority": {"no harm"}}  # what their exempt should name
CHEAP = {"steps": 2, "iterations": 2, "queries": 5, "restarts": 1, "of": "fgsm+square(queries=5)"}
pytestmark = pytest.mark.usefixtures("clean_registry")


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


@pytest.mark.parametrize("spec", [
    "partition iid", "partition dirichlet(alpha=1)", "partition gamma(gamma=0.5)", "partition classes(k=2)",
    "dataset digits", "dataset digits-domain", "model mlp", "model digits-cnn", "model simple-cnn", "model resnet20",
    "model fbn-cnn",
])  # fmt: skip
def test_robustfls_own_data_and_models_keep_theirs(spec: str) -> None:
    assert failed(check(registry.create(*spec.split(" ")))) == {}


def test_every_law_has_a_sentence_and_a_name_of_its_own_and_every_exemption_names_one() -> None:
    for kind in registry.KINDS:
        for entry in registry.entries(kind):
            found = laws(entry.cls)
            assert len({law.name for law in found}) == len(found) > 7
            assert all(law.says for law in found)
            assert set(entry.cls.exempt) <= {law.name for law in found if law.waivable}


def test_global_generators_are_as_before() -> None:
    def drawn(look: bool) -> tuple[float, float, float]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        if look:
            check_attack("gaussian")
        return float(torch.rand(1)), random.random(), np.random.rand()

    assert drawn(look=True) == drawn(look=False)


# --- mistakes beside the planted ones --------------------------------------------------------------------------------

HEAD = '''
import copy, random, time
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import torch
from torch import nn
from robustfl.contracts import *
from robustfl.contracts import NormLayer, StatisticsLayer
from robustfl.data import data_root, dataset_from_spec
from robustfl.norms.lockstep import UnionBatchNorm
from robustfl.norms.layers import OwnBatchNorm
from robustfl.attacks.evasion.whitebox import frozen, input_gradient
from robustfl.registry import register

MEMORY = {{}}
CALLS = 0
DRAWS = np.random.default_rng(0)

class Layer(OwnBatchNorm):
    def forward(self, x):
        y = super().forward(x)
        {layer}

@register("bad-{kind}", version=1)
@dataclass(frozen=True)
class Bad({base}):
    """A plug-in."""
    {facts}
    {method}
        {body}
    {more}
'''
CLIENTS = "def min_clients(self, f): return 2 * f + 1"
SIGNATURES = {
    "attack": ("Attack", "def forge(self, view, *, generator):", ""),
    "rule": ("Aggregator", "def aggregate(self, X, *, f, context):", CLIENTS),
    "step": ("Step", "def mix(self, gram, *, f, context):", CLIENTS),
    "evasion": ("Evasion", "def perturb(self, model, x, y, *, generator=None):", ""),
    "norm": ("Norm", "def layer(self, channels):",
             "def merge(self, messages, counts, previous, layers, defense): return messages.mean(0)"),
    "partition": ("Partition", "def split(self, labels, *, clients, classes, generator):", ""),
    "dataset": ("Dataset", "def load(self, root, *, download=True):",
                "def fingerprint(self, root, *, download=True): return 'known'"),
    "model": ("Model", "def build(self, norm, *, shape, classes):", ""),
}  # fmt: skip


@pytest.fixture
def plug_in(tmp_path: Path) -> Any:
    """Writes and loads a plug-in of one method, and returns its class."""

    def load(kind: str, body: str, *, facts: str = "pass", more: str = "", layer: str = "return y") -> type[Method]:
        base, method, usual = SIGNATURES[kind]
        body, more, layer = body.replace("\n", "\n        "), more or usual, layer.replace("\n", "\n        ")
        text = HEAD.format(kind=kind, base=base, method=method, body=body, facts=facts, more=more, layer=layer)
        file = tmp_path / f"bad_{kind}.py"
        file.write_text(text, encoding="utf-8")
        (entry,) = registry.load_file(file)
        return entry.cls

    return load


MEAN = "view.honest.mean(0).expand(view.f, -1)"
ASCEND = "with frozen(model): g, _ = input_gradient(model, x, y)\n"
BN = "return Layer(channels, momentum=0.1, eps=1e-5)"
SPLIT = "parts = np.array_split(generator.permutation(len(labels)), clients)\n"
LOAD = "import dataclasses\na = dataset_from_spec('digits').load(data_root())\nreturn dataclasses.replace(a, "
LINEAR = "return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes), "
FAULTS: list[tuple[Any, ...]] = [
    ("attack", "runs", "my bug (", "raise ValueError('my bug')"),
    ("attack", "runs", "forge() returned NoneType", "return None"),
    ("attack", "no side effects", ".MEMORY", f"MEMORY['seen'] = len(MEMORY)\nreturn {MEAN}"),
    ("attack", "no side effects", ".CALLS", f"global CALLS\nCALLS += 1\nreturn {MEAN}"),
    ("attack", "no side effects", ".DRAWS", f"DRAWS.random()\nreturn {MEAN}"),
    ("attack", "no side effects", "Bad.seen", f"type(self).seen = getattr(self, 'seen', 0) + 1\nreturn {MEAN}"),
    ("attack", "no side effects", "the instance's last", f"object.__setattr__(self, 'last', 1)\nreturn {MEAN}"),
    ("attack", "no side effects", "generator of torch", f"torch.manual_seed(0)\nreturn {MEAN}"),
    ("attack", "no side effects", "generator of numpy", f"np.random.rand()\nreturn {MEAN}"),
    ("attack", "no side effects", "generator of random", f"random.random()\nreturn {MEAN}"),
    ("attack", "no side effects", "default dtype", f"torch.set_default_dtype(torch.float16)\nreturn {MEAN}"),
    ("attack", "no side effects", "grad mode", f"torch.set_grad_enabled(False)\nreturn {MEAN}"),
    ("attack", "deterministic", "two calls",
     f"with torch.random.fork_rng(devices=[]): noise = torch.rand(1)\nreturn {MEAN} + noise"),
    ("attack", "shape, dtype and device", "(2, 3) of", "return torch.zeros(view.f, 3, dtype=view.honest.dtype)"),
    ("attack", "shape, dtype and device", "float32", f"return ({MEAN}).float()"),
    ("attack", "shape, dtype and device", "return it with .detach()", f"return ({MEAN}).requires_grad_()"),
    ("attack", "shape, dtype and device", "(1, 1) of",
     f"return {MEAN} if view.channel == 'update' else view.honest.new_zeros(1, 1)"),
    ("attack", "inputs untouched", "view.honest was written to", f"view.honest.mul_(2)\nreturn {MEAN}"),
    ("attack", "inputs untouched", "view.honest was written to", f"view.honest.numpy()[:] = 7\nreturn {MEAN}"),
    ("attack", "inputs untouched", "view.previous was written to",
     f"if view.previous is not None: view.previous.mul_(-1)\nreturn {MEAN}"),
    ("attack", "inputs untouched", "view.state['v'] was written to",
     f"v = view.state.get('v', torch.zeros(1))\nreturn Forged({MEAN}, {{'v': v.add_(1)}})"),
    ("attack", "inputs untouched", "return a clone", "return view.honest[:1].expand(view.f, -1)"),
    ("attack", "finite", "NaN", f"return {MEAN} * float('nan')"),
    ("attack", "documented", "no docstring", f"return {MEAN}", {"facts": "__doc__ = None"}),
    ("attack", "images", "poisons_data is False", f"return {MEAN}",
     {"more": "def poison(self, x, y, *, classes, generator, attacker, round): return x, y * 0"}),
    ("attack", "images", "poisoned pixels reach", f"return {MEAN}", {"facts": "poisons_data: ClassVar = True",
     "more": "def poison(self, x, y, *, classes, generator, attacker, round): return x + 1, y"}),
    ("attack", "images", "trigger leaves images", f"return {MEAN}",
     {"facts": "triggers: ClassVar = True", "more": "target = property(lambda self: 3)"}),
    ("rule", "shape, dtype and device", "float64", "return X.double().mean(0)"),
    ("rule", "inputs untouched", "context.state['v'] was written to",
     "v = context.state.get('v', torch.zeros(1))\nreturn Aggregated(X.mean(0), {'v': v.add_(1)})"),
    ("rule", "no harm", "rows that all lie", "return -X.mean(0)"),
    ("rule", "precision", "differ by",
     "return X.half().mean(0).to(X.dtype) if X.dtype == torch.float32 else X.mean(0)"),
    ("rule", "state", "a round later", "return Aggregated(X.mean(0), {} if context.state else {'v': X[0].clone()})"),
    ("rule", "clients remembered", "by their place", "old = context.state.get('v', X)\n"
     "return Aggregated(((X - old).norm(dim=1)[:, None] * X).mean(0) + X.mean(0), {'v': X.clone()})"),
    ("rule", "clients", "AssertionError", "assert len(X) > 4\nreturn X.mean(0)"),
    ("step", "runs", "not an int", "return torch.eye(len(gram))", {"more": "def min_clients(self, f): return 1.0 * f"}),
    ("step", "shape, dtype and device", "(6, 7) of", "return torch.eye(len(gram))[1:]"),
    ("evasion", "shape, dtype and device", "(4, 192) of", "return x.flatten(1)"),
    ("evasion", "shape, dtype and device", "no rows", "if len(x) == 0: raise ValueError('no rows')\nreturn x.clone()"),
    ("evasion", "ball", "not in [0, 1]", ASCEND + "return x + self.eps * g.sign()"),
    ("evasion", "ball", "eps is 0.1", ASCEND + "return (x + 2 * self.eps * g.sign()).clamp(0, 1)"),
    ("evasion", "ball", "with eps=0 it moves", "return (x + 0.05).clamp(0, 1)"),
    ("evasion", "inputs untouched", "x was written to",
     ASCEND + "x.add_(self.eps * g.sign()).clamp_(0, 1)\nreturn x.clone()"),
    ("evasion", "inputs untouched", "x was made to require", "x.requires_grad_(True)\nreturn x.detach().clone()"),
    ("evasion", "model untouched", "mode or hooks of model",
     "was = [m for m in model.modules() if m.training]\nmodel.eval()\nz = model(x)\n"
     "for m in was: m.training = True\nreturn x.clone()"),
    ("evasion", "evaluation mode", "training mode",
     "copied = copy.deepcopy(model)\nwith torch.no_grad(), torch.random.fork_rng(): copied(x)\nreturn x.clone()"),
    ("evasion", "callers", "NoneType", "generator.initial_seed()\nreturn x.clone()"),
    ("evasion", "callers", "switch gradients on",
     "return x.clone() if torch.is_grad_enabled() else (x + self.eps / 2).clamp(0, 1)"),
    ("norm", "runs", "not a module", "return None"),
    ("norm", "entries", "no StatisticsLayer", "return nn.BatchNorm2d(channels)"),
    ("norm", "entries", "derives from LockstepNorm",
     "return UnionBatchNorm(channels, momentum=0.1, eps=1e-5, backward_too=True)"),
    ("norm", "inputs untouched", "running_mean was written to", BN, {"layer": "self.running_mean.add_(1)\nreturn y"}),
    ("norm", "inputs untouched", "x was written to", BN, {"layer": "x.detach().add_(1)\nreturn y"}),
    ("norm", "finite", "NaN", BN, {"layer": "return y / (y - y.mean()).abs().sum()"}),
    ("norm", "gradient", "finite differences", BN,
     {"layer": "return y + 0.5 * (y.detach() - y) if self.training else y"}),
    ("norm", "served", "hides the model from evasion", BN, {"layer": "return y + 0.5 * (y.detach() - y)",
     "facts": "exempt: ClassVar = {'gradient': 'renormalised'}"}),
    ("norm", "served", "the rest of the batch", BN, {"layer": "return y if self.training else y - x.mean()"}),
    ("norm", "clients in one pass", "each client alone", BN, {"layer": "return y + x.mean(0) if self.training else y"}),
    ("norm", "report", "no running_mean", "return nn.GroupNorm(1, channels)"),
    ("norm", "report", "unseen", "class Seen(Layer): unseen = property(lambda self: False, lambda self, value: None)\n"
     "return Seen(channels, momentum=0.1, eps=1e-5)"),
    ("norm", "merge", "merged variance is -1", BN,
     {"more": "def merge(self, messages, counts, previous, layers, defense): return -torch.ones_like(previous)"}),
    ("norm", "merge", "the order", BN, {"more": "def merge(self, messages, counts, previous, layers, defense): "
     "return messages[: len(messages) // 2 + 1].mean(0)"}),
    ("partition", "parts", "client 0 has indices from 4", SPLIT + "return [parts[0] + 400, *parts[1:]]"),
    ("partition", "parts", "a list of 4 for 5 clients", SPLIT + "return parts[:-1]"),
    ("partition", "inputs untouched", "labels was written to", "labels[:] = 0\n" + SPLIT + "return parts"),
    ("partition", "no side effects", "generator of numpy",
     "return np.array_split(np.random.permutation(len(labels)), clients)"),
    ("dataset", "arrays", "floats must lie in [0, 1]",
     LOAD + "train_x=a.train_x.astype(np.float32) - 1, test_x=a.test_x.astype(np.float32))"),
    ("dataset", "arrays", "load() says 'other'", LOAD + "fingerprint='other')"),
    ("dataset", "test apart", "test images are training images, too",
     LOAD + "test_x=a.train_x, test_y=a.train_y, fingerprint='known')"),
    ("model", "runs", "build returned NoneType", "return None"),
    ("model", "shape, dtype and device", "(3, 9) of", LINEAR.replace("classes)", "classes - 1)") + ")"),
    ("model", "finite", "NaN", LINEAR + "nn.Threshold(9, float('nan')))"),
    ("model", "norms", "nobody asks layer '2' (BatchNorm1d)", LINEAR + "nn.BatchNorm1d(classes))"),
    ("model", "initialised", "a constructor drew", LINEAR + ")", {"more": "def initialise(self, *rest): pass"}),
    ("model", "attackable", "hides the model from evasion",
     "net = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
     "net.register_forward_hook(lambda m, i, y: y if m.training else y.detach() + 0 * y)\nreturn net"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "law", "words", "body", "options"),
    [pytest.param(*fault[:4], dict(*fault[4:]), id=f"{fault[0]}: {fault[1]}: {fault[2]}") for fault in FAULTS],
)
def test_a_mistake_breaks_its_law(
    kind: str, law: str, words: str, body: str, options: dict[str, str], plug_in: Any
) -> None:
    facts = {"facts": "eps: float = 0.1"} if kind == "evasion" else {}
    found = failed(check(plug_in(kind, body, **facts, **options)))
    assert words in found.get(law, ""), found


def test_what_does_not_end_is_given_up(plug_in: Any) -> None:
    checks = check(plug_in("attack", f"time.sleep(1)\nreturn {MEAN}"), limit=0.1)
    assert failed(checks) == {"runs": "still running after 0.1 s"}


def test_an_attack_that_looks_at_more_than_it_declares_is_told_what_it_sees(plug_in: Any) -> None:
    found = failed(check(plug_in("attack", f"return {MEAN}", facts="knowledge: ClassVar = 'blind'")))
    assert list(found) == ["runs"]
    assert "bad_attack.py:" in found["runs"]
    assert found["runs"].endswith("with knowledge='blind' the view holds n, f, own only")


def test_an_exemption_is_reported_with_its_reason_and_most_laws_have_none(plug_in: Any) -> None:
    facts = "exempt: ClassVar = {'finite': 'NaN on purpose', 'deterministic': 'I like it'}"
    checks = check(plug_in("attack", f"return {MEAN} * float('nan')", facts=facts))
    assert Check("finite", True, "exempt: NaN on purpose") in checks
    assert failed(checks) == {"exempt": "'deterministic' cannot be waived; exempt may name finite"}


def test_a_method_is_given_by_spec_class_or_instance() -> None:
    method = robustfl.attack("foe", eta=3)
    for one in (check_attack("foe(eta=3)"), check_attack("foe", eta=3), check_attack(method), check(type(method))):
        assert failed(one) == {}
    with pytest.raises(UsageError, match="is no defense"):
        check_defense(method)


def test_a_data_set_that_is_not_here_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUSTFL_DATA", str(tmp_path))
    checks = {c.name: c for c in check(registry.create("dataset", "cifar10"))}
    assert checks["arrays"].passed
    assert checks["arrays"].reason.startswith("not looked at: ")
    assert checks["arrays"].because == "its files"
    with pytest.raises(UsageError, match=r"there is no file .*typo\.npz"):
        check(registry.create("dataset", "npz(path=typo.npz)"))
