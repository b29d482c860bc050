"""The tables of a board in every written form: CSV, Markdown, LaTeX, HTML, JSON, text.

``columns`` formats the places of a table; the readable forms only mark up what it returns.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from robustfl.records import plain

from .board import OVERALL, Board, Row, Section, metric_meaning
from .columns import COSTS, Column, Formatted, columns, formatted, printed, remarks, state_counts, title
from .paired import METHOD, compare
from .store import write_atomic
from .table_cell import CONFIDENCE, MIN_SEEDS, TableCell
from .terminal import by_harm, left_out, terminal

SCHEMA = 2


# --- marked-up texts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Markup:
    """A form of text: ``literal`` takes special characters literally, the others mark what stands for ``{}``."""

    literal: Callable[[str], str]
    raised: str
    bold: str

    def cell(self, cell: Formatted) -> str:
        """A formatted place with the marks of its footnotes; bold where it may be the best."""
        marks = cell.marks.replace(",", ", ")
        text = self.literal(cell.text) + (self.raised.format(marks) if marks else "")
        return self.bold.format(text) if cell.best else text

    def place(self, place: TableCell) -> str:
        return self.cell(formatted(place))

    def table(self, board: Board, section: Section) -> tuple[list[str], str, list[list[str]]]:
        return self.of(columns(board, section))

    def of(self, found: Sequence[Column]) -> tuple[list[str], str, list[list[str]]]:
        """The headings, the sides, the lines of these columns."""
        lines = zip(*([self.cell(cell) for cell in column.cells] for column in found), strict=True)
        sides = "".join("r" if column.right else "l" for column in found)
        return [self.literal(column.head) for column in found], sides, [*map(list, lines)]


def markdown_escape(text: str) -> str:
    """``text`` with Markdown's special characters taken literally; line breaks become spaces."""
    text = re.sub(r"\s*[\r\n]+\s*", " ", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]{}|~#$])", r"\\\1", text)


def code(text: str) -> str:
    """``text`` set as code, whatever it holds: backticks of its own would end a code span.

    >>> code("f=2"), code("`<b>")
    ('<code>f=2</code>', '<code>\\\\`&lt;b&gt;</code>')
    """
    return f"<code>{markdown_escape(text)}</code>"


def markdown_table(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown texts; ``sides`` has an ``l`` or ``r`` for every column, as LaTeX's tables have.

    >>> print(markdown_table(["name", "SA"], "lr", [["fbn", "85.0"]]))
    | name | SA |
    | :-- | --: |
    | fbn | 85.0 |
    """
    rule = [{"l": ":--", "r": "--:"}[side] for side in sides]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "×": r"$\times$", "–": "--", "—": "---", "…": r"\ldots{}",
    "−": "$-$", "·": r"$\cdot$", "→": r"$\to$", "←": r"$\leftarrow$", "≠": r"$\ne$", "∞": r"$\infty$", "∈": r"$\in$",
    "‖": r"$\|$", "√": r"$\surd$", "²": "$^2$", "³": "$^3$", "½": r"$\frac12$", "ε": r"$\varepsilon$",
}  # fmt: skip
_CAPITALS = "ΓΔΘΛΞΠΣΥΦΨΩ"
"""Greek capitals that TeX has letters for; the others are Latin ones."""


def latex_escape(text: str) -> str:
    """``text`` with TeX's special characters taken literally; a character TeX may not know becomes ``?``.

    >>> latex_escape("nnm_50%")
    'nnm\\\\_50\\\\%'
    """
    return "".join(map(_letter, re.sub(r"\s+", " ", text)))


def _letter(sign: str) -> str:
    """One character in TeX; letters with accents are left to its input encoding."""
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    if sign.isascii() or (sign.isalpha() and ord(sign) < 0x250):
        return sign
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(sign, ""))
    if greek is None or greek[2] == "OMICRON" or (greek[1] == "CAPITAL" and sign not in _CAPITALS):
        return "?"
    name = {"LAMDA": "lambda"}.get(greek[2], greek[2].lower())
    return f"$\\{name.capitalize() if greek[1] == 'CAPITAL' else name}$"


MARKDOWN = Markup(markdown_escape, " <sup>{}</sup>", "**{}**")
_LATEX = Markup(latex_escape, r"\textsuperscript{{{}}}", r"\textbf{{{}}}")
_HTML = Markup(html.escape, " <sup>{}</sup>", "<b>{}</b>")


def to_markdown(board: Board) -> str:
    """All tables with their caption and footnotes, as GitHub's Markdown."""
    escape = markdown_escape
    parts = [f"# Leaderboard: {escape(board.scenario)}", escape(board.caption)]
    for section in board.sections:
        parts += [f"## {escape(title(board, section))}", markdown_table(*MARKDOWN.table(board, section))]
        parts.append(escape(compare(section).claims))
    parts.append(escape(" ".join(board.notes)))
    parts.append("\n".join(f"- <sup>{mark}</sup> {escape(text)}" for mark, text in remarks(board)))
    return "\n\n".join(filter(None, [*parts, f"Cells: {state_counts(board)}."])) + "\n"


def to_html(board: Board) -> str:
    """All tables of a board with their caption and footnotes, as a part of an HTML page."""
    escape = html.escape
    parts = [f"<p><b>{escape(board.scenario)}</b>. {escape(board.caption)}</p>"]
    for section in board.sections:
        heads, _, lines = _HTML.table(board, section)
        head = "".join(f"<th>{name}</th>" for name in heads)
        rows = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in line)}</tr>" for line in lines)
        parts.append(f"<h4>{escape(title(board, section))}</h4>")
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
        parts.append(f"<p>{escape(compare(section).claims)}</p>")
    parts.append(f"<p>{escape(' '.join(board.notes))}</p>")
    parts += [f"<p><sup>{escape(mark)}</sup> {escape(text)}</p>" for mark, text in remarks(board)]
    return "\n".join([*(part for part in parts if part != "<p></p>"), f"<p>Cells: {escape(state_counts(board))}.</p>"])


def to_latex(board: Board) -> str:
    """One ``table*`` per metric and block, in the size at which all fit a page; needs ``\\usepackage{booktabs}``."""
    size, kept, words = _fitting(board)
    each = enumerate(zip(board.sections, kept, strict=True), 1)
    tables = "\n".join(_latex_table(board, section, found, size, words, i) for i, (section, found) in each)
    return "% needs \\usepackage{booktabs}\n" + tables


def _latex_table(board: Board, section: Section, found: Sequence[Column], size: str, words: str, number: int) -> str:
    head, sides, rows = _LATEX.of(found)
    notes = " ".join(filter(None, [compare(section).claims, *board.notes, words]))
    used = {mark for column in found for cell in column.cells for mark in cell.marks.split(",")} | {"!"}
    lines = [
        r"\begin{table*}[t]",
        rf"\caption{{{latex_escape(title(board, section))}. {latex_escape(board.caption)}}}",
        rf"\label{{tab:leaderboard-{number}}}",
        rf"\centering\{size}\setlength{{\tabcolsep}}{{{_GAP}pt}}",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *[" & ".join(row) + r" \\" for row in rows],
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\par\footnotesize {latex_escape(notes)}"] if notes else []),
        *[rf"\par\footnotesize\textsuperscript{{{m}}} {latex_escape(t)}" for m, t in remarks(board) if m in used],
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


_GAP = 4
"""Points on either side of a column."""
_PAGE = 504
"""Points of a page's width, 7 inches."""
_SIZES = {"small": 4.5, "footnotesize": 4.1, "scriptsize": 3.8}
"""Points of a letter on average, by size."""


def _fitting(board: Board) -> tuple[str, list[list[Column]], str]:
    """The size of letters, of every LaTeX table the columns that fit a page, and what is left out in words.

    Costs go first, unless they were asked for, then the intervals of single attacks, then the mildest attacks.
    """
    asked, chosen = bool(board.display.columns), printed(board)
    order = [i for i in by_harm(board, board.rows) if board.attacks[i] in chosen]
    steps = [(costs, spreads, order) for costs, spreads in ((True, True), (asked, True), (asked, False))]
    steps += [(asked, False, order[:count]) for count in range(len(order) - 1, 0, -1)]

    @cache
    def formatted_tables(spreads: bool) -> list[list[Column]]:
        return [columns(board, section, spreads=spreads) for section in board.sections]

    def kept(costs: bool, spreads: bool, attacks: Sequence[int]) -> list[list[Column]]:
        return [
            [c for c in found if (costs or c.kind != "cost") and (c.kind != "attack" or c.attack in attacks)]
            for found in formatted_tables(spreads)
        ]

    def fits(size: str, step: tuple[bool, bool, list[int]]) -> bool:
        return all(_letters(each) * _SIZES[size] + 2 * _GAP * len(each) <= _PAGE for each in kept(*step))

    sizes = [*_SIZES]
    tried = ((size, step) for i, step in enumerate(steps) for size in sizes[2 * (i > 2) : 2 + (i > 1)])
    size, step = next((one for one in tried if fits(*one)), (sizes[-1], steps[-1]))
    gone = ["costs"] * (not step[0] and not {*COSTS}.isdisjoint(chosen))
    words = left_out(board, gone, step[1], [board.attacks[i] for i in sorted({*order} - {*step[2]})])
    return size, kept(*step), f"{words} (leaderboard.csv)." if words else ""


def _letters(found: Sequence[Column]) -> int:
    return sum(max([len(c.head), *(len(cell.text) + len(cell.marks) for cell in c.cells)]) for c in found)


# --- forms for machines ----------------------------------------------------------------------------------------------


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
    for section in board.sections:
        task = section.task or [OVERALL] * len(board.task_names)
        for row in section.rows:
            who = [section.block, *task, section.metric, row.rank, *(row.ranks or (None, None)), *row.labels, *row.own]
            for attack, place in zip((*board.attacks, "worst case"), row.places, strict=True):
                values = " ".join(f"{s}:{v!r}" for s, v in place.values)
                ends = [*(place.interval or (None, None)), *(place.seeds or (None, None))]
                numbers = [place.mean, *ends, place.test_error, len(place.values), place.expected, values]
                table.writerow([
                    *map(_no_formula, [*who, attack]), place.status, *numbers, row.seconds_per_round, row.peak_memory,
                ])  # fmt: skip
    return out.getvalue()


def _no_formula(name: Any) -> Any:
    """A name as a spreadsheet shows it: behind an apostrophe, where it would take it for a formula."""
    return f"'{name}" if isinstance(name, str) and name.startswith(("=", "+", "-", "@")) else name


def to_json(board: Board) -> str:
    """The machine form, with a schema version, at full precision; accuracies are in [0, 1]."""
    autobyz = board.autobyz and {"version": board.autobyz.ensemble.version, "members": board.autobyz.members}
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
        **({} if autobyz is None else {"autobyz": autobyz}),
        "tables": [_json_table(board, s) for s in board.sections],
        "footnotes": {str(i): text for i, text in enumerate(board.footnotes, 1)},
        "problems": list(board.problems),
        "cells": dict(board.counts),
        "versions": dict(board.versions),
    }
    return json.dumps(plain(data), indent=1, ensure_ascii=False, allow_nan=False)


def _json_table(board: Board, section: Section) -> dict[str, Any]:
    found = compare(section)
    return {
        "block": section.block,
        "task": dict(zip(board.task_names, section.task, strict=False)),
        "metric": section.metric,
        "meaning": metric_meaning(section.metric, validated=board.validated),
        "rows": [_json_row(board, r) for r in section.rows],
        "comparisons": {
            "reference": dict(zip(board.label_names, found.reference, strict=False)),
            "test": METHOD,
            "verdict": found.verdict,
            "left_out": found.left_out,
            "rows": [
                {"row": c.row, "n": c.n, "difference": c.difference, "p": c.p, "adjusted_p": c.adjusted}
                for c in found.results
            ],
        },
    }


def _json_row(board: Board, row: Row) -> dict[str, Any]:
    members = {"worst_members": dict(row.members), "worst_member_seeds": row.member_seeds}
    return {
        "rank": row.rank,
        "ranks": row.ranks,
        "own": dict(zip(board.own_names, row.own, strict=True)),
        "labels": dict(zip(board.label_names, row.labels, strict=True)),
        "attacks": {a: _json_place(e) for a, e in zip(board.attacks, row.cells, strict=True)},
        "worst_case": _json_place(row.worst),
        **({} if board.autobyz is None else members),
        "seconds_per_round": row.seconds_per_round,
        "peak_memory_bytes": row.peak_memory,
    }


def _json_place(place: TableCell) -> dict[str, Any]:
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


def write_all(board: Board, folder: str | Path) -> list[Path]:
    """Write ``leaderboard.{csv,md,tex,json,txt}`` into ``folder``, each whole or not at all."""
    written = [Path(folder) / f"leaderboard.{suffix}" for suffix in FORMS]
    for path, form in zip(written, FORMS.values(), strict=True):
        write_atomic(path, form(board))
    return written
