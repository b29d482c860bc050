"""What the command line does, in one call each: ``robustfl.run`` and ``robustfl.verify`` return, and print nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import robustfl
from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.reports.published import publish, write_board
from robustfl.reports.store import Store

SMALL = {"rounds": 2, "clients": 4, "model": "digits-cnn(hidden=8)", "evasions": [], "defense": "median"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[CellResult]:
    """Two cells that ran, under attack and not."""
    return [robustfl.run({**SMALL, "attack": attack, "f": 1}) for attack in ("none", "sf")]


@pytest.fixture
def board(records: list[CellResult], tmp_path: Path) -> Path:
    return write_board(publish(records, name="ours"), tmp_path / "board.json")


def test_run_takes_settings_and_returns_the_record(
    records: list[CellResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[tuple[int, int]] = []
    record = robustfl.run(
        {**SMALL, "attack": "sf", "f": 1}, out=tmp_path, on_round=lambda r, total, loss: rounds.append((r, total))
    )
    assert record.metrics == records[1].metrics
    assert record.status == "done"
    assert rounds == [(1, 2), (2, 2)]
    assert Store(tmp_path / "run").read(record.key).metrics == record.metrics
    assert capsys.readouterr() == ("", "")


def test_run_takes_a_preset_with_every_axis_fixed() -> None:
    scenario = robustfl.Scenario.load("quickstart", settings=[f"{k}={v!r}" for k, v in SMALL.items()])
    with pytest.raises(UsageError, match=r"run takes one cell.*attack: "):
        robustfl.run(scenario)
    with pytest.raises(UsageError, match="did you mean 'attack'"):
        robustfl.run({"attac": "sf"})


def test_a_refused_cell_is_a_record_with_the_reason() -> None:
    record = robustfl.run({**SMALL, "defense": "krum", "f": 1})
    assert (record.status, record.metrics) == ("refused", None)
    assert "krum: f=1 needs at least 5 clients" in str(record.reason)


def test_verify_returns_what_agrees_and_prints_nothing(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    found = robustfl.verify(board, cells=None, on_cell=lambda check: seen.append(check.verdict))
    assert found.agrees
    assert [check.verdict for check in found.checks] == seen == ["identical", "identical"]
    assert capsys.readouterr() == ("", "")


def test_verify_tells_which_cell_differs(records: list[CellResult], tmp_path: Path) -> None:
    assert records[0].metrics is not None
    better = records[0].metrics.model_copy(update={"sa": 1 - records[0].metrics.sa / 2})
    claimed = [records[0].model_copy(update={"metrics": better}), records[1]]
    found = robustfl.verify(write_board(publish(claimed, name="ours"), tmp_path / "b.json"), cells=None)
    assert not found.agrees
    assert [check.labels["attack"] for check in found.disagreeing] == ["none"]


def test_verify_runs_only_what_is_asked_for(board: Path) -> None:
    only = robustfl.verify(board, cells=1, where={"attack": "sf"})
    assert [check.labels["attack"] for check in only.checks] == ["sf"]
    assert robustfl.verify(board, check_only=True).checks == ()
    with pytest.raises(UsageError, match="did you mean 'attack'"):
        robustfl.verify(board, where={"atack": "sf"})
