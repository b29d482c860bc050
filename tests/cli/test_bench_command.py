"""``robustfl bench`` hands on what it is told, and says what it found; nothing is trained here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_plugin import attack_plugin
from fake_store import record, stored
from joblib import parallel_config

from robustfl import autobyz
from robustfl.autobyz import Ensemble, Member
from robustfl.cli import bench as command
from robustfl.cli import invoke
from robustfl.errors import UsageError
from robustfl.records import digest
from robustfl.reports.benchmark import study
from robustfl.reports.benchmark.study import Study, Tried, about
from robustfl.reports.published import read_board
from robustfl.scenarios import Results, Scenario, dry_run
from robustfl.scenarios import bench as engine
from robustfl.scenarios.protocol import protocol

VERSION = protocol().version


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, Any, dict[str, Any]]]:
    """The tiers that would run, with how; each command ends there."""
    monkeypatch.chdir(tmp_path)
    found: list[tuple[Any, Any, dict[str, Any]]] = []

    def bench(tier: Any, run: Any, **how: Any) -> None:
        found.append((tier, run, how))
        raise UsageError("enough")

    monkeypatch.setattr(engine, "bench", bench)
    return found


@pytest.mark.usefixtures("clean_registry")
def test_every_option_reaches_the_tier(
    asked: list[tuple[Any, Any, dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(attack_plugin("of-the-command"))
    words = [
        "--contestant", "mean/gn", "--set", "rounds=3", "--set", "f=1", "--out", "mine", "--data-root", ".",
        "--plugin", "mine.py", "--jobs", "2", "--threads", "3", "--device", "cpu", "--format", "json",
    ]  # fmt: skip
    assert invoke(["bench", "m", *words]) == 2
    ((tier, run, how),) = asked
    assert tier.name == "m"
    how.pop("on_note")("a note")
    assert capsys.readouterr().err.endswith("a note\n")
    assert how == {
        "wanted": ("mean/gn",), "settings": ("rounds=3", "f=1"), "out": "mine", "root": ".",
        "plugins": ("mine.py",),
    }  # fmt: skip
    made = run.keywords["options"]
    assert (made.jobs, made.threads, made.device, made.root) == (2, 3, "cpu", ".")
    assert (run.keywords["out"], run.keywords["quiet"]) == ("mine", True)


def test_a_tier_runs_in_the_folder_of_stores_and_prints_its_progress(
    asked: list[tuple[Any, Any, dict[str, Any]]],
) -> None:
    assert invoke(["bench", "d"]) == 2
    ((tier, run, how),) = asked
    assert (tier.name, how["out"], how["plugins"]) == ("d", "runs", ())
    assert run.keywords["quiet"] is False


def test_pages_of_other_attacks_than_autobyz_are_refused_before_anything_runs(
    asked: list[tuple[Any, Any, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "d", "--set", 'attack=["none", "sf"]']
    assert invoke([*words, "--page", "pages"]) == 2
    assert "the pages show accuracy under AutoByz, which --set attack took away" in capsys.readouterr().err
    assert asked == []
    assert invoke([*words, "--board", "b.json"]) == 2
    assert len(asked) == 1  # a board can say what it changed
    found: Any = SimpleNamespace(board=SimpleNamespace(autobyz=None))
    with pytest.raises(UsageError, match=r"b\.json: the pages show accuracy under AutoByz"):
        command._write_site([(found, Path("b.json"))], Path("pages"))


@pytest.mark.parametrize("failed", [0, 1])
def test_a_tier_with_a_failed_cell_ends_with_1_and_publishes_its_own_cells(
    failed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = [record(seed=seed, attack="none") for seed in range(3)]
    told = [{**r.cell, "methods": {"norm": {"name": "fbn", "version": 1}}} for r in ran]
    records = [r.model_copy(update={"cell": cell, "key": digest(cell)}) for r, cell in zip(ran, told, strict=True)]
    stored(tmp_path / "runs" / "s", records)
    keys = frozenset(r.key for r in records[:2])
    results = Results(Path("runs/s"), 1, 1, {"done": 2, "failed": failed}, keys)
    monkeypatch.setattr(engine, "bench", lambda *_, **how: SimpleNamespace(results=results))
    assert invoke(["bench", "d", "--board", "b.json"]) == failed
    said = capsys.readouterr().out
    assert "Cells: 2 done." in said
    assert said.endswith("  b.json\n")
    assert {cell.key for cell in read_board(Path("b.json"))[0].cells} == keys
    assert invoke(["bench", "d", "--board", "b.json", "--format", "json"]) == failed
    said, told = capsys.readouterr()
    assert json.loads(said)
    assert told == "  b.json\n"


def test_a_dry_run_plans_the_tuning_and_the_final_cells_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dry_run.Costs, "_network", lambda *_: None)
    assert invoke(["bench", "d", "--dry-run", "--contestant", "median/fbn"]) == 0
    out = capsys.readouterr().out
    assert "bench-d-tuning: 18 cell(s): 18 to run; nothing was trained." in out
    assert "\nbench-d: 408 cell(s): " in out
    assert "the tuning may choose another" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("more", "words"), [
    (["d", "--page", "p"], "bench d --dry-run takes no --page"),
    (["site"], "bench site trains nothing; it takes no --dry-run"),
])  # fmt: skip
def test_a_dry_run_of_what_does_not_run_is_refused(
    more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["bench", *more, "--dry-run"]) == 2
    assert words in capsys.readouterr().err


def test_a_list_says_what_each_contestant_is_told_and_tries(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--contestant", "krum/gn", "--contestant", "clipping+mean/gn"]
    assert invoke(["bench", "d", "--list", *wanted, "--format", "json"]) == 0
    rules = protocol()
    plain, own = json.loads(capsys.readouterr().out)
    rates = [", ".join(f"{rate:g}" for rate in some) for some in (rules.rates, rules.coarse)]
    assert plain == {"contestant": "krum · gn · dsgd", "knowledge": "f declared", "rates": rates[0], "own": ""}
    assert own == {
        "contestant": "clipping+mean · gn · dsgd", "knowledge": "none", "rates": rates[1],
        "own": "clipping(c=0.5)+mean",
    }  # fmt: skip
    assert invoke(["bench", "d", "--list", *wanted]) == 0
    said = capsys.readouterr().out
    assert f"Tier d ({rules.tier('d').title}), protocol version {VERSION}: {rules.budget} configurations each" in said
    assert re.search(r"krum · gn · dsgd +\S? *f declared", said)


# --- boards that are there -------------------------------------------------------------------------------------------


@dataclass
class Found:
    """A measured board that nobody looks at."""

    board: Any = None
    published: Any = None


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[tuple[Any, ...]]]:
    """What sites are written of, where a board's file holds the facts of the benchmark and nothing else."""
    monkeypatch.chdir(tmp_path)
    found: list[tuple[Any, ...]] = []

    def write(boards: Any, page: Path, left_out: Any = ()) -> list[Path]:
        found.append(([file for _, file in boards], page, list(left_out)))
        return [page / "index.md", page / "d.md"]

    def read(source: Path) -> Any:
        facts = {"tier": source.stem[0], "version": int(source.stem[1:])}
        known = {"benchmark": facts} if facts["version"] else None
        return SimpleNamespace(protocol=known, model_copy=lambda update: None)

    monkeypatch.setattr("robustfl.reports.published.sound_board", read)
    monkeypatch.setattr(command, "_followed", lambda source, read: found.append((source,)) or Found())
    monkeypatch.setattr(command, "_write_site", write)
    monkeypatch.setattr(command, "print_board", lambda made, form, full: None)
    with parallel_config(backend="sequential"):
        yield found


OLD = "d99.json, tier d: protocol version 99 is not known here"


def test_a_site_shows_the_boards_that_it_can_and_names_the_others(
    written: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [f"--from={name}{VERSION}.json" for name in ("m", "d")]
    assert invoke(["bench", "site", *sources, "--from=d99.json", "--page", "pages"]) == 0
    shown = [Path(f"{name}{VERSION}.json") for name in ("m", "d")]
    assert written[:2] == [(file,) for file in shown]  # held against their protocols
    ((files, page, (left_out,)),) = written[2:]
    assert (files, page) == (shown, Path("pages"))
    assert left_out.startswith(OLD)
    said, refused = capsys.readouterr()
    assert said == "2 boards, 2 files; the first page is pages/index.md\n"
    assert refused.startswith(f"not shown: {OLD}")
    assert invoke(["bench", "site", *sources, "--from=d99.json", "--page", "pages", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"written": ["pages/index.md", "pages/d.md"], "left_out": [left_out]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "d99.json", "--page", "pages"], f"bench site: no board to show; {OLD}"),
        (["--from", "d0.json", "--page", "pages"], "d0.json: no board of the benchmark; make one with"),
        (["--from", f"d{VERSION}.json"], "bench site needs --page FOLDER and --from BOARD"),
        (["--page", "pages"], "bench site needs --page FOLDER and --from BOARD"),
    ],
)
def test_a_site_without_a_board_or_a_folder_is_none(
    words: list[str], said: str, written: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["bench", "site", *words]) == 2
    assert said in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert written == []


@pytest.mark.usefixtures("clean_registry")
def test_a_site_loads_the_plug_ins_whose_methods_it_tells_of(written: list[tuple[Any, ...]], tmp_path: Path) -> None:
    from robustfl.registry import lookup

    (tmp_path / "mine.py").write_text(attack_plugin("of-the-command"))
    words = ["--from", f"d{VERSION}.json", "--page", "pages", "--plugin", "mine.py"]
    assert invoke(["bench", "site", *words]) == 0
    assert lookup("attack", "of-the-command").name == "of-the-command"
    assert len(written) == 2


def test_a_tiers_board_is_shown_again_and_held_to_its_protocol(
    written: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    board = Path(f"d{VERSION}.json")
    assert invoke(["bench", "d", "--from", str(board), "--page", "pages"]) == 0
    assert written == [(board,), ([board], Path("pages"), [])]
    assert capsys.readouterr().out == "  pages/index.md\n"
    assert invoke(["bench", "d", "--from", str(board)]) == 0
    assert written[2:] == [(board,)]
    for source, why in (("m2", "no board of tier d of the benchmark; its tier: m"),
                        ("d0", "no board of tier d of the benchmark; its tier: none"),
                        ("d99", "protocol version 99 is not known here")):  # fmt: skip
        assert invoke(["bench", "d", "--from", f"{source}.json"]) == 2
        assert f"{source}.json: {why}" in re.sub(r"\s+", " ", capsys.readouterr().err)


# --- studies ---------------------------------------------------------------------------------------------------------


def chosen() -> tuple[Study, Ensemble]:
    """Data of a study, and the ensemble that they choose."""
    of = about()
    required = sorted(of.required)
    row = dict.fromkeys(required, 0.4) | {"ipm": 0.1, "zero": 0.6}
    who = ("digits", "p", "gn", "iid", "2", "0")
    found = Study({who: [Tried(attack, "done", sa) for attack, sa in row.items()]}, {})
    choice = found.choose(of.required, of.limit)
    members = tuple(Member(name) for name in reversed(choice.members))
    return found, Ensemble(of.version, members)


def test_a_study_ends_with_0_where_it_chooses_the_members_of_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, ensemble = chosen()
    others = (
        (ensemble, 0),
        (replace(ensemble, members=ensemble.members[1:]), 1),
        (replace(ensemble, members=(*ensemble.members, Member("zero"))), 1),
    )  # fmt: skip
    for one, code in others:
        monkeypatch.setattr(autobyz, "ensemble_of", lambda version, one=one: one)
        assert command.study(found, page=tmp_path, form="table") == code
        said = capsys.readouterr().out
        assert f"{'That is' if code == 0 else 'That is not'} AutoByz version {ensemble.version}.\n" in said
        assert said.endswith(f"  {tmp_path / 'study-3.csv'}\n  {tmp_path / 'study-3.md'}\n")
        assert command.study(found, page=None, form="json") == code
        told = json.loads(capsys.readouterr().out)
        assert (told["same"], told["written"], told["contestants"]) == (code == 0, [], 1)
        assert set(told["members"]) >= {"ipm"}
    assert (tmp_path / "study-3.csv").read_text(encoding="utf-8") == found.to_csv()


def test_a_study_reads_its_own_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    records = [record(seed=seed) for seed in range(3)]
    stored(tmp_path / "s", records)
    keys = frozenset(r.key for r in records[1:])
    ran: list[Scenario] = []
    read: list[set[str]] = []

    def study_of(given: Any) -> str:
        read.append({r.key for r in given})
        return "found"

    monkeypatch.setattr(study, "study_of", study_of)
    run = lambda scenario: ran.append(scenario) or Results(tmp_path / "s", 3, 0, {}, keys)  # noqa: E731
    assert command._studied(None, run) == "found"  # type: ignore[comparison-overlap]
    assert ran == [Scenario.load(f"bench/{command.STUDY}")]
    assert read == [keys]
