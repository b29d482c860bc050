"""The steps of a submission's check one by one, on bundles and cells of which nothing is trained."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_store import record
from torch import Tensor

from robustfl import registry
from robustfl.contracts import Aggregator, Context
from robustfl.errors import RobustflError, UsageError
from robustfl.parameters import param
from robustfl.records import CellResult, digest
from robustfl.reports.published import publish, write_board
from robustfl.scenarios import secrecy, submission
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.verify import Check

NUMBERS = itertools.count()
Findings = list[tuple[str, bool | None, str]]


def noted(step: Any, *given: Any) -> Findings:
    """What one step finds."""
    found: Findings = []
    step(*given, lambda *finding: found.append(finding))
    return found


# --- the order of the steps ------------------------------------------------------------------------------------------


def bundle(folder: Path, *, wrong: tuple[str, ...] = (), packages: dict[str, str] | None = None) -> Any:
    manifest = SimpleNamespace(files={"a": "", "b": ""}, plugins={}, packages=packages or {})
    board = SimpleNamespace(cells=[1, 2, 3], protocol=None, records=list)
    foreign = tuple((packages or {}).values())
    return SimpleNamespace(folder=folder, manifest=manifest, board=board, wrong=wrong, foreign=foreign)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[submission.Submission, list[Any]]]:
    """A check of a bundle whose plug-ins bring one method or none, and the dear steps that it came to."""

    def check(agrees: bool = True, brought: int = 1, trust: tuple[str, ...] = (), **more: Any) -> Any:
        called: list[Any] = []

        def verify(board: Path, **how: Any) -> Any:
            called.append(("verify", board, how))
            return SimpleNamespace(agrees=agrees, file=(), checks=(), cells=3, sample=7)

        monkeypatch.setattr(submission, "read_bundle", lambda folder, against: bundle(tmp_path, **more))
        monkeypatch.setattr(
            submission, "_contracts", lambda methods, note, cells: called.append(("contracts", len(methods)))
        )
        monkeypatch.setattr(submission, "verify", verify)
        monkeypatch.setattr(
            submission, "check_secrecy", lambda bundle, sample, root, note: called.append((sample, root))
        )
        if "packages" not in more:
            monkeypatch.setattr(submission, "_methods_of", lambda bundle, note: [None] * brought)
        heard: list[submission.Finding] = []
        found = submission.check_submission(
            tmp_path, trust=trust, cells=5, sample=4, tolerance=0.2, root="data", on_finding=heard.append
        )
        assert tuple(heard) == found.findings
        return found, called

    return check


def test_what_costs_more_comes_later(ran: Callable[..., Any], tmp_path: Path) -> None:
    found, called = ran()
    how = called[1][2]
    assert callable(how.pop("on_cell"))
    assert how == {"cells": 5, "sample": 4, "tolerance": 0.2, "root": "data"}
    assert [called[0], called[1][:2], called[2]] == [("contracts", 1), ("verify", tmp_path / "board.json"), (7, "data")]
    assert found.findings[0] == submission.Finding("form", True, "3 cells, 3 files")


def test_training_is_looked_at_only_where_methods_came_with_numbers_that_agree(ran: Callable[..., Any]) -> None:
    assert [call[0] for call in ran(brought=0)[1]] == ["contracts", "verify"]
    assert [call[0] for call in ran(agrees=False)[1]] == ["contracts", "verify"]


def test_what_is_out_of_form_is_all_that_is_found(ran: Callable[..., Any]) -> None:
    found, called = ran(wrong=("this", "that"))
    assert found.findings == (submission.Finding("form", False, "this"), submission.Finding("form", False, "that"))
    assert called == []


def test_code_that_nobody_named_ends_the_check_and_a_package_that_is_not_here_does_not(ran: Callable[..., Any]) -> None:
    packages = {"mine 1.0": "mine==1.0"}
    found, called = ran(packages=packages)
    assert [(f.step, f.passed) for f in found.findings] == [("form", True), ("trust", None)]
    assert found.findings[-1].words == "code of mine==1.0 is not run; read it, then name it with --trust mine==1.0"
    assert called == []
    found, called = ran(packages=packages, trust=("mine==1.0",))
    assert [(f.step, f.passed) for f in found.findings[:2]] == [("form", True), ("contract", None)]
    assert [call[0] for call in called] == ["contracts", "verify"]
    assert not found.accepted


@pytest.mark.parametrize(
    ("passed", "refused", "undecided", "accepted"),
    [
        ((True, True), 0, 0, True), ((True, None), 0, 1, False), ((False, True), 1, 0, False),
        ((None, False), 1, 1, False),
    ],
)  # fmt: skip
def test_what_could_not_be_tried_is_neither_for_nor_against_a_bundle(
    passed: tuple[bool | None, ...], refused: int, undecided: int, accepted: bool, tmp_path: Path
) -> None:
    made = submission.Submission(bundle(tmp_path), tuple(submission.Finding("x", p, "") for p in passed))
    assert (len(made.refused), len(made.undecided), made.accepted) == (refused, undecided, accepted)


def test_trust_in_what_a_bundle_does_not_bring_is_a_mistake(ran: Callable[..., Any]) -> None:
    with pytest.raises(
        UsageError, match=r"trust='mine==1.1': the bundle brings no such code; did you mean 'mine==1.0'"
    ):
        ran(packages={"mine 1.0": "mine==1.0"}, trust=("mine==1.1",))


def test_a_board_to_be_joined_is_sound(tmp_path: Path) -> None:
    cell = {**record(sa=0.875).cell, "methods": {"norm": {"name": "fbn", "version": 1}}}
    made = record(sa=0.875).model_copy(update={"cell": cell, "key": digest(cell)})
    board = write_board(publish([made], name="x"), tmp_path / "b.json")
    assert submission._sound(board).name == "x"
    board.write_text(board.read_text().replace("0.875", "0.975"))
    with pytest.raises(UsageError, match=r"against=.*b.json'"):
        submission._sound(board)


# --- methods ---------------------------------------------------------------------------------------------------------


def test_methods_of_an_installed_package_are_among_what_a_bundle_brings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine, other = (SimpleNamespace(origin=origin) for origin in ("mine 1.0", "other 2.0"))
    monkeypatch.setattr(submission, "entries", lambda: [mine, other])
    brought: list[Any] = []
    given = bundle(tmp_path, packages={"mine 1.0": "mine==1.0"})
    assert noted(lambda given, note: brought.extend(submission._methods_of(given, note)), given) == []
    assert brought == [mine]


def test_a_plug_in_that_cannot_be_loaded_or_registers_nothing_breaks_its_contract(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(path: Path) -> list[Any]:
        if path.name == "torn.py":
            raise UsageError("torn")
        return [] if path.name == "bare.py" else ["a method"]

    monkeypatch.setattr(submission, "load_file", load)
    given = bundle(tmp_path)
    given.manifest.plugins = {"torn.py": "", "bare.py": "", "good.py": ""}
    brought: list[Any] = []
    assert noted(lambda given, note: brought.extend(submission._methods_of(given, note)), given) == [
        ("contract", False, "bare.py registers no method"), ("contract", False, "torn.py: torn"),
    ]  # fmt: skip
    assert brought == ["a method"]


def rule(aggregate: Any = None, **members: Any) -> Any:
    """The class of a defense with these members; the least number of clients is 2f + 1 unless they say another."""
    space = {
        "__doc__": "A rule.", "__module__": __name__, "aggregate": aggregate or middle,
        "min_clients": lambda self, f: 2 * f + 1, **members,
    }  # fmt: skip
    return registry.register(f"odd-{next(NUMBERS)}-in-a-bundle")(
        dataclass(frozen=True)(type("Odd", (Aggregator,), space))
    )


def middle(self: Any, X: Tensor, *, f: int, context: Context) -> Tensor:
    return X.sort(dim=0).values[f : len(X) - f].mean(0)


def first_rows(self: Any, X: Tensor, *, f: int, context: Context) -> Tensor:
    return X[: len(X) - f].mean(0)


def last_rows(self: Any, X: Tensor, *, f: int, context: Context) -> Tensor:
    return X[f:].mean(0)


def wrong_when_wide(self: Any, X: Tensor, *, f: int, context: Context) -> Tensor:
    if X.shape[1] > 1000:
        raise RuntimeError("too wide")
    return middle(self, X, f=f, context=context)


@pytest.mark.usefixtures("clean_registry")
def test_the_contract_is_held_with_the_parameters_of_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    class Switched(Aggregator):
        """The middle; with a switch."""

        k: int = param(0, ge=0, le=3, doc="what it does")

        def min_clients(self, f: int) -> int:
            return 2 * f + 1

        def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor:
            return middle(self, X, f=f, context=context)

    registry.register("switched-in-a-bundle")(dataclass(frozen=True)(Switched))
    entry = registry.lookup("defense", "switched-in-a-bundle")
    monkeypatch.setattr(submission, "laws_of", lambda method: [submission.Law("finite", method.k < 2, "it is not")])

    def held(*defenses: str) -> list[Any]:
        cells = [{"defense": defense, "f": 1} for defense in defenses]
        return noted(lambda given, note: submission._contracts(given, note, cells), [entry])

    name = "defense switched-in-a-bundle"
    assert held("mean", "switched-in-a-bundle") == [("contract", True, f"{name} keeps the contract")]
    assert held("nnm+switched-in-a-bundle(k=1)")[0][1] is True
    assert held("a-rule-that-is-not-here", "switched-in-a-bundle(k=1)")[0][1] is True
    broken = [("contract", False, f"{name}(k=2): finite: it is not")]
    assert held("mean", "nnm+switched-in-a-bundle(k=2)") == broken


@pytest.mark.usefixtures("clean_registry")
def test_a_broken_law_is_all_that_is_said_of_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(kind="defense", name="odd", origin="odd.py", cls=rule(middle))
    laws = [submission.Law("finite", True), submission.Law("shape", False, "it has none")]
    monkeypatch.setattr(submission, "laws_of", lambda method: laws)
    assert noted(submission._contracts, [entry]) == [("contract", False, "defense odd: shape: it has none")]
    monkeypatch.setattr(submission, "laws_of", lambda method: laws[:1])
    assert noted(submission._contracts, [entry]) == [("contract", True, "defense odd keeps the contract")]


def leaves() -> None:
    raise SystemExit(0)


def test_a_method_that_ends_the_process_where_it_is_made_does_not_end_the_check() -> None:
    entry = SimpleNamespace(kind="defense", name="odd", origin="odd.py", cls=leaves)
    ((_, passed, words),) = noted(submission._contracts, [entry])
    assert (passed, words) == (False, "defense odd cannot be made: SystemExit: 0")


# --- numbers and protocol --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "words", "found"),
    [
        (("one", "two"), "", [(False, "one"), (False, "two")]), ((), "tier d", [(True, "tier d")]), ((), "", []),
        (("one",), "tier d", [(False, "one")]),
    ],
)  # fmt: skip
def test_a_board_follows_its_protocol_or_leaves_it(
    faults: tuple[str, ...], words: str, found: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(submission, "words_of", lambda board: words)
    told = noted(submission._protocol, SimpleNamespace(file=faults), bundle(tmp_path))
    assert told == [("protocol", *one) for one in found]


def checks(*verdicts: str) -> Any:
    why = {"differs": "why"}
    made = tuple(Check(f"{i}" * 32, {}, verdict, why.get(verdict, "")) for i, verdict in enumerate(verdicts))
    return SimpleNamespace(checks=made, cells=9, sample=7)


def test_numbers_that_do_not_come_out_again_refuse_and_cells_that_cannot_run_here_decide_nothing() -> None:
    same, other, absent = "identical", "differs", "cannot be run here"
    assert noted(submission._numbers, checks(same, "within tolerance")) == [
        ("numbers", True, "2 cells of 9 came out again (drawn with 7)")
    ]
    assert noted(submission._numbers, checks(same, other, absent)) == [
        ("numbers", False, "cell 111111111111: differs: why"), ("numbers", None, f"cell 222222222222: {absent}"),
    ]  # fmt: skip


# --- secrecy ---------------------------------------------------------------------------------------------------------


def finished(defense: str, attack: str = "", rounds: int = 5, status: str = "done", seed: int = 0) -> CellResult:
    """A record of a cell with a plug-in as its defense, and perhaps one as its attack."""
    named = {"defense": [{"name": defense, "origin": "d.py 1"}]}
    methods = named | ({"attack": {"name": attack, "origin": "a.py 1"}} if attack else {})
    made = record(defense=defense, attack=attack or "none", rounds=rounds, status=status, seed=seed)
    return made.model_copy(update={"cell": {**made.cell, "methods": methods}})


def test_a_finished_cell_is_drawn_for_every_set_of_plug_ins_and_not_the_shortest() -> None:
    lost, both = finished("a", rounds=1, status="diverged"), finished("a", "b", rounds=1)
    short, long = finished("a", rounds=2), finished("a", rounds=50)
    seen = set()
    for sample in range(20):
        drawn = secrecy._drawn_for([lost, both, short, long, record(defense="median")], sample)
        assert drawn == secrecy._drawn_for([long, short, both, lost], sample)
        assert drawn.keys() == {("defense a",), ("attack b", "defense a")}
        assert drawn["attack b", "defense a"] == both
        seen.add(drawn[("defense a",)].key)
    assert seen == {short.key, long.key}


def sought(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records: list[CellResult], ends: dict[str, Any]
) -> Findings:
    """What is found where records train to these models: here, elsewhere, and what plug-ins reach for there."""

    class Fresh:
        def __init__(self, count: int, **how: Any) -> None:
            assert (count, how["initargs"]) == (1, ((), ("mine 1.0",)))

        def __enter__(self) -> Fresh:
            return self

        def __exit__(self, *told: object) -> None:
            pass

        def submit(self, function: Any, given: CellResult, root: object) -> Any:
            assert (function, root) == (secrecy._trained_elsewhere, "data")

            def result() -> Any:
                end = ends[given.labels["defense"]]
                if isinstance(end, Exception):
                    raise end
                return end[1:]

            return SimpleNamespace(result=result)

    monkeypatch.setattr(secrecy, "ProcessPoolExecutor", Fresh)
    monkeypatch.setattr(secrecy, "_trained", lambda given, root: ends[given.labels["defense"]][0])
    given = bundle(tmp_path, packages={"mine 1.0": "mine==1.0"})
    given.board.records = lambda: records
    return noted(secrecy.check_secrecy, given, 3, "data")


def test_a_model_must_not_depend_on_test_data_nor_its_methods_reach_for_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = {
        "same": ("model 1", "model 1", []), "other": ("model 1", "model 2", []),
        "reaches": ("model 1", "model 1", ["a.csv", "os.system"]), "both": ("model 1", "model 2", ["a.csv"]),
        "absent": RobustflError("no data"),
    }  # fmt: skip
    records = [finished(name) for name in ends]
    found = sought(monkeypatch, tmp_path, records, ends)
    keys = {r.labels["defense"]: r.key[:12] for r in records}
    assert sorted(found, key=str) == sorted([
        ("secrecy", True, "defense same: the trained model does not depend on the test data"),
        ("secrecy", False, "defense other: other test data change what is trained: model 1, then model 2"),
        ("secrecy", False, "defense reaches: the plug-in reaches for a.csv, os.system"),
        ("secrecy", False, "defense both: the plug-in reaches for a.csv"),
        ("secrecy", False, "defense both: other test data change what is trained: model 1, then model 2"),
        ("secrecy", None, f"cell {keys['absent']} cannot be run here: RobustflError: no data"),
    ], key=str)  # fmt: skip


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"certificates": {"model": {"digest": "0123456789abcdef"}}}, "model 0123456789ab"),
        ({"status": "failed", "reason": "boom\nTraceback", "certificates": {}}, "failed: boom"),
        ({"status": "refused", "reason": None, "certificates": {}}, "refused: "),
    ],
)
def test_a_cell_is_trained_without_what_looks_at_test_data(
    made: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[Cell, dict[str, Any]]] = []

    def run(cell: Cell, **how: Any) -> CellResult:
        ran.append((cell, how))
        return record().model_copy(update=made)

    monkeypatch.setattr(secrecy, "run_cell", run)
    monkeypatch.setattr(secrecy, "fingerprints", lambda cells, root: dict.fromkeys(cells, f"of {root}"))
    settings = {"evasions": ["pgd"], "evaluate_every": 5, "rounds": 20, "select": "validation", "validation": 0.1}
    of = record().model_copy(update={"cell": {"cell": settings}})
    assert secrecy._trained(of, "data") == words
    ((cell, how),) = ran
    assert (cell.evasions, cell.evaluate_every, cell.select, cell.tail, cell.rounds) == ((), 0, "last", 1, 20)
    here = how["execution"]
    assert (how["fingerprint"], here.device, here.root, here.keep_model) == ("of data", "cpu", "data", True)
    assert here.checkpoint_minutes == 0
