"""The worst attack of a row, chosen on other seeds; attacks of others on a row of a benchmark's board."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_bench import run_bench, shrink

from robustfl.cli.bench import _beat, _publish
from robustfl.errors import UsageError
from robustfl.reports.benchmark.cross_chosen import bound_text, cross_chosen, lower_bound
from robustfl.reports.benchmark.data import measured
from robustfl.reports.published import read_board
from robustfl.reports.table_cell import TableCell
from robustfl.scenarios import RunOptions
from robustfl.scenarios.beat import challenge, facts_of
from robustfl.scenarios.grid import run_grid
from robustfl.scenarios.protocol_check import apart_from_protocol


def place(*values: float | None, **more: Any) -> TableCell:
    """One seed per value, None for one that diverged."""
    lost = frozenset(str(s) for s, v in enumerate(values) if v is None)
    states = (("diverged", len(lost)),) if lost else ()
    found = tuple((str(s), v) for s, v in enumerate(values) if v is not None)
    return TableCell(found, len(values), states, diverged=lost, **more)


# --- chosen on other seeds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "values"),
    [
        ({"a": place(0.2, 0.4, 0.8), "b": place(0.5, 0.5, 0.5)}, (0.5, 0.4, 0.8)),
        ({"a": place(0.2, 0.3, 0.4), "b": place(0.9, 0.1, 0.9)}, (0.2, 0.3, 0.4)),
        ({"a": place(0.5, 0.5), "b": place(0.1, 0.1, idle=True)}, (0.5, 0.5)),
        ({"a": place(0.5, 0.5), "b": TableCell((), 2, (("refused", 2),))}, (0.5, 0.5)),
    ],
)
def test_every_seed_is_measured_under_the_member_that_is_lowest_on_the_others(
    members: dict[str, TableCell], values: tuple[float, ...]
) -> None:
    found = cross_chosen(members)
    assert tuple(v for _, v in found.values) == values
    assert found.exact


def test_a_member_that_diverged_elsewhere_is_chosen_and_one_without_all_seeds_makes_a_bound() -> None:
    found = cross_chosen({"a": place(None, 0.9, 0.9), "b": place(0.5, 0.5, 0.5)})
    assert dict(found.values) == {"0": 0.5, "1": 0.9, "2": 0.9}  # on seed 0 nobody had seen a diverge
    assert cross_chosen({"a": place(None, None, 0.9)}).text() == "diverged 2/3"
    lacking = TableCell((("0", 0.1),), 2)
    assert cross_chosen({"a": place(0.5, 0.6), "b": lacking}).text(spread=False) == "≤ 55.0"
    assert not cross_chosen({"a": place(0.5)}).values  # there is no other seed


def test_a_lower_bound_is_one_sided_and_needs_two_seeds() -> None:
    found = place(0.5, 0.6, 0.55, 0.45, 0.5, samples=1000)
    bound = lower_bound(found)
    assert bound is not None
    assert found.interval is not None
    assert found.interval[0] < bound < 0.52  # a two-sided interval of the same level begins lower
    assert bound_text(place(0.5)) == "–"


# --- attacks on a row ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The board of two contestants, and what runs an attack on one of its rows."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        tier = shrink(patch, ("zero", "sf"))
        results = run_bench(tier, folder, "mean/gn", "median/gn").results
        _publish(results, folder / "d.json.gz", None, "json")
        run = partial(run_grid, options=RunOptions(jobs=0), out=folder)

        def beat(row: str, *attacks: str, to: str, scope: str = "both", by: str = "") -> int:
            return _beat(
                row, (folder / "d.json.gz",), attacks, scope, (), by, board=folder / to, run=run, form="json"
            )  # fmt: skip

        yield folder, beat


Beat = Callable[..., int]


def test_an_attack_that_goes_lower_joins_its_row_with_credit(
    board: tuple[Path, Beat], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, beat = board
    assert beat("mean/gn", "foe(eta=10)", to="lower.json.gz", by="A. Person") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lower"]
    assert [line["task"] for line in told["tasks"]] == ["overall"]
    read, _ = read_board(folder / "lower.json.gz")
    assert read.protocol is not None
    (entry,) = read.protocol["benchmark"]["beaten"]
    assert entry == {"contestant": "mean · gn · dsgd", "attack": "foe(eta=10)", "scope": "both", "by": "A. Person"}
    assert apart_from_protocol(read) == []
    before, after = (measured(b, b.records()) for b in (read_board(folder / "d.json.gz")[0], read))
    old, new = ({r.labels[0]: r.worst.mean for r in it.rows} for it in (before, after))
    assert new["mean"] < old["mean"]
    assert new["median"] == old["median"]


def test_several_attacks_stand_under_their_own_names(
    board: tuple[Path, Beat], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each column is that of the attack alone, in whatever order they are given."""
    _, beat = board
    found: list[dict[str, str]] = []
    for attacks in (("gaussian", "foe(eta=10)"), ("foe(eta=10)",), ("gaussian",)):
        assert beat("mean/gn", *attacks, to="several.json.gz") == 0
        found.append(json.loads(capsys.readouterr().out)["tasks"][0])
    both, foe, gaussian = found
    assert (both["foe(eta=10)"], both["gaussian"]) == (foe["foe(eta=10)"], gaussian["gaussian"])
    assert both["foe(eta=10)"] != both["gaussian"]


def test_an_attack_that_does_not_go_lower_writes_nothing(
    board: tuple[Path, Beat], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, beat = board
    assert beat("median", "mimic", to="not.json.gz") == 0
    assert not json.loads(capsys.readouterr().out)["lower"]
    assert not (folder / "not.json.gz").exists()


@pytest.mark.parametrize(
    ("row", "attack", "said"),
    [
        ("mode/gn", "foe", "no row 'mode/gn'"),
        ("median", "none", "by one attack"),
        ("median", "autobyz", "by one attack"),
        ("median", "sf", "has been measured under it"),
        ("median", "foee", "did you mean 'foe'"),
        ("mean", "edge(share=0.0)", "without effect"),
    ],
)
def test_what_beats_no_row_is_refused(board: tuple[Path, Beat], row: str, attack: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        board[1](row, attack, to="none.json.gz")
    assert not (board[0] / "none.json.gz").exists()


def test_a_board_of_an_older_protocol_is_an_archive(board: tuple[Path, Beat]) -> None:
    read, _ = read_board(board[0] / "d.json.gz")
    assert read.protocol is not None
    read.protocol["benchmark"]["version"] -= 1
    with pytest.raises(UsageError, match="is an archive"):
        challenge(read, "median", ["foe"])
    read.protocol.pop("benchmark")
    with pytest.raises(UsageError, match="of no tier"):
        facts_of(read)
