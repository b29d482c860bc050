"""What tables of every kind print of bounds, seeds, states and costs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from fake_store import record
from rich.console import Console
from rich.measure import Measurement
from test_reports_terminal import heading, printed

from robustfl.cli.verify import _tail
from robustfl.records import CellResult
from robustfl.reports import rank_board
from robustfl.reports.benchmark.data import percent
from robustfl.reports.board import Board
from robustfl.reports.estimate import Estimate
from robustfl.reports.frame import frame
from robustfl.reports.paired import compare
from robustfl.reports.site.tables import Notes, ranking, value
from robustfl.reports.tables.columns import costs
from robustfl.reports.tables.terminal import _details, _table, by_harm
from robustfl.reports.tables.writing import to_csv, to_json, to_markdown
from robustfl.scenarios.verify import Check, Verification


def place(*values: float, expected: int = 0, **more: object) -> Estimate:
    seeds = tuple((str(seed), v) for seed, v in enumerate(values))
    return Estimate(seeds, expected or len(values), **more)  # type: ignore[arg-type]


def row(defense: str, sa: dict[str, list[float]], **labels: object) -> list[CellResult]:
    return [
        record(defense=defense, attack=a, seed=s, sa=v, ra={}, **labels)
        for a, values in sa.items() for s, v in enumerate(values)
    ]  # fmt: skip


def board(*cells: CellResult) -> Board:
    return rank_board(frame(cells))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (place(0.7), "70.0 %"),
        (place(0.7, bound=True), "≤ 70.0 %"),
        (place(0.7, 0.6, expected=3), "65.0 % 2/3 (60.0–70.0)"),
        (place(0.7, 0.6), "65.0 % (60.0–70.0)"),
        (Estimate(), "–"),
    ],
)
def test_a_page_of_the_benchmark_says_what_is_a_bound_and_how_many_seeds_there_are(found: Estimate, text: str) -> None:
    assert percent(found).replace("\N{NO-BREAK SPACE}", " ") == text
    assert percent(found, spread=False).replace("\N{NO-BREAK SPACE}", " ") == text.partition(" (")[0]


def test_the_table_of_all_attacks_is_shown_where_it_fits() -> None:
    """Without an attack there is a column more, as wide as the longest name: the first to go makes a table wider."""
    long = "clipped_clustering_adaptive(eta=1)"
    attacks = ["none", "sf", "foe", "alie", "ipm", "zero", "hidra", long]
    made = board(
        *(record(defense=d, attack=a, sa=0.9 - 0.01 * i - 0.3 * (a == long))
          for i, a in enumerate(attacks) for d in ("mean", "median"))
    )  # fmt: skip
    fitting = [width for width in range(60, 160, 2) if "of 8 attacks" not in " ".join(printed(made, width).split())]
    assert fitting == list(range(fitting[0], 160, 2))
    assert "hardest" not in heading(printed(made, fitting[0]))
    # so wide is the narrowest table with all of them
    order = by_harm(made, made.rows)
    narrowest = [d for d in _details(order, 1) if len(d.attacks) == 8][-1]
    screen = Console(file=io.StringIO(), width=500)
    wide = Measurement.get(screen, screen.options, _table(made, made.sections[0], narrowest)).maximum
    assert fitting[0] - 2 < wide <= fitting[0]


def test_json_tells_adjusted_p_values_bounds_and_csv_the_seeds_there_are() -> None:
    rows = {"mean": [0.5, 0.52, 0.49], "median": [0.6, 0.62, 0.63], "krum": [0.9, 0.91, 0.9]}
    made = board(*(c for d, v in rows.items() for c in row(d, {"sf": v})))
    (table,) = json.loads(to_json(made))["tables"]
    expected = [(c.p, c.adjusted) for c in compare(made.sections[0]).results]
    assert [(r["p"], r["adjusted_p"]) for r in table["comparisons"]["rows"]] == expected
    assert any(p != adjusted for p, adjusted in expected)
    section = made.sections[0]
    bounds = tuple(replace(r, worst=replace(r.worst, bound=True)) for r in section.rows)
    told = json.loads(to_json(replace(made, sections=(replace(section, rows=bounds),))))["tables"][0]["rows"]
    assert [r["worst_case"]["is_bound"] for r in told] == [True] * 3
    fewer = board(*row("mean", {"sf": [0.5, 0.6, 0.7]}), *row("median", {"sf": [0.5, 0.6]}))
    lines = {(x["defense"], x["attack"]): x for x in csv.DictReader(io.StringIO(to_csv(fewer)))}
    assert [lines["median", "sf"][name] for name in ("seeds", "expected_seeds")] == ["2", "3"]


def test_files_that_are_not_counted_and_costs_are_told() -> None:
    made = rank_board(frame(row("mean", {"sf": [0.5]})), problems=["broken.json: torn"])
    assert "not counted, broken.json: torn" in to_markdown(made)
    (found,) = made.sections[0].rows
    assert costs(replace(found, seconds_per_round=0.0123, peak_memory=200 * 2**20)) == ["0.012", "200"]
    assert costs(replace(found, seconds_per_round=12.34, peak_memory=None)) == ["12.3", "–"]


NONE = Notes(())


def test_a_site_sorts_by_more_than_it_prints_and_states_last() -> None:
    assert float(value(place(0.8512), NONE).sort) < float(value(place(0.8534), NONE).sort)
    lost = Estimate((), 1, (("diverged", 1),))
    refused = Estimate((), 1, (("refused", 1),))
    assert (value(lost, NONE).sort, value(refused, NONE).sort) == ("-1", "")


def test_a_site_marks_the_rows_that_are_unreliable_and_counts_their_seeds() -> None:
    tasks = [row(d, {"sf": [0.5, 0.6], "none": [0.9, 0.9]}, f=f, f_declared=f)
             for d in ("mean", "median") for f in (1, 2)]  # fmt: skip
    made = board(*(c for cells in tasks for c in cells))
    block = made.tasks[0].block
    labels = next(r.labels for r in made.tasks[0].rows if "mean" in r.labels)
    lines = ranking(made, Notes(made.footnotes, {(block, labels, "sf"): "variance zero"})).lines
    marked = {(line.texts[0], line.texts[-1]) for line in lines if line.badges}
    assert marked == {("mean", block), ("mean", made.sections[0].block)}
    fewer = board(*row("mean", {"sf": [0.5, 0.6, 0.7]}), *row("median", {"sf": [0.5, 0.6]}))
    assert {line.texts[0]: line.seeds for line in ranking(fewer, NONE).lines} == {"mean": "3", "median": "2/3"}


@pytest.mark.parametrize(
    ("checks", "more", "words"),
    [
        (("identical",), {"versions": ("defense median: version 2 here, 1 on the board",)}, "methods that other cells"),
        (("identical", "cannot be run here"), {}, "1 cells were not run here"),
    ],
)
def test_why_a_board_is_undecided_is_said(
    checks: tuple[str, ...], more: dict[str, tuple[str, ...]], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tuple(Check("0" * 32, {"seed": 0}, verdict, "") for verdict in checks)
    _tail(Verification("b", 0.01, 0.01, 4, 4, len(made), 7, checks=made, **more), "")  # type: ignore[arg-type]
    assert f"UNDECIDED: {words}" in capsys.readouterr().out
