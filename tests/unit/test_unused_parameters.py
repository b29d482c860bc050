"""A parameter that another one leaves without a reader is refused, not ignored silently."""

from __future__ import annotations

import pytest
import torch

import robustfl
from robustfl.defenses import parse_pipeline
from robustfl.errors import UsageError
from robustfl.registry import create
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import refusal


@pytest.mark.parametrize(
    ("kind", "unused", "used"),
    [
        ("attack", "opt-foe(delta=5)", "opt-foe(search=linear, delta=5)"),
        ("attack", "opt-alie(search=golden, ratio=0.5)", "opt-alie(search=linear, ratio=0.5)"),
        ("attack", "opt(attack=foe, delta=5)", "opt(attack=foe, search=linear, delta=5)"),
        ("attack", "mimic(warm_up=3)", "mimic(variant=variance, warm_up=3)"),
        ("attack", "mimic(variant=variance, epsilon=1)", "mimic(epsilon=1)"),
        ("attack", "fang(threshold=0.1)", "fang(against=krum, threshold=0.1)"),
        ("attack", "fang(against=krum, b=3)", "fang(against=median, b=3)"),
        ("attack", "lazy(source=aggregate, period=2)", "lazy(period=2)"),
        ("evasion", "pgd(step=0.1, step_rule=released)", "pgd(step_rule=released)"),
        ("norm", "hbn(mixture=batch, lam=0.5)", "hbn(mixture=batch, eval_stats=ema, lam=0.5)"),
        ("algorithm", "fedavg(epochs=2, local_steps=3)", "fedavg(local_steps=3)"),
        ("algorithm", "moon(epochs=2, local_steps=3)", "moon(epochs=2)"),
        ("algorithm", "scaffold(epochs=2, local_steps=3)", "scaffold(epochs=2)"),
        ("defense", "fedrbn(similarity=uniform, temperature=1)", "fedrbn(temperature=1)"),
    ],
)
def test_what_nothing_reads_is_refused(kind: str, unused: str, used: str) -> None:
    with pytest.raises(UsageError, match="changes nothing unless"):
        create(kind, unused)
    assert create(kind, used).name == used.partition("(")[0]


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
@pytest.mark.parametrize("deviation", ["sign", "unit_vec"])
def test_a_divisor_of_a_deviation_that_is_not_used_is_refused(name: str, deviation: str) -> None:
    with pytest.raises(UsageError, match="ddof=0 changes nothing unless deviation=std"):
        create("attack", f"{name}(deviation={deviation}, ddof=0)")


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
def test_gamma_makes_up_for_the_divisor(name: str) -> None:
    honest = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = (robustfl.forge(f"{name}(ddof={ddof})", honest, f=2) for ddof in (1, 0))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_rows_made_of_several_clients_have_no_weights_to_weigh_by() -> None:
    words = "weighted=True changes nothing: 5 rows made of 10 weigh alike"
    assert parse_pipeline("bucketing(s=2)+median(weighted=true)").refusal(10, 1) == f"median: {words}"
    assert parse_pipeline("bucketing(s=2)+median").refusal(10, 1) is None
    assert parse_pipeline("nnm+median(weighted=true)").refusal(10, 1) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"defense": "median(weighted=true)"}, "all clients weigh alike with dsgd"),
        ({"defense": "median(weighted=true)", "algorithm": "fedavg(weighting=uniform)"}, "all clients weigh alike"),
        ({"defense": "median(weighted=true)", "algorithm": "fedavg"}, None),
        ({"statistics_defense": "median(weighted=true)"}, None),  # a merge may weigh by values of unequal batches
        ({"statistics_defense": "median(weighted=true)", "norm": "hbn"}, None),
        ({"statistics_defense": "median", "norm": "centralised-bn"}, "nothing to merge: centralised-bn is one machine"),
        ({"norm": "fbn(joint=true)"}, "joint=True changes nothing: mean takes statistics column by column"),
        ({"norm": "fbn(joint=true)", "defense": "nnm+median"}, None),
        ({"norm": "fbn(joint=true)", "defense": "krum"}, None),
    ],
)
def test_a_cell_whose_rule_could_not_do_what_it_says_is_refused(settings: dict[str, str], words: str | None) -> None:
    reason = refusal(Cell.of(settings))
    assert (reason is None) if words is None else (reason is not None and words in reason)
