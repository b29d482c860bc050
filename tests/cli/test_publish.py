"""Publishing as people do it: report a board, verify, merge, explain, plot; and stores that are not as they should."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_files import edited, resigned

from robustfl.cli import invoke
from robustfl.errors import UsageError
from robustfl.records import CellResult, CurvePoint, Metrics, digest
from robustfl.reports.published import read_board, write_board
from robustfl.reports.store import Store

STUDY = [
    "--set", "rounds=2", "--set", "model=digits-cnn(hidden=8)", "--set", 'attack=["none","sf"]', "--set", "seed=[0,1]",
    "--set", "defense=krum", "--set", "norm=fbn", "--set", "partition.gamma=0.5", "--set", "evasions=[]",
    "--jobs", "0",
]  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that a grid left, and its board."""
    folder = tmp_path_factory.mktemp("ran")
    assert invoke(["grid", *STUDY, "--out", str(folder)]) == 0
    store = folder / "quickstart"
    assert invoke(["report", str(store), "--no-figures", "--board", str(folder / "board.json")]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Path) -> Path:
    """An empty folder to work in, with a copy of the store and the board."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ran / "quickstart", tmp_path / "mine")
    shutil.copy(ran / "board.json", tmp_path / "board.json")
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run one command line; its exit code and everything it printed. A traceback fails the test."""
    monkeypatch.setenv("COLUMNS", "400")  # so that nothing in a table is folded

    def call(*arguments: object) -> tuple[int, str]:
        code = invoke([str(a) for a in arguments])
        said = capsys.readouterr()
        text = " ".join((said.out + said.err).split())
        assert "Traceback" not in text
        return code, text

    return call


def rewritten(change: Callable[[dict[str, Any]], object], *, sign: bool = False) -> Path:
    """The board with something changed in it, on request under the digest that belongs to that."""
    return (resigned if sign else edited)(Path("board.json"), change)


def claimed(change: Callable[[CellResult], dict[str, Any]], **told: Any) -> Path:
    """The board whose cells are changed so, under the digest that belongs to that."""
    board, _ = read_board("board.json")
    cells = tuple(r.model_copy(update=change(r)) for r in board.cells)
    return write_board(replace(board, cells=cells, **told), "board.json")


# --- verify ----------------------------------------------------------------------------------------------------------


def test_an_honest_board_is_accepted(cli: Any) -> None:
    code, said = cli("verify", "board.json", "--cells", "2", "--sample", "5")
    assert code == 0
    assert "2 cells of 4 (drawn with --sample 5): 2 agree, 2 of them identical. ACCEPTED" in said
    assert " seed=" in said


def test_a_board_holds_curves_where_they_are_asked_for(cli: Any) -> None:
    code, _ = cli("report", "mine", "--no-figures", "--board", "curves.json.gz", "--curves")
    assert code == 0
    stored = {r.key: r.curve for r in Store("mine").load().results}
    assert any(stored.values())
    assert {r.key: r.curve for r in read_board("curves.json.gz")[0].cells} == stored
    code, said = cli("report", "mine", "--curves")
    assert (code, "none is written; name its file with board" in said) == (2, True)


def test_report_plot_and_diff_take_a_board_as_a_store(cli: Any) -> None:
    assert cli("merge", "board.json", "--out", "small.json.gz")[0] == 0
    for source in ("mine", "board.json", "small.json.gz"):
        code, said = cli("report", source, "--no-figures", "--out", f"of-{source}", "--format", "json")
        assert code == 0, said
    tables = [
        json.loads(Path(f"of-{source}/leaderboard.json").read_text())
        for source in ("mine", "board.json", "small.json.gz")
    ]
    assert tables[0]["tables"] == tables[1]["tables"] == tables[2]["tables"]
    assert cli("plot", "heatmap", "small.json.gz", "--save", "h.png")[0] == 0
    code, said = cli("diff", "mine", "small.json.gz")
    assert (code, "hold the same cells with the same results" in said) == (0, True)
    assert cli("report", "small.json.gz", "--no-figures")[0] == 0
    assert Path("small/report/leaderboard.csv").is_file()


def test_a_file_that_was_edited_is_rejected_without_running_anything(cli: Any) -> None:
    code, said = cli("verify", rewritten(lambda d: d.update(description="ours")), "--check-only")
    assert code == 1
    assert "edited after it was written" in said
    assert "No cell was run. REJECTED" in said


def measured(**change: Any) -> Callable[[CellResult], dict[str, Any]]:
    """Every cell with these metrics."""
    return lambda r: {"metrics": r.metrics and r.metrics.model_copy(update=change)}


def certified(**change: Any) -> Callable[[CellResult], dict[str, Any]]:
    return lambda r: {"certificates": {**r.certificates, **change}}


def drawn(r: CellResult) -> dict[str, Any]:
    assert r.metrics is not None
    return {"curve": [CurvePoint(round=1, sa=0.99, loss=0.1), CurvePoint(round=2, sa=r.metrics.sa, loss=0.1)]}


def harmless(r: CellResult) -> dict[str, Any]:
    return certified(no_effect=True)(r) if r.labels["attack"] != "none" else {}


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (harmless, "the attack had no effect → an effect"),
        (certified(attack_shift=0.0, statistics_shift=0.0), "the attack had no effect → an effect"),
        (drawn, "round 1 sa 0.9900 →"),
        (certified(forgetting={"1": {"mean": 0.0}}), "certificates forgetting 1 mean 0.0000 → none"),
        (certified(forgetting={"mean": 0.0}), "certificates forgetting mean 0.0000 → none"),
        (measured(sa=1.0), "0 agree"),
        (lambda r: {"status": "failed", "metrics": None, "reason": "no luck"}, "status failed → done"),
        (measured(loss=0.001), "loss 0.0010 →"),
        (measured(samples=10_000), "samples 10000 →"),
        (measured(evaluation="on secret data"), "evaluation on secret data →"),
    ],
)
def test_a_board_that_lies_under_a_right_digest_is_rejected(cli: Any, lie: Any, words: str) -> None:
    code, said = cli("verify", claimed(lie, tolerance=1.0), "--all")
    assert code == 1
    assert words in said
    assert said.endswith("REJECTED")


def test_the_tolerance_is_the_verifiers_and_both_are_told(cli: Any) -> None:
    code, said = cli("verify", rewritten(lambda d: d.update(tolerance=0.5), sign=True), "--check-only")
    assert code == 0
    assert "tolerance 1 points of accuracy (the board claims 50)" in said


@pytest.mark.parametrize("words", ["mean\x1b[2K\rACCEPTED", "mean\nACCEPTED", "\ud800"])
def test_no_setting_reaches_the_terminal_as_more_than_text(cli: Any, words: str) -> None:
    rewritten(lambda data: data["common"]["cell"]["cell"].update(defense=words))
    for command in (
        ["verify", "board.json"],
        ["merge", "mine", "board.json", "--out", "o"],
        ["diff", "mine", "board.json"],
    ):
        code, said = cli(*command)
        assert code == 2
        assert "control characters" in said
        assert "ACCEPTED" not in said


def test_a_store_under_wrong_labels_is_neither_merged_nor_explained(cli: Any) -> None:
    shutil.copytree("mine", "theirs")
    for file in Path("theirs/cells").iterdir():
        data = json.loads(file.read_text())
        data["labels"]["defense"] = "nnm+krum"
        file.write_text(json.dumps(data))
    code, said = cli("merge", "mine", "theirs", "--out", "both")
    assert code == 1
    assert "label defense='nnm+krum' is not its setting 'krum'" in said
    assert {r.labels["defense"] for r in Store("both").load().results} == {"krum"}
    one = next(Path("theirs/cells").iterdir())
    code, said = cli("diff", one, one)
    assert code == 2
    assert "is not its setting" in said


def test_a_damaged_cell_runs_again(cli: Any) -> None:
    file = next(Path("mine/cells").iterdir())
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "metrics": {**whole["metrics"], "sa": 2.0}}))
    Path("mine").rename("quickstart")
    code, said = cli("grid", *STUDY, "--out", ".")
    assert code == 0
    assert "1 cells run now, 3 were there already" in said
    assert json.loads((Path("quickstart/cells") / file.name).read_text())["metrics"] == whole["metrics"]


def test_one_row_can_be_run_again(cli: Any) -> None:
    code, said = cli("verify", "board.json", "--where", "attack=sf", "--where", "seed=1", "--all", "--format", "json")
    found = json.loads(said)
    assert code == 0
    assert [c["verdict"] for c in found["cells"]] == ["identical"]
    assert found["agrees"] is True


def test_another_version_of_a_method_is_named_and_not_run(cli: Any) -> None:
    def older(r: CellResult) -> dict[str, Any]:
        cell = json.loads(json.dumps(r.cell))
        cell["methods"]["norm"]["version"] = 7
        return {"cell": cell, "key": digest(cell)}

    claimed(older)
    for arguments in (["--check-only"], ["--cells", "1"]):
        code, said = cli("verify", "board.json", *arguments)
        assert code == 1
        assert "norm fbn: version 7 published, 1 installed" in said
        assert "UNDECIDED" in said


def test_another_environment_is_told_and_does_not_reject(cli: Any) -> None:
    board, _ = read_board("board.json")
    versions = {**board.environment.versions, "numpy": ["0.1"]}
    environment = board.environment.model_copy(update={"versions": versions})
    numpy = {**board.cells[0].certificates["versions"], "numpy": "0.1"}
    path = claimed(certified(versions=numpy), environment=environment)
    code, said = cli("verify", path, "--cells", "1")
    assert code == 0
    assert "environment differs, so numbers may too: numpy: 0.1 declared" in said


def test_a_cell_that_cannot_be_run_here_is_no_agreement(cli: Any) -> None:
    def unknown(data: dict[str, Any]) -> None:
        data["common"]["cell"]["cell"]["norm"] = "secret-norm"

    code, said = cli("verify", rewritten(unknown, sign=True), "--cells", "1")
    assert code == 1
    assert "cannot be run here" in said
    assert "secret-norm" in said
    assert "REJECTED" in said  # the keys do not follow from these settings


def test_data_that_is_not_here_leaves_a_board_undecided(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*given: object, **named: object) -> None:
        raise UsageError("data set 'digits': it could not be fetched")

    monkeypatch.setattr(sys.modules["robustfl.scenarios.verify"], "fingerprints", nowhere)
    code, said = cli("verify", "board.json", "--cells", "1")
    assert code == 1
    assert said.endswith("UNDECIDED: 1 cells were not run here, nothing else speaks against the board")
    code, said = cli("verify", rewritten(lambda d: d.update(description="ours")), "--cells", "1")
    assert code == 1
    assert said.endswith("REJECTED")


@pytest.mark.parametrize(
    ("board", "words"),
    [
        ("nowhere.json", "no file"),
        ("mine", "is a folder; write a board with `robustfl report mine --board FILE`"),
        ("mine/scenario.json", "not a published board"),
        ("text.json", "not JSON"),
        ("future.json", "board format 9; this robustfl reads formats 1 and 2"),
    ],
)
def test_what_is_no_board_exits_2_and_says_how_to_get_one(cli: Any, board: str, words: str) -> None:
    Path("text.json").write_text("SA: 99 %")
    Path("future.json").write_text('{"format": "robustfl-board", "schema_version": 9}')
    others = [["merge", "mine", board, "--out", "o"], ["diff", "mine", board]] if board != "mine" else []
    for command in (["verify", board], *others):
        code, said = cli(*command)
        assert (code, words in said or not Path(board).exists()) == (2, True), said
    assert not Path("o").exists()


@pytest.mark.parametrize("option", [["--where", "attack"], ["--where", "atack=sf"], ["--where", "attack=foe"]])
def test_a_wrong_row_exits_2(cli: Any, option: list[str]) -> None:
    code, said = cli("verify", "board.json", *option)
    assert code == 2
    assert "label" in said or "did you mean 'attack'" in said or "no cell matches" in said


def test_a_board_without_cells_is_called_that(cli: Any) -> None:
    code, said = cli("verify", rewritten(lambda data: data.update(cells=[]), sign=True))
    assert code == 2
    assert "board.json: this board holds no cells" in said
    assert "robustfl grid" not in said


@pytest.mark.parametrize(
    "option", [["--cells", "5"], ["--all"], ["--sample", "1"], ["--tolerance", "0.5"], ["--threads", "1"]]
)
def test_options_of_cells_that_run_exit_2_where_none_does(cli: Any, option: list[str]) -> None:
    code, said = cli("verify", "board.json", "--check-only", *option)
    assert code == 2
    assert f"--check-only runs no cell, and {option[0]} is for cells that run" in said


def test_a_claimed_tolerance_without_a_board_exits_2(cli: Any) -> None:
    code, said = cli("report", "mine", "--tolerance", "0.5", "--out", "out")
    assert code == 2
    assert "tolerance=0.5 is what a board claims" in said
    assert not Path("out").exists()
    assert cli("report", "mine", "--tolerance", "0.5", "--board", "b.json", "--no-figures")[0] == 0
    assert read_board("b.json")[0].tolerance == 0.5


# --- merge and diff --------------------------------------------------------------------------------------------------


def test_a_store_and_a_board_merge_and_their_report_names_the_sources(cli: Any) -> None:
    for cell in list(Path("mine/cells").iterdir())[:2]:
        cell.unlink()
    code, said = cli("merge", "mine", "board.json", "--source", "ann", "--source", "ben", "--out", "both")
    assert code == 0
    assert "4 cells: both" in said
    assert "2 cells are there as copies of one run's record, which measured them once" in said
    sources = sorted(r.certificates["source"] for r in Store("both").load().results)
    assert sources == ["ann", "ann", "ben", "ben"]
    assert cli("report", "both", "--no-figures")[0] == 0
    assert cli("merge", "mine", "board.json", "--out", "both")[0] == 2  # never into records that are there


def better(made: CellResult) -> CellResult:
    """The record with another accuracy, everywhere."""
    assert made.metrics is not None
    metrics, last = Metrics(**made.metrics.model_dump() | {"sa": 0.987}), made.curve[-1]
    return made.model_copy(
        update={"metrics": metrics, "curve": [*made.curve[:-1], last.model_copy(update={"sa": 0.987})]}
    )


def test_a_conflict_exits_1_shows_both_numbers_and_writes_nothing(cli: Any) -> None:
    first = next(iter(sorted(Store("mine").keys())))
    made = Store("mine").read(first)
    assert made.metrics is not None
    shutil.copytree("mine", "theirs")
    Store("theirs").commit(better(made))
    code, said = cli("merge", "mine", "theirs", "--out", "both")
    assert code == 1
    assert "1 cells in conflict; nothing was written" in said
    apart = f"differs: sa {made.metrics.sa:.4f} → 0.9870"
    assert apart in said
    code, said = cli("merge", "mine", "theirs", "--out", "both", "--format", "json")
    told = json.loads(said)
    (conflict,) = told["conflicts"]
    assert (code, told["out"], conflict["key"], conflict["first"], conflict["second"]) == (
        1, None, first, "mine", "theirs",
    )  # fmt: skip
    assert conflict["differs"].startswith(apart)
    assert not Path("both").exists()
    code, said = cli("diff", "mine", "theirs")
    assert code == 1
    assert apart in said
    code, said = cli("diff", "mine", "theirs", "--format", "json")
    told = json.loads(said)
    assert (code, told["same"], told["common"], [key for key, *_ in told["results"]]) == (1, False, 4, [first])


def test_diff_of_a_store_with_itself_and_of_two_of_its_cells(cli: Any) -> None:
    assert cli("diff", "mine", "mine")[0] == 0
    one, two = sorted(Store("mine").keys())[:2]
    code, said = cli("diff", f"mine:{one}", f"mine/cells/{two}.json", "--limit", "3", "--timing")
    assert code == 1
    assert "settings" in said
    assert "--limit shows them" in said
    assert cli("diff", "mine", f"mine:{one}")[0] == 2


def test_a_cell_and_its_published_form_are_the_same_and_another_number_is_shown(cli: Any) -> None:
    key = min(Store("mine").keys())
    for pair in ([f"board.json:{key[:8]}", f"mine:{key[:8]}"], [f"mine/cells/{key}.json", f"board.json:{key[:8]}"]):
        assert cli("diff", *pair) == (0, "The cells are the same.")
    other = Store("mine").read(key)
    assert other.metrics is not None
    Store("mine").commit(other.model_copy(update={"metrics": other.metrics.model_copy(update={"asr": 0.5})}))
    code, said = cli("diff", f"board.json:{key}", f"mine:{key}")
    assert code == 1
    assert " asr – 0.5" in said
    assert "round" not in said


def test_stores_and_boards_of_one_name_are_called_as_they_were_typed(cli: Any) -> None:
    shutil.copytree("mine", "theirs/mine")
    key, *others = sorted(Store("theirs/mine").keys())
    made = Store("mine").read(key)
    assert made.metrics is not None
    Store("theirs/mine").commit(better(made))
    for other in others:
        Store("theirs/mine").path(other).unlink()
    code, said = cli("diff", "mine", "theirs/mine")
    assert code == 1
    assert "3 only in mine, 0 only in theirs/mine" in said
    assert "values only one has mine theirs/mine" in said
    _, said = cli("diff", f"mine:{key}", f"theirs/mine:{key}")
    assert f"outcome mine:{key} theirs/mine:{key}" in said
    shutil.copytree("mine", "quickstart")
    assert read_board("board.json")[0].name == "quickstart"
    code, said = cli("merge", "quickstart", "board.json", "--out", "both")
    assert code == 0
    assert "quickstart: 4 cells board.json: 4 cells" in said


# --- stores that are not as they should ------------------------------------------------------------------------------


def broken_store(kind: str) -> Path:
    """A store of one trouble, made from the real one."""
    folder = Path(kind)
    if kind == "nowhere":
        return folder
    (folder / "cells").mkdir(parents=True)
    records: list[CellResult] = list(Store("mine").load().results)
    if kind == "one-seed":
        records = [r for r in records if r.labels["seed"] == 0]
    elif kind == "refused":
        refused = {"status": "refused", "reason": "no", "metrics": None, "certificates": {}}
        records = [r.model_copy(update=refused) for r in records]
    elif kind in ("empty", "no-store"):
        records = []
    elif kind == "all-corrupt":
        (folder / "cells" / "ab.json").write_text("{")
        records = []
    for one in records:
        Store(folder).commit(one)
    if kind == "mixed":
        data = json.loads(Store(folder).path(records[0].key).read_text())
        Store(folder).path(records[0].key).write_text(json.dumps(data | {"schema_version": 99}))
    elif kind == "corrupt":
        Store(folder).path(records[0].key).write_bytes(b"\x00\xff{")
    elif kind == "no-store":
        (folder / "cells").rmdir()
        (folder / "notes.txt").write_text("x")
    return folder


@pytest.mark.parametrize(("kind", "code", "words", "others"), [
    ("nowhere", 2, "no folder 'nowhere'; stores nearby: ", (2, 2, 2)),
    ("no-store", 2, "holds no results", (2, 2, 2)),
    ("empty", 2, "no finished cell yet", (2, 0, 1)),
    ("all-corrupt", 1, "none of 1 files is a record", (1, 1, 1)),
    ("one-seed", 0, "One seed, without interval", (0, 0, 1)),
    ("mixed", 1, "schema 99; this robustfl reads 1", (0, 1, 1)),
    ("corrupt", 1, "truncated or corrupt", (0, 1, 1)),
    ("refused", 0, "No cell has finished", (0, 1, 1)),
])  # fmt: skip
def test_commands_say_what_is_the_trouble_with_a_store_and_never_end_in_a_traceback(
    cli: Any, kind: str, code: int, words: str, others: tuple[int, int, int]
) -> None:
    """The report has a message or a marked row; plot, merge and diff say what they do not count."""
    folder = broken_store(kind)
    found, said = cli("report", folder, "--figures", "--site", "site", "--board", "published.json", "--out", "out")
    assert (found, words in said) == (code, True), said
    assert Path("published.json").exists() == Path("site/index.html").exists() == (code == 0)
    told = [
        cli("plot", "heatmap", folder, "--save", "x.png"), cli("merge", "mine", folder, "--out", "o"),
        cli("diff", "mine", folder),
    ]  # fmt: skip
    assert tuple(code for code, _ in told) == others, told
    if kind in ("mixed", "corrupt"):
        assert "no board is written without what cannot be read: " in said
        found, said = cli("report", folder, "--no-figures", "--out", "out")
        assert (found, words in said) == (0, True)
        assert all("not counted" in said for _, said in told)


def test_two_stores_without_a_finished_cell_do_not_merge(cli: Any) -> None:
    code, said = cli("merge", broken_store("empty"), broken_store("all-corrupt"), "--out", "o")
    assert code == 2
    assert "holds a finished cell; not counted" in said


def test_plot_names_its_files(cli: Any) -> None:
    code, said = cli("plot", "labels", "mine", "--save", "l.pdf")
    assert (code, said.split()[0]) == (0, "l.pdf")
    assert "caption: Samples per client and class (batch = 25, dataset digits" in said
    code, said = cli("plot", "bn-pca", "mine", "--where", "attack=sf")
    assert (code, said.split()[0]) == (0, "bn-pca.pdf")
    assert Path("bn-pca.pdf").read_bytes().startswith(b"%PDF")


def test_no_site_is_written_among_results(cli: Any) -> None:
    for command in (["report", "mine", "--site", "mine"], ["bench", "site", "--from", "board.json", "--page", "mine"]):
        before = sorted(Path("mine").rglob("*"))
        code, said = cli(*command)
        assert code == 2
        assert "='mine' holds results (cells/); name a folder of its own" in said
        assert sorted(Path("mine").rglob("*")) == before


# --- trackers --------------------------------------------------------------------------------------------------------


def test_a_grid_and_a_run_are_followed_on_request(cli: Any) -> None:
    pytest.importorskip("tensorboard")
    code, said = cli("grid", *STUDY, "--set", "seed=0", "--track", "tensorboard")
    assert code == 0
    assert "tensorboard --logdir runs/quickstart/tensorboard" in said
    assert len(list(Path("runs/quickstart/tensorboard").glob("*/events.out.*"))) == 2
    code, said = cli("run", *STUDY[:4], "--set", "seed=3", "--track", "tensorboard", "--out", "kept")
    assert code == 0
    assert len(list(Path("kept/run/tensorboard").glob("*/events.out.*"))) == 1


def test_compare_places_rows_and_says_what_keeps_cells_out(cli: Callable[..., tuple[int, str]]) -> None:
    code, said = cli("compare", "mine", "board.json")
    assert code == 0
    assert "SA, γ = 0.5, 2 rows" in said or "SA, overall, 2 rows" in said
    code, said = cli("compare", "mine", "board.json", "--format", "json")
    found = json.loads(said)
    assert (code, found["left_out"], found["differing"]) == (0, 0, [])
    assert {row["labels"]["board"] for row in found["board"]["tables"][0]["rows"]} == {"mine", "quickstart"}
    assert "quickstart" in cli("compare", "mine", "board.json", "--all")[1]
    code, said = cli("compare", "mine")  # with what comes along: no board has its two rounds
    assert code == 1
    assert "solve no task of quickstart" in said
    assert re.search(r"rounds 80 2", said)
    assert cli("compare", "nothing")[0] == 2
