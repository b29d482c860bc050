"""``robustfl grid`` hands on what it is told and ends as its cells did; nothing is trained here."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fake_plugin import attack_plugin
from fake_store import record, stored

from robustfl.cli import grid as command
from robustfl.cli import invoke
from robustfl.errors import UsageError
from robustfl.reports.board import below_heading
from robustfl.scenarios import Results, dry_run, single
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.dry_run import Estimate, PlannedCell

MIB = 2**20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, dict[str, Any]]]:
    """The scenarios that would run, with how; each command ends there."""
    monkeypatch.chdir(tmp_path)
    found: list[tuple[Any, dict[str, Any]]] = []

    def run(scenario: Any, **how: Any) -> Results:
        found.append((scenario, how))
        raise UsageError("enough")

    monkeypatch.setattr(command, "run_shown", run)
    return found


def test_every_option_reaches_the_cells(asked: list[tuple[Any, dict[str, Any]]]) -> None:
    words = [
        "--jobs", "2", "--device", "cpu", "--threads", "3", "--checkpoint-minutes", "7", "--cell-minutes", "9",
        "--keep-model", "--data-root", ".", "--state-memory", "500MB", "--out", "mine", "--set", "seed=[4,5]",
    ]  # fmt: skip
    assert invoke(["grid", *words, "--format", "json"]) == 2
    ((scenario, how),) = asked
    assert (how["out"], how["quiet"], scenario.cell["seed"]) == ("mine", True, [4, 5])
    made = how["options"]
    assert (made.jobs, made.device, made.threads, made.checkpoint_minutes, made.cell_minutes) == (2, "cpu", 3, 7, 9)
    assert (made.keep_model, made.root, made.state_memory) == (True, ".", 500_000_000)
    assert (made.gpus, made.slots, made.cluster, made.track) == (None, None, None, ())


@pytest.mark.parametrize(("text", "found"), [("0", (0,)), ("0,1", (0, 1)), ("1, 0", (1, 0))])
def test_gpus_and_their_slots_reach_the_cells(
    text: str, found: tuple[int, ...], asked: list[tuple[Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert invoke(["grid", "--gpus", text, "--slots", "3"]) == 2
    ((_, how),) = asked
    assert (how["options"].gpus, how["options"].slots) == (found, 3)


def test_a_grid_is_not_shared_by_torchrun(
    asked: list[tuple[Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(single, "processes", lambda: 2)
    assert invoke(["grid"]) == 2
    assert "torchrun shares one cell between processes: use it with `robustfl run`" in capsys.readouterr().err
    assert asked == []


def test_left_out_options_are_those_of_the_library(asked: list[tuple[Any, dict[str, Any]]]) -> None:
    from robustfl.scenarios import RunOptions

    assert invoke(["grid"]) == 2
    ((_, how),) = asked
    assert (how["out"], how["quiet"]) == ("runs", False)
    assert repr(how["options"]) == repr(RunOptions())


@pytest.mark.parametrize("text", ["", "a", "0,", "0;1"])
def test_what_lists_no_gpus_is_named(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["grid", "--gpus", text]) == 2
    assert f"--gpus '{text}' must be indices such as 0,1" in capsys.readouterr().err


@pytest.mark.usefixtures("clean_registry")
def test_plug_ins_of_the_command_come_after_those_of_the_file(
    asked: list[tuple[Any, dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("of-the-file", "of-the-command"):
        (tmp_path / f"{name}.py").write_text(attack_plugin(name))
    (tmp_path / "mine.toml").write_text('plugins = ["of-the-file.py"]\n[cell]\nrounds = 3\n')
    assert invoke(["grid", "mine.toml", "--plugin", "of-the-command.py"]) == 2
    assert "warning" not in capsys.readouterr().err
    ((scenario, _),) = asked
    assert [Path(name).name for name in scenario.plugins] == ["of-the-file.py", "of-the-command.py"]
    assert Path(scenario.plugins[-1]) == (tmp_path / "of-the-command.py").resolve()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """A command that finds three cells done, of which two are its own, and those that failed; what it called."""
    monkeypatch.chdir(tmp_path)
    records = [record(seed=seed, attack="none") for seed in range(3)]
    stored(tmp_path / "runs" / "s", records)
    called: list[str] = []

    def finds(failed: int) -> list[str]:
        keys = frozenset(r.key for r in records[:2])
        results = Results(Path("runs/s"), 1, 1, {"done": 2, "refused": 0, "failed": failed}, keys)

        monkeypatch.setattr(command, "run_shown", lambda *_, **how: called.append("whole") or results)
        return called

    return finds


@pytest.mark.parametrize("failed", [0, 1])
def test_a_grid_with_a_failed_cell_ends_with_1(
    failed: int, ran: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(failed) == []
    assert invoke(["grid"]) == failed
    said = capsys.readouterr().out
    states = "2 done, 1 failed" if failed else "2 done"
    assert f"1 cells run now, 1 were there already: {states}.\nCells: runs/s/cells\n" in said
    assert "Cells: 2 done." in said  # and not the third of the store
    assert "TensorBoard" not in said
    assert "robustfl report runs/s" in said
    assert ran(failed) == ["whole"]


@pytest.mark.parametrize("there", [0, 1])
def test_cells_that_are_gone_at_the_end_are_told_and_the_grid_ends_with_1(
    there: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [record(seed=seed, attack="none") for seed in range(2)]
    if there:
        stored(tmp_path / "runs" / "s", records[:there])
    results = Results(Path("runs/s"), 2, 0, {"done": there}, frozenset(r.key for r in records))
    monkeypatch.setattr(import_module("robustfl.scenarios.grid"), "run_grid", lambda *_, **how: results)
    assert invoke(["grid"]) == 1
    assert f"{2 - there} of 2 cells are not in runs/s any more" in capsys.readouterr().err


def test_for_machines_nothing_but_the_board_is_printed(
    ran: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    ran(1)
    assert invoke(["grid", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)


def foreseen(monkeypatch: pytest.MonkeyPatch, count: int, **more: Any) -> None:
    """A dry run that finds cells of many seeds, each of which takes 90 s, and one that is refused."""
    cells = [PlannedCell("to run", Cell.of({"seed": seed}), 90.0) for seed in range(count - 1)]
    cells.append(PlannedCell("refused", Cell.of({"seed": count}), None, "too few [clients]"))
    found = Estimate(tuple(cells), ("seed",), 1, 90.0, MIB, "Timed.", ("weak [attack]",), **more)
    monkeypatch.setattr(dry_run, "estimate", lambda *_, **how: how["on_probe"](0, 4) or how["on_probe"](1, 4) or found)


@pytest.mark.parametrize(("untimed", "code"), [(0, 0), (2, 1)])
def test_a_dry_run_tells_its_cells_and_ends_with_1_where_some_fail(
    untimed: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    foreseen(monkeypatch, 3, untimed=untimed)
    assert invoke(["grid", "--dry-run"]) == code
    said, progress = capsys.readouterr()
    first, *_ = said.splitlines()
    assert first == "quickstart: 3 cell(s): 2 to run, 1 refused; nothing was trained."
    assert "refused (1): too few [clients]\nwarning: weak [attack]\n" in said
    assert "to run   2      2 values  3 min" in said  # cells that differ in their seed are one row
    assert "more rows; --format json lists all cells" not in said
    assert progress == "timing 4 network(s) …\n"
    assert invoke(["grid", "--dry-run", "--format", "json"]) == code
    said, progress = capsys.readouterr()
    assert [cell["state"] for cell in json.loads(said)["cells"]] == ["to run", "to run", "refused"]
    assert progress == ""


@pytest.mark.parametrize(("rows", "words"), [(2, ""), (1, "… and 1 more rows; --format json lists all cells")])
def test_a_dry_run_shows_the_first_of_many_rows(
    rows: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_ROWS", rows)
    foreseen(monkeypatch, 3)
    assert invoke(["grid", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert ("\nrefused  1 " in said) is (rows == 2)
    assert ("more rows; --format json" in said) is bool(words)
    assert words in said


def test_refusals_that_differ_in_numbers_are_one_line_and_one_row() -> None:
    reasons = [
        "batch=25 is larger than client 3's 10 training samples",
        "batch=25 is larger than client 1's 9 training samples",
    ]
    cells = tuple(PlannedCell("refused", Cell.of({"seed": s}), None, why) for s, why in enumerate(reasons))
    found = Estimate(cells, ("seed",), 1, None, None, "")
    assert found.grouped_refusals() == [f"refused (2, for example): {reasons[0]}"]
    assert found.grouped_cells() == [("refused", 2, {"seed": "2 values"}, None)]


def test_a_setting_is_shown_as_boards_show_it() -> None:
    assert below_heading("partition", "gamma(gamma=0.5)") == "γ = 0.5"
    assert below_heading("attack", "gamma(gamma=0.5)") == "gamma(gamma=0.5)"
