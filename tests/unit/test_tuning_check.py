"""The searches of a board as trainings, and what is said of one that was trained again; nothing is trained here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_store import record
from small_bench import SMALL, shrink

from robustfl.records import CellResult
from robustfl.scenarios import Cell, protocol
from robustfl.scenarios.bench import Contestant
from robustfl.scenarios.expand import key_of, resolve
from robustfl.scenarios.verify import Trial, trials_of

CELL = Cell.of({"norm": "none"})
VERIFY = import_module("robustfl.scenarios.verify")  # the package has a function of this name


def found(score: float | None) -> CellResult:
    """A training in which all clients come to this accuracy, or that has none."""
    made = record(status="diverged" if score is None else "done")
    if made.metrics is None:
        return made
    return made.model_copy(update={"metrics": made.metrics.model_copy(update={"per_client": {"sa": [score] * 3}})})


@pytest.mark.parametrize(
    ("said", "score", "verdict", "words"),
    [
        (0.5, 0.5, "identical", ""),
        (None, None, "identical", ""),
        (0.3, 0.31, "within tolerance", "0.3000 → 0.3100"),
        (0.31, 0.3, "within tolerance", "0.3100 → 0.3000"),
        (0.3, 0.311, "differs", "0.3000 → 0.3110"),
        (0.311, 0.3, "differs", "0.3110 → 0.3000"),
        (None, 0.0, "differs", "none → 0.0000"),
        (0.0, None, "differs", "0.0000 → none"),
    ],
)
def test_a_training_of_a_search_comes_out_again_or_differs(
    said: float | None, score: float | None, verdict: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    roots: list[Any] = []
    ran: list[tuple[Any, ...]] = []

    def known(cells: list[Cell], root: object) -> Mapping[Cell, str]:
        roots.append(root)
        return dict.fromkeys(cells, "ab" * 8)

    def run(*given: Any) -> CellResult:
        ran.append(given)
        return found(score)

    monkeypatch.setattr(VERIFY, "fingerprints", known)
    trial = Trial(CELL, said)
    told = words and f"validation accuracy in the search {words}"
    assert trial.check(0.01, tmp_path, run) == (key_of(resolve(CELL, "ab" * 8)), verdict, told)
    assert (ran, roots) == ([(CELL, "ab" * 8, {})], [tmp_path])
    assert trial.labels["tuning"] is True
    assert trial.labels["norm"] == "none"


@pytest.mark.parametrize("said", [None, 0.6])
def test_a_training_that_fails_here_differs_also_from_none(
    said: float | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(VERIFY, "fingerprints", lambda cells, root: dict.fromkeys(cells, "ab" * 8))
    broken = found(None).model_copy(update={"status": "failed", "reason": "MemoryError"})
    _, verdict, words = Trial(CELL, said).check(0.01, tmp_path, lambda *_: broken)
    assert verdict == "differs"
    assert words.endswith(" → failed: MemoryError")


ATTACKS = ("sf", "foe(eta=10)")
NAMES = ("median · gn · dsgd", "mean · none · dsgd")


def test_the_searches_of_a_board_are_those_of_its_version_under_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    (later,) = protocol._protocols().values()
    older = replace(later, version=later.version - 1, rates=(0.3, 0.4))
    monkeypatch.setattr(protocol, "_protocols", lambda: {older.version: older, later.version: later})
    scores = iter(range(100))
    contestants: dict[str, Any] = {
        name: {"search": [
            {**dict(zip(protocol.WHO, name.split(" · "), strict=False)), "schedule": f"constant(lr={rate})",
             "validation": {attack: next(scores) / 100 for attack in ATTACKS}, "worst": 0.99}
            for rate in older.rates
        ]}
        for name in NAMES
    }  # fmt: skip
    facts = {"version": older.version, "tier": "d", "changed": ["rounds=3", *SMALL], "contestants": contestants}
    trials = trials_of(SimpleNamespace(protocol={"benchmark": facts}))  # type: ignore[arg-type]
    assert [(t.cell.defense, t.cell.norm, t.cell.schedule.lr, t.cell.attack, t.said) for t in trials] == [
        ("median", "gn", 0.3, "sf", 0.0), ("median", "gn", 0.3, "foe(eta=10)", 0.01),
        ("median", "gn", 0.4, "sf", 0.02), ("median", "gn", 0.4, "foe(eta=10)", 0.03),
        ("mean", "none", 0.3, "sf", 0.04), ("mean", "none", 0.3, "foe(eta=10)", 0.05),
        ("mean", "none", 0.4, "sf", 0.06), ("mean", "none", 0.4, "foe(eta=10)", 0.07),
    ]  # fmt: skip
    assert {(t.cell.rounds, t.cell.seed, t.cell.validation > 0) for t in trials} == {(3, 1000, True)}


@pytest.mark.parametrize("protocol", [None, {}, {"autobyz": {"version": 1}}])
def test_a_board_of_no_benchmark_has_no_searches(protocol: Any) -> None:
    assert trials_of(SimpleNamespace(protocol=protocol)) == []  # type: ignore[arg-type]


def test_a_contestant_is_read_off_its_name_by_the_settings_of_its_search() -> None:
    told = {"algorithm": "dsgd", "defense": "mean", "norm": "gn", "propagation": "fedrbn", "schedule": "constant"}
    made = Contestant.named("mean · gn · dsgd · fedrbn", {"search": [told]})
    assert made.settings == (
        ("defense", "mean"), ("norm", "gn"), ("algorithm", "dsgd"), ("propagation", "fedrbn"),
    )  # fmt: skip
    assert made.name == "mean · gn · dsgd · fedrbn"
