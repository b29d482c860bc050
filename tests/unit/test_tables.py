"""What tables of every kind print, and how much of many attacks a terminal shows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_store import board, place, record, stored
from rich.console import Console

from robustfl.cli.verify import _tail
from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.reports import report
from robustfl.reports.benchmark.data import percent
from robustfl.reports.board import Board
from robustfl.reports.columns import costs
from robustfl.reports.display import Display, read_names
from robustfl.reports.loading import board_of
from robustfl.reports.paired import compare
from robustfl.reports.site.pages import Notes, ranking, value
from robustfl.reports.table_cell import TableCell
from robustfl.reports.tables import to_csv, to_json, to_latex, to_markdown, to_text
from robustfl.reports.terminal import by_harm, terminal
from robustfl.reports.writing import publish_store
from robustfl.scenarios.verify import Check, Verification

MANY = {"none": 0.9} | {f"attack-{i:02}": 0.85 - i / 50 for i in range(28)}


def row(defense: str, **sa: float) -> list[CellResult]:
    """One row of a board: an accuracy per attack."""
    return [record(defense=defense, attack=attack, sa=value, ra={}) for attack, value in sa.items()]


def printed(made: Board, width: int, **options: Any) -> str:
    """What a terminal of that width shows."""
    out = io.StringIO()
    screen = Console(file=out, width=width)
    for part in terminal(made, **options):
        screen.print(part)
    return out.getvalue()


def heading(shown: str) -> str:
    return next(line for line in shown.splitlines() if line.lstrip().startswith("#"))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_of_many_attacks_the_hardest_are_shown_and_the_others_named(width: int) -> None:
    shown = printed(board(*row("median", **MANY)), width, full="runs/x/leaderboard.csv")
    head, below = heading(shown), shown.split("Left out for lack of width")[1].split("One seed")[0]
    assert max(map(len, shown.splitlines())) <= width
    assert head.split()[-2:] == ["case", "hardest"]
    assert next(line for line in shown.splitlines() if line.startswith("1")).split()[-2:] == ["31.0", "attack-27"]
    assert "none" in head
    assert "attack-27" in head
    assert "attack-00" not in head
    assert "attack-00" in below
    assert "runs/x/leaderboard.csv" in below
    assert head.count("attack-") + below.count("attack-") == 28


def test_what_fits_is_used() -> None:
    made = board(*row("median", **MANY))
    shown = [heading(printed(made, width)).count("attack-") for width in (80, 120, 200, 400)]
    assert shown == sorted(set(shown))
    assert shown[-1] == 28


def test_few_attacks_are_all_shown_without_a_word() -> None:
    shown = printed(board(*row("median", none=0.9, sf=0.5)), 80)
    assert "attacks" not in shown
    assert "hardest" not in heading(shown)
    assert "none" in heading(shown)
    assert "sf" in heading(shown)


def test_an_attack_under_which_a_row_diverges_is_the_hardest() -> None:
    made = board(
        *row("median", none=0.9, mild=0.8, broken=0.85), *row("mean", none=0.9, mild=0.3),
        record(defense="mean", attack="broken", status="diverged", reason="x", round=3),
    )  # fmt: skip
    assert [made.attacks[i] for i in by_harm(made, made.sections[0].rows)] == ["none", "broken", "mild"]


def test_the_worst_case_stays_on_the_narrowest_terminal() -> None:
    shown = printed(board(*row("nnm+trimmed-mean", **MANY)), 40)
    assert max(map(len, shown.splitlines())) <= 40
    assert "31.0" in shown.split("Left out")[0]


def test_the_text_file_leaves_no_attack_out() -> None:
    text = to_text(board(*row("median", **MANY)))
    assert heading(text).count("attack-") == 28
    assert "left out" not in text.lower()


# --- the order in which detail goes ----------------------------------------------------------------------------------


def five(defense: str, norm: str, **sa: float) -> list[CellResult]:
    """One row of a board with five seeds."""
    return [
        record(defense=defense, norm=norm, attack=a, sa=v + s / 100, seed=s, ra={}, partition=p)
        for a, v in sa.items() for s in range(5) for p in ("gamma(gamma=0.0)", "gamma(gamma=0.5)")
    ]  # fmt: skip


STUDY = [
    c for d, v in (("mean", 0.2), ("trimmed-mean", 0.5), ("nnm+trimmed-mean", 0.6)) for n in ("fbn", "naive-bn")
    for c in five(d, n, none=0.9, sf=v, **{"foe(eta=10)": v + 0.1}, alie=v + 0.2)
]  # fmt: skip


def test_costs_go_first_then_the_intervals_of_single_attacks_and_attacks_later() -> None:
    made = board(*STUDY)
    heads = {w: heading(printed(made, w)) for w in (160, 120, 80)}
    assert "peak MiB" in heads[160]
    for width, head in heads.items():
        shown = printed(made, width)
        assert max(map(len, shown.splitlines())) <= width
        assert all(a in shown.split("Left out")[0] for a in ("none", "sf", "alie", "foe(")), width
        row = next(line for line in shown.splitlines() if line.startswith("1 "))
        assert row.count("[") == (5 if width == 160 else 1), row  # the worst case keeps its own
        assert ("s/round" in head) == (width == 160)
    assert "Left out for lack of width: peak MiB; s/round; intervals or seeds of single attacks" in " ".join(
        printed(made, 80).split()
    )


def test_overall_comes_first_and_notes_stand_once_below() -> None:
    shown = printed(board(*STUDY), 120)
    titles = [line for line in shown.splitlines() if line.startswith("fake: ")]
    assert [t.split(", ")[1].split(" (")[0] for t in titles] == ["overall", "γ = 0", "γ = 0.5"]
    assert shown.count("Mean over 5 seeds") == shown.count("Left out") == 1
    assert "gamma(gamma" not in shown


def test_ranges_of_ranks_stand_in_the_first_column() -> None:
    shown = printed(board(*row("mean", sf=0.5), *row("median", sf=0.6)), 80)
    assert [line.split()[0] for line in shown.splitlines() if " fbn " in line] == ["1–2", "1–2"]


def seeded(defense: str, sa: dict[str, list[float]], **labels: object) -> list[CellResult]:
    return [
        record(defense=defense, attack=a, seed=s, sa=v, ra={}, **labels)
        for a, values in sa.items() for s, v in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (place(0.7), "70.0 %"),
        (place(0.7, bound=True), "≤ 70.0 %"),
        (place(0.7, 0.6, expected=3), "65.0 % 2/3 (60.0–70.0)"),
        (place(0.7, 0.6), "65.0 % (60.0–70.0)"),
        (TableCell(), "–"),
    ],
)
def test_a_page_of_the_benchmark_says_what_is_a_bound_and_how_many_seeds_there_are(found: TableCell, text: str) -> None:
    assert percent(found).replace("\N{NO-BREAK SPACE}", " ") == text


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


def test_json_tells_adjusted_p_values_bounds_and_csv_the_seeds_there_are() -> None:
    rows = {"mean": [0.5, 0.52, 0.49], "median": [0.6, 0.62, 0.63], "krum": [0.9, 0.91, 0.9]}
    made = board(*(c for d, v in rows.items() for c in seeded(d, {"sf": v})))
    (table,) = json.loads(to_json(made))["tables"]
    expected = [(c.p, c.adjusted) for c in compare(made.sections[0]).results]
    assert [(r["p"], r["adjusted_p"]) for r in table["comparisons"]["rows"]] == expected
    assert any(p != adjusted for p, adjusted in expected)
    section = made.sections[0]
    bounds = tuple(replace(r, worst=replace(r.worst, bound=True)) for r in section.rows)
    told = json.loads(to_json(replace(made, sections=(replace(section, rows=bounds),))))["tables"][0]["rows"]
    assert [r["worst_case"]["is_bound"] for r in told] == [True] * 3
    fewer = board(*seeded("mean", {"sf": [0.5, 0.6, 0.7]}), *seeded("median", {"sf": [0.5, 0.6]}))
    lines = {(x["defense"], x["attack"]): x for x in csv.DictReader(io.StringIO(to_csv(fewer)))}
    assert [lines["median", "sf"][name] for name in ("seeds", "expected_seeds")] == ["2", "3"]


def test_costs_have_three_decimals_below_ten_seconds() -> None:
    (found,) = board(*seeded("mean", {"sf": [0.5]})).sections[0].rows
    assert costs(replace(found, seconds_per_round=0.0123, peak_memory=200 * 2**20)) == ["0.012", "200"]
    assert costs(replace(found, seconds_per_round=12.34, peak_memory=None)) == ["12.3", "–"]


NONE = Notes(())


def test_a_site_sorts_by_more_than_it_prints_and_states_last() -> None:
    assert float(value(place(0.8512), NONE).sort) < float(value(place(0.8534), NONE).sort)
    lost = TableCell((), 1, (("diverged", 1),))
    refused = TableCell((), 1, (("refused", 1),))
    assert (value(lost, NONE).sort, value(refused, NONE).sort) == ("-1", "")


def test_a_site_marks_the_rows_that_are_unreliable_and_counts_their_seeds() -> None:
    tasks = [seeded(d, {"sf": [0.5, 0.6], "none": [0.9, 0.9]}, f=f, f_declared=f)
             for d in ("mean", "median") for f in (1, 2)]  # fmt: skip
    made = board(*(c for cells in tasks for c in cells))
    block = made.tasks[0].block
    labels = next(r.labels for r in made.tasks[0].rows if "mean" in r.labels)
    lines = ranking(made, Notes(made.footnotes, {(block, labels, "sf"): "variance zero"})).lines
    marked = {(line.texts[0], line.texts[-1]) for line in lines if line.badges}
    assert marked == {("mean", block), ("mean", made.sections[0].block)}
    fewer = board(*seeded("mean", {"sf": [0.5, 0.6, 0.7]}), *seeded("median", {"sf": [0.5, 0.6]}))
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


# --- what a reader chooses to see ------------------------------------------------------------------------------------


NAMES = {"foe(eta=10)": "FoE", "none": "No attack", "median": "Median", "defense": "Aggregator", "worst case": "Worst"}


@pytest.fixture
def chosen(tmp_path: Path) -> Callable[..., Board]:
    """Makes a board of two rules under three attacks that shows these columns under these names."""
    rows = (row(rule, **{"none": 0.9, "sf": sa, "foe(eta=10)": sa}) for rule, sa in (("median", 0.8), ("mean", 0.2)))
    store = stored(tmp_path, [one for found in rows for one in found])

    def made(*columns: str, drop: tuple[str, ...] = (), names: dict[str, str] | None = None) -> Board:
        return board_of(store, display=Display(columns, drop, names or {}))

    return made


def test_columns_are_printed_as_chosen_under_the_names_given(chosen: Callable[..., Board]) -> None:
    heads = next(line for line in to_markdown(chosen()).splitlines() if line.startswith("|"))
    assert heads == r"| \# | defense | norm | none | foe(eta=10) | sf | worst case | s/round | peak MiB |"
    made = chosen("Worst", "defense", "attacks", drop=("sf",), names=NAMES)
    lines = [line for line in to_markdown(made).splitlines() if line.startswith("|")]
    assert lines[0] == "| Worst | Aggregator | No attack | FoE |"
    assert {line.split(" | ")[1] for line in lines[2:]} == {"Median", "mean"}
    assert to_latex(made).count("Worst & Aggregator & No attack & FoE \\\\") == len(made.sections)
    assert "foe(eta=10)" not in to_text(made)
    assert "FoE" in made.caption
    assert "peak MiB" not in to_text(chosen(drop=("costs",)))


@pytest.mark.parametrize(("columns", "how", "words"), [
    (["worst caes"], {}, "columns: there is no column 'worst caes'; did you mean 'worst case'?"),
    ([], {"drop": ("cost",)}, "drop: there is no column 'cost'; did you mean 'costs'"),
    (["costs"], {"drop": ("costs",)}, "no column is left"),
    ([], {"names": {"sf": "worst case"}}, "two columns would be called 'worst case'; names gives one of them another"),
    ([], {"names": {"foe(eta=10)": "sf"}}, "names: 'foe(eta=10)' and 'sf' would both be 'sf'"),
])  # fmt: skip
def test_a_column_that_is_not_there_and_one_name_for_two_are_refused(
    chosen: Callable[..., Board], columns: list[str], how: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        chosen(*columns, **how)


def test_a_name_of_nothing_is_told(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", row("median", none=0.9, sf=0.5))
    display = Display(names={"sf": "SF", "worst case": "Worst", "median": "Median", "foe(eta=1)": "FoE"})
    made = publish_store(store.folder, tmp_path / "out", figures=False, display=display)
    assert made.unused == ("foe(eta=1)",)


def test_names_come_from_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "names.toml"
    file.write_text('"foe(eta=10)" = "FoE"\n', encoding="utf-8")
    assert read_names(file) == {"foe(eta=10)": "FoE"}
    for text, words in (("foe = 1", "'foe' = 1 must be a text"), ("foe =", "cannot be read"), ('foe = " "', "must be")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=re.escape(words)):
            read_names(file)
    with pytest.raises(UsageError, match="No such file"):
        read_names(tmp_path / "none.toml")


def test_a_latex_table_leaves_out_costs_then_intervals_then_attacks_before_it_is_wider_than_a_page() -> None:
    def latex(attacks: int) -> tuple[str, str]:
        values = {f"attack-{i}": 0.5 for i in range(attacks)}
        rows = (record(attack=attack, sa=sa, ra={}, seed=seed) for attack, sa in values.items() for seed in range(3))
        text = to_latex(board(*rows))
        return text, next(line for line in text.splitlines() if line.startswith("\\#"))

    text, line = latex(2)
    assert "s/round" in line
    assert r"\small" in text
    assert "resizebox" not in text
    assert "(50.0--50.0)" in text
    text, line = latex(4)
    assert "s/round" not in line
    assert "attack-3" in line
    assert "Left out for lack of width: costs (" in text
    text, line = latex(8)
    assert "attack-7" in line
    assert "costs; intervals or seeds of single attacks" in text
    text, line = latex(30)
    assert 0 < line.count("attack-") < 30
    assert f"{30 - line.count('attack-')} of 30 attacks, the mildest first, which the worst case counts" in text


def test_the_table_of_cells_is_written_as_its_ending_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stored(tmp_path / "store", row("median", none=0.9, sf=0.5))
    for ending in ("csv", "csv.gz"):
        file = tmp_path / f"cells.{ending}"
        assert file in report(store.folder, tmp_path / "out", figures=False, cells=file)
        found = pd.read_csv(file)
        assert dict(zip(found["attack"].fillna("none"), found["sa"], strict=True)) == {"none": 0.9, "sf": 0.5}
    monkeypatch.setattr("robustfl.reports.writing.find_spec", lambda name: None)
    for name, words in (("cells.txt", "must end in .csv, .csv.gz or .parquet"), ("c.parquet", "pip install pyarrow")):
        with pytest.raises(UsageError, match=re.escape(words)):
            report(store.folder, tmp_path / "never", cells=tmp_path / name)
    assert not (tmp_path / "never").exists()
