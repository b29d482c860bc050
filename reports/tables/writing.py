"""The board in every written form: terminal, CSV, Markdown, LaTeX, JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from robustfl.records import plain

from ..board import OVERALL, Board, Row, Section, metric_meaning
from ..estimate import CONFIDENCE, MIN_SEEDS, Estimate
from ..paired import METHOD, compare
from ..store import write_atomic
from .latex import to_latex
from .markdown import to_markdown
from .terminal import terminal as terminal

SCHEMA = 2
_FORMULA = ("=", "+", "-", "@")


def write_all(board: Board, folder: str | Path) -> list[Path]:
    """Write ``leaderboard.{csv,md,tex,json,txt}`` into ``folder``, each whole or not at all."""
    written = []
    for suffix, form in FORMS.items():
        path = Path(folder) / f"leaderboard.{suffix}"
        write_atomic(path, form(board))
        written.append(path)
    return written


def to_csv(board: Board) -> str:
    """One line per place, at full precision: task, metric, ranks, labels, attack, mean with its doubt, status, costs.

    ``low`` and ``high`` are the interval (from five seeds on), ``lowest`` and ``highest`` seeds, ``values`` all seeds.
    ``own.*`` are settings that every contestant has its own of.
    """
    out = io.StringIO()
    own = [f"own.{name}" for name in board.own_names]
    head = ["task", *board.task_names, "metric", "rank", "rank_low", "rank_high", *board.label_names, *own, "attack"]
    head += ["status", "mean", "low", "high", "lowest", "highest", "test_error", "seeds", "expected_seeds", "values"]
    table = csv.writer(out, lineterminator="\n")
    table.writerow([*head, "seconds_per_round", "peak_memory_bytes"])
    for section, row, attack, place in _places(board):
        task = section.task or [OVERALL] * len(board.task_names)
        who = [section.block, *task, section.metric, row.rank, *(row.ranks or (None, None)), *row.labels, *row.own]
        values = " ".join(f"{s}:{v!r}" for s, v in place.values)
        ends = [*(place.interval or (None, None)), *(place.seeds or (None, None))]
        numbers = [place.mean, *ends, place.test_error, len(place.values), place.expected, values]
        costs = [row.seconds_per_round, row.peak_memory]
        table.writerow([*map(_no_formula, [*who, attack]), place.status, *numbers, *costs])
    return out.getvalue()


def _no_formula(name: Any) -> Any:
    """A name as a spreadsheet shows it: behind an apostrophe, where it would take it for a formula."""
    return f"'{name}" if isinstance(name, str) and name[:1] in _FORMULA else name


def to_json(board: Board) -> str:
    """The machine form, with a schema version, at full precision; accuracies are in [0, 1]."""
    asked = board.autobyz
    counted = asked and {"version": asked.ensemble.version, "members": asked.members}
    data = {
        "schema_version": SCHEMA,
        "scenario": board.scenario,
        "caption": board.caption,
        "notes": list(board.notes),
        "task": list(board.task_names),
        "own": list(board.own_names),
        "overall": OVERALL if board.task_names else None,
        "interval": {
            "kind": "logit scale, moderated variance, over seeds",
            "confidence": CONFIDENCE,
            "needs_seeds": MIN_SEEDS,
        },
        "settings": dict(board.constants),
        "labels": list(board.label_names),
        "attacks": list(board.attacks),
        **({} if asked is None else {"autobyz": counted}),
        "tables": [_table(board, s) for s in board.sections],
        "footnotes": {str(i): text for i, text in enumerate(board.footnotes, 1)},
        "problems": list(board.problems),
        "cells": dict(board.counts),
        "versions": dict(board.versions),
    }
    return json.dumps(plain(data), indent=1, ensure_ascii=False, allow_nan=False)


def _table(board: Board, section: Section) -> dict[str, Any]:
    return {
        "block": section.block,
        "task": dict(zip(board.task_names, section.task, strict=False)),
        "metric": section.metric,
        "meaning": metric_meaning(section.metric, validated=board.validated),
        "rows": [_row(board, r) for r in section.rows],
        "comparisons": _comparisons(board, section),
    }


def _comparisons(board: Board, section: Section) -> dict[str, Any]:
    """Paired tests over seeds of every row's worst case against the first one's."""
    found = compare(section)
    return {
        "reference": dict(zip(board.label_names, found.reference, strict=False)),
        "test": METHOD,
        "verdict": found.verdict,
        "left_out": found.left_out,
        "rows": [
            {"row": c.row, "n": c.n, "difference": c.difference, "p": c.p, "adjusted_p": c.adjusted}
            for c in found.results
        ],
    }


def _row(board: Board, row: Row) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "ranks": row.ranks,
        "own": dict(zip(board.own_names, row.own, strict=True)),
        "labels": dict(zip(board.label_names, row.labels, strict=True)),
        "attacks": {a: _place(e) for a, e in zip(board.attacks, row.cells, strict=True)},
        "worst_case": _place(row.worst),
        **(
            {}
            if board.autobyz is None
            else {"worst_members": dict(row.members), "worst_member_seeds": row.member_seeds}
        ),
        "seconds_per_round": row.seconds_per_round,
        "peak_memory_bytes": row.peak_memory,
    }


def _place(place: Estimate) -> dict[str, Any]:
    return {
        "mean": place.mean,
        "status": place.status,
        "interval": place.interval,
        "test_error": place.test_error,
        "seeds": dict(place.values),
        "expected_seeds": place.expected,
        "states": dict(place.states),
        "is_bound": place.at_most,
        "no_effect": place.idle,
        "footnotes": list(place.notes),
    }


def _places(board: Board) -> Iterator[tuple[Section, Row, str, Estimate]]:
    for section in board.sections:
        for row in section.rows:
            for attack, place in zip((*board.attacks, "worst case"), row.places, strict=True):
                yield section, row, attack, place


def to_text(board: Board) -> str:
    """The terminal form as plain text, 160 columns wide; tables of many attacks are as wide as they need."""
    from rich.console import Console

    out = io.StringIO()
    screen = Console(file=out, width=160, color_system=None, force_terminal=False, legacy_windows=False)
    for part in terminal(board, whole=True):
        screen.print(part, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


FORMS: dict[str, Callable[[Board], str]] = {
    "csv": to_csv,
    "md": to_markdown,
    "tex": to_latex,
    "json": lambda board: to_json(board) + "\n",
    "txt": to_text,
}

__all__ = ["FORMS", "terminal", "to_csv", "to_json", "to_latex", "to_markdown", "to_text", "write_all"]
