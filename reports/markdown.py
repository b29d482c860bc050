"""The board as Markdown (GitHub's tables)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .board import Board, Row, Section
from .cells import costs, header, members, note_mark, places, rank_text, remarks, state_counts, title
from .estimate import Estimate
from .paired import words_below


def to_markdown(board: Board) -> str:
    """All tables with their caption and footnotes."""
    lines = [f"# Leaderboard: {escape(board.scenario)}", "", escape(board.caption), ""]
    for section in board.sections:
        lines += [
            f"## {escape(title(board, section))}",
            "",
            _table(board, section),
            "",
            escape(words_below(section)),
            "",
        ]
    lines += [escape(" ".join(board.notes)), ""]
    lines += [f"- <sup>{mark}</sup> {escape(text)}" for mark, text in remarks(board)]
    lines += ["", f"Cells: {state_counts(board)}."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def escape(text: str) -> str:
    """``text`` with Markdown's special characters taken literally; line breaks become spaces."""
    text = re.sub(r"\s*[\r\n]+\s*", " ", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text)


def table(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown texts; ``sides`` has an ``l`` or ``r`` for every column, as LaTeX's tables have.

    >>> print(table(["name", "SA"], "lr", [["fbn", "85.0"]]))
    | name | SA |
    | :-- | --: |
    | fbn | 85.0 |
    """
    rule = [{"l": ":--", "r": "--:"}[side] for side in sides]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


def _table(board: Board, section: Section) -> str:
    head, labels = header(board), len(board.label_names)
    sides = "r" + "l" * labels + "r" * (len(head) - labels - 1)
    return table([escape(h) for h in head], sides, [_cells(board, row) for row in section.rows])


def _cells(board: Board, row: Row) -> list[str]:
    shown = [noted(e) for e in places(row)]
    if row.rank == 1:
        shown[-1] = f"**{shown[-1]}**"
    return [rank_text(row), *map(escape, row.labels), *shown, *map(escape, members(board, row)), *costs(row)]


def noted(place: Estimate) -> str:
    """A place in Markdown, with the marks of its footnotes."""
    marks = ", ".join(note_mark(n) for n in place.notes) if place.states else ""
    return escape(place.text()) + (f" <sup>{marks}</sup>" if marks else "")
