"""What differs between two records or two stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_store import record, stored

from robustfl.errors import UsageError
from robustfl.records import CellResult, Timing, digest
from robustfl.reports.published import publish
from robustfl.reports.published.diff import diff_cells, diff_stores, find
from robustfl.reports.published.merge import Source, merge


def source(name: str, *records: CellResult) -> Source:
    return Source(name, records, {}, ())


def paths(differences: Any) -> list[str]:
    return [path for path, _, _ in differences]


def test_two_cells_differ_field_by_field_and_metrics_come_before_curves() -> None:
    found = diff_cells(record(norm="fbn", sa=0.5, curve=[0.1]), record(norm="gn", sa=0.6, curve=[0.2]))
    assert found.settings == (("cell.norm", "fbn", "gn"),)
    outcome = paths(found.outcome)
    assert outcome.index("sa") < min(i for i, path in enumerate(outcome) if path.startswith("round "))
    assert not found.same


def test_time_and_machine_are_no_difference_between_cells() -> None:
    other = record(certificates={"versions": {"torch": "2.7"}})
    other = other.model_copy(update={"timing": Timing(seconds=9.0, host="elsewhere")})
    found = diff_cells(record(), other)
    assert found.same
    assert found.environment == (("versions.torch", "2.6.0", "2.7"),)
    assert {"timing.host", "seconds", "host"} & set(paths(found.timing))


def test_what_only_one_of_two_cells_says_tells_them_apart() -> None:
    one = record()
    for changed in (
        {"certificates": {**one.certificates, "attack_shift": 1.0}}, {"label_counts": [[1]]}, {"reason": "x"},
    ):  # fmt: skip
        assert not diff_cells(one, one.model_copy(update=changed)).same
    found = diff_cells(one, one.model_copy(update={"label_counts": [[1]]})).outcome
    assert {path.partition("[")[0] for path in paths(found)} == {"label_counts"}


def test_stores_are_other_ones_where_either_has_a_cell_more_or_any_number_differs() -> None:
    few, many = source("a", record(seed=0)), source("b", record(seed=0), record(seed=1))
    for first, second, counts in ((few, many, (0, 1)), (many, few, (1, 0))):
        found = diff_stores(first, second)
        assert (found.only_first, found.only_second, found.same) == (*counts, False)
    hardly = diff_stores(source("a", record(sa=0.5, ra={})), source("b", record(sa=0.5 + 1e-4, ra={})))
    assert [words.partition(":")[0] for *_, words in hardly.results] == ["differs"]
    one, rounded = (record(metrics={"loss": loss}) for loss in (0.1, 0.1 + 1e-12))
    assert len(diff_stores(source("a", one), source("b", rounded)).results) == 1


DETAILS: list[tuple[str, dict[str, Any]]] = [
    ("per_class sa", {"metrics": {"per_class": {"sa": [0.1, 0.2]}}}),
    ("per_client sa", {"metrics": {"per_client": {"sa": [0.1]}}}),
    ("label_counts", {"label_counts": [[1]]}),
    ("certificates byzantine", {"certificates": {"byzantine": [7]}}),
    ("certificates attack_shift", {"certificates": {"attack_shift": 3.0}}),
]


def detailed(**changes: Any) -> CellResult:
    """A record with these details and others that do not change."""
    told = record().model_dump()
    told["metrics"] |= {"per_class": {"sa": [0.5, 0.25]}, "per_client": {"sa": [0.5]}} | changes.get("metrics", {})
    told["certificates"] |= {"byzantine": [0], "attack_shift": 1.0} | changes.get("certificates", {})
    return CellResult.model_validate(told | {"label_counts": [[2]]} | {k: v for k, v in changes.items() if k[0] == "l"})


@pytest.mark.parametrize(("name", "change"), DETAILS, ids=[name for name, _ in DETAILS])
def test_stores_with_other_details_are_not_the_same_and_copies_of_one_run_in_conflict(
    name: str, change: dict[str, Any]
) -> None:
    mine, yours = source("a", detailed()), source("b", detailed(**change))
    assert diff_stores(mine, source("b", detailed())).same
    ((_, _, words),) = diff_stores(mine, yours).results
    assert name in words
    (conflict,) = merge([mine, yours], tolerance=0.05).conflicts
    assert name in conflict.agreement.words()


def test_two_runs_within_a_tolerance_drew_the_same_clients() -> None:
    """Their accuracies per class may differ; the images and the place of each attacker follow from the seed."""
    later = {"timing": Timing(seconds=9.0)}
    agreed = [bool(merge([source("a", detailed()), source("b", detailed(**change).model_copy(update=later))],
                         tolerance=0.05).agreed) for _, change in DETAILS]  # fmt: skip
    assert agreed == [True, True, False, False, True]


def test_another_environment_is_shown_with_the_same_results() -> None:
    other = detailed(certificates={"versions": {"torch": "2.7"}, "threads": 2})
    found = diff_stores(source("a", detailed()), source("b", other))
    assert found.same
    assert found.environment == (((("threads", None, 2), ("versions.torch", "2.6.0", "2.7")), 1),)


def test_a_store_is_compared_with_a_board_in_what_boards_carry() -> None:
    known = {"cell": {"cell": record().labels, "methods": {}}}
    mine = detailed().model_copy(update=known | {"key": digest(known["cell"])})
    board = publish([mine], name="b")
    assert diff_stores(source("a", mine), Source("b", tuple(board.records()), {}, (), board=board)).same


def test_every_cell_is_explained_by_a_partner_of_its_own() -> None:
    """Two cells of one side that print alike are not both changed into the one of the other side."""

    def of(key: str, **cell: Any) -> CellResult:
        return record().model_copy(update={"key": key, "cell": cell})

    mine = source("a", of("a1", lr=1), of("a2", lr=2))
    found = diff_stores(mine, source("b", of("b1", lr=3), of("b2", lr=4)))
    assert sorted(found.explained) == [((("lr", 1, 3),), 1), ((("lr", 2, 4),), 1)]
    assert len(diff_stores(mine, source("b", of("b1", lr=3))).explained) == 1


@pytest.mark.parametrize(("settings", "explained"), [(8, 1), (9, 0)])
def test_cells_that_differ_in_up_to_eight_settings_are_explained(settings: int, explained: int) -> None:
    made = record()
    mine, yours = (
        made.model_copy(update={"key": key, "cell": {f"s{i}": key for i in range(settings)}}) for key in ("a", "b")
    )
    assert len(diff_stores(source("a", mine), source("b", yours)).explained) == explained


def test_one_changed_setting_explains_all_cells_that_only_one_has() -> None:
    mine = [record(seed=s, clients=10) for s in range(3)]
    yours = [record(seed=s, clients=20) for s in range(3)]
    found = diff_stores(source("a", *mine), source("b", *yours))
    assert (found.only_first, found.only_second, found.common) == (3, 3, 0)
    assert found.explained == (((("cell.clients", 10, 20),), 3),)
    assert found.axes == (("clients", ("10",), ("20",)),)
    yours[2] = record(seed=3, clients=20)
    assert [count for _, count in diff_stores(source("a", *mine), source("b", *yours)).explained] == [2]


def test_lists_and_empty_tables_among_the_settings_are_explained_too() -> None:
    def of(**cell: Any) -> CellResult:
        made = record(clients=len(cell["values"]))
        return made.model_copy(update={"cell": cell, "key": str(cell["values"])})

    found = diff_stores(source("a", of(values=[1], params={})), source("b", of(values=[1, 2], params={"k": 3})))
    (((differences, count)),) = found.explained
    assert count == 1
    assert differences == (("params", "{}", None), ("params.k", None, 3), ("values", (1,), (1, 2)))


def test_other_experiments_are_not_explained_away() -> None:
    many = {f"setting{i}": i for i in range(12)}
    changed = {f"setting{i}": i + 1 for i in range(12)}
    assert diff_stores(source("a", record(**many)), source("b", record(**changed))).explained == ()


def one(target: str) -> CellResult:
    source, cell = find(target)
    assert cell
    return source.results[0]


def test_a_cell_is_found_by_the_start_of_its_key_or_its_file(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", [record(seed=s) for s in range(4)])
    key = record(seed=2).key
    assert one(f"{tmp_path}/s:{key[:8]}") == record(seed=2)
    assert one(str(store.path(key))) == record(seed=2)
    assert not find(str(tmp_path / "s"))[1]
    stored(tmp_path / f"s:{key[:8]}", [record(seed=9)])
    assert not find(f"{tmp_path}/s:{key[:8]}")[1]  # a folder of that very name comes first
    with pytest.raises(UsageError, match=r"4 cells of .* give more of the key"):
        find(f"{tmp_path}/s:")
    with pytest.raises(UsageError, match=r"no cell of .* starts with 'zz'"):
        find(f"{tmp_path}/s:zz")
