"""The steps of verifying a board one by one, on records of which nothing is trained."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_store import record

from robustfl.records import CellResult, plain
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import key_of, resolve

verify = importlib.import_module("robustfl.scenarios.verify")  # in whose place the package has its function
PRINT = "ab" * 8
OK, NEAR, ELSEWHERE, OTHER, BAD = (
    "identical", "within tolerance", "cannot be run here", "other versions", "differs",
)  # fmt: skip


# --- the verdict on the board ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "more", "agrees", "undecided"),
    [
        ((), {}, True, False), ((OK, NEAR), {}, True, False), ((OK, BAD), {}, False, False),
        ((OK, ELSEWHERE), {}, False, True), ((BAD, ELSEWHERE), {}, False, False),
        ((OK,), {"file": ("x",)}, False, False), ((OK,), {"versions": ("x",)}, False, True),
        ((ELSEWHERE,), {"file": ("x",)}, False, False), ((ELSEWHERE, OTHER), {"versions": ("x",)}, False, True),
        ((BAD, OTHER), {"versions": ("x",)}, False, False), ((), {"versions": ("x",)}, False, True),
        ((), {"missing": ("x",)}, False, True), ((), {"missing": ("x",), "versions": ("x",)}, False, True),
    ],
)  # fmt: skip
def test_a_board_is_accepted_rejected_or_left_undecided(
    verdicts: tuple[str, ...], more: dict[str, Any], agrees: bool, undecided: bool
) -> None:
    checks = tuple(verify.Check("k", {}, verdict, "") for verdict in verdicts)
    found = verify.Verification("b", 0.01, 0.01, published=3, cells=3, chosen=3, sample=0, checks=checks, **more)
    assert (found.agrees, found.undecided) == (agrees, undecided)


@pytest.mark.parametrize(
    ("apart", "wanted", "chosen"),
    [([], {}, ["the record", "a training"]), ([], {"attack": "sf"}, ["the record"]), (["p"], {}, ["the record"])],
)
def test_searches_run_again_of_a_whole_board_that_follows_its_protocol(
    apart: list[str], wanted: dict[str, str], chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = published()
    board = SimpleNamespace(
        name="b", tolerance=0.02, cells=[1], environment=SimpleNamespace(versions={}), records=lambda: [one],
        protocol={"autobyz": {"version": "none there is"}} if apart else {},
    )  # fmt: skip
    monkeypatch.setattr(verify, "read_board", lambda path: (board, ["w"]))
    monkeypatch.setattr(verify, "apart_from_protocol", lambda board, records: apart)
    monkeypatch.setattr(verify, "trials_of", lambda board: ["a training"])
    for check_only in (False, True):
        known, drawn = verify._looked_through(Path("b"), wanted, 3, 5, 0.01, check_only, False)
        assert ["the record" if d is one else d for d in drawn] == chosen
        assert (known.chosen, known.cells) == (0 if check_only else len(chosen), 1)
        assert known.file == ("w", *apart)
        assert (known.claimed, known.tolerance, known.sample) == (0.02, 0.01, 5)


@pytest.mark.parametrize("check_only", [False, True])
def test_versions_are_looked_at_in_all_cells_and_not_only_in_those_drawn(
    check_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = published()
    methods = {**one.cell["methods"], "norm": {**one.cell["methods"]["norm"], "version": 99}}
    records = [*[one] * 9, one.model_copy(update={"cell": {**one.cell, "methods": methods}})]
    board = SimpleNamespace(
        name="b", tolerance=0.02, cells=records, environment=SimpleNamespace(versions={}), records=lambda: records,
        protocol={},
    )  # fmt: skip
    monkeypatch.setattr(verify, "read_board", lambda path: (board, []))
    monkeypatch.setattr(verify, "apart_from_protocol", lambda board, records: [])
    monkeypatch.setattr(verify, "trials_of", lambda board: [])
    known, _ = verify._looked_through(Path("b"), {}, 1, 0, 0.01, check_only, False)
    assert [words.split(":")[0] for words in known.versions] == ["norm fbn"]
    assert known.missing == ()
    absent = one.model_copy(update={"cell": {**one.cell, "cell": {**one.cell["cell"], "norm": "fbm"}}})
    records.append(absent)
    known, _ = verify._looked_through(Path("b"), {}, 1, 0, 0.01, check_only, False)
    assert [("fbm" in words) for words in known.missing] == [True] * check_only


# --- drawing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cells", "first"), [(1, 0), (3, 1), (6, 2), (9, 3)])
def test_a_third_of_the_cells_drawn_count_in_no_worst_case_on_their_word(
    cells: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [record(seed=seed) for seed in range(12)]
    doubtful = {r.key for r in there[:6]}
    monkeypatch.setattr(verify, "_left_out_of_the_worst", lambda records: there[:6])
    drawn = [[r.key for r in verify._drawn(there, cells, seed)] for seed in range(20)]
    assert {len(set(keys)) for keys in drawn} == {len(keys) for keys in drawn} == {cells}
    assert all(doubtful.issuperset(keys[:first]) for keys in drawn)
    assert not all(doubtful.issuperset(keys) for keys in drawn)
    assert len({tuple(keys) for keys in drawn}) > 1
    assert drawn[0] == [r.key for r in verify._drawn(there, cells, 0)]


def test_all_cells_are_drawn_where_all_or_more_are_asked_for() -> None:
    there = [record(seed=0), record(seed=1, status="refused", reason="x")]
    assert verify._drawn(there, None, 0) == there
    assert sorted(map(str, verify._drawn(there, 50, 0))) == sorted(map(str, there))


@pytest.mark.parametrize(("cells", "count"), [(None, 9), (1, 1), (3, 1), (6, 2), (300, 9)])
def test_one_training_of_a_search_runs_beside_three_cells_and_at_least_one(cells: int | None, count: int) -> None:
    drawn = [verify._few(range(9), cells, seed) for seed in range(20)]
    assert {len(set(few)) for few in drawn} == {len(few) for few in drawn} == {count}
    assert len({tuple(few) for few in drawn}) > 1 or cells is None


def test_cells_that_count_in_no_worst_case_are_doubtful_unless_their_settings_say_so() -> None:
    def of(seed: int, attack: str = "sf", *, f: int = 3, status: str = "done", **certificates: Any) -> CellResult:
        made = record(seed=seed, attack=attack, f=f, status=status, reason="x" if status == "refused" else None)
        return made.model_copy(update={"certificates": {**made.certificates, **certificates}})

    cells = {
        "refused by its settings": of(0, f=6, status="refused"), "refused while running": of(1, status="refused"),
        "idle by its settings": of(2, "alie", f=2, no_effect=True), "idle as it says": of(6, no_effect=True),
        "idle as measured": of(3, attack_shift=0.0, statistics=0), "refused, unknown": of(7, "x", status="refused"),
        "moved": of(4, attack_shift=0.5, statistics=0), "none": of(5, "none", attack_shift=0.0, statistics=0),
    }  # fmt: skip
    found = verify._left_out_of_the_worst(list(cells.values()))
    assert [name for name, r in cells.items() if r in found] == [
        "refused while running", "idle as it says", "idle as measured", "refused, unknown",
    ]  # fmt: skip


def test_cells_without_an_attack_among_their_settings_are_drawn_like_others() -> None:
    made = record()
    nameless = made.model_copy(update={"labels": {n: v for n, v in made.labels.items() if n != "attack"}})
    assert verify._drawn([nameless], 3, 0) == [nameless]


# --- one cell again --------------------------------------------------------------------------------------------------


def published(**changed: Any) -> CellResult:
    """A record as a board has it, under its right key."""
    made = record(sa=0.5, ra={})
    resolved = resolve(Cell.of(made.labels), PRINT)
    known = {"versions": {}, **changed.pop("certificates", {})}
    return made.model_copy(update={"cell": plain(resolved), "key": key_of(resolved), "certificates": known, **changed})


def again(record: CellResult, *, sa: float = 0.5, **changed: Any) -> CellResult:
    assert record.metrics is not None
    metrics = record.metrics.model_copy(update={"sa": sa})
    return record.model_copy(update={"metrics": metrics, **changed})


AGAIN = verify._Again(None, None, None, (), None)


def running(run: Any) -> verify._Again:
    """What measures a cell by calling ``run``."""

    class Fake(verify._Again):
        def run(self, *given: Any) -> Any:
            return run(*given)

    return Fake(None, None, None, (), None)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The check of a record that comes out as another one."""
    monkeypatch.setattr(verify, "fingerprints", lambda cells, root: dict.fromkeys(cells, PRINT))

    def check(one: CellResult, other: CellResult) -> tuple[str, str]:
        def run(cell: Cell, fingerprint: str, said: Mapping[str, Any], scenario: str) -> CellResult:
            assert (cell, fingerprint, said, scenario) == (Cell.of(one.labels), PRINT, one.certificates, "fake")
            return other

        found = verify._again(one, 0.01, running(run))
        assert (found.key, found.labels, found.versions) == (one.key, one.labels, ())
        return found.verdict, found.detail

    return check


@pytest.mark.parametrize(
    ("sa", "verdict", "detail"),
    [(0.5, OK, ""), (0.505, NEAR, "sa 0.5000 → 0.5050"), (0.52, BAD, "sa 0.5000 → 0.5200")],
)
def test_a_cell_comes_out_again_or_says_in_what_it_does_not(sa: float, verdict: str, detail: str, checked: Any) -> None:
    assert checked(published(), again(published(), sa=sa)) == (verdict, detail)


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        ({"unreliable": "x"}, {}, "unreliable x → None"), ({}, {"unreliable": "x"}, "unreliable None → x"),
        ({"evaluation": "a"}, {"evaluation": "b"}, "evaluation a → b"),
        ({"traffic": {"up": 1, "down": 2}}, {}, "traffic down 2, up 1 → None"),
        ({"statistics": 3}, {"statistics": 4}, "statistics 3 → 4"),
        ({}, {"traffic": {"up": 1}, "statistics": 4}, ""),  # of records from before there was any
        ({"attack_shift": 0.0, "statistics": 0}, {"attack_shift": 1.0, "statistics": 0},
         "the attack had no effect → an effect"),
        ({"attack_shift": 1.0, "statistics": 0}, {"attack_shift": 0.0, "statistics": 0},
         "the attack had an effect → no effect"),
        ({"no_effect": True}, {"attack_shift": 1.0}, "the attack had no effect → an effect"),
        ({}, {"attack_shift": 0.0, "no_effect": True}, ""),  # says nothing of it
    ],
)  # fmt: skip
def test_what_a_record_says_of_itself_must_come_out_again(
    before: dict[str, Any], after: dict[str, Any], detail: str, checked: Any
) -> None:
    one = published(certificates=before)
    assert checked(one, published(certificates=after)) == (BAD if detail else OK, detail)
    verdict, told = checked(one, again(published(certificates=after), sa=0.505))
    assert (verdict, told) == ((BAD, f"sa 0.5000 → 0.5050; {detail}") if detail else (NEAR, "sa 0.5000 → 0.5050"))


def test_of_another_outcome_nothing_but_that_is_told_and_of_a_failure_its_reason(checked: Any) -> None:
    one = published(certificates={"attack_shift": 0.0, "traffic": {"up": 1}, "unreliable": "x"})
    lost = {"metrics": None, "certificates": {}}
    assert checked(one, one.model_copy(update={"status": "diverged", "reason": "y", **lost})) == (
        BAD, "status done → diverged",
    )  # fmt: skip
    assert checked(one, one.model_copy(update={"status": "failed", "reason": "boom\nTraceback", **lost})) == (
        BAD, "status done → failed (boom)",
    )  # fmt: skip


def test_a_cell_of_a_device_that_is_not_here_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "fingerprints", lambda cells, root: dict.fromkeys(cells, PRINT))
    one = published()
    for said in ({"device": "cuda:99"}, {"threads": 2**16}):
        record = one.model_copy(update={"certificates": {**one.certificates, **said}})
        found = verify._again(record, 0.01, AGAIN)
        assert found.verdict == verify.ELSEWHERE
        assert next(iter(said)) in found.detail


def test_settings_or_versions_of_others_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "fingerprints", lambda cells, root: dict.fromkeys(cells, PRINT))
    one = published()
    other = one.model_copy(update={"cell": {**one.cell, "data": "cd" * 8}, "key": "0" * 32})
    methods = {**one.cell["methods"], "norm": {**one.cell["methods"]["norm"], "version": 99}}
    newer = one.model_copy(update={"cell": {**one.cell, "methods": methods}})

    def run(*given: Any) -> CellResult:
        raise AssertionError("nothing runs")

    found = verify._again(other, 0.01, running(run))
    assert (found.verdict, found.detail) == ("another cell", f"data: {'cd' * 8} published, {PRINT} here")
    found = verify._again(newer, 0.01, running(run))
    assert (found.verdict, len(found.versions)) == ("other versions", 1)
    assert found.versions[0].startswith("norm fbn: version 99 published")
    assert verify._apart_here(newer) == (list(found.versions), [])
    assert verify._apart_here(one) == ([], [])
    unknown = one.model_copy(update={"cell": {**one.cell, "cell": {**one.cell["cell"], "norm": "fbm"}}})
    differ, missing = verify._apart_here(unknown)
    assert (differ, len(missing), "fbm" in missing[0]) == ([], 1, True)
    differ, _ = verify._apart_here(one.model_copy(update={"key": "0" * 32, "cell": {**one.cell, "extra": 1}}))
    assert differ == ["cell 000000000000: extra: 1 published, None here"]


# --- where it runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said", "ran"),
    [
        ((None, None), {"device": "cpu", "threads": 4}, ("cpu", 4)), ((None, None), {}, ("auto", 1)),
        (("cuda", 2), {"device": "cpu", "threads": 4}, ("cuda", 2)), ((None, None), {"threads": "many"}, ("auto", 1)),
    ],
)  # fmt: skip
def test_a_cell_runs_again_as_its_record_says_unless_told_otherwise(
    given: tuple[Any, Any], said: dict[str, Any], ran: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(verify, "run_cell", lambda cell, **how: called.append((cell, how)))
    verify._Again(*given, "data", (), None).run("a cell", PRINT, said, "mine")  # type: ignore[arg-type]
    ((cell, how),) = called
    assert (cell, how["fingerprint"], how["scenario"]) == ("a cell", PRINT, "mine")
    assert (how["options"].device, how["options"].threads, how["options"].root) == (*ran, "data")


def test_packages_of_versions_that_the_board_does_not_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "versions", lambda: {"torch": "2.6", "numpy": "2.0"})
    declared = {"torch": ["2.4", "2.5"], "numpy": ["1.0", "2.0"], "unheard": ["3"]}
    board = SimpleNamespace(environment=SimpleNamespace(versions=declared))
    assert verify._environment(board) == ["torch: 2.4, 2.5 declared, 2.6 here"]


def test_a_cell_that_cannot_be_built_names_the_plug_ins_that_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "fingerprints", lambda cells, root: dict.fromkeys(cells, PRINT))
    one = published()
    methods = {**one.cell["methods"], "norm": {"name": "mine", "origin": "mine.py 12ab"}}
    theirs = {**one.cell, "cell": {**one.cell["cell"], "norm": "mine"}, "methods": methods}
    found = verify._again(one.model_copy(update={"cell": theirs}), 0.01, running(lambda *given: one))
    assert found.verdict == ELSEWHERE
    assert found.detail.startswith("unknown norm 'mine'")
    assert found.detail.endswith("the cell used norm mine (mine.py 12ab): see --plugin")
