"""The site's tables and pages as plain values: texts ready to print, numbers ready to sort."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from statistics import fmean
from typing import Any

from robustfl.origins import named_methods
from robustfl.papers import bibtex, spelled_out
from robustfl.records import CellResult

from ..board import (
    OVERALL,
    WORST_MEMBER,
    Board,
    Row,
    Section,
    below_heading,
    in_words,
    metric_title,
    natural,
    row_name,
    slug_of,
)
from ..captions import in_plain_words
from ..columns import costs, formatted, rank_text
from ..figures.layout import simple_first
from ..frame import frame
from ..grouping import NO_ATTACK, cells_of, label_tuples, text, texts_of, values_of
from ..recipe import command, scenario_toml
from ..table_cell import TableCell, member_text

TASK = "task"
IDLE = "the attack did not move the honest mean, and other attacks are worse: it is ignored in the worst case"


@dataclass(frozen=True)
class Entry:
    """One record with the labels its table shows; an unattacked one has an entry for every condition it stands for."""

    block: str
    labels: tuple[str, ...]
    attack: str
    record: CellResult


@dataclass(frozen=True)
class Contestant:
    """A contestant: its name, a file name for its page, its rows in all tables, its records."""

    name: str
    slug: str
    labels: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Section, Row], ...]
    entries: tuple[Entry, ...]

    @property
    def records(self) -> tuple[CellResult, ...]:
        """Every record once, in the order of keys."""
        return tuple({e.record.key: e.record for e in sorted(self.entries, key=lambda e: e.record.key)}.values())


def entries(board: Board, results: Sequence[CellResult]) -> list[Entry]:
    """The records with the block and the labels of the rows they are counted in."""
    cells = cells_of(frame(results), board.autobyz)

    def values(names: Sequence[str]) -> list[tuple[str, ...]]:
        columns = [n if n in cells else f"cell.{n}" for n in names]
        return label_tuples(texts_of(cells, columns), columns)

    records = {r.key: r for r in results}
    columns = (values(board.task_names), values(board.label_names), cells["attack"].map(text), cells["key"])
    return [
        Entry(row_name(board.task_names, task) or OVERALL, labels, attack, records[str(key)])
        for task, labels, attack, key in zip(*columns, strict=True)
    ]


def contestants(board: Board, found: Sequence[Entry]) -> list[Contestant]:
    """All contestants in the order of their best row in the first table."""
    rows: dict[tuple[str, ...], list[tuple[Section, Row]]] = defaultdict(list)
    for section in board.sections:
        for row in section.rows:
            rows[row.labels].append((section, row))
    members: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for entry in found:
        members[entry.labels].append(entry)
    return [
        Contestant(
            row_name(board.label_names, labels) or board.scenario, slug_of(labels),
            tuple(zip(board.label_names, labels, strict=True)), tuple(belonging), tuple(members[labels]),
        )
        for labels, belonging in rows.items()
    ]  # fmt: skip


def unreliable(record: CellResult) -> str:
    """Why the numbers of a finished cell are not to be trusted; empty if nothing says so.

    Read from ``certificates["unreliable"]`` (a text, or several) and from warnings about masked gradients.
    """
    said = record.certificates.get("unreliable") or []
    reasons = [said] if isinstance(said, str) else [str(s) for s in said] if isinstance(said, list) else [str(said)]
    warnings = record.certificates.get("warnings") or []
    reasons += [str(w) for w in warnings if "gradients may be masked" in str(w)]
    return "; ".join(dict.fromkeys(reasons))


# --- tables ----------------------------------------------------------------------------------------------------------


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

    def of(self, place: TableCell) -> tuple[Badge, ...]:
        """The badges of a place that has states."""
        reason = "; ".join(self.texts[n - 1] for n in place.notes)
        marks = formatted(place).marks
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


def value(place: TableCell, notes: Notes) -> Value:
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
    number, marks = place.text(spread=False), formatted(place).marks
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
            places = [*(row.cells[i] for i in clean), row.worst, *(r.worst if r else TableCell() for r in others)]
            texts = (*row.labels, *([section.block] if board.task_names else []))
            values = [value(p, notes) for p in places]
            if board.autobyz is not None:
                values.append(Value(text=member_text(row.members, row.member_seeds)))
            doubts = [
                why for (block, labels, _), why in notes.doubts.items()
                if labels == row.labels and section.block in (block, OVERALL)
            ]  # fmt: skip
            lines.append(_line(row, row.worst, texts, values, (*_at_chance(row), *_unreliable(doubts)), rank_text(row)))
    heads = [
        *("SA, no attack" for _ in clean),
        "SA, attacked",
        *(f"{metric_title(m)}, attacked" for m in robust),
        *([] if board.autobyz is None else [WORST_MEMBER]),
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
            for i, (attack, place) in enumerate(zip(board.attacks, row.cells, strict=True)):
                if not place.expected:
                    continue
                others = [table[m, section.block].get(row.labels) for m in robust]
                values = [value(p, notes) for p in (place, *(r.cells[i] if r else TableCell() for r in others))]
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


def _line(
    row: Row, place: TableCell, texts: Sequence[str], values: Sequence[Value], badges: Sequence[Badge], rank: str = ""
) -> Line:
    """One line of a table, about a place of a row."""
    why = "; ".join(dict.fromkeys([b.reason for b in badges] + [IDLE] * place.idle))
    have = len(place.values)
    seeds = str(have) if have == place.expected else f"{have}/{place.expected}"
    if place.states:  # which are counted over all tasks, and said where the number would be
        seeds = "–"
    return Line(slug_of(row.labels), rank, tuple(texts), tuple(values), seeds, tuple(costs(row)), tuple(badges), why)


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


CERTIFICATES = {
    "attack_shift": "attack moved the mean by",
    "statistics_shift": "attack moved the statistics by",
    "defense_shift": "result off the honest mean by",
    "smallest_variance": "smallest variance served",
    "dropped": "rows dropped",
}


Shaded = tuple[Value, str]
"""A place with its share of a bar or of a colour, in [0, 1]; empty where a word stands."""


def heat_grids(board: Board, notes: Notes) -> list[tuple[str, list[tuple[str, str, list[Shaded]]]]]:
    """Attack × defense for every metric, task, norm and setting of the other labels; the mean over tasks first.

    A grid has a title and a line per defense: its name, its page, its places.
    """
    grids = []
    for section in board.sections:
        groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in section.rows:
            groups[tuple(v for n, v in zip(board.label_names, row.labels, strict=True) if n != "defense")].append(row)
        names = [n for n in board.label_names if n != "defense"]
        for group, rows in sorted(groups.items(), key=lambda item: natural(" ".join(item[0]))):
            where = _condition(board, section.block)
            title = " · ".join(filter(None, [section.metric_title, row_name(names, group), where]))
            ordered = sorted(rows, key=lambda r: simple_first(board.label(r, "defense", "all")))
            lines = [(board.label(r, "defense", "all"), slug_of(r.labels), _shaded(r.places, notes)) for r in ordered]
            grids.append((title, lines))
    return grids


def _shaded(places: Sequence[TableCell], notes: Notes) -> list[Shaded]:
    return [(value(p, notes), "" if p.shown is None else f"{p.shown:.3f}") for p in places]


# --- a contestant ----------------------------------------------------------------------------------------------------


def facts_of(board: Board, contestant: Contestant, notes: Notes, papers: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the page of a contestant shows, by the names in its template.

    ``papers`` maps ``"defense nnm"`` and the like to methods' lines ``paper``.
    """
    records = contestant.records
    certificates, certificate = _certificate(board, contestant)
    where = [" · ".join(filter(None, [s.metric_title, _condition(board, s.block)])) for s, _ in contestant.rows]
    return {
        "contestant": contestant,
        "ranks": [(w, rank_text(r), value(r.worst, notes)) for w, (_, r) in zip(where, contestant.rows, strict=True)],
        "metrics": [metric_title(m) for m in board.metrics],
        "bars": _bars(board, contestant, notes),
        "certificates": certificates,
        "certificate": certificate,
        "facts": _facts(records),
        "recipe": scenario_toml(records, name=contestant.slug) if records else "",
        "example": command(records[0], records, file=f"{contestant.slug}.toml") if records else "",
        "cells": [_cell_line(r) for r in records],
        "papers": _papers(records, papers),
        "warnings": list(dict.fromkeys(str(w) for r in records for w in r.certificates.get("warnings") or [])),
        "has_more_than_one_f": "f" in board.task_names,
    }


def _condition(board: Board, block: str) -> str:
    """The task of a table in words; empty on a board with one task."""
    return block if board.task_names else ""


def _bars(board: Board, contestant: Contestant, notes: Notes) -> list[tuple[str, list[tuple[str, list[Shaded]]]]]:
    """Accuracy per attack under each condition."""
    by_block: dict[str, dict[str, Row]] = defaultdict(dict)
    for section, row in contestant.rows:
        by_block[section.block][section.metric] = row
    bars = []
    for block, rows in by_block.items():
        nothing = [TableCell()] * (len(board.attacks) + 1)
        each = zip(*(rows[m].places if m in rows else nothing for m in board.metrics), strict=True)
        lines = [(a, _shaded(places, notes)) for a, places in zip((*board.attacks, "worst case"), each, strict=True)]
        bars.append((_condition(board, block) or "all cells", lines))
    return bars


def _certificate(board: Board, contestant: Contestant) -> tuple[list[str], list[tuple[str, ...]]]:
    """The headings of the certificates the records have; per condition and attack their means, smallest variances."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in contestant.entries:
        place = _condition(board, entry.block), entry.attack
        for name in CERTIFICATES:
            found = entry.record.certificates.get(name)
            if isinstance(found, (int, float)) and math.isfinite(found):
                groups[place][name].append(float(found))
    known = [name for name in CERTIFICATES if any(name in values for values in groups.values())]
    order = {attack: i for i, attack in enumerate(board.attacks)}
    lines = []
    for (where, attack), values in sorted(groups.items(), key=lambda g: (natural(g[0][0]), order.get(g[0][1], 0))):
        summary = {name: (min if name == "smallest_variance" else fmean)(found) for name, found in values.items()}
        lines.append((where, attack, *(f"{summary[name]:.3g}" if name in summary else "–" for name in known)))
    return [CERTIFICATES[name] for name in known], lines


def _facts(records: Sequence[CellResult]) -> list[tuple[str, str]]:
    """The tests, the machines and the software; several values are all named."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        certificates = record.certificates
        found["tested"].append(in_plain_words(str(certificates.get("evaluation") or "")))
        found["test samples"].append(text(record.metrics.samples) if record.metrics else "")
        found["trainable parameters"].append(text(certificates.get("trainable")))
        found["processor"].append(record.timing.device)
        found["commit"].append(" then ".join(record.timing.commits))
        found["device"].append(str(certificates.get("device") or ""))
        found["source"].append(str(certificates.get("source") or ""))
        versions = certificates.get("versions")
        for name, version in versions.items() if isinstance(versions, Mapping) else ():
            found[name].append(str(version))
    distinct = {k: ", ".join(v for v in dict.fromkeys(vs) if v and v != "–") for k, vs in found.items()}
    return [(k, words) for k, words in distinct.items() if words]


def _cell_line(record: CellResult) -> tuple[str, ...]:
    labels = record.labels
    accuracy = "–" if record.metrics is None else f"{100 * record.metrics.sa:.2f}"
    partition = in_words("partition", text(labels.get("partition")))
    return (record.key, partition, *values_of(labels, ("f", "attack", "seed")), record.status, accuracy)


def _papers(records: Sequence[CellResult], papers: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Method, citation and BibTeX of everything the contestant is made of and was attacked with."""
    named: dict[str, None] = {}
    for record in records:
        for axis, method in sorted(named_methods(record.cell), key=itemgetter(0)):
            named[f"{KIND.get(axis, axis)} {method['name']}"] = None
    first = ("defense", "preaggregator", "norm", "algorithm", "objective", "propagation", "attack", "evasion")
    order = {kind: i for i, kind in enumerate(first)}
    ordered = sorted(named, key=lambda n: (order.get(n.split()[0], len(order)), natural(n)))
    return [(n, spelled_out(papers[n]), bibtex(papers[n], key=n)) for n in ordered if papers.get(n)]


KIND = {
    "evasions": "evasion", "train_evasion": "evasion", "domains": "dataset", "propagation": "defense",
    "statistics_defense": "defense",
}  # fmt: skip


def state_words(entries: Sequence[Entry]) -> str:
    """Who measured: the sources of merged records, in words; empty where all are the store's own."""
    sources = {re.sub(r"\s+", " ", str(s)) for e in entries if (s := e.record.certificates.get("source"))}
    return ", ".join(sorted(sources))
