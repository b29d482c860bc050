"""The public contract suite: robustfl's own methods pass it, and laws find the mistakes that they are for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robustfl
from robustfl import registry
from robustfl.contracts import Method, Propagation
from robustfl.errors import UsageError
from robustfl.testing import Check, check, check_attack, check_defense, laws

KINDS = ("algorithm", "objective")  # of the others tests/contracts
OWN = [e for kind in KINDS for e in registry.entries(kind) if not e.origin]
OWN += [e for e in registry.entries("defense") if not e.origin and issubclass(e.cls, Propagation)]
pytestmark = pytest.mark.usefixtures("clean_registry")


def failed(checks: list[Check]) -> dict[str, str]:
    return {c.name: c.reason for c in checks if not c.passed}


# --- robustfl's own --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_robustfls_own_methods_keep_their_contract(entry: registry.Entry) -> None:
    assert failed(check(entry.cls)) == {}


@pytest.mark.parametrize("spec", [
    "dataset digits", "dataset digits-domain", "model mlp", "model digits-cnn", "model simple-cnn",
    pytest.param("model resnet20", marks=pytest.mark.slow), pytest.param("model fbn-cnn", marks=pytest.mark.slow),
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


# --- planted mistakes ------------------------------------------------------------------------------------------------

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
from robustfl.contracts.norm import ADVERSARIAL, CLEAN, through
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
SERVER = """def steps(self, samples, batch): return 1
    def server(self, theta, aggregate, lr): return theta - lr * aggregate"""
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
    "algorithm": ("Algorithm", "def local(self, work):", SERVER),
    "objective": ("Objective", "def backward(self, model, x, y, task):", ""),
    "plain": ("Objective", "def per_sample(self, logits, y, prior):", ""),
    "propagation": ("Propagation", "def weights(self, sources, target, layers):", ""),
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
DESCEND = "return work.gradient(work.theta), None"
LOSS = "loss = nn.functional.cross_entropy(model(x), y)\nloss.backward()\nreturn loss.detach()"
FARTHEST = "far = (X - X.median(0).values).norm(dim=1)\nreturn X[far.sort(stable=True).indices[: len(X) - f]].mean(0)"
PLAIN = {"facts": "plain: ClassVar = True"}
FORM = "shape, dtype and device"
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
    ("attack", FORM, "(2, 3) of", "return torch.zeros(view.f, 3, dtype=view.honest.dtype)"),
    ("attack", FORM, "float32", f"return ({MEAN}).float()"),
    ("attack", FORM, "return it with .detach()", f"return ({MEAN}).requires_grad_()"),
    ("attack", FORM, "(1, 1) of",
     f"return {MEAN} if view.channel == 'update' else view.honest.new_zeros(1, 1)"),
    ("attack", "inputs untouched", "view.honest was written to", f"view.honest.mul_(2)\nreturn {MEAN}"),
    ("attack", "inputs untouched", "view.honest was written to", f"view.honest.numpy()[:] = 7\nreturn {MEAN}"),
    ("attack", "inputs untouched", "view.previous was written to",
     f"if view.previous is not None: view.previous.mul_(-1)\nreturn {MEAN}"),
    ("attack", "inputs untouched", "view.state['v'] was written to",
     f"v = view.state.get('v', torch.zeros(1))\nreturn Forged({MEAN}, {{'v': v.add_(1)}})"),
    ("attack", "inputs untouched", "return a clone", "return view.honest[:1].expand(view.f, -1)"),
    ("attack", "runs", "a round later", f"return Forged({MEAN}, {{str(view.round): torch.zeros(1)}})"),
    ("attack", "finite", "NaN", f"return {MEAN} * float('nan')"),
    ("attack", "documented", "no docstring", f"return {MEAN}", {"facts": "__doc__ = None"}),
    ("attack", "images", "poisons_data is False", f"return {MEAN}",
     {"more": "def poison(self, x, y, *, classes, generator, attacker, round): return x, y * 0"}),
    ("attack", "images", "poisoned pixels reach", f"return {MEAN}", {"facts": "poisons_data: ClassVar = True",
     "more": "def poison(self, x, y, *, classes, generator, attacker, round): return x + 1, y"}),
    ("attack", "images", "trigger leaves images", f"return {MEAN}",
     {"facts": "triggers: ClassVar = True", "more": "target = property(lambda self: 3)"}),
    ("rule", FORM, "float64", "return X.double().mean(0)"),
    ("rule", "inputs untouched", "context.state['v'] was written to",
     "v = context.state.get('v', torch.zeros(1))\nreturn Aggregated(X.mean(0), {'v': v.add_(1)})"),
    ("rule", "no harm", "rows that all lie", "return -X.mean(0)"),
    ("rule", "reference", "away from its reference", "return X.mean(0)",
     {"more": CLIENTS + "\n    def reference(self, X, *, f, context): return X.median(0).values"}),
    ("rule", "precision", "differ by",
     "return X.half().mean(0).to(X.dtype) if X.dtype == torch.float32 else X.mean(0)"),
    ("rule", "state", "a round later", "return Aggregated(X.mean(0), {} if context.state else {'v': X[0].clone()})"),
    ("rule", "clients remembered", "by their place", "old = context.state.get('v', X)\n"
     "return Aggregated(((X - old).norm(dim=1)[:, None] * X).mean(0) + X.mean(0), {'v': X.clone()})"),
    ("rule", "parameters declared", "scale = 1.0 is no parameter and in no key", "return self.scale * X.mean(0)",
     {"facts": "scale = 1.0"}),
    ("rule", "clients", "AssertionError", "assert len(X) > 4\nreturn X.mean(0)"),
    ("step", "runs", "not an int", "return torch.eye(len(gram))", {"more": "def min_clients(self, f): return 1.0 * f"}),
    ("step", FORM, "(6, 7) of", "return torch.eye(len(gram))[1:]"),
    ("evasion", FORM, "(4, 192) of", "return x.flatten(1)"),
    ("evasion", FORM, "no rows", "if len(x) == 0: raise ValueError('no rows')\nreturn x.clone()"),
    ("evasion", "ball", "not in [0, 1]", ASCEND + "return x + self.eps * g.sign()"),
    ("evasion", "ball", "eps is 0.1", ASCEND + "return (x + 2 * self.eps * g.sign()).clamp(0, 1)"),
    ("evasion", "ball", "with eps=0 it moves", "return (x + 0.05).clamp(0, 1)"),
    ("evasion", "inputs untouched", "x was written to",
     ASCEND + "x.add_(self.eps * g.sign()).clamp_(0, 1)\nreturn x.clone()"),
    ("evasion", "inputs untouched", "x was made to require", "x.requires_grad_(True)\nreturn x.detach().clone()"),
    ("evasion", "model untouched", "mode or hooks of model",
     "was = [m for m in model.modules() if m.training]\nmodel.eval()\nz = model(x)\n"
     "for m in was: m.training = True\nreturn x.clone()"),
    ("evasion", "model untouched", "mode or hooks of model is not as before",
     "model.eval()\n" + ASCEND + "return (x + self.eps * g.sign()).clamp(0, 1)"),
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
    ("partition", "parts", "parts must not overlap",
     SPLIT + "return [parts[0], *(np.append(parts[k - 1][-1], parts[k]) for k in range(1, clients))]"),
    ("partition", "inputs untouched", "labels was written to", "labels[:] = 0\n" + SPLIT + "return parts"),
    ("partition", "no side effects", "generator of numpy",
     "return np.array_split(np.random.permutation(len(labels)), clients)"),
    ("dataset", "arrays", "floats must lie in [0, 1]",
     LOAD + "train_x=a.train_x.astype(np.float32) - 1, test_x=a.test_x.astype(np.float32))"),
    ("dataset", "arrays", "load() says 'other'", LOAD + "fingerprint='other')"),
    ("dataset", "arrays", "train_y: label 10 of image 9; labels must be in [0, 10)",
     LOAD + "train_y=a.train_y + 1, test_y=a.test_y + 1, fingerprint='known')"),
    ("dataset", "test apart", "test images are training images, too",
     LOAD + "test_x=a.train_x, test_y=a.train_y, fingerprint='known')"),
    ("model", "runs", "build returned NoneType", "return None"),
    ("model", FORM, "(3, 9) of", LINEAR.replace("classes)", "classes - 1)") + ")"),
    ("model", "finite", "NaN", LINEAR + "nn.Threshold(9, float('nan')))"),
    ("model", "norms", "nobody asks layer '2' (BatchNorm1d)", LINEAR + "nn.BatchNorm1d(classes))"),
    ("model", "initialised", "a constructor drew", LINEAR + ")", {"more": "def initialise(self, *rest): pass"}),
    ("model", "images apart", "depend on the rest of the batch",
     "class Centring(nn.Module):\n    def forward(self, x): return x - x.mean(0, keepdim=True)\n"
     "return nn.Sequential(nn.Flatten(), Centring(), nn.Linear(shape[0] * shape[1] * shape[2], classes))"),
    ("model", "attackable", "hides the model from evasion",
     "net = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
     "net.register_forward_hook(lambda m, i, y: y if m.training else y.detach() + 0 * y)\nreturn net"),
    ("algorithm", "learns", "is a sign wrong?", DESCEND, {"more": SERVER.replace("theta - lr", "theta + lr")}),
    ("algorithm", "clients apart", "gradient.norm(dim=-1",
     "gradient = work.gradient(work.theta)\nreturn gradient / gradient.norm().clamp(min=1), None"),
    ("algorithm", "steps", "local takes 2 batches, steps says 1",
     "return work.gradient(work.theta) + work.gradient(work.theta), None"),
    ("algorithm", "steps", "asks names 'one_batch', and steps(40, 16) is 2", DESCEND, {
        "facts": "asks = property(lambda self: frozenset({'one_batch'}))",
        "more": SERVER.replace("return 1", "return 2"),
    }),
    ("algorithm", "inputs untouched", "work.theta was written to", DESCEND,
     {"more": SERVER.replace("theta - lr * aggregate", "theta.sub_(aggregate, alpha=lr)")}),
    ("algorithm", "runs", "remembers is False", "gradient = work.gradient(work.theta)\nreturn gradient, gradient"),
    ("plain", "samples apart", "holds the samples of all clients",
     "return nn.functional.cross_entropy(logits - logits.mean(0), y, reduction='none')", PLAIN),
    ("objective", "samples apart", "the mean of per_sample is", LOSS.replace("y)", "y, label_smoothing=0.1)"), PLAIN),
    ("objective", FORM, "return it with .detach()", LOSS.replace(".detach()", "")),
    ("objective", "roles", "train alike", LOSS, {"facts": "needs_adversaries: ClassVar = True"}),
    ("objective", "clean branch", "trains_clean is True, but batches of AT users never go through",
     "with through(model, ADVERSARIAL if task.adversarial else CLEAN): " + LOSS),
    ("objective", "clean branch", "trains_clean is False, but batches of AT users train", LOSS,
     {"facts": "trains_clean: ClassVar = False"}),
    ("propagation", "weights", "compares is False", "return torch.softmax(-(sources - target).norm(dim=1), 0)",
     {"facts": "compares: ClassVar = False"}),
]  # fmt: skip


SEVERAL = {
    ("evasion", FORM), ("model", FORM), ("model", "finite"), ("norm", "entries"), ("norm", "finite"),
    ("norm", "inputs untouched"), ("norm", "report"),
}  # fmt: skip
"""Where a mistake breaks further laws; elsewhere it breaks its own alone."""


@pytest.mark.parametrize(
    ("kind", "law", "words", "body", "options"),
    [pytest.param(*fault[:4], dict(*fault[4:]), id=f"{fault[0]}: {fault[1]}: {fault[2]}") for fault in FAULTS],
)
def test_a_mistake_breaks_its_law(kind, law, words, body, options, plug_in):
    facts = {"facts": "eps: float = 0.1"} if kind == "evasion" else {}
    found = failed(check(plug_in(kind, body, **facts, **options)))
    assert words in found.get(law, ""), found
    assert list(found) == [law] or (kind, law) in SEVERAL


@pytest.mark.parametrize(("body", "words"), [
    (FARTHEST, ""), ("return X.mean(0)", "ignores f"), ("return X[: len(X) - f].mean(0)", "depends on the order of"),
])  # fmt: skip
def test_where_rules_may_differ_a_fact_is_told_and_nothing_fails(body: str, words: str, plug_in: Any) -> None:
    checks = check(plug_in("rule", body))
    assert failed(checks) == {}
    assert [c.name for c in checks if words in c.reason and c.reason.startswith("fact: ")] == ["behaviour"] * bool(
        words
    )


@pytest.mark.parametrize(("kind", "law", "body"), [
    ("attack", "deterministic", f"return {MEAN} + time.perf_counter()"),
    ("attack", "no side effects", f"return {MEAN} + torch.rand(1, dtype=torch.float64)"),
    ("rule", "runs", "if f == 2: raise ZeroDivisionError('two attackers')\nreturn X.mean(0)"),
])  # fmt: skip
def test_one_cause_is_one_failure_and_the_rest_names_it(kind: str, law: str, body: str, plug_in: Any) -> None:
    checks = check(plug_in(kind, body))
    assert [c.name for c in checks if not c.passed] == [law]
    assert {c.because for c in checks if c.because} == {law}


@pytest.mark.parametrize(("kind", "body", "options"), [
    ("algorithm", DESCEND, {}), ("plain", "return nn.functional.cross_entropy(logits, y, reduction='none')", PLAIN),
])  # fmt: skip
def test_what_is_sound_passes(kind: str, body: str, options: dict[str, str], plug_in: Any) -> None:
    assert failed(check(plug_in(kind, body, **options))) == {}


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
    with pytest.raises(UsageError, match=r"there is no .*typo\.npz"):
        check(registry.create("dataset", "npz(path=typo.npz)"))
