"""Random streams of whole runs: unlike draws never share one, and data and clients draw alike under every attack."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robustfl import randomness
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=300, test_limit=40)", "model": "mlp(hidden=(8,))", "clients": 10, "f": 1, "rounds": 2,
    "batch": 8, "evasions": ["pgd(steps=1)", "pgd(steps=2)"], "partition": "dirichlet(alpha=1, min_size=12)",
    "validation": 0.2, "server_samples": 20, "participation": 0.8, "quota": True, "flip": True,
}  # fmt: skip
USERS: dict[str, Any] = {
    "norm": "dual-bn(local=true)", "at": "users(ids=(0, 1, 2, 3))", "objective": "pnc(warmup=0)", "byzantine": "at",
    "algorithm": "fedavg(local_steps=2)", "propagation": "fedrbn+median", "train_evasion": "pgd(steps=1)",
}  # fmt: skip
RULE = "bucketing(s=1)+flame(noise=0.1)"
SHARED = {"statistics_defense": "bucketing(s=1)+median"}
VARIANTS: dict[str, dict[str, Any]] = {
    "noise, defended": {"attack": "gaussian", "target": "both", "defense": RULE},
    "backdoor, defended": {"attack": "dba", "defense": RULE},
}
OF_ATTACK_AND_DEFENSE = ("attack", "poison", "defense")
REFRESHED = "statistics_aggregation.refreshed"
"""What is merged for a test alone, is carried nowhere, and draws as the round that follows it begins to."""

Key = tuple[Any, ...]
Drawn = Callable[[dict[str, Any]], dict[Key, set[str]]]


def of_others(found: dict[Key, set[str]]) -> set[Key]:
    return {key for key in found if str(key[1]).partition("-")[0] not in OF_ATTACK_AND_DEFENSE}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """The streams that a run of a cell asks for, each with the lines that asked."""
    made: dict[Key, set[str]] = defaultdict(set)
    derive = randomness.derive

    def spy(seed: int, *names: str | int) -> int:
        frame = sys._getframe(2)
        while frame.f_code.co_name in ("stream", "_stream", "<lambda>") and frame.f_back is not None:
            frame = frame.f_back
        made[seed, *names].add(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}:{frame.f_lineno}")
        return derive(seed, *names)

    def run(settings: dict[str, Any]) -> dict[Key, set[str]]:
        made.clear()
        record = run_cell(Cell.of({**SMALL, **settings}), fingerprint="x")
        assert record.status == "done", record.reason
        return dict(made)

    monkeypatch.setattr(randomness, "derive", spy)
    return run


@pytest.mark.parametrize(
    "settings",
    [{"norm": "fbn", **SHARED}, {"norm": "hbn", "algorithm": "fedavg", **SHARED}, {"norm": "fedtan", **SHARED}, USERS],
    ids=lambda s: s["norm"],
)
def test_a_stream_has_one_reader_and_data_do_not_know_who_attacks_or_defends(settings, drawn):
    whole = {"participation": 1.0, "quota": False, "algorithm": "fedavg"} if settings["norm"] == "fedtan" else {}
    plain = of_others(drawn({**settings, **whole}))
    byzantine = Cell.of({**SMALL, **settings}).settings.byzantine()
    for name, variant in VARIANTS.items():
        found = drawn({**settings, **whole, **variant})
        readers = {key: [line for line in who if not line.startswith(REFRESHED)] for key, who in found.items()}
        assert {key: who for key, who in readers.items() if len(who) > 1} == {}, name
        assert len(of_others(found)) < len(found)
        assert of_others(found) <= plain, name
        # Attackers who forge what they send need no batches.
        assert [key for key in plain - of_others(found) if len(key) < 3 or key[2] not in byzantine] == [], name


def test_every_client_looks_at_its_data_in_an_order_of_every_round(drawn: Drawn) -> None:
    settings = {"norm": "hbn", "algorithm": "fedavg(local_steps=1)", "participation": 1.0, "quota": False}
    expected = {(0, "statistics", k, t) for k in range(SMALL["clients"]) for t in range(SMALL["rounds"])}
    assert {key for key in drawn(settings) if key[1] == "statistics"} >= expected


def test_statistics_for_the_test_come_from_those_who_trained_last(drawn: Drawn) -> None:
    settings = {"norm": "hbn(eval_stats=subset)", "algorithm": "fedavg(local_steps=1)", "participation": 0.4}
    sample, end = Cell.of({**SMALL, **settings}).settings.sample, SMALL["rounds"]
    assert set(sample(end - 1)) != set(sample(end))
    asked = {key[2] for key in drawn(settings) if key[1] == "statistics" and key[3] == end}
    assert asked == set(sample(end - 1))


def test_a_second_aggregation_of_a_round_draws_from_a_stream_of_its_own(drawn: Drawn) -> None:
    found = drawn({"algorithm": "scaffold(local_steps=1)", "norm": "none", "defense": RULE})
    assert {key for key in found if key[1] == "defense-second"} == {(0, "defense-second", t) for t in (0, 1)}


def test_every_exchange_in_a_layer_has_streams_of_its_own(drawn: Drawn) -> None:
    """FedTAN's network has two layers less one with statistics: a mean and a variance forwards, two sums backwards."""
    whole = {"participation": 1.0, "quota": False, "algorithm": "fedavg"}
    found = drawn({"norm": "fedtan", **whole, **SHARED, **VARIANTS["noise, defended"]})
    exchanges = {(0, t, place) for t in range(SMALL["rounds"]) for place in range(4)}
    for name in ("defense-lockstep", "attack-lockstep"):
        assert {(key[0], *key[2:]) for key in found if key[1] == name} == exchanges, name


def test_robustness_is_propagated_with_draws_of_its_round(drawn: Drawn) -> None:
    found = drawn({**USERS, "attack": "gaussian", "target": "both"})
    for name in ("propagation", "attack-statistics"):
        assert {key for key in found if key[1] == name} >= {(0, name, t) for t in range(SMALL["rounds"])}, name


def test_other_clients_rounds_and_seeds_have_other_streams(drawn: Drawn) -> None:
    whole = {"norm": "fbn", **SHARED, **VARIANTS["backdoor, defended"], "participation": 1.0, "quota": False}
    keys = {key for seed in (0, 1) for key in drawn({**whole, "seed": seed})}
    assert len({randomness.derive(*key) for key in keys}) == len(keys)
    clients = range(SMALL["clients"])
    everybody = {(seed, "augment", k, t, 0) for seed in (0, 1) for k in clients for t in range(SMALL["rounds"])}
    assert {key for key in keys if key[1] == "augment"} == everybody
    assert {key for key in keys if key[1] == "validation"} == {(s, "validation", k) for s in (0, 1) for k in clients}
    assert {key[:3] for key in keys if key[1] == "batch"} == {(seed, "batch", k) for seed in (0, 1) for k in clients}
