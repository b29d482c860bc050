"""Success rates against independent libraries at equal budgets; images where nothing is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import evasion_model
import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks.evasion import square
from robustfl.randomness import stream

pytestmark = pytest.mark.peers


def library(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a peer's warnings are not ours to fix
        return pytest.importorskip(name, reason="needs the extra [peers]", exc_type=ImportError)


def rate(attack: Callable[[int], Tensor], seeds: int) -> float:
    """Accuracy under an attack, mean over random starts."""
    model, _, y = evasion_model.trained()
    values = [evasion_model.accuracy(model, attack(seed), y) for seed in range(seeds)]
    return sum(values) / seeds


def ours(spec: str, **params: Any) -> Callable[[int], Tensor]:
    model, x, y = evasion_model.trained()
    return lambda seed: robustfl.evasion(spec, **params).perturb(model, x, y, generator=stream(seed, "peers"))


def of_foolbox(name: str, eps: float, **params: Any) -> Callable[[int], Tensor]:
    foolbox = library("foolbox")
    model, x, y = evasion_model.trained()
    attack = getattr(foolbox.attacks, name)(**params)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")

    def run(seed: int) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return attack(wrapped, x, y, epsilons=eps)[1]

    return run


@pytest.mark.parametrize(
    ("spec", "name", "eps", "params"),
    [
        ("fgsm", "FGSM", 0.1, {}),
        ("fgsm(norm=l2)", "FGM", 0.6, {}),
        ("pgd(random_start=false, steps=20)", "LinfPGD", 0.1, {"steps": 20, "random_start": False}),
        ("pgd(norm=l2, random_start=false, steps=20)", "L2PGD", 0.6, {"steps": 20, "random_start": False}),
    ],
)
def test_the_same_images_as_foolbox(spec: str, name: str, eps: float, params: dict[str, Any]) -> None:
    params = {**params, "rel_stepsize": 0.1} if params else params
    step = {"step": eps / 10} if params else {}
    theirs = of_foolbox(name, eps, **params)(0)
    # A sign of a vanishing gradient is a matter of rounding.
    apart = (ours(spec, eps=eps, **step)(0) - theirs).abs().flatten(1).amax(1)
    assert float((apart > 1e-4).double().mean()) < 0.01


@pytest.mark.parametrize(
    ("spec", "name", "eps"),
    [("pgd", "LinfPGD", 0.05), ("pgd", "LinfPGD", 0.1), ("pgd(norm=l2)", "L2PGD", 0.3), ("pgd(norm=l2)", "L2PGD", 0.6)],
)
def test_success_rates_as_foolbox(spec: str, name: str, eps: float) -> None:
    mine = rate(ours(spec, eps=eps, steps=20, step=eps / 10), 3)
    assert mine == pytest.approx(rate(of_foolbox(name, eps, rel_stepsize=0.1, steps=20), 3), abs=0.01)


def test_the_same_images_as_torchattacks_by_momentum() -> None:
    torchattacks = library("torchattacks")
    model, x, y = evasion_model.trained()
    theirs = torchattacks.MIFGSM(model, eps=0.1, alpha=0.01, steps=10)(x, y)
    apart = (ours("mia", eps=0.1, steps=10, step=0.01)(0) - theirs).abs().flatten(1).amax(1)
    assert float((apart > 1e-4).double().mean()) < 0.01


def of_autoattack(name: str, norm: str, eps: float, budget: int) -> Callable[[int], Tensor]:
    library("pyautoattack")
    from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
    from pyautoattack.fab_pt import FABAttack_PT
    from pyautoattack.square import SquareAttack

    model, x, y = evasion_model.trained()
    common = {"norm": {"linf": "Linf", "l2": "L2"}[norm], "eps": eps, "device": "cpu", "n_restarts": 1}

    def run(seed: int) -> Tensor:
        if name == "apgd-ce":
            attack = APGDAttack(model, n_iter=budget, loss="ce", seed=seed, **common)
        elif name == "apgd-t":
            attack = APGDAttack_targeted(model, n_iter=budget, n_target_classes=9, seed=seed, **common)
        elif name == "fab-t":
            attack = FABAttack_PT(model, n_iter=budget, targeted=True, n_target_classes=9, seed=seed, **common)
        else:
            attack = SquareAttack(model, n_queries=budget, p_init=0.8, resc_schedule=False, seed=seed, **common)
        with torch.random.fork_rng():
            found = attack.perturb(x, y)
        far = (found - x).flatten(1).norm(dim=1, p={"linf": torch.inf, "l2": 2}[norm])
        return torch.where((far <= eps + 1e-5).view(-1, 1, 1, 1), found, x)

    return run


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("linf", 0.15), ("l2", 0.6)])
@pytest.mark.parametrize(("name", "budget"), [("apgd-ce", 30), ("apgd-t", 12), ("fab-t", 20)])
def test_success_rates_as_autoattack(name: str, budget: int, norm: str, eps: float) -> None:
    seeds = 3 if name == "apgd-ce" else 1
    mine = rate(ours(name, eps=eps, norm=norm, steps=budget), seeds)
    assert mine == pytest.approx(rate(of_autoattack(name, norm, eps, budget), seeds), abs=0.01)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.6)])
def test_known_difference_its_squares_never_touch_the_last_row_and_column(norm, eps, monkeypatch):
    """Corners are drawn one short there, which on small images leaves much out; in the L2 ball it also rescales."""
    theirs = rate(of_autoattack("square", norm, eps, 200), 2)
    assert rate(ours("square", eps=eps, norm=norm, queries=200), 2) < theirs - 0.02
    if norm == "linf":
        whole = square.window

        def short(corner: Tensor, side: Tensor, height: int, width: int) -> square.Window:
            less = torch.cat([(n - side) / (n - side + 1) for n in (height, width)], dim=-1)  # [queries 2]
            return whole(corner * less, side, height, width)

        monkeypatch.setattr(square, "window", short)
        assert rate(ours("square", eps=eps, norm=norm, queries=200), 2) == pytest.approx(theirs, abs=0.02)
