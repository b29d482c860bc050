"""The common part of the readable forms: the columns of a table and the texts of its places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase

from robustfl.errors import some

from ..board import WORST_MEMBER, Board, Row, Section, metric_meaning
from ..ensembles import member_text
from ..estimate import Estimate

COSTS = ("s/round", "peak MiB")


def note_mark(number: int) -> str:
    """The mark of a footnote: ``a b … z aa ab …``."""
    mark, rest = "", number
    while rest:
        rest, digit = divmod(rest - 1, 26)
        mark = ascii_lowercase[digit] + mark
    return mark


def note_marks(place: Estimate, between: str = ",") -> str:
    """The marks of a place's footnotes."""
    return between.join(map(note_mark, place.notes))


def header(board: Board) -> list[str]:
    """The headings of all columns."""
    return ["#", *board.label_names, *board.attacks, "worst case", *members_head(board), *COSTS]


def members_head(board: Board) -> tuple[str, ...]:
    """The heading of the worst member of AutoByz, on a board that has it."""
    return () if board.autobyz is None else (WORST_MEMBER,)


def members(board: Board, row: Row) -> list[str]:
    """The worst member of AutoByz as a text, on a board that has it."""
    return [] if board.autobyz is None else [member_text(row.members, row.member_seeds)]


def costs(row: Row) -> list[str]:
    """Seconds per round and peak memory as texts."""
    seconds = row.seconds_per_round
    shown = "–" if seconds is None else f"{seconds:.3f}" if seconds < 10 else f"{seconds:.1f}"
    return [shown, "–" if row.peak_memory is None else f"{row.peak_memory / 2**20:.0f}"]


def percent_text(value: float | None) -> str:
    """An accuracy in percent, or a dash."""
    return "–" if value is None else f"{100 * value:.1f}"


def rank_text(row: Row) -> str:
    """The ranks the row may have, ``3`` or ``1–4``, or a dash for a row without one."""
    if row.rank is None or row.ranks is None:
        return "–"
    low, high = row.ranks
    return str(low) if low == high else f"{low}–{high}"


@dataclass(frozen=True)
class Markup:
    """A form of text: ``literal`` takes special characters literally, the others mark what stands for ``{}``."""

    literal: Callable[[str], str]
    raised: str
    bold: str

    def place(self, place: Estimate) -> str:
        """A place with the marks of its footnotes."""
        marks = note_marks(place, ", ")
        return self.literal(place.text()) + (self.raised.format(marks) if marks else "")

    def head(self, board: Board) -> list[str]:
        """The headings of all columns."""
        return [*map(self.literal, header(board))]

    def line(self, board: Board, row: Row) -> list[str]:
        """All columns of a row; worst cases that may be the first are bold."""
        shown = [*map(self.place, row.places)]
        if row.may_be_best:
            shown[-1] = self.bold.format(shown[-1])
        first, last = [rank_text(row), *row.labels], [*members(board, row), *costs(row)]
        return [*map(self.literal, first), *shown, *map(self.literal, last)]


def title(board: Board, section: Section) -> str:
    """The heading of a table: scenario, metric in words, task; rows that are at chance without attack."""
    where = f", {section.block}" if board.task_names else ""
    meaning = metric_meaning(section.metric, validated=board.validated)
    return f"{board.scenario}: {section.metric_title}{where} ({meaning}){_at_chance(section)}"


def _at_chance(section: Section) -> str:
    rows = [row for row in section.rows if row.chance is not None]
    if not rows:
        return ""
    chance = " or ".join(dict.fromkeys(f"{100 * row.chance:.3g} %" for row in rows if row.chance is not None))
    if len(rows) == len(section.rows):
        return f"; chance = {chance}: nothing learned without attack"
    return f"; chance = {chance}: nothing learned without attack by {some([' · '.join(row.labels) for row in rows])}"


def state_counts(board: Board) -> str:
    """The number of cells of each status."""
    return ", ".join(f"{n} {status}" for status, n in board.counts.items())


def remarks(board: Board) -> list[tuple[str, str]]:
    """Marks and texts of what stands below the tables: footnotes and unreadable files."""
    notes = [(note_mark(i), text) for i, text in enumerate(board.footnotes, 1)]
    return notes + [("!", f"not counted, {text}") for text in board.problems]
