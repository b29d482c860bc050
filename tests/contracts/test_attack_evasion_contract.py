"""Every registered evasion attack keeps the common promises (STYLE 17)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import robustfl
from robustfl.attacks import evasion
from robustfl.contracts import Evasion
from robustfl.errors import UsageError
from robustfl.papers import spelled_out
from robustfl.randomness import stream
from robustfl.registry import create, entries
from robustfl.testing import check

NAMES = [e.name for e in entries("evasion") if not e.origin and e.cls.adversarial]  # type: ignore[attr-defined]
# Budgets that suffice for the small network below.
CHEAP = {
    "apgd-ce": "apgd-ce(steps=10)",
    "apgd-t": "apgd-t(steps=10)",
    "fab-t": "fab-t(steps=10)",
    "square": "square(queries=40)",
    "autoattack": "autoattack(steps=4, queries=16, targets=2)",
    "worst": "worst(of=pgd(eps=0.1)+square(eps=0.1, queries=40))",
}
IN_L2 = ("fgsm", "pgd", "mia", "apgd-ce", "apgd-t", "fab-t", "square", "autoattack")
SPECS = [
    *(CHEAP.get(name, name) for name in NAMES),
    *(f"{CHEAP.get(name, name + '()')[:-1]}, norm=l2)".replace("(, ", "(") for name in IN_L2),
    "pgd(targeted=true)",
    "fgsm(targeted=true, target=2)",
    "mia(targeted=true, norm=l2)",
    "pgd(restarts=2, keep=best)",
    "apgd-ce(steps=5, restarts=2)",
    "fab-t(steps=5, restarts=2)",
    "square(queries=20, restarts=2)",
]
EPS = 0.1
# These change few images of a wide margin: they stop at success, and end nowhere without.
SEARCHES = {"lsa", "fab-t"}


@pytest.fixture(params=SPECS)
def attack(request: pytest.FixtureRequest) -> Evasion:
    made = create("evasion", request.param)
    assert isinstance(made, Evasion)
    return dataclasses.replace(made, eps=EPS) if hasattr(made, "eps") else made


def network(dtype: torch.dtype = torch.float64, device: str = "cpu") -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 5))
    for i, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, generator=stream(i, "weights"))
    return model.to(device, dtype)


def images(dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Six images, some at the border of the pixel range; all but the last are classified right."""
    x = torch.rand(6, 3, 4, 4, generator=stream(0, "pixels"), dtype=torch.float64)
    x[0], x[1, 0] = 0.0, 1.0
    y = network()(x).argmax(1)
    y[5] = (y[5] + 1) % 5
    return x.to(device, dtype), y.to(device)


def test_it_keeps_every_law_of_the_suite(attack: Evasion) -> None:
    assert {c.name: c.reason for c in check(attack) if not c.passed} == {}


def test_what_it_aims_at_comes_nearer(attack: Evasion) -> None:
    (x, y), model = images(), network()
    found = attack.perturb(model, x, y)
    logits = model(x)
    if getattr(attack, "targeted", False):
        fixed = attack.target
        goal = logits.scatter(1, y[:, None], torch.inf).argmin(1) if fixed is None else torch.full_like(y, fixed)
        sign = -1.0
    else:
        goal, sign = y, 1.0
    loss = nn.functional.cross_entropy
    gained = sign * (loss(model(found), goal, reduction="none") - loss(logits, goal, reduction="none"))
    still = (goal == y) if sign < 0 else torch.zeros_like(y, dtype=torch.bool)
    assert attack.name == "lsa" or bool((gained >= 0).all())  # its greedy steps may go wrong
    if getattr(attack, "spares_fooled", False):
        assert torch.equal(found[5], x[5])
        still[5] = True
    share = float((gained > 0)[~still].double().mean())
    assert share == 1.0 or (attack.name in SEARCHES and share > 0)


class BlackBox(nn.Module):
    """A network that fails when attacked as a black box must not be."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not any(p.requires_grad for p in self.parameters())
        assert not torch.is_grad_enabled()
        assert not x.requires_grad
        return self.inner(x)


@pytest.mark.parametrize("spec", [s for s in SPECS if getattr(create("evasion", s), "black_box", False)])
def test_a_black_box_never_uses_autograd(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("autograd was used")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    monkeypatch.setattr(torch.Tensor, "backward", refuse)
    attack = create("evasion", spec)
    x, y = images()
    assert not torch.equal(attack.perturb(BlackBox(), x, y), x)


def test_only_two_are_black_boxes() -> None:
    kinds = {name: getattr(create("evasion", name), "black_box", False) for name in NAMES}
    assert [name for name, black in kinds.items() if black] == ["lsa", "square"]


def test_bad_inputs_are_refused(attack: Evasion) -> None:
    x, y = images()
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        attack.perturb(network(), x - 0.5, y)
    with pytest.raises(UsageError, match="6 class numbers"):
        attack.perturb(network(), x, y[:3])
    with pytest.raises(UsageError, match="class numbers"):
        attack.perturb(network(), x, y.double())


def test_its_facts_are_stated_and_repr_and_description_build_it_again(attack: Evasion) -> None:
    assert eval(repr(attack), vars(evasion)) == attack
    assert "arXiv" in spelled_out(attack.paper)
    assert ">>>" in (type(attack).__doc__ or "")
    assert isinstance(attack.passes, int) and attack.passes > 0  # noqa: PT018
    assert robustfl.evasion(attack.name).name == attack.name


def test_a_negative_radius_is_refused() -> None:
    for name in NAMES:
        if hasattr(create("evasion", name), "eps"):
            with pytest.raises(UsageError, match=r"eps=-0.1 must be ≥ 0"):
                robustfl.evasion(name, eps=-0.1)
