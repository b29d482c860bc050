"""Cells that the cheap mode left out, checked by their first parts; no training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from robustfl import autobyz
from robustfl.autobyz import Asked, Ensemble, Member
from robustfl.records import CellResult, Metrics, plain
from robustfl.scenarios import Cell, Scenario, dropped_check, expand
from robustfl.scenarios.dropped_check import RIGHTLY, STRANGER, WRONGLY, Dropped, Labels
from robustfl.scenarios.expand import key_of, labels, resolve

SMALL = Ensemble(1, (Member("alie"), Member("sf"), Member("zero")), margin=0.1)
DATA = "ab" * 8


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autobyz, "ensembles", lambda: {1: SMALL})
    monkeypatch.setattr(dropped_check, "fingerprints", lambda cells, root: dict.fromkeys(cells, DATA))


def record(cell: Cell, sa: float = 0.5) -> CellResult:
    resolved = resolve(cell, DATA)
    return CellResult(
        key=key_of(resolved), scenario="s", status="done", cell=plain(resolved), labels=plain(labels(cell)),
        metrics=Metrics(sa=sa, loss=1.0, samples=100),
    )  # fmt: skip


def check(heights: Mapping[str, float], tolerance: float, ran: list[Cell] | None = None, **settings: Any) -> str:
    """The verdict on ``zero``, which was left out, where first parts come to these accuracies."""
    cell = {"attack": "autobyz", "f": 2, "evasions": [], "rounds": 30, **settings}
    records = [record(cell) for cell in expand(Scenario.of({"name": "s", "cell": cell}))]
    gone = {r.key: r.labels for r in records if r.labels["attack"] == "zero"}
    kept = [r for r in records if r.key not in gone]

    def run(short: Cell, fingerprint: str, said: Mapping[str, Any]) -> CellResult:
        if ran is not None:
            ran.append(short)
        return record(short, heights[short.attack])

    found = Dropped(Asked(SMALL, cheap="so", dropped=gone, seed=0), kept, tolerance, None, run)
    return found.check(next(iter(gone)))[0]


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.1, 0.2])
def test_the_worst_member_is_wrongly_left_out_whatever_the_tolerance(tolerance: float) -> None:
    assert check({"alie": 0.95, "sf": 0.95, "zero": 0.9}, tolerance) == WRONGLY


def test_a_member_above_the_margin_is_rightly_left_out() -> None:
    assert check({"alie": 0.5, "sf": 0.9, "zero": 0.65}, 0.0) == RIGHTLY
    assert check({"alie": 0.5, "sf": 0.9, "zero": 0.58}, 0.01) == WRONGLY
    assert check({"alie": 0.5, "sf": 0.9, "zero": 0.58}, 0.05) == RIGHTLY  # the numbers may be so far off


def test_first_parts_measure_no_forgetting() -> None:
    ran: list[Cell] = []
    check({"alie": 0.5, "sf": 0.9, "zero": 0.9}, 0.0, ran, forgetting=[10, 30], validation=0.1, algorithm="fedavg")
    assert {(short.rounds, short.stop, short.forgetting) for short in ran} == {(30, 10, False)}


def beside(found: list[CellResult], said: Labels, **more: Any) -> tuple[list[CellResult], Dropped]:
    """The check of cells that ran beside those with the labels ``said``, which did not, and the first parts it runs."""
    ran: list[CellResult] = []
    gone = {r.key: {**r.labels} for r in found if said.items() <= r.labels.items()}

    def run(short: Cell, fingerprint: str, certificates: Labels) -> CellResult:
        height = 0.1 if short.attack == "ipm" or short.defense == "mean" else 0.85 if short.attack == "zero" else 0.8
        ran.append(record(short, height).model_copy(update={"certificates": certificates}))
        return ran[-1]

    kept = [r.model_copy(update={"certificates": {"device": r.labels["attack"]}}) for r in found if r.key not in gone]
    return ran, Dropped(Asked(SMALL, cheap="so", dropped=gone, **more), kept, 0.0, None, run)


def cells(**settings: Any) -> list[CellResult]:
    cell = {"attack": "autobyz", "f": 2, "evasions": [], "rounds": 10, "norm": "none", **settings}
    return [record(cell) for cell in expand(Scenario.of({"name": "s", "cell": cell}))]


def verdict(dropped: Dropped) -> tuple[str, str]:
    return dropped.check(next(iter(dropped.asked.dropped)))


def test_a_row_of_which_no_member_went_on_is_wrongly_left_out() -> None:
    ran, dropped = beside(cells(), {"norm": "none"})
    assert verdict(dropped) == (WRONGLY, "no member of its row went on")
    assert not ran


def test_only_members_of_its_own_row_leave_one_behind() -> None:
    found = cells(attack=["ipm", "autobyz"], defense=["mean", "median"])
    ran, dropped = beside(found, {"attack": "zero", "defense": "median"})
    told = "after 4 rounds it could still be the worst: zero 85.0, alie 80.0, sf 80.0"
    assert verdict(dropped) in [(WRONGLY, told), (WRONGLY, told.replace("alie 80.0, sf", "sf 80.0, alie"))]
    assert {r.labels["defense"] for r in ran} == {"median"}


def test_a_member_that_diverged_could_be_the_worst() -> None:
    _, dropped = beside(cells(), {"attack": "zero"})
    lost = replace(dropped, run=lambda cell, *rest: record(cell).model_copy(update={"status": "diverged"}))
    assert verdict(lost)[1].partition("worst: ")[2].startswith("zero diverged, ")


@pytest.mark.parametrize(("said", "seed"), [({}, 4), ({"seed": 5}, 5), ({"seed": 0}, 0)])
def test_first_parts_have_the_seed_of_the_board_or_the_first_of_the_row(said: dict[str, int], seed: int) -> None:
    ran, dropped = beside(cells(seed=[5, 4]), {"attack": "zero"}, **said)
    for key in dropped.asked.dropped:
        dropped.check(key)
    assert [(r.labels["stop"], r.labels["seed"]) for r in ran] == [(4, seed)] * 3  # each once for both cells


def test_the_worst_that_went_on_is_the_first_to_be_compared_and_on_the_device_of_its_record() -> None:
    found = cells(defense="mean")
    for worst in ("alie", "sf"):
        low = [r if r.labels["attack"] != worst else record_of(r, status="diverged", metrics=None) for r in found]
        ran, dropped = beside(low, {"attack": "zero"})
        verdict(dropped)
        assert [r.labels["attack"] for r in ran][:2] == ["zero", worst]
        assert ran[1].certificates == {"device": worst}


def record_of(made: CellResult, **changed: Any) -> CellResult:
    return made.model_copy(update=changed)


def test_a_cell_under_other_labels_than_its_own_is_another_cell() -> None:
    _, dropped = beside(cells(), {"attack": "zero"})
    ((key, said),) = dropped.asked.dropped.items()
    for labels_of, under in ((said, key[::-1]), ({**said, "attack": "zero()"}, key)):
        other = replace(dropped, asked=replace(dropped.asked, dropped={under: labels_of}))
        assert other.check(under)[0] == STRANGER
