"""The site's tables as plain values: one line per place, texts ready to print, numbers ready to sort."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..axes import NO_ATTACK
from ..board import OVERALL, Board, Row, below_heading, metric_title, natural
from ..contestants import Entry, slug_of, unreliable
from ..estimate import Estimate
from ..tables.columns import costs, members, members_head, note_marks, rank_text

TASK = "task"
IDLE = "the attackers left the honest mean where it was, and other attacks are worse: it counts in no worst case"


@dataclass(frozen=True)
class Badge:
    """A state with the reason for it."""

    state: str
    text: str
    reason: str
    marks: str = ""


@dataclass(frozen=True)
class Value:
    """A place: what to print, what to sort by (empty: last), what to say when pointed at, badges and footnote marks."""

    text: str = "–"
    plus: str = ""
    sort: str = ""
    badges: tuple[Badge, ...] = ()
    title: str = ""
    marks: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a table; ``texts`` are its filterable columns."""

    slug: str
    rank: str
    texts: tuple[str, ...]
    values: tuple[Value, ...]
    seeds: str
    costs: tuple[str, ...]
    badges: tuple[Badge, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Headings and lines: ``lead`` filterable columns, places, the other filterable columns, costs.

    ``choices`` are the distinct texts of each filterable column. ``one`` names the column of which one value is always
    chosen, the first at first: lines of different tasks have ranks of their own.
    """

    columns: tuple[str, ...]
    places: tuple[str, ...]
    lines: tuple[Line, ...]
    choices: tuple[tuple[str, ...], ...] = ()
    lead: int = 1
    one: str = ""


@dataclass(frozen=True)
class Notes:
    """The footnotes of a board, and which places are unreliable."""

    texts: tuple[str, ...]
    doubts: Mapping[tuple[str, tuple[str, ...], str], str] = field(default_factory=dict)

    def of(self, place: Estimate) -> tuple[Badge, ...]:
        """The badges of a place that has states."""
        reason = "; ".join(self.texts[n - 1] for n in place.notes)
        marks = note_marks(place)
        return tuple(
            Badge(s, words, reason, marks) for (s, _), words in zip(place.states, place.state_words, strict=True)
        )


def notes_of(board: Board, entries: Sequence[Entry]) -> Notes:
    """The board's footnotes and the places whose numbers a record calls unreliable."""
    doubts: dict[tuple[str, tuple[str, ...], str], list[str]] = defaultdict(list)
    for entry in entries:
        if reason := unreliable(entry.record):
            doubts[entry.block, entry.labels, entry.attack].append(reason)
    return Notes(board.footnotes, {place: "; ".join(dict.fromkeys(r)) for place, r in doubts.items()})


def value(place: Estimate, notes: Notes) -> Value:
    """A place as the site prints it."""
    if place.states:
        return Value("", "", "-1" if place.count("diverged") else "", notes.of(place))
    if place.mean is None:
        return Value()
    if place.idle:
        return Value("", "", "", (Badge("idle", place.status, f"{IDLE}; {place.told()}"),))
    title = place.told()
    if place.test_error is not None:
        title += f"; test set: ±{100 * place.test_error:.1f}"
    title = "; ".join([title, *(notes.texts[n - 1] for n in place.notes)])
    number, marks = place.text(spread=False), note_marks(place)
    return Value(number, place.spread(), f"{100 * place.mean:.6g}", title=title, marks=marks)


def ranking(board: Board, notes: Notes) -> Table:
    """One line per row of the tables of SA: ranks, clean and worst-case SA, worst-case RA, cost; one task at a time."""
    robust = [m for m in board.metrics if m != "sa"]
    clean = [board.attacks.index(NO_ATTACK)] if NO_ATTACK in board.attacks and len(board.attacks) > 1 else []
    table = _by_place(board)
    lines = []
    for section in (s for s in board.sections if s.metric == "sa"):
        for row in section.rows:
            others = [table[m, section.block].get(row.labels) for m in robust]
            places = [*(row.cells[i] for i in clean), row.worst, *(r.worst if r else Estimate() for r in others)]
            texts = (*row.labels, *([section.block] if board.task_names else []))
            values = (*(value(p, notes) for p in places), *(Value(text=name) for name in members(board, row)))
            doubts = [
                why for (block, labels, _), why in notes.doubts.items()
                if labels == row.labels and section.block in (block, OVERALL)
            ]  # fmt: skip
            lines.append(_line(row, row.worst, texts, values, (*_at_chance(row), *_unreliable(doubts)), rank_text(row)))
    heads = [
        *("SA, no attack" for _ in clean),
        "SA, attacked",
        *(f"{metric_title(m)}, attacked" for m in robust),
        *members_head(board),
    ]
    made = _table((*board.label_names, *([TASK] if board.task_names else [])), heads, lines, _lead(board))
    if not board.task_names:
        return made
    return replace(made, choices=(*made.choices[:-1], board.blocks), one=TASK)


def everything(board: Board, notes: Notes) -> Table:
    """One line per row, task and attack: SA and RA side by side."""
    robust = [m for m in board.metrics if m != "sa"]
    table = _by_place(board)
    lead = _lead(board)
    lines = []
    for section in (s for s in board.tasks if s.metric == "sa"):
        task = tuple(below_heading(n, v) for n, v in zip(board.task_names, section.task, strict=True))
        for row in section.rows:
            for i, attack in enumerate(board.attacks):
                place = row.cells[i]
                if not place.expected:
                    continue
                others = [table[m, section.block].get(row.labels) for m in robust]
                values = [value(p, notes) for p in (place, *(r.cells[i] if r else Estimate() for r in others))]
                states = notes.of(place)
                if not states and not place.values:
                    states = (Badge("missing", "not run", "planned, and not run yet"),)
                doubt = notes.doubts.get((section.block, row.labels, attack))
                badges = (*states, *_unreliable([doubt] if doubt else []))
                lines.append(_line(row, place, (*row.labels[:lead], attack, *row.labels[lead:], *task), values, badges))
    heads = ["SA", *(metric_title(m) for m in robust)]
    return _table(
        (*board.label_names[:lead], "attack", *board.label_names[lead:], *board.task_names), heads, lines, lead + 1
    )


def _by_place(board: Board) -> dict[tuple[str, str], dict[tuple[str, ...], Row]]:
    return {(s.metric, s.block): {r.labels: r for r in s.rows} for s in board.sections}


def _seeds(place: Estimate) -> str:
    have = len(place.values)
    if place.states:  # which are counted over all tasks, and said where the number would be
        return "–"
    return str(have) if have == place.expected else f"{have}/{place.expected}"


def _line(
    row: Row, place: Estimate, texts: Sequence[str], values: Sequence[Value], badges: Sequence[Badge], rank: str = ""
) -> Line:
    """One line of a table, about a place of a row."""
    why = "; ".join(dict.fromkeys([b.reason for b in badges] + [IDLE] * place.idle))
    seeds, slug = _seeds(place), slug_of(row.labels)
    return Line(slug, rank, tuple(texts), tuple(values), seeds, tuple(costs(row)), tuple(badges), why)


def _unreliable(reasons: Sequence[str]) -> tuple[Badge, ...]:
    return (Badge("unreliable", "unreliable", "; ".join(dict.fromkeys(reasons))),) if reasons else ()


def _at_chance(row: Row) -> tuple[Badge, ...]:
    why = f"nothing learned without attack; chance = {100 * (row.chance or 0):.3g} %"
    return () if row.chance is None else (Badge("unreliable", "at chance", why),)


def _lead(board: Board) -> int:
    """The number of labels before the numbers: defense and norm, or whatever comes first."""
    return max(1, sum(n in ("defense", "norm") for n in board.label_names[:2]))


def _table(columns: Sequence[str], places: Sequence[str], lines: Sequence[Line], lead: int) -> Table:
    choices = tuple(
        tuple(sorted({line.texts[i] for line in lines}, key=natural)) for i in range(len(columns))
    )  # fmt: skip
    return Table(tuple(columns), tuple(places), tuple(lines), choices, min(lead, len(columns)))
