"""Every registered Byzantine attack keeps the common promises (STYLE 17)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import robustfl
from robustfl.attacks import forge_statistics
from robustfl.contracts import Attack, Forged, Rehearsal, View
from robustfl.errors import UsageError
from robustfl.papers import spelled_out
from robustfl.randomness import stream
from robustfl.registry import create, entries
from robustfl.testing import check

SPECS = [
    *(e.name for e in entries("attack") if not e.origin),
    "sf(mode=own)",
    "alie(sign=1, ddof=0)",
    "fang(against=krum)",
    "lazy(source=aggregate)",
    "min-max(deviation=unit_vec)",
    "min-sum(deviation=sign)",
    "mimic(variant=variance)",
    "opt(gaussian, search=golden)",
    "opt(mimic(variant=variance))",
    "opt(model-replacement)",
    "partial(fang)",
    "signguard-adaptive(order=random)",
    "timed(label-flip, every=2)",
    "timed(opt-alie, start=0)",
]
OWN_IDEAS = {"none", "inf", "nan", "zero", "random"}  # nothing to cite
NOT_ON_ARXIV = {
    "min-max": "NDSS 2021",
    "min-sum": "NDSS 2021",
    "opt": "NDSS 2021",
    "dba": "ICLR 2020",
    "a3fl": "NeurIPS 2023",
    "iba": "NeurIPS 2023",
}
POISONERS = {
    "a3fl", "altermin", "badnets", "blended", "chameleon", "dba", "dirty-labels", "edge-case", "iba", "label-flip",
    "model-replacement", "neurotoxin",
}  # fmt: skip
# Rows that could be honest ones: what harm they do is another matter than their distance to the mean.
INCONSPICUOUS = {"mimic", "neurotoxin", "lazy", "none"}


@pytest.fixture(params=SPECS)
def attack(request: pytest.FixtureRequest) -> Attack:
    return robustfl.attack(request.param)


def rows(count: int, d: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    noise = torch.randn(count, d, generator=stream(seed, "contract", count), dtype=torch.float64)
    return (noise + torch.arange(1, d + 1)).to(dtype)


def sight(attack: Attack, honest: torch.Tensor, f: int) -> View:
    """What the engine would hand the attack."""
    median = robustfl.defense("median")
    own = rows(f, honest.shape[1], 7, honest.dtype).to(honest.device)
    server = Rehearsal(lambda stack: median(stack, f=0))
    return View(n=len(honest) + f, f=f, honest=honest, own=own, aggregate=server).redacted(attack)


def forge(attack: Attack, view: View) -> torch.Tensor:
    return Forged.of(attack.forge(view, generator=stream(1, "attack"))).rows


def innermost(attack: Attack) -> Attack:
    """The attack inside all wrappers."""
    while attack.inner is not None:
        attack = attack.inner
    return attack


def test_it_keeps_every_law_of_the_suite(attack: Attack) -> None:
    assert {c.name: c.reason for c in check(attack) if not c.passed} == {}


WRAPPED = [spec for spec in SPECS if robustfl.attack(spec).inner is not None]


@pytest.mark.parametrize("spec", WRAPPED)
def test_a_wrapper_declares_no_less_than_what_it_wraps(spec: str) -> None:
    order, attack = ("blind", "partial", "omniscient", "defense"), robustfl.attack(spec)
    inner = attack.inner
    if attack.name != "partial":
        assert order.index(attack.knowledge) >= order.index(inner.knowledge)
    assert attack.needs_own >= inner.needs_own
    assert (attack.poisons_data, attack.triggers, attack.target) == (
        inner.poisons_data, inner.triggers, inner.target,
    )  # fmt: skip


def test_float32_agrees_with_float64(attack: Attack) -> None:
    exact, single = (sight(attack, rows(7, dtype=t), 3) for t in (torch.float64, torch.float32))
    if innermost(attack).name == "gaussian":  # float32 draws are other draws
        assert forge(attack, single).std() == pytest.approx(float(forge(attack, exact).std()), rel=0.7)
        return
    sent = forge(attack, single).double()
    torch.testing.assert_close(sent, forge(attack, exact), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_an_attack_that_sees_nothing_says_what_it_needs(attack: Attack) -> None:
    with pytest.raises(UsageError, match=repr(attack.name)):
        forge(attack, View(n=5, f=2))


def test_it_moves_the_plain_mean_or_sends_the_own_rows(attack: Attack) -> None:
    honest = rows(26)
    if not attack.forges or attack.name in INCONSPICUOUS:
        view = sight(attack, honest, 24)
        if attack.name == "mimic":
            assert any(torch.equal(forge(attack, view)[0], row) for row in honest)
            return
        assert view.own is not None
        assert torch.equal(forge(attack, view), view.own)
        return
    mean, std = honest.mean(0), honest.std(0)
    sent = forge(attack, sight(attack, honest, 24))
    shift = float((torch.cat([honest, sent]).mean(0) - mean).norm())
    assert not shift < 0.3 * float(min(mean.norm(), std.norm()))  # a shift that is not a number is one too


def test_on_statistics_only_the_target_is_attacked_and_variances_stay_valid(attack: Attack) -> None:
    for target in ("mean", "var", "both"):
        attacked_alone(attack, target)


def attacked_alone(attack: Attack, target: str) -> None:
    honest = rows(5)
    honest[:, 3:] = honest[:, 3:].abs()
    mask = torch.arange(6) >= 3
    view = dataclasses.replace(sight(attack, honest, 2), channel="statistics", variance=mask)
    if view.own is not None:
        view = dataclasses.replace(view, own=view.own.abs())
    sent = forge_statistics(attack, view, target=target, generator=stream(0, "attack"))
    assert sent.shape == (2, 6)
    assert not bool((sent[:, 3:] < 0).any())
    untouched = view.own if view.honest is None else honest.mean(0).expand(2, -1)
    kept = {"mean": mask, "var": ~mask, "both": mask & ~mask}[target]
    torch.testing.assert_close(sent[:, kept], untouched[:, kept])


def test_no_attackers_send_nothing(attack: Attack) -> None:
    assert robustfl.forge(attack, rows(5), f=0, defense=robustfl.defense("mean")).shape == (0, 6)


@pytest.mark.parametrize("spec", SPECS)
def test_its_facts_are_stated_and_repr_and_description_build_it_again(spec: str) -> None:
    attack = robustfl.attack(spec)
    assert eval(repr(attack), {type(attack).__name__: type(attack)}) == attack
    assert attack.knowledge in ("blind", "partial", "omniscient", "defense")
    assert NOT_ON_ARXIV.get(attack.name, "arXiv") in spelled_out(attack.paper) or attack.name in OWN_IDEAS
    assert ">>>" in (type(attack).__doc__ or "")
    assert attack.poisons_data is (innermost(attack).name in POISONERS)
    assert not attack.strength or "float" in str(
        next(f.type for f in dataclasses.fields(attack) if f.name == attack.strength)
    )
    assert attack.triggers is (attack.target is not None and "label" not in innermost(attack).name)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_of_an_attack_is_infinite(value: float) -> None:
    uncapped = {"eta_max"} if value == math.inf else set()  # the search is finite without a cap
    for attack in map(robustfl.attack, SPECS):
        for name in {f.name for f in dataclasses.fields(attack) if "float" in str(f.type)} - uncapped:
            with pytest.raises(UsageError, match=name):
                dataclasses.replace(attack, **{name: value})


@pytest.mark.parametrize("spec", [
    "min-max", "min-max(deviation=sign)", "min-max(deviation=unit_vec)", "min-sum", "min-sum(bound=min)", "hidra",
    "hidra(kappa=2, chunk=3)", "fang(against=krum)",
])  # fmt: skip
def test_closed_forms_send_what_their_reference_says(spec):
    (law,) = [c for c in check(create("attack", spec)) if c.name == "reference"]
    assert (law.passed, law.reason) == (True, "")
