"""Do records agree, and several people's stores as one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_store import record, stored

from robustfl.errors import UsageError
from robustfl.records import CellResult, CurvePoint, Timing, digest
from robustfl.reports import load_board
from robustfl.reports.published import publish, write_board
from robustfl.reports.published.agreement import agree, settings_apart, versions_apart
from robustfl.reports.published.merge import (
    Source,
    joined_protocol,
    merge,
    one_run,
    read_source,
    read_sources,
    write_merge,
)
from robustfl.reports.store import Store

SECONDS = (1.5 + k / 64 for k in itertools.count())  # no two runs take equally long


def source(name: str, *records: CellResult) -> Source:
    """Records that this source measured by itself."""
    return Source(name, tuple(took(r, seconds=next(SECONDS)) for r in records), {}, ())


def took(result: CellResult, **timing: Any) -> CellResult:
    return result.model_copy(update={"timing": Timing(**{**result.timing.model_dump(), **timing})})


def owner(result: CellResult) -> Any:
    return result.certificates["source"]


# --- agreement -------------------------------------------------------------------------------------------------------


def made(*, curve: Sequence[float | CurvePoint] = (), certificates: Any = None, **changed: Any) -> CellResult:
    """A record with sa = loss = 0.5 and these metrics, or with this status and round."""
    status, round = changed.pop("status", "done"), changed.pop("round", None)
    one = record(sa=0.5, ra={}, status=status, reason="x", round=round, curve=[v for v in curve if type(v) is float])
    points = [v for v in curve if isinstance(v, CurvePoint)] or one.curve
    metrics = one.metrics and one.metrics.model_copy(update=changed)
    return one.model_copy(update={"metrics": metrics, "curve": points, "certificates": certificates or {}})


def forgot(**rounds: float) -> dict[str, Any]:
    told = {name[1:]: {"mean": mean, "clients": [], "matrix": []} for name, mean in rounds.items()}
    return {"certificates": {"forgetting": told}}


def point(**changed: Any) -> dict[str, Any]:
    return {"curve": [CurvePoint(**{"round": 10, "sa": 0.5, "loss": 1.0, **changed})]}


LOST: dict[str, Any] = {"status": "diverged"}
FOUR = [{f"a{i}": value for i in range(4)} for value in (0.2, 0.3)]
# Two records, the tolerance, and the verdict with what differs.
AGREE: list[tuple[dict[str, Any], dict[str, Any], float, str]] = [
    ({}, {}, 0.01, "identical"),
    ({}, {"sa": 0.51}, 0.01, "within tolerance: sa 0.5000 → 0.5100"),
    ({}, {"sa": 0.5101}, 0.01, "differs: sa 0.5000 → 0.5101"),
    ({"ra": {"pgd": 0.5, "fgsm": 0.6}}, {"ra": {"pgd": 0.5, "fgsm": 0.9}}, 0.1, "differs: ra fgsm 0.6000 → 0.9000"),
    ({"ra": {"pgd": 0.3}}, {"sa": 0.505, "ra": {"pgd": 0.38}}, 0.01,
     "differs: ra pgd 0.3000 → 0.3800, sa 0.5000 → 0.5050"),  # what is farthest apart comes first
    ({"ra": {"pgd": 0.3}}, {"sa": 0.505, "ra": {"pgd": 0.38}}, 0.1,
     "within tolerance: sa 0.5000 → 0.5050, ra pgd 0.3000 → 0.3800"),
    ({"ra": {"pgd": 0.5}}, {}, 1.0, "differs: ra pgd 0.5000 → none"),
    ({"sa": math.nan}, {}, 1.0, "differs: sa nan → 0.5000"),
    ({"ra_worst": 0.5}, {"ra_worst": 0.3}, 0.1, "differs: ra_worst 0.5000 → 0.3000"),
    ({"asr": 0.4}, {"asr": 0.5}, 0.05, "differs: asr 0.4000 → 0.5000"),
    ({}, {"samples": 100}, 0.05, "differs: samples 360 → 100"),
    ({"evaluation": "a"}, {"evaluation": "b"}, 0.05, "differs: evaluation a → b"),
    ({"groups": {"ra": {"sa": 0.5}}}, {"groups": {"ra": {"sa": 0.7}}}, 0.1, "differs: groups ra sa 0.5000 → 0.7000"),
    ({"loss": math.nan}, {"sa": 0.505, "loss": 1.0}, 0.01, "differs: loss nan → 1.0000, sa 0.5000 → 0.5050"),
    ({"loss": math.inf}, {"sa": 0.505, "loss": 1.0}, 0.01, "differs: loss inf → 1.0000, sa 0.5000 → 0.5050"),
    (point(ra=0.2), point(ra=0.4), 0.1, "differs: round 10 ra 0.2000 → 0.4000"),
    (forgot(_1=0.1, _10=0.3), forgot(_1=0.2, _10=0.3), 0.05,
     "differs: certificates forgetting 1 mean 0.1000 → 0.2000"),
    (forgot(_2=1.0), forgot(_2=1), 0.0, "identical"),  # as JSON of others may write it
    (LOST, {}, 1.0, "differs: status diverged → done"),
    ({**LOST, "round": 1}, {**LOST, "round": 9}, 0.0, "identical"),  # in rounds that both have
    ({**LOST, "curve": [0.1, 0.5]}, {**LOST, "curve": [0.1, 0.5, 0.2]}, 0.0, "identical"),
    ({**LOST, "curve": [0.1, 0.9]}, {**LOST, "curve": [0.1, 0.5, 0.2]}, 0.01,
     "differs: round 10 sa 0.9000 → 0.5000, round 10 ra 0.4500 → 0.2500, round 10 loss 0.1000 → 0.5000"),
    ({"curve": [0.1]}, {}, 0.0, "identical"),  # boards need not have curves
    ({"groups": {"best": {"round": 10}}}, {}, 0.0, "identical"),  # of old records
    ({"curve": [0.1]}, {"curve": [0.1, 0.5]}, 1.0,
     "differs: round 10 sa none → 0.5000, round 10 loss none → 0.5000, round 10 ra none → 0.2500"),
    ({"ra": FOUR[0]}, {"ra": FOUR[1]}, 0.0,
     "differs: ra a0 0.2000 → 0.3000, ra a1 0.2000 → 0.3000, ra a2 0.2000 → 0.3000 and 1 more"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "tolerance", "words"), AGREE)
def test_records_agree_within_the_tolerance_or_say_in_what_they_do_not(
    first: dict[str, Any], second: dict[str, Any], tolerance: float, words: str
) -> None:
    mine, yours = made(**first), made(**second)
    assert agree(mine, yours, tolerance=tolerance).words() == words
    assert agree(yours, mine, tolerance=tolerance).words().partition(":")[0] == words.partition(":")[0]


@pytest.mark.parametrize(
    ("a", "b", "agrees"),
    [
        (0.5, 0.599, True), (0.5, 0.601, False), (2.0, 2.22, True), (2.0, 2.25, False),
        (math.inf, 1.0, False), (math.nan, 1.0, False), (math.nan, math.nan, True),
    ],
)  # fmt: skip
def test_a_loss_may_differ_by_ten_times_the_tolerance_of_itself(a: float, b: float, agrees: bool) -> None:
    """Of at least 1: the first pairs are a tenth apart, the others a tenth of the larger one."""
    for first, second in (({"loss": a}, {"loss": b}), (point(loss=a), point(loss=b))):
        for pair in ((first, second), (second, first)):
            assert agree(*(made(**one) for one in pair), tolerance=0.01).agrees == agrees


def test_settings_apart_tell_types_and_missing_entries_apart() -> None:
    assert settings_apart({"a": 1, "b": [1, 2]}, {"a": 1.0, "b": [1, 2], "c": None}) == [("a", 1, 1.0)]
    assert settings_apart({"m": [{"v": 1}]}, {"m": [{"v": 2}]}) == [("m[0].v", 1, 2)]
    assert settings_apart({"m": [[1], [2]]}, {"m": [[1], [3]]}) == [("m[1]", (2,), (3,))]
    assert settings_apart({"m": math.nan}, {"m": "nan"}) == []
    assert settings_apart({"m": 1}, {"m": "1"}) == [("m", 1, "1")]


def test_versions_of_wrapped_methods_and_origins_are_compared() -> None:
    def timed(version: int, origin: str) -> dict[str, Any]:
        inner = {"name": "alie", "version": version, "origin": origin}
        return {"attack": {"name": "timed", "version": 1, "params": {"version": version}, "inner": inner}}

    assert versions_apart(timed(1, "a.py"), timed(2, "b.py")) == [
        "attack alie: version 1 published, 2 installed",
        "attack alie: origin a.py published, b.py installed",
    ]


# --- merging ---------------------------------------------------------------------------------------------------------


def test_the_union_of_cells_says_who_measured_what() -> None:
    merged = merge([source("we", record(seed=0), record(seed=1)), source("they", record(seed=1), record(seed=2))],
                   tolerance=0.0)  # fmt: skip
    assert {r.labels["seed"]: owner(r) for r in merged.results} == {0: "we", 1: "we + they", 2: "they"}
    assert (merged.agreed, merged.conflicts) == (1, ())


def test_a_copy_of_a_record_agrees_with_nobody(tmp_path: Path) -> None:
    cell = {"cell": record().labels, "methods": {}}
    ours = record().model_copy(update={"cell": cell, "key": digest(cell)})
    theirs = took(ours, seconds=7.0)
    board = read_source(write_board(publish([ours], name="board"), tmp_path / "board.json"))
    store = read_source(stored(tmp_path / "store", [ours]).folder)
    for copies in ([board, board], [store, board], [board, store]):
        merged = merge(copies, tolerance=0.0)
        assert (merged.agreed, merged.copied, merged.conflicts) == (0, 1, ())
        assert owner(merged.results[0]) == copies[0].name
    other = Source("they", (theirs,), {}, ())
    merged = merge([store, other, board, other], tolerance=0.0)
    assert (merged.agreed, merged.copied, owner(merged.results[0])) == (1, 1, "store + they")


def test_a_second_run_has_one_outcome_too_and_a_copy_of_it_is_one(tmp_path: Path) -> None:
    """Within the tolerance of the first, from which it was told apart by its time."""
    first, second = record(sa=0.5, ra={}), took(record(sa=0.505, ra={}), seconds=7.0)
    edited = took(record(sa=0.506, ra={}), seconds=7.0)
    we, they, again, liar = (
        Source(name, (r,), {}, ()) for name, r in (("we", first), ("they", second), ("again", second), ("liar", edited))
    )
    merged = merge([we, they, again], tolerance=0.01)
    assert (merged.agreed, merged.copied, merged.conflicts) == (1, 1, ())
    assert owner(merged.results[0]) == "we + they"
    (conflict,) = merge([we, they, liar], tolerance=0.01).conflicts
    assert conflict.agreement.words().startswith("differs: sa 0.5050 → 0.5060")
    with pytest.raises(UsageError, match="in conflict"):
        write_merge(merge([we, they, liar], tolerance=0.01), [we, they, liar], tmp_path / "out")


@pytest.mark.parametrize("apart", [{"seconds": 2.0}, {"started": "later"}, {"host": "b"}, {"peak_memory_bytes": 1}])
def test_two_runs_of_a_cell_are_told_apart_by_their_times_and_places(apart: dict[str, Any]) -> None:
    one = took(record(), started="now", host="a")
    assert one_run(one, took(one, started="", host=""))
    assert not one_run(one, took(one, **apart))


def test_cells_within_tolerance_keep_the_first_sources_numbers() -> None:
    merged = merge([source("we", record(sa=0.5)), source("they", record(sa=0.505))], tolerance=0.01)
    assert merged.results[0].metrics.sa == 0.5  # type: ignore[union-attr]


def test_a_merged_store_knows_the_defaults_so_that_its_caption_leaves_them_out(tmp_path: Path) -> None:
    sources = [source("we", record(seed=0)), source("they", record(seed=1))]
    write_merge(merge(sources, tolerance=0.0), sources, tmp_path / "out", defaults={"clients": 10})
    assert "clients" not in load_board(tmp_path / "out").caption
    write_merge(merge(sources, tolerance=0.0), sources, tmp_path / "plain")
    assert "clients = 10" in load_board(tmp_path / "plain").caption


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_crash_gives_way_to_a_number(order: tuple[int, int]) -> None:
    both = [source("we", record(status="failed", reason="Boom")), source("they", record())]
    merged = merge([both[i] for i in order], tolerance=0.0)
    (kept,) = merged.results
    assert (kept.status, owner(kept), merged.conflicts) == ("done", "they", ())
    two = [source(name, record(status="failed", reason=name)) for name in ("we", "they")]
    (kept,) = merge([two[i] for i in order], tolerance=0.0).results
    assert owner(kept) == two[order[0]].name


def test_a_source_that_was_named_before_keeps_its_name() -> None:
    once = merge([source("ann", record(seed=0)), source("ben", record(seed=1))], tolerance=0.0)
    again = merge([source("club", *once.results), source("cem", record(seed=2))], tolerance=0.0)
    assert {owner(r) for r in again.results} == {"club (ann)", "club (ben)", "cem"}


def test_a_folder_with_records_is_never_written_into(tmp_path: Path) -> None:
    there = stored(tmp_path, [record(seed=9)])
    sources = [source("we", record(seed=0)), source("they", record(seed=1))]
    with pytest.raises(UsageError, match="holds records already"):
        write_merge(merge(sources, tolerance=0.0), sources, tmp_path)
    with pytest.raises(UsageError, match="is among the records of"):
        write_merge(merge(sources, tolerance=0.0), sources, there.cells / "deep" / "er")
    assert there.keys() == {record(seed=9).key}
    assert not (there.cells / "deep").exists()


def test_a_merged_store_is_a_store_that_remembers_what_was_planned(tmp_path: Path) -> None:
    plan = {record(seed=s).key: record(seed=s).labels for s in (0, 1)}
    sources = [Source("we", (record(seed=0),), plan, ()), source("they", record(seed=2))]
    write_merge(merge(sources, tolerance=0.0), sources, tmp_path / "out")
    assert len(Store(tmp_path / "out").load().results) == 2
    assert set(Store(tmp_path / "out").description()["cells"]) == set(plan)


def test_who_says_who_measured_a_cell_says_it_once() -> None:
    named = record(certificates={"source": "we"})
    merged = merge([source("we", named), source("we", record()), source("they", record())], tolerance=0.0)
    assert [owner(r) for r in merged.results] == ["we + they"]
    assert merged.agreed == 1


def test_what_is_no_record_of_any_source_is_told() -> None:
    sources = [Source("a", (record(),), {}, ("x: torn",)), Source("b", (), {}, ("y: torn",))]
    assert merge(sources, tolerance=0.0).problems == ("x: torn", "y: torn")
    for nothing, words in (([source("a")], "none of a holds a finished cell$"), (sources[1:], "not counted: y: torn$")):
        with pytest.raises(UsageError, match=words):
            merge(nothing, tolerance=0.0)


def test_sources_whose_attackers_forge_other_channels_are_not_merged() -> None:
    facts = {"version": 1}
    one, two = (
        replace(source(n), protocol={"autobyz": {**facts, "scope": s}}) for n, s in (("a", "both"), ("b", "update"))
    )
    with pytest.raises(UsageError, match=r"different protocols .*autobyz: a: 1 both; b: 1 update"):
        joined_protocol([one, two])


def test_of_facts_that_two_sources_say_the_first_ones_stay() -> None:
    one, two = (
        replace(source(name), protocol={"benchmark": {
            "tier": "d", "version": 1, "changed": [], "title": name, "contestants": {"a": {"chosen": 0, "by": name}},
        }})
        for name in ("we", "they")
    )  # fmt: skip
    assert joined_protocol([one, two])["benchmark"] == one.protocol["benchmark"]
    silent = replace(one, protocol={"benchmark": {"tier": "d", "version": 1, "changed": []}})
    assert joined_protocol([silent, silent]) == silent.protocol
    for sources in ([one, source("none")], [source("none"), one]):
        with pytest.raises(UsageError, match=r"different protocols .*benchmark: .*none: none"):
            joined_protocol(sources)
    counting = replace(source("we"), protocol={"autobyz": {"version": 1}})
    silent = source("none")  # of AutoByz, who says nothing follows it as far as it goes
    assert joined_protocol([counting, silent]) == joined_protocol([silent, counting]) == counting.protocol
    with pytest.raises(UsageError, match="we: d 2; they: d 1"):
        joined_protocol([replace(one, protocol={"benchmark": {"tier": "d", "version": 2, "changed": []}}), two])


def test_rows_that_were_beaten_on_any_board_of_a_tier_are_joined_each_once_and_in_order() -> None:
    a, b, c = ({"contestant": "mean · gn · dsgd", "attack": name, "scope": "both", "by": "A"} for name in "abc")
    tier = {"tier": "d", "version": 1, "changed": []}
    sources = [
        Source(str(i), (), {}, (), {"benchmark": {**tier, **({"beaten": rows} if rows else {})}})
        for i, rows in enumerate(([], [b, a], [], [a, c], [{**a, "by": "B"}]))
    ]
    assert joined_protocol(sources)["benchmark"] == {**tier, "beaten": [b, a, c, {**a, "by": "B"}]}
    assert sources[1].protocol["benchmark"]["beaten"] == [b, a]


@pytest.mark.parametrize(
    ("part", "value"), [("benchmark", {"contestants": 5}), ("benchmark", {"contestants": {"x": 5}})]
)
def test_a_protocol_of_another_shape_is_an_error(part: str, value: Any, tmp_path: Path) -> None:
    store = stored(tmp_path / "s", [record()])
    store.describe({part: value})
    words = rf"protocol\.{part}\.contestants[.x]*: Input should be a valid dict"
    with pytest.raises(UsageError, match=words):
        read_source(tmp_path / "s")
    made = record()
    cell = {"cell": made.labels, "methods": {}}
    whole = made.model_copy(update={"cell": cell, "key": digest(cell)})
    board = publish([whole], name="theirs", protocol={part: value})
    with pytest.raises(UsageError, match=words):
        read_source(write_board(board, tmp_path / "b.json"))


def test_sources_of_one_name_are_told_apart_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ["a/runs", "b/runs", "c"]
    for path in paths:
        stored(Path(path), [record()])
    assert [s.name for s in read_sources(paths)] == paths
    assert [s.name for s in read_sources(paths, ["ann", "ben", "cy"])] == ["ann", "ben", "cy"]
    with pytest.raises(UsageError, match="1 names for 3 sources"):
        read_sources(paths, ["ann"])
    with pytest.raises(UsageError, match="a name for each"):
        read_sources(paths, ["ann", "ben", "ann"])


def test_no_more_of_a_path_becomes_a_name_than_is_needed(tmp_path: Path) -> None:
    paths = [tmp_path / "ann" / "x" / "runs", tmp_path / "ben" / "x" / "runs", tmp_path / "ben" / "y" / "runs"]
    for path in paths:
        stored(path, [record()])
    read = read_sources(paths)
    assert [s.name for s in read] == ["ann/x/runs", "ben/x/runs", "y/runs"]
    (joined,) = merge(read, tolerance=0.0).results
    assert str(tmp_path) not in str(joined.certificates["source"])
    assert [s.name for s in read_sources([paths[0], paths[0]])] == ["runs", "runs"]
