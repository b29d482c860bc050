"""The formatted columns of a table, from which all readable forms are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal

from robustfl.errors import UsageError, some

from .board import WORST_MEMBER, Board, Row, Section, metric_meaning
from .table_cell import TableCell, member_text

COSTS = ("s/round", "peak MiB")
WORST = "worst case"
INTERVALS = "intervals or seeds of single attacks"
Kind = Literal["rank", "label", "attack", "worst", "member", "cost"]


@dataclass(frozen=True)
class Formatted:
    """A place as it is printed: its text, the marks of its footnotes, whether it may be the best of its column."""

    text: str
    marks: str = ""
    best: bool = False
    state: str = ""


@dataclass(frozen=True)
class Column:
    """A formatted column of a table: its name, its heading, its cells.

    ``attack`` is the place of an attack's among those of the board.
    """

    kind: Kind
    name: str
    head: str
    cells: tuple[Formatted, ...]
    attack: int = -1

    @property
    def right(self) -> bool:
        return self.kind in ("rank", "attack", "worst", "cost")


def kinds_of(board: Board) -> dict[str, Kind]:
    """The names of all columns, in their order: rank, labels, attacks, worst case, worst member of AutoByz, costs.

    Raises ``UsageError`` where two have one name, such as that of an attack which is called like a label.
    """
    member = () if board.autobyz is None else (WORST_MEMBER,)
    groups: list[tuple[Kind, Sequence[str]]] = [
        ("rank", ("rank",)), ("label", board.label_names), ("attack", board.attacks), ("worst", (WORST,)),
        ("member", member), ("cost", COSTS),
    ]  # fmt: skip
    kinds = {name: kind for kind, names in groups for name in names}
    if len(kinds) < sum(len(names) for _, names in groups):
        every = [name for _, names in groups for name in names]
        twice = next(name for name in every if every.count(name) > 1)
        raise UsageError(f"two columns would be called {twice!r}; names gives one of them another name")
    return kinds


def printed(board: Board) -> tuple[str, ...]:
    """The names of the columns that ``board.display`` chooses."""
    return board.display.chosen(kinds_of(board))


def columns(board: Board, section: Section, *, spreads: bool = True, worst_spread: bool = True) -> list[Column]:
    """The formatted columns of a table that ``board.display`` chooses.

    ``spreads`` and ``worst_spread`` say whether numbers are followed by their intervals or seeds. Bold are the rows
    that may be the first, where some others may not.
    """
    rows, kinds, display = section.rows, kinds_of(board), board.display
    tells = not all(row.may_be_best for row in rows if row.rank is not None)

    def cells(name: str) -> Iterable[Formatted]:
        kind = kinds[name]
        if kind == "attack":
            place = board.attacks.index(name)
            return (formatted(row.cells[place], spread=spreads) for row in rows)
        if kind == "worst":
            return (formatted(r.worst, spread=worst_spread, best=tells and r.may_be_best) for r in rows)
        if kind == "label":
            place = board.label_names.index(name)
            return (Formatted(row.labels[place]) for row in rows)
        if kind == "cost":
            return (Formatted(costs(row)[COSTS.index(name)]) for row in rows)
        return (Formatted(rank_text(r) if kind == "rank" else member_text(r.members, r.member_seeds)) for r in rows)

    return [
        Column(
            kinds[name], name, "#" if (head := display.head(name)) == "rank" else head, tuple(cells(name)),
            board.attacks.index(name) if kinds[name] == "attack" else -1,
        )
        for name in printed(board)
    ]  # fmt: skip


def formatted(place: TableCell, *, spread: bool = True, best: bool = False) -> Formatted:
    state = place.states[0][0] if place.states else "no effect" if place.idle else ""
    return Formatted(place.text(spread=spread), ",".join(map(note_mark, place.notes)), best, state)


def note_mark(number: int) -> str:
    """The mark of a footnote: ``a b … z aa ab …``."""
    mark, rest = "", number
    while rest:
        rest, digit = divmod(rest - 1, 26)
        mark = ascii_lowercase[digit] + mark
    return mark


def costs(row: Row) -> list[str]:
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


def title(board: Board, section: Section) -> str:
    """The heading of a table: scenario, metric in words, task; rows that are at chance without attack."""
    where = f", {section.block}" if board.task_names else ""
    meaning = metric_meaning(section.metric, validated=board.validated)
    return f"{board.scenario}: {section.metric_title}{where} ({meaning}){_at_chance(section)}"


def _at_chance(section: Section) -> str:
    rows = [(row, row.chance) for row in section.rows if row.chance is not None]
    if not rows:
        return ""
    chance = " or ".join(dict.fromkeys(f"{100 * chance:.3g} %" for _, chance in rows))
    by = "" if len(rows) == len(section.rows) else f" by {some([' · '.join(row.labels) for row, _ in rows])}"
    return f"; chance = {chance}: nothing learned without attack{by}"


def state_counts(board: Board) -> str:
    return ", ".join(f"{n} {status}" for status, n in board.counts.items())


def remarks(board: Board) -> list[tuple[str, str]]:
    """Marks and texts of what stands below the tables: footnotes and unreadable files."""
    notes = [(note_mark(i), text) for i, text in enumerate(board.footnotes, 1)]
    return notes + [("!", f"not counted, {text}") for text in board.problems]
