"""What the site is made of: recipes that repeat cells, citations, fronts, breakdown curves."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fake_store import record

from robustfl.records import CellResult
from robustfl.reports import rank_board
from robustfl.reports.frame import frame
from robustfl.reports.recipe import command, scenario_toml
from robustfl.reports.site.pages import contestants, entries
from robustfl.reports.tradeoff import breakdowns, front, pareto
from robustfl.scenarios import expand
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import resolve
from robustfl.scenarios.spec import Scenario

# --- recipes ---------------------------------------------------------------------------------------------------------


def cells_of(**axes: Any) -> list[Cell]:
    """The cells of a small scenario."""
    return expand(Scenario.of({"name": "s", "cell": {"rounds": 2, **axes}}))


def records_of(cells: list[Cell]) -> list[CellResult]:
    """Records as a grid would leave them for these cells."""
    return [record(n=i).model_copy(update={"cell": resolve(c, "x")}) for i, c in enumerate(cells)]


def repeated(records: list[CellResult], folder: Path) -> set[Cell]:
    """The cells of the recipe of these records, through a file."""
    (folder / "again.toml").write_text(scenario_toml(records, name="again"), encoding="utf-8")
    return set(expand(Scenario.load(folder / "again.toml")))


AXES = {
    "one cell": {},
    "a product": {"attack": ["none", "alie(z=1.5)"], "seed": [0, 1], "f": 3, "clients": 10},
    "axes that advance together": {"f": [1, 2, 3], "clients": 10, "seed": [0, 1]},
    "settings that came later": {
        "domains": ["digits-domain(style=clean)", "digits-domain(style=textured)"],
        "clients": 6,
        "domain_users": [[3, 3], [2, 4]],
        "precision": ["full", "bf16"],
    },
    "lists": {"evasions": [["pgd(eps=0.1)"], [], ["fgsm", "pgd"]], "schedule": {"lr": [0.1, 0.2]}},
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_a_recipe_expands_to_exactly_its_cells(axes: dict[str, Any], tmp_path: Path) -> None:
    cells = cells_of(**axes)
    assert repeated(records_of(cells), tmp_path) == set(cells)


def test_a_recipe_of_cells_that_are_no_product_expands_to_exactly_them(tmp_path: Path) -> None:
    cells = cells_of(attack=["none", "sf"], seed=[0, 1, 2], defense=["mean", "median"])[:-3]
    assert repeated(records_of(cells), tmp_path) == set(cells)


def test_only_axes_that_determine_each_other_are_zipped() -> None:
    said = tomllib.loads(scenario_toml(records_of(cells_of(**AXES["axes that advance together"])), name="a"))
    assert said["zip"] == [["f", "f_declared"]]
    assert said["cell"]["f"] == said["cell"]["f_declared"] == [1, 2, 3]


def test_the_command_of_a_cell_names_that_cell_alone(tmp_path: Path) -> None:
    cells = cells_of(attack=["none", "sf", "foe(eta=10)"], seed=[0, 1], f=[1, 2])[1:]
    records = records_of(cells)
    (tmp_path / "a.toml").write_text(scenario_toml(records, name="a"), encoding="utf-8")
    for cell, one in zip(cells, records, strict=True):
        words = shlex.split(command(one, records, file=str(tmp_path / "a.toml")))
        assert words[:2] == ["robustfl", "run"]
        assert words[3::2] == ["--set"] * 4  # attack, f, f_declared, seed
        assert expand(Scenario.load(words[2], settings=words[4::2])) == [cell]


def test_a_setting_that_some_cells_leave_unset_is_said_and_not_made_up() -> None:
    records = records_of([Cell.of({"rounds": 2}), Cell.of({"rounds": 2, "ra_limit": 5})])
    written = scenario_toml(records, name="a")
    assert "# ra_limit differs and is unset in some cells" in written
    assert "ra_limit" not in tomllib.loads(written)["cell"]


# --- trade-offs ------------------------------------------------------------------------------------------------------


def test_the_front_keeps_equal_points_and_drops_dominated_ones() -> None:
    assert front([(1, 1), (2, 0), (2, 0), (0, 1), (1.5, 0)]) == (0, 1, 2)
    assert front([(1, 1), (1, 2), (0, 2), (1, 0)]) == (1,)
    assert front([]) == ()


def test_the_pareto_points_are_worst_cases_and_states_are_left_out() -> None:
    accuracies = {("mean", "none"): 0.9, ("mean", "sf"): 0.3, ("median", "none"): 0.8, ("median", "sf"): 0.6}
    records = [record(defense=d, attack=a, sa=v, ra={"pgd": v - 0.1}) for (d, a), v in accuracies.items()]
    records += [record(defense="krum", status="diverged", round=3, reason="boom")]
    found = pareto(rank_board(frame(records)))
    assert [(n[0], round(x), round(y)) for n, x, y in found.points] == [("median", 60, 50), ("mean", 30, 20)]
    assert (found.front, found.left_out) == ((0,), 1)


def test_rows_of_fewer_seeds_than_others_are_no_points() -> None:
    """Their mean is over other seeds; rows of a grid in progress that have equally many are all there."""
    records = [
        record(defense=d, attack="sf", sa=0.5, ra={"pgd": 0.3}, seed=s) for d in ("mean", "krum") for s in (0, 1)
    ]
    lonely = record(defense="median", attack="sf", sa=0.9, ra={"pgd": 0.8}, seed=1)
    found = pareto(rank_board(frame([*records, lonely])))
    assert (sorted(n[0] for n, _, _ in found.points), found.left_out) == (["krum", "mean"], 1)
    whole = pareto(rank_board(frame([r for r in [*records, lonely] if r.labels["seed"] == 1])))
    assert (len(whole.points), whole.left_out) == (3, 0)


def test_without_robust_accuracy_the_worst_case_stands_above_accuracy_without_attack() -> None:
    accuracies = {("mean", "none"): 0.9, ("mean", "sf"): 0.3, ("median", "none"): 0.8, ("median", "sf"): 0.6}
    records = [record(defense=d, attack=a, sa=v, ra={}) for (d, a), v in accuracies.items()]
    found = pareto(rank_board(frame(records)))
    assert (found.x_label, found.y_label) == ("SA without attack", "SA, worst case")
    assert [(n[0], round(x), round(y)) for n, x, y in found.points] == [("median", 80, 60), ("mean", 90, 30)]


def test_a_row_whose_worst_case_is_but_a_bound_is_no_point() -> None:
    records = [record(defense=d, attack=a, ra={"pgd": 0.4}) for d in ("mean", "median") for a in ("none", "sf")]
    lost = record(defense="median", attack="foe", status="failed", reason="x")
    found = pareto(rank_board(frame([*records, record(defense="mean", attack="foe"), lost])))
    assert ([n[0] for n, _, _ in found.points], found.left_out) == (["mean"], 1)


def test_of_several_tasks_the_points_are_those_of_the_first_table() -> None:
    records = [record(defense=d, partition=p, sa=sa, ra={"pgd": sa / 2})
               for p, sa in (("iid", 0.8), ("gamma(gamma=0.0)", 0.4)) for d in ("mean", "median")]  # fmt: skip
    board = rank_board(frame(records))
    table = [s for s in board.sections if s.block == (board.blocks or ("overall",))[0] and s.metric == "sa"]
    wanted = {row.labels: 100 * (row.worst.mean or 0.0) for s in table for row in s.rows}
    assert len(wanted) == 2
    assert {n: x for n, x, _ in pareto(board).points} == pytest.approx(wanted)


def test_lines_of_a_breakdown_go_from_low_to_high_and_are_those_of_the_wanted_rows() -> None:
    records = [record(defense=d, f=f, f_declared=told, sa=0.9 - 0.1 * f)
               for d in ("mean", "median") for f in (3, 1, 2) for told in {f, 3}]  # fmt: skip
    board = rank_board(frame([*records, record(defense="mda", f=2, f_declared=2)]))
    labels = next(row.labels for s in board.sections for row in s.rows if row.labels[0] == "mean")
    (found,) = [b for b in breakdowns(board, labels) if b.metric == "sa"]
    lines = {name: [(f, round(100 * y.mean)) for f, y in points] for name, points in found.lines}
    assert sorted(lines.values(), key=len, reverse=True) == [[(1, 80), (2, 70), (3, 60)], [(1, 80), (2, 70)]]
    assert all(name.startswith("mean") for name in lines)


def board_over(**axis: list[Any]) -> list[CellResult]:
    """Records of one defense that loses a tenth per step of the axis, and one that diverges at the last."""
    (name, values), = axis.items()  # fmt: skip
    good = [record(defense="median", sa=0.9 - 0.1 * i, **{name: v}) for i, v in enumerate(values)]
    bad = [record(defense="mean", sa=0.5, **{name: v}) for v in values[:-1]]
    return [*good, *bad, record(defense="mean", status="diverged", round=1, reason="x", **{name: values[-1]})]


@pytest.mark.parametrize(
    ("axis", "values", "against"),
    [("f", [1, 2, 3], "f"), ("partition", [f"gamma(gamma={g})" for g in (0.0, 0.5, 1.0)], "γ")],
)
def test_breakdown_lines_have_worst_cases_and_divergences(axis: str, values: list[Any], against: str) -> None:
    board = rank_board(frame(board_over(**{axis: values})))
    found = next(b for b in breakdowns(board) if b.metric == "sa")
    assert found.against == against
    by_name = {name.split(" ")[0]: [y.mean and round(100 * y.mean) for _, y in points] for name, points in found.lines}
    assert by_name == {"mean": [50, 50, None], "median": [90, 80, 70]}


def test_a_bound_is_no_point_of_a_breakdown() -> None:
    under_foe = [record(attack="foe", defense="median", f=f, sa=0.95) for f in (1, 2)]
    lost = record(attack="foe", defense="median", f=3, status="failed", reason="x")
    board = rank_board(frame([*board_over(f=[1, 2, 3]), *under_foe, lost]))
    found = breakdowns(board)[0]
    assert [f for name, points in found.lines if name.startswith("median") for f, _ in points] == [1, 2]


def test_a_contestant_is_its_methods_and_owns_all_conditions() -> None:
    records = [record(defense=d, f=f, partition=p, seed=s) for d in ("mean", "median") for f in (1, 2)
               for p in ("iid", "gamma(gamma=0.0)") for s in (0, 1)]  # fmt: skip
    board = rank_board(frame(records))
    found = contestants(board, entries(board, records))
    assert sorted(c.name for c in found) == ["mean · fbn", "median · fbn"]
    assert all(len(c.records) == 8 for c in found)
