"""What figures draw is what the records hold: lengths, places, colours and what is left out."""

from __future__ import annotations

import re
from statistics import fmean

import numpy as np
import pytest
from fake_store import grid, record
from matplotlib.colors import to_hex
from test_plots import forgot

from robustfl.records import CellResult
from robustfl.reports.figures.clients import distributions, forgetting_maps
from robustfl.reports.figures.curves import curves
from robustfl.reports.figures.summaries import breakdown_figures, heatmaps, pareto_figures, rank_figures
from robustfl.reports.frame import frame
from robustfl.reports.paired import rank_over_scenarios
from robustfl.reports.ranking import rank_board


def test_bars_of_mean_ranks_are_as_long_as_the_critical_difference() -> None:
    board = rank_board(frame(grid(points=2, seeds=3)))
    found = rank_over_scenarios(board, "sa")
    (axes,) = next(figure for title, figure in rank_figures(board) if title == "ranks sa").axes
    bars = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    assert found.critical is not None
    assert len(bars) == len(found.names)
    for (low, high), rank in zip(bars, found.mean_ranks, strict=True):
        assert low == pytest.approx(max(1.0, rank - found.critical / 2))
        assert high == pytest.approx(min(len(found.names), rank + found.critical / 2))
    assert [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1] == list(found.mean_ranks)


def test_the_first_model_of_a_forgetting_map_is_at_its_top() -> None:
    ((_, figure),) = forgetting_maps([forgot(record())])
    for axes in figure.axes[:2]:
        assert axes.get_ylim() == (2, 0)
        assert [(t.get_position(), t.get_text()) for t in axes.texts] == [
            ((0.5, 0.5), "0"), ((1.5, 0.5), "50"), ((0.5, 1.5), "25"), ((1.5, 1.5), "0")
        ]  # fmt: skip


def test_a_heatmap_colours_numbers_alone() -> None:
    cells = [record(defense=d, attack=a, sa=0.5, ra={}) for d in ("mean", "median") for a in ("sf", "foe")]
    cells[-1] = record(defense="median", attack="foe", status="diverged", round=3)
    ((_, figure),) = heatmaps(rank_board(frame(cells)))
    axes = figure.axes[0]
    (mesh,) = axes.collections
    values = np.ma.masked_array(mesh.get_array()).reshape(2, 3)
    columns, names = ([t.get_text() for t in ticks] for ticks in (axes.get_xticklabels(), axes.get_yticklabels()))
    nothing = np.ma.getmaskarray(values)
    assert not nothing[names.index("mean")].any()
    assert list(nothing[names.index("median")]) == [name != "sf" for name in columns]
    assert values.compressed().tolist() == [50.0] * 4


def panels(records: list[CellResult], **choice: str) -> dict[str, list[list[tuple[list[float], list[float], str]]]]:
    """The lines (places, heights, colour) of every panel, by the attack of the figure."""
    found = {}
    for _, figure in curves(records, ("sa",), **choice):
        attack = re.split(r"[;\n]", figure.get_suptitle())[0].removeprefix("attack: ")
        found[attack] = [
            [([*line.get_xdata()], [*line.get_ydata()], to_hex(line.get_color())) for line in axes.lines]
            for axes in figure.axes
        ]
    return found


def test_a_curve_is_the_mean_over_seeds_of_every_round() -> None:
    seeds = [[0.1, 0.2, 0.6], [0.3, 0.8, 0.7]]
    ((((places, heights, _),),),) = panels([record(seed=i, curve=c) for i, c in enumerate(seeds)]).values()
    assert places == [0, 10, 20]
    assert heights == pytest.approx([100 * fmean(values) for values in zip(*seeds, strict=True)])
    (figure,) = (figure for _, figure in curves([record(seed=i, curve=c) for i, c in enumerate(seeds)], ("sa",)))
    (band,) = figure.axes[0].collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(10)
    assert "bands: lowest to highest seed" in figure.get_suptitle()
    assert "✕" not in figure.get_suptitle()


def test_a_line_looks_the_same_in_all_figures_of_a_report() -> None:
    runs = [("sf", "mean"), ("sf", "median"), ("foe", "median"), ("alie", "krum"), ("alie", "median")]
    found = panels([record(attack=a, defense=d, curve=[0.1, 0.4]) for a, d in runs])
    colours = {
        (attack, d): colour
        for attack in ("sf", "foe", "alie")
        for (_, _, colour), d in zip(found[attack][0], drawn(attack, runs), strict=True)
    }
    assert len({colour for (_, d), colour in colours.items() if d == "median"}) == 1
    assert len({colours["sf", "mean"], colours["sf", "median"], colours["alie", "krum"]}) == 3


def drawn(attack: str, runs: list[tuple[str, str]]) -> list[str]:
    return sorted((d for a, d in runs if a == attack), key=["mean", "krum", "median"].index)


def test_a_cross_is_told_of_where_a_seed_diverged() -> None:
    lost = record(seed=1, status="diverged", round=20, curve=[0.3, 0.4])
    (figure,) = (figure for _, figure in curves([record(curve=[0.3, 0.5]), lost], ("sa",)))
    crosses = [line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert crosses == [[[10.0, 40.0]]]
    assert figure.get_suptitle().splitlines()[1] == "✕: then it diverged; each seed is a line"


def test_a_breakdown_says_whom_it_draws_no_line_of() -> None:
    cells = [record(f=f, f_declared=f, defense=d, sa=0.5, ra={}) for f in (1, 2) for d in ("mean", "median")]
    cells[-1] = record(f=2, f_declared=2, defense="median", status="refused", reason="no")
    ((_, figure),) = breakdown_figures(rank_board(frame(cells)))
    assert figure.axes[0].get_title("left") == "without a line: 1 with one point"


def trade(*rows: tuple[str, float, float], **more: object) -> list[CellResult]:
    return [record(defense=d, attack=a, sa=x, ra={"pgd": y}, **more) for d, x, y in rows for a in ("none", "sf")]


def test_the_dashed_line_of_a_trade_off_joins_its_front_alone() -> None:
    rows = [("mean", 0.9, 0.1), ("median", 0.5, 0.5), ("krum", 0.4, 0.4)]
    ((_, figure),) = pareto_figures(rank_board(frame(trade(*rows))))
    (line,) = figure.axes[0].lines
    assert line.get_xydata() == pytest.approx(np.array([[50, 50], [90, 10]]))
    assert figure.axes[0].get_title("left") == ""


def test_a_trade_off_says_how_many_rows_it_leaves_out() -> None:
    rows = [("mean", 0.9, 0.1), ("median", 0.5, 0.5), ("krum", 0.4, 0.4)]
    cells = trade(*rows, seed=0) + trade(*rows[:2], seed=1)
    ((_, figure),) = pareto_figures(rank_board(frame(cells)))
    assert figure.axes[0].get_title("left") == "1 row without both numbers for all seeds left out"


def test_lightness_goes_with_the_samples_of_a_client_and_class() -> None:
    counts = [[10, 0], [5, 20]]
    ((_, figure),) = distributions([record().model_copy(update={"label_counts": counts})])
    (mesh,) = figure.axes[0].collections
    assert mesh.get_array().tolist() == [[10, 5], [0, 20]]  # classes down, clients across
    assert mesh.get_clim() == (0, 20)
