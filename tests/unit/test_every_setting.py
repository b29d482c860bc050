"""Every setting of a cell is in its key and does something: what nothing depends on is ignored silently."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import robustfl
from robustfl.defenses import parse_pipeline
from robustfl.errors import UsageError
from robustfl.records import canonical
from robustfl.registry import create
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell, LearningRate
from robustfl.scenarios.expand import expand, key_of, resolve
from robustfl.scenarios.refusals import refusal
from robustfl.scenarios.spec import Scenario

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=300, test_limit=40)", "model": "mlp", "norm": "fbn", "defense": "nnm+median",
    "attack": "foe", "clients": 7, "f": 2, "rounds": 2, "batch": 8, "dtype": "float64", "evasions": ["fgsm"],
}  # fmt: skip
STEPS = {"algorithm": "fedavg(local_steps=2)"}
USERS = {
    **STEPS, "norm": "dual-bn(local=true)", "objective": "at", "at": "users(ids=(0, 1, 2))",
    "train_evasion": "pgd(steps=1)", "defense": "mean",
}  # fmt: skip
STYLES = [f"digits-domain(style={style}, limit=60, test_limit=30)" for style in ("clean", "textured", "shifted")]
MAPS = {"domains": STYLES[:2], "dataset": STYLES[0], "clients": 6, "model": "domains-cnn", "norm": "gn"}

# Per setting: what is put on SMALL, and what then makes a difference.
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "dataset": ({}, "digits(limit=310, test_limit=40)"),
    "partition": ({}, "gamma(gamma=0)"),
    "model": ({}, "mlp(hidden=(20,))"),
    "norm": ({}, "fbn(momentum=0.2)"),
    "algorithm": ({}, "dsgd(momentum=0.5)"),
    "objective": ({}, "wsm"),
    "attack": ({"defense": "mean"}, "foe(eta=4)"),
    "defense": ({}, "nnm+trimmed-mean"),
    "statistics_defense": ({}, "mean"),
    "propagation": ({**USERS, "objective": "pnc(warmup=0)"}, "fedrbn"),
    "domains": (MAPS, [STYLES[0], STYLES[2]]),
    "domain_share": (MAPS, 0.7),
    "domain_users": (MAPS, [2, 4]),
    "user_sizes": ({**MAPS, "algorithm": "fedavg(local_steps=2)"}, "dirichlet"),
    "tests": ({}, "own"),
    "imbalance": ({}, 20.0),
    "at": (USERS, "users(ids=(0, 1))"),
    "finetune": ({**USERS, "rounds": 3, "f": 0}, "st(rounds=1)"),
    "train_evasion": (USERS, "pgd(steps=2)"),
    "byzantine": ({**USERS, "f": 1}, "at"),
    "stop": ({"rounds": 4}, 2),
    "quota": ({"participation": 0.8, "f": 3, "f_declared": 1, "clients": 9, "rounds": 4}, True),
    "attackers_data": ({"partition": "gamma(gamma=0)"}, "copied"),
    "server_samples": ({"defense": "fltrust", "norm": "gn", "server_samples": 20}, 30),
    "across": ({**MAPS, "norm": "fedbn", "algorithm": "fedavg(local_steps=2)"}, True),
    "representations": ({}, 3),
    "branch": (USERS, "clean"),
    "scaling": ({}, "unit"),
    "evasions": ({}, ["fgsm(eps=0.2)"]),
    "clients": ({}, 8),
    "f": ({"f_declared": 2}, 1),
    "f_declared": ({}, 1),
    "participation": ({}, 0.8),
    "scope": ({}, "update"),
    "target": ({"defense": "mean"}, "both"),
    "rounds": ({}, 3),
    "batch": ({}, 9),
    "schedule": ({}, {"lr": 0.2}),
    "flip": ({}, True),
    "crop": ({}, 1),
    "validation": ({}, 0.2),
    "rotate": ({}, 20.0),
    "select": ({"validation": 0.4, "evaluate_every": 1}, "validation"),
    "forgetting": ({**STEPS, "validation": 0.2}, True),
    "evaluate_every": ({}, 2),
    "evaluate_ra": ({}, True),
    "tail": ({}, 2),
    "ra_limit": ({}, 7),
    "seed": ({}, 1),
    "dtype": ({}, "float32"),
    "precision": ({"dtype": "float32"}, "bf16"),
}


def cell_of(setting: str, *, changed: bool) -> Cell:
    base, value = CHANGES[setting]
    more = {setting: value} if changed else {}
    if setting == "domains" and changed:
        more["dataset"] = value[0]
    return Cell.of({**SMALL, **base, **more})


@cache
def found(cell: Cell) -> str:
    """What a cell measures; nothing that merely repeats its settings."""
    torch.set_num_threads(1)
    record = run_cell(cell, fingerprint="x")
    assert (record.status, record.reason) == ("done", None)
    m = record.metrics
    measured = [m.sa, m.loss, list(m.ra.values()), m.ra_worst, m.per_client, list(m.per_user.values()), m.samples]
    groups = [list(group.values()) for group in m.groups.values()]
    return canonical(
        [
            measured,
            groups,
            [p.model_dump() for p in record.curve],
            record.certificates.get("forgetting"),
            record.certificates.get("representations"),
        ]
    )


def test_no_setting_is_missing_here() -> None:
    with_a_file = {"init"}  # tests/unit/test_initial_weights.py
    assert set(CHANGES) | {"engine"} | with_a_file == set(Cell.model_fields)


@pytest.mark.parametrize("setting", CHANGES)
def test_setting_changes_result_and_key(setting: str) -> None:
    before, after = cell_of(setting, changed=False), cell_of(setting, changed=True)
    assert key_of(resolve(before, "x")) != key_of(resolve(after, "x"))
    assert (refusal(before), refusal(after)) == (None, None)
    assert found(before) != found(after)


def test_engine_changes_the_key_alone() -> None:
    fast, reference = (Cell.of({**SMALL, "engine": engine}) for engine in ("fast", "reference"))
    assert key_of(resolve(fast, "x")) != key_of(resolve(reference, "x"))
    losses = [run_cell(cell, fingerprint="x").metrics.loss for cell in (fast, reference)]  # type: ignore[union-attr]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


def test_every_part_of_a_schedule_is_used() -> None:
    schedules = [
        {}, {"lr": 0.2}, {"kind": "cosine"}, {"kind": "geometric", "factor": 0.9}, {"kind": "geometric", "factor": 0.8},
        {"kind": "step", "values": [0.1, 0.01], "milestones": [2]},
        {"kind": "step", "values": [0.1, 0.02], "milestones": [2]},
        {"kind": "step", "values": [0.1, 0.01], "milestones": [1]},
    ]  # fmt: skip
    rates = [tuple(LearningRate(**s).function(4)(t) for t in range(4)) for s in schedules]
    assert len(set(rates)) == len(schedules)
    assert rates[2] == pytest.approx([0.05 * (1 + c) for c in (1, 0.5**0.5, 0, -(0.5**0.5))])
    assert rates[3] == pytest.approx((0.1, 0.09, 0.081, 0.0729))
    assert rates[5] == (0.1, 0.1, 0.01, 0.01)


@pytest.mark.parametrize(
    "rule",
    [
        {"evasions": ["pgd"]}, {"evasions": [["pgd(steps=7)"]]}, {"evasions": "pgd"}, {"defense": "nnm + median"},
        {"attack": "foe(eta=2.0)"}, {"attack": {"name": "foe", "eta": 2}}, {"attack": "foe"},
        {"schedule": {"lr": 0.2}}, {"norm": ["gn", "fbn(momentum=0.2)"]},
    ],
)  # fmt: skip
def test_exclusion_matches_however_a_value_is_written(rule: dict[str, Any]) -> None:
    axes = {"attack": ["foe(eta=2)", "sf"], "defense": ["nnm+median", "mean"], "evasions": [["pgd"], []],
            "schedule": {"lr": [0.1, 0.2]}, "norm": ["gn", "naive-bn"]}  # fmt: skip
    cells = expand(Scenario.of({"name": "x", "cell": axes, "exclude": [rule]}))
    assert len(cells) == 16


def test_at_users_that_nobody_trains_adversarially_are_told() -> None:
    record = run_cell(Cell.of({**SMALL, "at": "all"}), fingerprint="x")
    assert any("nobody trains adversarially" in w for w in record.certificates["warnings"])


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
def test_gamma_makes_up_for_the_divisor(name: str) -> None:
    honest = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = (robustfl.forge(f"{name}(ddof={ddof})", honest, f=2) for ddof in (1, 0))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_rows_made_of_several_clients_have_no_weights_to_weigh_by() -> None:
    words = "weighted=True changes nothing: 5 rows made of 10 weigh alike"
    assert parse_pipeline("bucketing(s=2)+median(weighted=true)").refusal(10, 1) == f"median: {words}"
    assert parse_pipeline("bucketing(s=2)+median").refusal(10, 1) is None
    assert parse_pipeline("nnm+median(weighted=true)").refusal(10, 1) is None
