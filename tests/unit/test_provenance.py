"""Records and boards say by which commit of robustfl's own code, and on which processor, they were computed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from test_published import real

from robustfl import provenance
from robustfl.records import CellResult
from robustfl.reports import load_board
from robustfl.reports.published import publish, read_board, write_board
from robustfl.reports.store import Store
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell

ONE, OTHER = "1" * 40, "2" * 40 + "-modified"


def git(folder: Path, *arguments: str) -> str:
    names = ("-c", "user.name=x", "-c", "user.email=x@y.z", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_checkout_tells_its_commit_and_whether_code_has_changed(tmp_path: Path) -> None:
    code = tmp_path / "robustfl" / "provenance.py"
    code.parent.mkdir()
    code.write_text("a = 1\n")
    assert provenance.commit_of(tmp_path) == "unknown"
    git(tmp_path, "init", "-q")
    assert provenance.commit_of(tmp_path) == "unknown"  # a repository around an installed package is not its own
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.commit_of(tmp_path) == head
    (tmp_path / "notes.txt").write_text("no code")
    assert provenance.commit_of(tmp_path) == head
    (code.parent / "attack.py").write_text("new = 1\n")
    assert provenance.commit_of(tmp_path) == f"{head}-modified"


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.commit_of(Path(provenance.__file__).parents[1]) == "unknown"


def test_a_processor_is_told_by_its_name_family_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name such as AMD EPYC is that of many processors, which round in different ways."""
    first = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n"
    provenance.processor.cache_clear()
    monkeypatch.setattr(provenance.Path, "read_text", lambda *_, **__: f"{first}\n{first.replace('25', '26')}")
    assert provenance.processor() == "AMD EPYC (family 25, model 1)"
    provenance.processor.cache_clear()


def computed(record: CellResult, *commits: str, device: str = "") -> CellResult:
    return record.model_copy(
        update={"timing": record.timing.model_copy(update={"commits": list(commits), "device": device})}
    )


def test_a_record_names_the_commit_and_the_processor() -> None:
    small = {"dataset": "digits(limit=80, test_limit=10)", "model": "mlp(hidden=(4,))", "norm": "gn", "clients": 2}
    record = run_cell(Cell.of({**small, "rounds": 1, "batch": 8, "evasions": []}), fingerprint="x")
    assert record.status == "done"
    assert record.timing.commits == [provenance.commit()]
    assert record.timing.device == f"{provenance.processor()}, {provenance.instruction_set()}"
    refused = run_cell(Cell.of({**small, "f": 1}), fingerprint="x")
    assert (refused.status, refused.timing.commits) == ("refused", [provenance.commit()])


def test_a_board_of_one_commit_says_it_once(tmp_path: Path) -> None:
    records = [computed(real(seed=s), ONE, device="Fast 9000") for s in range(2)]
    file = write_board(publish(records, name="x"), tmp_path / "b.json")
    board, wrong = read_board(file)
    assert wrong == []
    assert (board.environment.commits, board.environment.processors) == ([ONE], ["Fast 9000"])
    assert "commits" not in json.loads(file.read_text())["cells"][0]
    assert [r.timing.commits for r in board.records()] == [[ONE], [ONE]]


def test_cells_of_several_commits_keep_their_own(tmp_path: Path) -> None:
    records = [computed(real(seed=0), ONE), computed(real(seed=1), ONE, OTHER), real(seed=2)]
    board, wrong = read_board(write_board(publish(records, name="x"), tmp_path / "b.json"))
    assert wrong == []
    assert board.environment.commits == sorted([ONE, OTHER, "unknown"])
    own = {r.key: r.timing.commits for r in board.records()}
    assert [own[r.key] for r in records] == [[ONE], [ONE, OTHER], ["unknown"]]


def test_leaderboards_name_the_commits(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.commit_all([computed(real(seed=0), ONE, device="Fast 9000"), computed(real(seed=1), ONE, OTHER)])
    versions = dict(load_board(store.folder).versions)
    assert versions["commit"] == f"{ONE}, {ONE} then {OTHER}"
    assert versions["processor"] == "Fast 9000"
