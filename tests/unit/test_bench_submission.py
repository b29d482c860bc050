"""A benchmark's store, submitted and checked as by others: searches and members."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from other_boards import changed
from small_bench import RULES, VERSION, run_bench, shrink

from robustfl.records import digest, plain
from robustfl.reports.published import read_board
from robustfl.reports.published.format2 import merged
from robustfl.reports.published.merge import merge, read_source, write_merge
from robustfl.reports.published.submitting import BOARD, read_submission, write_submission
from robustfl.reports.store import Store
from robustfl.reports.writing import publish_store
from robustfl.scenarios.isolated import Job
from robustfl.scenarios.isolated_phases import run
from robustfl.scenarios.submission import Submission, check_submission
from robustfl.scenarios.verify import verify

pytestmark = pytest.mark.slow

MEAN = "mean · none · dsgd"
CELLS = 2 * 4 * 2
"""Final cells: of two contestants, without attack and under three members, with two seeds."""
SEARCHED = 2 * RULES.budget * 2
"""Trainings of the searches: of two contestants, under two attacks."""


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of two contestants and three members."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        tier = shrink(patch, ("alie", "foe(eta=10)", "sf"))
        run_bench(tier, folder, "median/none", rounds=3)
        found = run_bench(tier, folder, "median/gn", "mean/none", rounds=6)
        write_submission(found.results.folder, folder / "theirs")
        yield folder / "theirs"


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phases of isolated cells run in this process, which is faster."""
    monkeypatch.setattr(Job, "_run", lambda job, phase: run(phase, job.folder))


@pytest.fixture
def copy(submission: Path, tmp_path: Path) -> Path:
    shutil.copytree(submission, tmp_path / "theirs")
    return tmp_path / "theirs"


def refused(found: Submission) -> str:
    return "; ".join(f"{f.step}: {f.words}" for f in found.refused)


def test_a_bundle_of_a_benchmark_brings_its_protocol_and_is_held_to_it(submission: Path, tmp_path: Path) -> None:
    found = check_submission(submission, cells=None)
    assert found.accepted, found.findings
    said = {f.step: f.words for f in found.findings}
    assert f"AutoByz version {VERSION} complete; tier d, 2 contestants" in said["protocol"]
    assert found.verification is not None
    assert [check.verdict for check in found.verification.checks] == ["identical"] * (CELLS + SEARCHED)
    made = publish_store(submission.parent / "bench-d", tmp_path / "report", figures=False, board=tmp_path / "d.json")
    own = read_board(tmp_path / "d.json")[0]
    assert own.cells == read_submission(submission).board.cells  # of the last run
    assert len(made.files) > 1
    boards = [read_source(submission / BOARD), read_source(submission.parent / "bench-d")]
    write_merge(merge(boards, tolerance=0.01), boards, tmp_path / "all")
    publish_store(tmp_path / "all", tmp_path / "report", figures=False, board=tmp_path / "all.json")
    assert len(read_board(tmp_path / "all.json")[0].cells) == len(Store(tmp_path / "all").keys()) == CELLS


def attacked(data: dict[str, Any], attack: str, **wanted: object) -> list[dict[str, Any]]:
    """Take the cells under an attack out of a board, and return them with all their labels."""
    cells = [(cell, cell["labels"]) for cell in data["cells"]]
    gone = [
        (cell, all_of)
        for cell, all_of in cells
        if all_of["attack"] == attack and all(all_of[name] == value for name, value in wanted.items())
    ]
    data["cells"] = [cell for cell, _ in cells if cell not in [g for g, _ in gone]]
    return [{"key": cell["key"], "labels": all_of} for cell, all_of in gone]


def one_more(data: dict[str, Any]) -> None:
    search = data["protocol"]["benchmark"]["contestants"][MEAN]["search"]
    search.append(plain(search[0]))


def chosen(data: dict[str, Any]) -> None:
    entry = data["protocol"]["benchmark"]["contestants"][MEAN]
    entry["chosen"] = 1 - entry["chosen"]


def said(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["protocol"]["benchmark"]
    return found


def claiming(data: dict[str, Any], **words: Any) -> None:
    """Let the cells under one member say what would leave them out of the worst case."""
    for cell in data["cells"]:
        if cell["labels"]["attack"] == "sf":
            cell.update(words)


def behind_labels(data: dict[str, Any]) -> None:
    """Learning rates that have the labels of the chosen ones, and other numbers: a draw of one's own."""
    for cell in data["cells"]:
        rate = 1.0000001 * cell["cell"]["cell"]["schedule"]["lr"]
        cell["cell"] = merged(cell["cell"], {"cell": {"schedule": {"lr": rate}}})
        cell["key"] = digest(cell["cell"])


def once_more(data: dict[str, Any]) -> None:
    """The first cell a second time under a key of its own, with a better number."""
    again = plain(data["cells"][0])
    again["cell"] = merged(again["cell"], {"again": 1})
    again["key"] = digest(again["cell"])
    again["metrics"]["sa"] = 351 / 355
    data["cells"].append(again)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (one_more, f"protocol: {MEAN}: tuned on 3 configurations; the budget is {RULES.budget}"),
        (chosen, f"protocol: {MEAN}: its chosen is"),
        (behind_labels, "protocol: it has what the tier does not: mean, none"),
        (once_more, "protocol: it has more than one cell of "),
        (lambda data: attacked(data, "sf"), "protocol: mean, none, seed 0: AutoByz without sf"),
        (lambda data: attacked(data, "sf", norm="gn"), "form: median, gn lacks sf with seed 0, sf with seed 1"),
        (lambda data: said(data)["tuning"].update(seed=0), "protocol: its tuning is"),
        (lambda data: said(data).update(autobyz=9), f"protocol: its autobyz is 9, the protocol's {VERSION}"),
        (lambda data: claiming(data, status="refused", metrics=None, certificates={}), "numbers: cell"),
        (lambda data: claiming(data, certificates={"no_effect": True}), "the attack had no effect → an effect"),
        (lambda data: data["protocol"]["autobyz"].update(proven="yes"), "protocol.autobyz.proven: Extra inputs"),
        (lambda data: data["protocol"].update(audited="yes"), "protocol.audited: Extra inputs"),
        (lambda data: said(data).update(by="the authors"), "protocol.benchmark.by: Extra inputs"),
        (lambda data: said(data)["contestants"][MEAN].update(note="!"), f"contestants.{MEAN}.note: Extra inputs"),
        (lambda data: said(data)["contestants"][MEAN].update(reason="!"), "its reason is '!': a search says why"),
        (lambda data: said(data)["changed"].extend(said(data)["changed"]), "protocol: --set rounds is given twice, as"),
        (lambda data: data["protocol"]["autobyz"].update(version=9), "form: board.json.gz: autobyz: version=9 is not"),
    ],
)  # fmt: skip
def test_who_leaves_the_protocol_is_refused(change: Callable[[dict[str, Any]], object], why: str, copy: Path) -> None:
    assert why in refused(check_submission(changed(copy, change), cells=3))


def test_scores_that_nobody_reached_in_a_search_are_found(copy: Path) -> None:
    def better(data: dict[str, Any]) -> None:
        for entry in said(data)["contestants"].values():
            tried = entry["search"][entry["chosen"]]
            tried["validation"] = dict.fromkeys(tried["validation"], 0.99)
            tried["worst"] = 0.99

    found = verify(changed(copy, better) / BOARD, cells=1, sample=0)
    assert found.file == ()
    assert [check.labels.get("tuning", False) for check in found.checks] == [False, True]
    found = verify(copy / BOARD, cells=None)
    assert sum(not check.agrees for check in found.checks if check.labels.get("tuning")) == SEARCHED // RULES.budget
    assert "validation accuracy in the search 0.9900 → " in found.disagreeing[0].detail


def test_what_a_cell_is_said_to_cost_must_come_out_again(copy: Path) -> None:
    def halved(data: dict[str, Any]) -> None:
        for cell in data["cells"]:
            cell["certificates"]["traffic"]["mebibytes"] /= 2

    found = verify(changed(copy, halved) / BOARD, cells=None, where={"attack": "none", "norm": "gn", "seed": "0"})
    assert found.file == ()
    assert [check.verdict for check in found.checks] == ["differs"]
    assert "traffic exchanges 1, mebibytes 0.0788" in found.checks[0].detail
