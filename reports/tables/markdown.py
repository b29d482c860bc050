"""The board as Markdown (GitHub's tables)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..board import Board, Section
from ..paired import words_below
from .columns import Markup, remarks, state_counts, title


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
    return re.sub(r"([\\`*_\[\]{}|~#$])", r"\\\1", text)


def code(text: str) -> str:
    """``text`` set as code, whatever it holds: backticks of its own would end a code span.

    >>> code("f=2"), code("`<b>")
    ('<code>f=2</code>', '<code>\\\\`&lt;b&gt;</code>')
    """
    return f"<code>{escape(text)}</code>"


MARKDOWN = Markup(escape, " <sup>{}</sup>", "**{}**")


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
    head, labels = MARKDOWN.head(board), len(board.label_names)
    sides = "r" + "l" * labels + "r" * (len(head) - labels - 1)
    return table(head, sides, [MARKDOWN.line(board, row) for row in section.rows])
