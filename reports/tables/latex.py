"""The board as LaTeX tables (booktabs, amsmath not needed)."""

from __future__ import annotations

import re
import unicodedata

from ..board import Board, Section
from ..paired import words_below
from .columns import Markup, note_mark, remarks, title

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "×": r"$\times$", "–": "--", "—": "---", "…": r"\ldots{}",
    "−": "$-$", "·": r"$\cdot$", "→": r"$\to$", "←": r"$\leftarrow$", "≠": r"$\ne$", "∞": r"$\infty$", "∈": r"$\in$",
    "‖": r"$\|$", "√": r"$\surd$", "²": "$^2$", "³": "$^3$", "½": r"$\frac12$", "ε": r"$\varepsilon$",
}  # fmt: skip
_CAPITALS = "ΓΔΘΛΞΠΣΥΦΨΩ"
"""Greek capitals that TeX has letters for; the others are Latin ones."""


def to_latex(board: Board) -> str:
    """One ``table*`` per metric and block; needs ``\\usepackage{booktabs}`` and ``\\usepackage{graphicx}``."""
    tables = "\n".join(_table(board, s, number=i) for i, s in enumerate(board.sections, 1))
    return "% needs \\usepackage{booktabs} and \\usepackage{graphicx}\n" + tables


def escape(text: str) -> str:
    """``text`` with TeX's special characters taken literally; a character TeX may not know becomes ``?``.

    >>> escape("nnm_50%")
    'nnm\\\\_50\\\\%'
    """
    return "".join(map(_letter, re.sub(r"\s+", " ", text)))


_TEX = Markup(escape, r"\textsuperscript{{{}}}", r"\textbf{{{}}}")


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


def _table(board: Board, section: Section, *, number: int) -> str:
    left = 1 + len(board.label_names)
    head = _TEX.head(board)
    columns = "r" + "l" * (left - 1) + "r" * (len(head) - left)
    claims = words_below(section)
    notes = " ".join(filter(None, [claims, *board.notes]))
    lines = [
        r"\begin{table*}[t]",
        rf"\caption{{{escape(title(board, section))}. {escape(board.caption)}}}",
        rf"\label{{tab:leaderboard-{number}}}",
        r"\centering\small",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *[" & ".join(_TEX.line(board, row)) + r" \\" for row in section.rows],
        r"\bottomrule",
        r"\end{tabular}}",
        *([rf"\par\footnotesize {escape(notes)}"] if notes else []),
        *[rf"\par\footnotesize\textsuperscript{{{m}}} {escape(text)}" for m, text in _used(board, section)],
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _used(board: Board, section: Section) -> list[tuple[str, str]]:
    """The footnotes that this table's places refer to, and the unreadable files."""
    marks = {note_mark(n) for row in section.rows for e in row.places for n in e.notes} | {"!"}
    return [(m, text) for m, text in remarks(board) if m in marks]
