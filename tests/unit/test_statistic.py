"""Which of a cell's numbers a board ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_store import record, stored

from robustfl.cli import invoke
from robustfl.errors import UsageError
from robustfl.records import LATER, CellResult, plain
from robustfl.reports import leaderboard, load_board, rank_board
from robustfl.reports.frame import counted, frame, ranked_metrics
from robustfl.reports.published.agreement import agree
from robustfl.scenarios.cell import Cell


def told(defense: str, sa: float, *, ra: float = 0.3, groups: dict[str, dict[str, float]], **labels: Any) -> CellResult:
    return record(defense=defense, sa=sa, ra={"pgd": ra}, metrics={"groups": groups}, **labels)


def three(**labels: Any) -> list[CellResult]:
    """Two rows whose order differs with every statistic."""
    numbers = {"mean": (0.9, 0.5, 0.3), "median": (0.8, 0.6, 0.2)}
    return [
        told(
            defense, final, ra=final / 2, tail=10, **labels,
            groups={
                "tail": {"sa": tail}, "selected": {"sa": selected, "pgd": selected / 2, "ra_worst": selected / 2},
            },
        )
        for defense, (final, tail, selected) in numbers.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("statistic", "sa"),
    [("final", (0.9, 0.8)), ("tail", (0.5, 0.6)), ("selected", (0.3, 0.2)), (None, (0.3, 0.2))],
)
def test_a_board_ranks_the_statistic_it_is_asked_for(
    statistic: str | None, sa: tuple[float, float], tmp_path: Path
) -> None:
    stored(tmp_path / "s", three(select="validation"))
    table, _ = counted(frame(three(select="validation")), statistic)
    assert table["sa"].tolist() == list(sa)
    robust = table["ra_pgd"].tolist()
    assert robust == [v / 2 for v in sa] if statistic != "tail" else table["ra_pgd"].isna().all()
    board = load_board(tmp_path / "s", statistic=statistic)
    words = {"final": "the last round", "tail": "the last 10 round", "selected": "validation", None: "validation"}
    assert words[statistic] in " ".join(board.notes)
    best = board.sections[0].rows[0]
    assert best.labels[0] == ("mean" if sa[0] > sa[1] else "median")
    assert best.worst.mean == pytest.approx(max(sa))
    assert len(leaderboard(tmp_path / "s", statistic=statistic, metric="sa")) == 2


def test_by_default_cells_that_select_no_round_count_their_last() -> None:
    plain = told("krum", 0.7, groups={}, select="last")
    table, words = counted(frame([*three(select="validation"), plain]))
    assert table["sa"].tolist() == [0.3, 0.2, 0.7]
    assert "cells with select validation" in words
    assert counted(frame([plain]))[1] == ""
    with pytest.raises(UsageError, match="1 of 3 finished cells selected no round"):
        counted(frame([*three(), plain]), "selected")
    with pytest.raises(UsageError, match="did you mean 'tail'"):
        counted(frame([plain]), "tial")


def test_validation_is_the_accuracy_that_the_round_was_chosen_by_and_nothing_of_the_test_data(tmp_path: Path) -> None:
    values = {"mean": 0.35, "median": 0.45}
    cells = [
        r.model_copy(update={"certificates": {**r.certificates, "selection": {"round": 1, "validation": v}}})
        for r, v in zip(three(select="validation"), values.values(), strict=True)
    ]
    store = stored(tmp_path / "s", cells)
    table, words = counted(frame(cells), "validation")
    assert table["sa"].tolist() == list(values.values())
    assert ranked_metrics(table) == ["sa"]
    assert "validation accuracy of the round in which it is best" in words
    board = load_board(store.folder, statistic="validation")
    assert [(r.labels[0], r.worst.mean) for r in board.sections[0].rows] == [("median", 0.45), ("mean", 0.35)]
    assert words in board.notes
    assert not [note for note in board.notes if "test set" in note]
    out = str(tmp_path / "out")
    args = ["report", str(store.folder), "--no-figures", "--out", out, "--statistic", "validation"]
    assert invoke(args) == 0
    assert "SA (validation accuracy, %)" in (tmp_path / "out" / "leaderboard.md").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="statistic 'validation': 2 of 2 finished cells selected no round"):
        counted(frame(three()), "validation")


def test_validation_says_that_adversarially_trained_users_count_robust_accuracy() -> None:
    chosen = {"selection": {"round": 1, "validation": 0.3}}
    cell = told("mean", 0.5, groups={"selected": {"sa": 0.4}}, at="users(2)", certificates=chosen)
    assert "robust accuracy of users that train adversarially" in counted(frame([cell]), "validation")[1]


def test_a_tail_of_one_round_is_the_last_and_robust_accuracy_counts_if_all_measured_it() -> None:
    whole = told("mean", 0.9, ra=0.4, groups={"tail": {"sa": 0.5, "pgd": 0.2, "ra_worst": 0.2}}, tail=10)
    single = told("median", 0.8, ra=0.3, groups={}, tail=1)
    table, words = counted(frame([whole, single]), "tail")
    assert table["sa"].tolist() == [0.5, 0.8]
    assert table["ra_pgd"].tolist() == [0.2, 0.3]
    assert "1, 10" in words


def test_robust_accuracy_of_the_tail_counts_for_nobody_where_one_cell_has_none() -> None:
    groups = {"sa": 0.5, "pgd": 0.2, "ra_worst": 0.2}
    whole, bare = told("mean", 0.9, groups={"tail": groups}), told("median", 0.8, groups={"tail": {"sa": 0.6}})
    table, words = counted(frame([whole, bare]), "tail")
    assert table["sa"].tolist() == [0.5, 0.6]
    assert table["ra_pgd"].isna().all()
    assert table["ra_worst"].isna().all()
    assert words == "Numbers are means over the evaluations of the last 1 round(s)."


def test_of_the_tail_with_several_evasions_the_worst_is_ranked() -> None:
    groups = {"tail": {"sa": 0.8, "ra_worst": 0.3}}
    made = record(defense="mean", sa=0.9, ra={"pgd": 0.6, "fgsm": 0.7}, metrics={"groups": groups})
    table, _ = counted(frame([made]), "tail")
    assert ranked_metrics(table) == ["sa", "ra_worst"]
    assert rank_board(table).select(metric="ra_worst").rows[0].worst.mean == 0.3


def test_lengths_of_tails_are_those_that_cells_say() -> None:
    long, other = (told("mean", 0.9, groups={"tail": {"sa": 0.5}}, tail=t, seed=t) for t in (5, 20))
    table = frame([long, other])
    table.loc[1, "tail"] = float("nan")
    assert "the last 5 round(s)" in counted(table, "tail")[1]


def test_the_worst_of_several_evasions_is_that_of_the_selected_round() -> None:
    selected = {"selected": {"sa": 0.8, "pgd": 0.4, "fgsm": 0.5, "ra_worst": 0.3}}
    made = record(defense="mean", sa=0.9, ra={"pgd": 0.6, "fgsm": 0.7}, metrics={"groups": selected})
    table, _ = counted(frame([made]))
    assert table[["sa", "ra_pgd", "ra_fgsm", "ra_worst"]].iloc[0].tolist() == [0.8, 0.4, 0.5, 0.3]


def test_a_metric_is_ranked_where_any_cell_has_it() -> None:
    lost = record(defense="median", status="diverged", reason="x")
    assert ranked_metrics(frame([record(defense="mean"), lost])) == ["sa", "ra_pgd"]


def test_report_takes_the_statistic_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "s", three(select="validation"))
    assert invoke(["report", str(tmp_path / "s"), "--no-figures", "--statistic", "tail"]) == 0
    assert "last 10 round" in " ".join(capsys.readouterr().out.split())
    assert invoke(["report", str(tmp_path / "s"), "--statistic", "best"]) == 2


def test_settings_that_came_later_have_their_defaults_in_older_records(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain({name: Cell.model_fields[name].default for name in LATER}) == LATER
    monkeypatch.setattr("robustfl.records.LATER", {"select": "last", "rotate": 0.0, "precision": "full"})
    table = frame([record(seed=0), record(seed=1, select="validation", rotate=30.0)])
    assert table["select"].tolist() == ["last", "validation"]
    assert table["rotate"].tolist() == [0.0, 30.0]
    assert "precision" not in table


def test_a_maximum_over_test_accuracies_in_an_older_record_is_no_difference() -> None:
    old = told("mean", 0.9, groups={"tail": {"sa": 0.5}, "best": {"sa": 0.95}})
    assert agree(old, told("mean", 0.9, groups={"tail": {"sa": 0.5}}), tolerance=0).verdict == "identical"
    assert agree(old, told("mean", 0.9, groups={"tail": {"sa": 0.4}}), tolerance=0).verdict == "differs"


@pytest.mark.parametrize("others", [{}, {"pgd": 0.6}])
def test_the_evasion_called_worst_is_ranked_by_its_own_accuracy(others: dict[str, float], tmp_path: Path) -> None:
    groups = {"selected": {"sa": 0.8, "ra_worst": 0.1, "worst": 0.2}}
    made = record(sa=0.9, ra={**others, "worst": 0.4}, metrics={"ra_worst": 0.3, "groups": groups})
    stored(tmp_path / "s", [made])
    shown = {s.metric: s.rows[0].cells[0].mean for s in load_board(tmp_path / "s", statistic="final").sections}
    assert shown["ra_worst()"] == 0.4
    assert shown.get("ra_worst") == (0.3 if others else None)
    assert counted(frame([made]), "selected")[0]["ra_worst()"].tolist() == [0.2]
