"""Claims as data, statements that made-up boards confirm, refute or cannot decide, and the page of both."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robustfl.errors import UsageError
from robustfl.records import CellResult, CurvePoint, Metrics, Timing, plain
from robustfl.reports.moderated_t import MIN_PAIRS, Prior, prior_of
from robustfl.reports.reproduction import (
    Entry,
    Evidence,
    Item,
    Page,
    Statement,
    claims,
    find_items,
    judge,
    papers,
    protocols,
)
from robustfl.reports.reproduction.page import to_html, to_json, to_latex, to_markdown
from robustfl.reports.reproduction.protocols import SCALES, Paper, Run, Scale, in_print, packages, paper
from robustfl.reports.reproduction.verdicts import Planned, best_group, interval, number
from robustfl.reports.store import Store
from robustfl.reproductions.drawings import Plot, apart, drawings
from robustfl.reproductions.fbn import clusters
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import expand, fingerprints, key_of, labels, resolve
from robustfl.scenarios.refusals import refusal
from robustfl.scenarios.reproduce import entry, gather, run_missing, scenario_of
from robustfl.scenarios.spec import Scenario

AHEAD = Statement(id="ahead", says="a is ahead of b", left={"norm": "a"}, right={"norm": "b"}, at_least=5.0)


def record(key: str, sa: float, *, status: str = "done", curve: Sequence[float] = ()) -> CellResult:
    return CellResult(
        key=key,
        scenario="made",
        status=status,  # type: ignore[arg-type]
        cell={},
        labels={},
        metrics=Metrics(sa=sa, loss=1.0, ra={"pgd(eps=0.1)": sa / 2}, groups={"tail": {"sa": sa - 0.01}}),
        curve=[CurvePoint(round=i + 1, sa=v, loss=1.0) for i, v in enumerate(curve)],
        timing=Timing(seconds=2.0),
    )


def evidence(values: Mapping[str, Sequence[float]], **more: object) -> Evidence:
    """Cells of norms, one per seed, with the given accuracies in percent."""
    planned, records = [], {}
    for norm, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            key = f"{norm}-{seed}"
            planned.append(Planned({"norm": norm, "seed": seed}, key))
            records[key] = record(key, accuracy / 100)
    return Evidence(tuple(planned), records, **more)  # type: ignore[arg-type]


def verdict(statement: Statement, found: Evidence) -> str:
    return judge([statement], found)[0].verdict


# --- claims and protocols are data -----------------------------------------------------------------------------------


def test_all_published_numbers_are_there() -> None:
    numbers = {"fbn": 20, "wsm": 106, "fedrbn": 311, "hbn": 268, "fedtan": 62, "bucketing": 20}
    assert {name: len(claims(name)) for name in packages()} == numbers


def test_a_fraction_is_shown_in_percent_and_a_spread_beside_its_value() -> None:
    thesis = next(c for c in claims("wsm") if c["row"] == "FedAvg" and "lr=0.7" in c["column"])
    table1 = next(
        c for c in claims("fedtan") if (c["item"], c["row"]) == ("table1", "FedTAN") and "non-iid" in c["column"]
    )
    words = next(c for c in claims("fbn") if c["value"] == "separable")
    assert [in_print(c) for c in (thesis, table1, words)] == ["77.1", "87.66 ± 0.43", "separable"]


@pytest.mark.parametrize("name", packages())
def test_every_table_and_figure_with_a_published_number_has_its_protocol(name: str) -> None:
    assert {c["item"] for c in claims(name)} <= {item.id for item in paper(name).items}


def test_statements_point_to_one_published_number_each() -> None:
    for of in papers():
        for item in of.items:
            for statement in item.statements:
                for published in statement.published:
                    of.find(published, item.id)
            assert len({s.id for s in item.statements}) == len(item.statements), (of.name, item.id)


def could_measure(cell: Cell, metric: str) -> bool:
    """Whether a cell records such a number."""
    kind, _, rest = metric.partition(":")
    if kind in ("ra", "ra_worst"):
        return any(e.startswith(rest) for e in cell.evasions)
    if kind == "group":
        group, _, name = rest.rpartition(":")
        groups = {f"domain {d}" for d in cell.domains} | {"AT users", "ST users", "spread"}
        groups |= {"branch clean", "branch min"} if cell.branch == "both" else set()
        return group in groups and (name == "sa" or any(e.startswith(name) for e in cell.evasions))
    if kind == "certificate":
        return rest in {f"forgetting.{round}.{name}" for round in cell.forgetting_rounds for name in ("mean", "own")}
    return kind in ("sa", "loss")


RUNS = [(p.name, item, scale) for p in papers() for item in p.items for scale in SCALES if item.at(scale)]


def test_statements_select_cells_that_the_protocol_runs() -> None:
    """A misspelt label would leave a statement undecided for ever."""
    for _, item, scale in RUNS:
        selects_cells(item, scale)


def selects_cells(item: Item, scale: str) -> None:
    at = item.at(scale)  # type: ignore[arg-type]
    assert at is not None
    cells = [c for run in at.runs for c in expand(scenario_of(run)) if refusal(c) is None]
    planned = Evidence(tuple(Planned(labels(c), str(i)) for i, c in enumerate(cells)), {})
    for statement in (s for s in item.statements_at(scale) if s.left):  # type: ignore[arg-type]
        for side in (statement.left, statement.right):
            if side is not None:
                found = planned.of({**statement.where, **side})
                assert found, (statement.id, side)
                metric = (side is statement.right and statement.right_metric) or statement.metric
                assert all(could_measure(cells[int(c.key)], metric) for c in found), (statement.id, metric)
                each = [tuple(str(c.labels[name]) for name in ("seed", *statement.best)) for c in found]
                assert len(set(each)) == len(each), (statement.id, side)
    for plot in map(Plot.model_validate, item.plots):
        assert plot.draw or planned.of(plot.where)
        assert all(name in planned.planned[0].labels for name in (plot.panels, *plot.lines.split()) if name)
        lines = {", ".join(str(c.labels[n]) for n in plot.lines.split()) for c in planned.of(plot.where)}
        assert not plot.per_round or lines <= plot.per_round.keys(), (item.id, scale, lines)


def test_targets_take_short_words_and_name_the_nearest_right_one() -> None:
    assert [i.id for _, i in find_items("fbn/fig3")] == ["figure3"]
    assert len(find_items("fbn")) > 2
    with pytest.raises(UsageError, match=r"no paper 'fbm'; did you mean 'fbn'\?"):
        find_items("fbm")
    with pytest.raises(UsageError, match="fbn has no table or figure 'figure33'; did you mean"):
        find_items("fbn/fig33")


@pytest.fixture
def own_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with one paper, which an entry point names."""
    folder = tmp_path / "own_papers" / "mine"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text(
        "PAPERS = ('mine',)\ndrawings = lambda item, evidence: [(item.id, 'x')]\n"
    )
    (folder / "toy.py").write_text("def times(*, n): return 4 * n\n")
    (folder / "claims.csv").write_text(
        "item,place,row,column,metric,value,spread,seeds,note\ntable1,,toy,,count,12,,,\n"
    )
    statement = 'id = "toy"\nsays = "s"\ncompute = "mine.toy.times"\narguments = { n = 3 }\nvalue = 12\nwithin = 0\n'
    item = '[[items]]\nid = "table1"\ntitle = "t"\n[[items.statements]]\npublished = [{ row = "toy" }]\n'
    (folder / "protocol.toml").write_text(f'citation = "Me"\n{item}{statement}', encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("mine", "own_papers", protocols.GROUP)]
    monkeypatch.setattr(protocols, "entry_points", lambda group: points)
    packages.cache_clear()
    yield
    packages.cache_clear()


@pytest.mark.usefixtures("own_papers")
def test_a_package_of_ones_own_adds_papers() -> None:
    ((one, item),) = find_items(None)
    made = entry(one, item, "reduced")
    assert [row[1:] for row in made.rows] == [("12", "12", "confirmed")]
    assert one.drawings(item, made.evidence) == [("table1", "x")]


def test_a_statement_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        Statement(id="x", says="x", left={"norm": "a"})
    with pytest.raises(ValueError, match="either selects cells"):
        Statement(id="x", says="x", at_least=0, left={"norm": "a"}, compute="parameters")


# --- verdicts on made-up boards ---------------------------------------------------------------------------------------


def test_a_selector_of_two_cells_of_one_seed_is_too_wide() -> None:
    found = evidence({"a": [80, 81, 82], "b": [60, 61, 60]})
    twice = replace(found, planned=(*found.planned, Planned({"norm": "a", "seed": 1}, "again")))
    assert verdict(AHEAD, twice) == "confirmed"  # it has no record
    with pytest.raises(UsageError, match=r"'ahead' selects several cells of seed 1; .* is too wide"):
        verdict(AHEAD, replace(twice, records={**found.records, "again": record("again", 0.5)}))


def test_two_seeds_decide_nothing_however_clear() -> None:
    found = judge([AHEAD], evidence({"a": [99, 99], "b": [1, 1]}))[0]
    assert (found.verdict, found.reason) == ("undecided", f"2 seeds; {MIN_PAIRS} are needed")


def test_only_seeds_that_both_sides_have_are_paired() -> None:
    found = judge([AHEAD], evidence({"a": [80, 80, 80, 0], "b": [60, 60, 60]}))[0]
    assert (found.seeds, found.difference) == (3, pytest.approx(20))


def test_a_run_that_diverged_counts_as_no_accuracy() -> None:
    found = evidence({"a": [80, 81, 80], "b": [70, 70, 70]})
    records = {**found.records, **{f"b-{i}": record(f"b-{i}", 0.7, status="diverged") for i in range(3)}}
    assert verdict(Statement(id="x", says="x", left={"norm": "a"}, right={"norm": "b"}, at_least=50.0),
                   Evidence(found.planned, records)) == "confirmed"  # fmt: skip


def test_the_best_evaluation_of_a_run_that_diverged_is_that_before() -> None:
    lost = record("k", 0.7, status="diverged", curve=[0.2, 0.5, 0.1])
    assert [number(lost, "sa", s) for s in ("best", "final", "lowest", "tail")] == [50.0, 0.0, 0.0, 0.0]
    assert number(lost, "ra_worst", "best") == 0.0
    assert number(record("k", 0.7, status="diverged"), "sa", "best") == 0.0
    assert number(lost, "certificate:forgetting.3.mean") is None


def test_cells_that_have_not_run_and_cells_of_another_preset_decide_nothing() -> None:
    planned = tuple(Planned({"norm": n, "seed": s}, f"{n}-{s}") for n in "ab" for s in range(3))
    stale = judge([AHEAD], Evidence(planned, {}, stale=6))[0]
    assert (stale.verdict, stale.reason[:14]) == ("stale", "6 stored cells")
    lacking = judge([AHEAD], Evidence(planned, {}, lacking="no cifar10 here"))[0]
    assert (lacking.verdict, lacking.reason) == ("not run", "no cifar10 here")


def test_the_values_that_are_shown_are_those_that_are_compared() -> None:
    """A side with more seeds than the other is shown with those of both, so that the difference is theirs."""
    found = judge([AHEAD], evidence({"a": [80, 81, 82, 90, 95], "b": [60, 61, 62]}))[0]
    assert (list(found.left.values.values()), found.seeds) == ([80, 81, 82], 3)
    assert found.difference == pytest.approx(
        statistics.fmean(found.left.values.values()) - statistics.fmean(found.right.values.values())
    )


def test_each_side_takes_its_best_rate_where_the_paper_tunes() -> None:
    planned, records = [], {}
    accuracies = {
        ("a", 0.1): [50, 51, 50],
        ("a", 1.0): [80, 81, 80],
        ("b", 0.1): [70, 70, 70],
        ("b", 1.0): [10, 10, 10],
    }
    for (norm, rate), values in accuracies.items():
        for seed, value in enumerate(values):
            key = f"{norm}-{rate}-{seed}"
            planned.append(Planned({"norm": norm, "schedule": rate, "seed": seed}, key))
            records[key] = record(key, value / 100)
    tuned = Statement(id="x", says="x", left={"norm": "a"}, right={"norm": "b"}, best=("schedule",), at_least=5)
    found = judge([tuned], Evidence(tuple(planned), records))[0]
    assert found.difference == pytest.approx(31 / 3 + 10 - 10, abs=0.4)
    assert (found.left.chosen, found.right.chosen if found.right else "") == ("schedule = 1.0", "schedule = 0.1")
    del records["b-0.1-2"]  # the best of the rates that have run is not the best of all
    found = judge([tuned], Evidence(tuple(planned), records))[0]
    assert (found.verdict, found.difference) == ("not run", None)


def test_the_best_evaluation_the_lowest_and_the_tail_are_other_numbers_than_the_last() -> None:
    made = record("k", 0.5, curve=[0.2, 0.9, 0.4])
    assert [number(made, "sa", s) for s in ("final", "best", "lowest", "tail")] == pytest.approx([50, 90, 20, 49])
    assert number(made, "ra:pgd") == pytest.approx(25)
    assert number(made, "certificate:nothing", percent=False) is None


def test_the_mean_of_a_curve_weighs_its_evaluations_by_rounds() -> None:
    points = [CurvePoint(round=r, sa=sa, loss=1.0) for r, sa in ((10, 0.2), (20, 0.6), (21, 0.9))]
    made = record("k", 0.9).model_copy(update={"curve": points})
    assert number(made, "sa", "mean") == pytest.approx(100 * (10 * 0.2 + 10 * 0.6 + 0.9) / 21)
    assert number(record("k", 0.9), "sa", "mean") == pytest.approx(90)


def test_a_statement_may_hold_the_best_evaluation_against_the_last() -> None:
    found = evidence({"a": [50, 51, 50]})
    curve = record("k", 0.0, curve=[0.7]).curve
    records = {key: r.model_copy(update={"curve": curve}) for key, r in found.records.items()}
    falls = Statement(id="x", says="x", statistic="best", left={"norm": "a"}, right={"norm": "a"},
                      right_statistic="final", at_least=10)  # fmt: skip
    (made,) = judge([falls], Evidence(found.planned, records))
    assert (made.verdict, made.difference) == ("confirmed", pytest.approx(70 - 151 / 3))
    with pytest.raises(ValueError, match="no right side"):
        Statement(id="x", says="x", left={"norm": "a"}, right_statistic="best", at_least=0)


def test_the_interval_is_students_with_a_moderated_variance() -> None:
    from scipy import stats

    prior = Prior(dof=3.0, variance=2.0, pooled=20.0)
    low, high = interval([1.0, 2.0, 6.0], prior)  # own variance 7 with 2 degrees, the prior's 2 with three
    half = stats.t.ppf(0.975, 5) * ((2 * 7 + 3 * 2) / 5 / 3) ** 0.5
    assert (low, high) == (pytest.approx(3 - half), pytest.approx(3 + half))


def test_statements_of_one_table_lend_each_other_their_variances() -> None:
    """Alone three noisy seeds decide nothing; beside steady comparisons of the same table they do."""
    noisy = {"a": [86.0, 80.0, 80.0], "b": [70.0, 70.0, 70.0]}
    assert judge([AHEAD], evidence(noisy))[0].verdict == "undecided"
    steady = {f"s{i}": [50.0 + 0.1 * i, 50.3, 50.1 - 0.1 * i] for i in range(6)}
    others = [Statement(id=f"s{i}", says="x", left={"norm": f"s{i}"}, right={"norm": "b"}, at_most=0) for i in range(6)]
    assert judge([AHEAD, *others], evidence({**noisy, **steady}))[0].verdict == "confirmed"


def test_numbers_of_another_kind_lend_nothing() -> None:
    """Accuracies that hardly vary say nothing about how robust accuracies do."""
    noisy = {"a": [86.0, 80.0, 80.0], "b": [70.0, 70.0, 70.0]}
    steady = {f"s{i}": [50.0 + 0.1 * i, 50.3, 50.1 - 0.1 * i] for i in range(6)}
    others = [
        Statement(id=f"s{i}", says="x", left={"norm": f"s{i}"}, right={"norm": "b"}, at_most=0, metric="ra:pgd")
        for i in range(6)
    ]
    alone = judge([AHEAD], evidence(noisy))[0]
    beside = judge([AHEAD, *others], evidence({**noisy, **steady}))[0]
    assert (beside.low, beside.high) == (alone.low, alone.high)


@pytest.mark.parametrize(("metric", "kind"), [
    ("sa", "sa"), ("ra_worst", "ra"), ("ra:pgd(eps=0.1)", "ra"), ("group:branch clean:sa", "sa"),
    ("group:branch clean:pgd", "ra"), ("certificate:forgetting.3.mean", "certificate"), ("loss", "loss"),
])  # fmt: skip
def test_kinds_of_numbers(metric: str, kind: str) -> None:
    assert Statement(id="x", says="x", metric=metric, left={"norm": "a"}, at_least=0).kind == kind


def test_a_comparison_counts_once_however_many_statements_ask_it() -> None:
    values = {"a": [82.0, 80.0, 84.0], "b": [70.0, 70.5, 70.2], "c": [60.0, 63.0, 60.5], "d": [40.0, 40.2, 47.0]}

    def asks(left: str, right: str, n: int = 0) -> Statement:
        return Statement(id=f"{left}-{right}-{n}", says="x", left={"norm": left}, right={"norm": right}, at_least=0)

    once = [asks("a", "b"), asks("b", "c"), asks("c", "d")]
    again = [*once, *(asks("b", "a", n) for n in range(4)), *(asks("a", "b", n) for n in range(1, 4))]
    first, others = judge(once, evidence(values)), judge(again, evidence(values))
    assert [(f.low, f.high) for f in others[:3]] == [(f.low, f.high) for f in first]
    assert page_of(*again, found=evidence(values)).summary.endswith(
        "10 of them come from runs, which make 3 comparisons."
    )


def test_runs_that_are_the_same_lend_nothing() -> None:
    """Two settings that change nothing have the same runs: their difference is no luck, and says nothing of luck."""
    values = {"a": [82.0, 80.0, 84.0], "b": [70.0, 70.5, 70.2], "c": [60.0, 63.0, 60.5], "d": [60.0, 63.0, 60.5]}
    asked = [
        Statement(id=f"{x}-{y}", says="x", left={"norm": x}, right={"norm": y}, at_least=0)
        for x, y in ("ab", "bc", "ac", "cd")
    ]
    with_twins, without = judge(asked, evidence(values)), judge(asked[:3], evidence(values))
    assert [(f.low, f.high) for f in with_twins[:3]] == [(f.low, f.high) for f in without]


def test_many_numbers_of_few_rows_have_no_more_freedom_than_the_rows() -> None:
    """Two comparisons among three rows, each under six evasions whose numbers go together: four degrees, not 24."""
    planned, records = [], {}
    values = {"a": [82.0, 80.0, 84.0], "b": [70.0, 70.5, 70.2], "c": [60.0, 63.0, 60.5]}
    for norm, accuracies in values.items():
        for seed, value in enumerate(accuracies):
            cell = Planned({"norm": norm, "seed": seed}, f"{norm}-{seed}")
            planned.append(cell)
            robust = {f"e{i}": value / 100 for i in range(6)}
            metrics = Metrics(sa=value / 100, loss=1.0, ra=robust)
            records[cell.key] = record(cell.key, 0.5).model_copy(update={"metrics": metrics})
    asked = [
        Statement(id=f"{x}-{y}-{i}", says="x", left={"norm": x}, right={"norm": y}, at_least=0, metric=f"ra:e{i}")
        for x, y in ("ab", "ac")
        for i in range(6)
    ]
    found = judge(asked, Evidence(tuple(planned), records))[0]
    differences = [[12.0, 9.5, 13.8], [22.0, 17.0, 23.5]]
    variances = [statistics.variance(d) for d in differences for _ in range(6)]
    expected = interval(differences[0], prior_of(variances, [2.0] * 12, pooled=4.0))
    assert (found.low, found.high) == (pytest.approx(expected[0]), pytest.approx(expected[1]))
    assert expected != pytest.approx(interval(differences[0], prior_of(variances, [2.0] * 12, pooled=24.0)))


def test_equal_seeds_do_not_make_certainty_out_of_luck() -> None:
    low, high = interval([5.0, 5.0, 5.0], prior=None)
    assert low < 5.0 < high


@pytest.mark.parametrize(("bound", "right", "wrong"), [
    ({"at_least": 5.0}, 25, [-15]), ({"at_most": 5.0}, -15, [25]), ({"within": 5.0, "value": 10.0}, 10, [-15, 35]),
])  # fmt: skip
def test_a_bound_is_satisfied_missed_or_reached_over(
    bound: dict[str, float], right: float, wrong: Sequence[float]
) -> None:
    statement = Statement(id="x", says="x", left={"norm": "a"}, right={"norm": "b"}, **bound)  # type: ignore[arg-type]
    edge = bound.get("value", 0.0) + next(iter(bound.values()))
    for difference, noise, said in ((right, 0.1, "confirmed"), (edge, 5.0, "undecided"),
                                    *((d, 0.1, "contradicted") for d in wrong)):  # fmt: skip
        values = {"a": [50 + difference + noise * place for place in (-1, 0, 1)], "b": [50.0] * 3}
        assert verdict(statement, evidence(values)) == said


# --- the page --------------------------------------------------------------------------------------------------------


def page_of(*statements: Statement, found: Evidence) -> Page:
    item = Item(id="table1", title="A & B <made>", statements=statements, reduced=Scale(runs=(Run(preset="p"),)))
    of = Paper(name="fbn", citation="Somebody, Something, 2024", items=(item,))
    return Page((Entry(of, item, "reduced", found, judge(statements, found)),), "0.0")


def test_the_page_shows_contradictions_first_and_says_what_was_tried() -> None:
    behind = Statement(
        id="behind", says="b is ahead of a", left={"norm": "b"}, right={"norm": "a"}, at_least=0, tried="more rounds"
    )
    page = page_of(AHEAD, behind, found=evidence({"a": [80, 81, 82], "b": [60, 61, 60]}))
    text = to_markdown(page)
    assert text.index("b is ahead of a") < text.index("a is ahead of b")
    assert "Tried: more rounds" in text
    assert "1 contradicted, 1 confirmed" in page.summary
    assert "robustfl reproduce fbn/table1 --scale reduced" in text


@pytest.mark.parametrize("names", [["a", "b", "c", "d", "e"], [f"fedtan-ii(switch_round={k})" for k in range(5)]])
def test_a_legend_stays_within_its_figure(names: list[str]) -> None:
    found = evidence({name: [80, 81] for name in names})
    item = Item(id="t", title="t", plots=({"kind": "bars", "x": "norm"},))
    ((_, figure),) = drawings(item, found)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    inside, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= inside.x0 < inside.x1 <= whole.x1
    assert len({text.get_text() for text in legend.get_texts()}) == 5


def test_a_page_says_how_many_cells_ran_elsewhere_than_on_a_cpu() -> None:
    found = evidence({"a": [80, 81, 82]})
    on = {"a-0": "cpu", "a-1": "cuda", "a-2": "cuda"}
    moved = {k: r.model_copy(update={"certificates": {"device": on[k]}}) for k, r in found.records.items()}
    one, item = find_items("hbn/table1")[0]
    words = Entry(one, item, "reduced", Evidence(found.planned, moved), ()).state
    assert words == "3 of 3 cells have run, 2 of them on cuda, 6 s of computing."
    assert Entry(one, item, "reduced", found, ()).state == "3 of 3 cells have run, 6 s of computing."


def test_what_only_the_papers_scale_can_run_says_what_that_needs() -> None:
    entries = {item.id: Entry(p, item, "reduced", Evidence(), ()) for p, item in find_items("hbn")}
    assert entries["table9"].state == "Nothing to run at the reduced scale. It needs a GPU and CIFAR-100."
    assert "Nothing has run" in entries["table1"].state
    counted = next(item for _, item in find_items("hbn") if item.id == "text")
    found = judge(counted.statements, Evidence(), lambda s: 1.0)
    assert Entry(paper("hbn"), counted, "reduced", Evidence(), found).state == "Computed, without training."


def test_every_form_of_the_page_escapes_and_every_number_can_be_traced() -> None:
    page = page_of(AHEAD, found=evidence({"a": [80, 81, 82], "b": [60, 61, 60]}))
    assert "<made>" not in to_html(page)
    assert r"A \& B" in to_latex(page)
    statement = json.loads(to_json(page))["entries"][0]["statements"][0]
    assert statement["left"]["keys"] == ["a-0", "a-1", "a-2"]
    assert statement["left"]["values"] == {"0": 80.0, "1": 81.0, "2": 82.0}
    assert statement["verdict"] == "confirmed"


def test_the_selected_round_is_read_where_a_cell_selected_one() -> None:
    made = record("k", 0.5)
    assert made.metrics is not None
    chosen = {
        "selected": {"sa": 0.7, "ra_worst": 0.3, "pgd": 0.3, "mia(steps=20)": 0.4},
        "domain a": {"sa": 0.1},
        "selected, domain a": {"sa": 0.8},
    }
    metrics = made.metrics.model_copy(update={"groups": {**made.metrics.groups, **chosen}})
    selected = made.model_copy(update={"metrics": metrics})
    asked = ("sa", "ra_worst", "ra:pgd", "ra:mia", "group:domain a:sa")
    assert [number(selected, m, "selected") for m in asked] == pytest.approx([70, 30, 30, 40, 80])
    assert number(selected, "group:domain a:sa") == pytest.approx(10)
    assert number(selected, "loss", "selected", percent=False) is None  # nobody noted the loss of that round
    assert number(made, "sa", "selected") == pytest.approx(50)  # no selection: the last round


def test_a_statement_may_hold_one_metric_of_a_cell_against_another() -> None:
    cells = evidence({"a": [80, 81, 82]})
    both = Statement(id="x", says="x", left={"norm": "a"}, right={"norm": "a"}, right_metric="ra:pgd", at_least=30)
    found = judge([both], cells)[0]
    assert (found.verdict, found.difference) == ("confirmed", pytest.approx(40.5))
    with pytest.raises(ValueError, match="has a right_metric or right_statistic and no right side"):
        Statement(id="x", says="x", left={"norm": "a"}, right_metric="ra:pgd", at_least=30)


def test_a_statement_of_one_scale_is_judged_at_that_scale_alone() -> None:
    both, one = AHEAD, AHEAD.model_copy(update={"id": "one", "scale": "paper"})
    item = Item(id="table1", title="t", statements=(both, one))
    assert [s.id for s in item.statements_at("paper")] == ["ahead", "one"]
    assert [s.id for s in item.statements_at("reduced")] == ["ahead"]


def test_the_list_says_what_a_table_without_a_reduced_protocol_needs() -> None:
    ((one, item),) = find_items("fedtan/figure13")
    assert (
        Entry(one, item, "reduced", Evidence(), ()).needs
        == "only at the paper scale: a GPU and DomainNet's ten classes"
    )


# --- stored cells of something else -----------------------------------------------------------------------------------


def test_a_record_counts_by_its_key_and_not_by_its_labels() -> None:
    """Cells of a changed preset have the same labels and other keys."""
    at = Scale(runs=(Run(preset="quickstart", settings=("rounds=1", "seed=0", "attack=none", "defense=mean")),))
    cells = gather(at, out="nowhere").planned
    assert all(cell.key for cell in cells)
    fake = record(cells[0].key, 0.5).model_copy(update={"cell": {"data": "unknown"}})
    assert gather(at, records=[fake]).ran == []


def test_cells_of_a_changed_preset_are_stale_and_cells_of_another_part_of_it_are_not() -> None:
    part = Scale(runs=(Run(preset="quickstart", settings=("defense=mean", "seed=0")),))
    whole = [cell.key for cell in gather(Scale(runs=(Run(preset="quickstart"),)), out="nowhere").planned]
    own = [cell.key for cell in gather(part, out="nowhere").planned]
    data = str(next(iter(fingerprints(expand(scenario_of(part.runs[0]))[:1], None).values())))

    def stored(key: str) -> CellResult:
        return record(key, 0.5).model_copy(update={"cell": {"data": data}, "scenario": "quickstart"})

    elsewhere = next(key for key in whole if key not in own)
    assert gather(part, records=[stored(elsewhere)]).stale == 0
    changed = gather(part, records=[stored(elsewhere), stored("key of other rounds")])
    assert (changed.stale, changed.ran) == (1, [])
    held = Statement(id="x", says="x", left={"norm": "fbn"}, at_least=0)
    assert judge([held], changed)[0].verdict == "stale"
    assert judge([held], gather(part, records=[stored(elsewhere)]))[0].verdict == "not run"


def test_a_stored_cell_of_a_changed_preset_is_stale_on_the_page(tmp_path: Path) -> None:
    """From a store: the preset's rounds have changed since, so the cell has the same labels but for them."""
    part = Scale(runs=(Run(preset="quickstart", settings=("defense=mean",)),))
    cell = expand(scenario_of(part.runs[0]))[0]
    data = next(iter(fingerprints([cell], None).values()))
    changed = cell.model_copy(update={"rounds": cell.rounds + 1})
    older = resolve(changed, data)
    told = {"scenario": "quickstart", "cell": older, "labels": plain(labels(changed))}
    kept = record(key_of(older), 0.5).model_copy(update=told)
    Store(tmp_path / "quickstart").commit(kept)
    twice = Scale(runs=(*part.runs, Run(preset="quickstart", settings=("defense=median",))))
    assert (gather(part, out=tmp_path).stale, gather(twice, out=tmp_path).stale) == (1, 1)


def test_a_cell_that_another_run_of_the_preset_asks_for_is_not_stale() -> None:
    """Two more seeds for some cells of a table, or another ρ: to its other run they are no changed preset."""
    ((_, table),) = find_items("hbn/table4")
    at = table.at("reduced")
    assert at is not None
    first, second = (Scale(runs=(run,)) for run in at.runs[:2])
    cell = expand(scenario_of(second.runs[0]))[0]
    assert cell not in expand(scenario_of(first.runs[0]))
    told = {"scenario": scenario_of(second.runs[0]).name, "cell": {"data": "ab" * 8}}
    stored = record(key_of(resolve(cell, "ab" * 8)), 0.5).model_copy(update=told)
    assert gather(second, records=[stored]).ran == [stored]
    assert (gather(first, records=[stored]).stale, gather(at, records=[stored]).stale) == (0, 0)


def test_cells_of_other_stores_count_and_are_not_run_again(tmp_path: Path) -> None:
    """Two tables share cells: equal keys are equal cells, whatever the scenario was called; a failed one is none."""
    part = Scale(runs=(Run(preset="quickstart", settings=("defense=mean", "seed=0", "attack=none", "rounds=1")),))
    scenario = scenario_of(part.runs[0])
    digest = next(iter(fingerprints(expand(scenario)[:1], None).values()))
    made = []
    for cell, status in zip(expand(scenario), ("done", "done", "failed"), strict=False):
        settings = resolve(cell, digest)
        told = {"scenario": "another", "cell": settings, "labels": plain(labels(cell)), "status": status}
        made.append(record(key_of(settings), 0.5).model_copy(update=told))
        Store(tmp_path / "another").commit(made[-1])
    Store(tmp_path / "another").commit(made[0].model_copy(update={"key": "unasked"}))
    assert len(gather(part, out=tmp_path).ran) == 2
    assert not (tmp_path / scenario.name).exists(), "looking writes nothing"
    said: list[str] = []

    def run(given: Scenario) -> Any:
        assert Store(tmp_path / given.name).keys() == {made[0].key, made[1].key}
        return SimpleNamespace(statuses={"failed": 1}, lost=0)

    assert run_missing(part, run, on_note=said.append, out=tmp_path)
    assert said == [f"{scenario.name}: 2 cells were in other stores under {tmp_path}"]
    said.clear()
    run_missing(part, run, on_note=said.append, out=tmp_path)
    assert said == []
    for lost in (0, 1):
        ended = SimpleNamespace(statuses={"done": 2}, lost=lost)
        assert run_missing(part, lambda _, ended=ended: ended, on_note=said.append, out=tmp_path) == bool(lost)


def test_a_plot_has_a_line_per_label_with_a_band_over_seeds() -> None:
    found = evidence({"a": [80, 81], "b": [60, 61]})
    records = {
        k: r.model_copy(update={"curve": record(k, 0.5, curve=[0.1, 0.2]).curve}) for k, r in found.records.items()
    }
    item = Item(id="figure1", title="t", plots=({"kind": "curves"}, {"kind": "bars", "x": "norm"}))
    drawn = drawings(item, Evidence(found.planned, records))
    assert [name for name, _ in drawn] == ["figure1-1", "figure1-2"]
    axis = drawn[0][1].axes[0]
    assert sorted(str(line.get_label()) for line in axis.get_lines()) == ["a", "b"]
    assert next(list(line.get_ydata()) for line in axis.get_lines()) == pytest.approx([10, 20])  # type: ignore[arg-type]
    some = dict(list(records.items())[1:])
    assert drawings(item, Evidence(found.planned, some)) == []  # half of a picture shows another thing than the whole


# --- computed plots --------------------------------------------------------------------------------------------------


def test_computed_plots_show_what_their_statements_count() -> None:
    figure = clusters.draw_points(norms=["fbn", "naive-bn"], gamma=0.0)
    assert [axis.get_title() for axis in figure.axes] == ["fbn", "naive-bn"]
    places = [[dots.get_offsets() for dots in axis.collections] for axis in figure.axes]
    assert [[len(dots) for dots in own] for own in places] == [[30] * 10] * 2
    radii = [math.hypot(x, y) for dots in places[0] for x, y in dots]
    assert 1.2 < sum(radii) / len(radii) < 1.6  # the circle of radius 10, divided by about 7.1
    (line,) = clusters.draw_errors(norms=["fbn"], gammas=[0.0, 1.0], seeds=2).axes[0].get_lines()
    assert list(line.get_xdata()) == list(range(1, 101))
    assert statistics.fmean(line.get_ydata()) == pytest.approx(clusters.error(norm="fbn", gamma=0.0, seeds=2))


@pytest.mark.parametrize("name", ["figure1", "figure2"])
def test_computed_plots_are_drawn_without_any_cell(name: str) -> None:
    ((paper, item),) = find_items(f"fbn/{name}")
    made = entry(paper, item, "reduced")
    ((title, figure),) = drawings(made.item, made.evidence)
    assert title == name
    assert len(figure.axes) == {"figure1": 4, "figure2": 3}[name]


def test_counted_statements_hold_but_for_two_slips_in_print() -> None:
    against = []
    for one, item in find_items(None):
        counted = judge([s for s in item.statements if s.compute], Evidence(), one.compute)
        against += [(f"{one.name}/{item.id}", f.statement.id) for f in counted if f.verdict != "confirmed"]
    assert against == [("fedtan/table3", "above-gn"), ("fedtan/table5", "gibibits-500")]


@pytest.mark.parametrize("form", [to_markdown, to_html, to_latex, to_json])
def test_the_page_of_all_tables_is_written_in_every_form_before_anything_has_run(form: Callable[[Page], str]) -> None:
    held = [(one, item, [s for s in item.statements if not s.compute]) for one, item in find_items(None)]
    nothing = Evidence()
    entries = tuple(Entry(one, item, "reduced", nothing, judge(kept, nothing)) for one, item, kept in held)
    text = form(Page(entries, "0"))
    plain_words = [max(re.findall(r"[A-Za-z ]+", item.title), key=len).strip() for _, item, kept in held if kept]
    assert [words for words in plain_words if words not in text] == []
    assert "()" not in text


def test_panels_and_bars_are_named_by_what_tells_them_apart() -> None:
    shared = "local_steps=5, weighting=uniform, replacement=True"
    names = {"a": f"fedavg({shared})", "b": f"fedavg(momentum=0.9, {shared})"}
    found = evidence({"a": [80, 81], "b": [60, 61]})
    labels = [{**p.labels, "algorithm": names[p.labels["norm"]]} for p in found.planned]
    planned = [
        Planned({**given, "partition": f"classes(k={k})"}, f"{p.key}{k}")
        for p, given in zip(found.planned, labels, strict=True)
        for k in (2, 10)
    ]
    records = {p.key: found.records[p.key.removesuffix("10").removesuffix("2")] for p in planned}
    item = Item(id="t", title="t", plots=({"kind": "bars", "panels": "algorithm", "x": "partition"},))
    ((_, figure),) = drawings(item, Evidence(tuple(planned), records))
    assert {axis.get_title() for axis in figure.axes} == {"fedavg", "fedavg(momentum=0.9)"}
    for axis in figure.axes:
        assert axis.get_xlabel() == "classes k"
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["2", "10"]


@pytest.mark.parametrize(("names", "shown"), [
    (["d(a=0.1, m=x)", "d(a=1, m=x)"], (["0.1", "1"], "d a")),
    (["constant(lr=0.01)", "constant(lr=0.1)"], (["0.01", "0.1"], "constant lr")),
    (["d(a=1, b=2, c=3)", "d(a=2, b=1, c=3)"], (["a=1, b=2", "a=2, b=1"], "d")),
    (["d(a=1)", "d"], (["d(a=1)", "d"], "")),
    (["d(a=1)", "e(a=2)"], (["d(a=1)", "e(a=2)"], "")),
    (["d(a=1)"], (["d(a=1)"], "")),
    (["4", "32"], (["4", "32"], "")),
    ([], ([], "")),
])  # fmt: skip
def test_names_below_an_axis_say_what_differs(names: list[str], shown: tuple[list[str], str]) -> None:
    assert apart(names) == shown


def test_a_rate_is_the_best_in_the_mean_over_its_seeds_and_not_by_its_luckiest() -> None:
    rates = {"0.1": [90.0, 10.0, 10.0], "0.2": [50.0, 50.0, 50.0], "0.4": [60.0]}
    cells = [Planned({"rate": r, "seed": i}, f"{r} {i}") for r in rates for i in range(3)]
    values = {f"{r} {i}": v for r, seen in rates.items() for i, v in enumerate(seen)}
    found = best_group([c for c in cells if c.labels["rate"] != "0.4"], ["rate"], values)
    assert [c.key for c in found] == ["0.2 0", "0.2 1", "0.2 2"]
    assert best_group(cells, [], values) == cells
    assert best_group(cells[:3], ["rate"], {}) == cells[:3]


def test_every_paper_has_five_headlines_that_stand_first_on_the_page() -> None:
    entries = tuple(entry(one, item, "reduced", records=[]) for one, item in find_items(None))
    page = Page(entries, "0")
    assert [len(rows) for rows in page.headlines.values()] == [5] * len(papers())
    for form in (to_markdown, to_html):
        text = form(page)
        assert text.index("Paper by paper") < text.index("fbn/figure1: ")
        assert "robustfl reproduce fbn/figure3" in text[: text.index("fbn/figure1: ")]
