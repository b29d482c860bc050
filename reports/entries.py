"""Who competes: a choice of methods, with everything that was measured of it under all conditions."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robustfl.records import CellResult

from .board import OVERALL, Board, Row, Section, row_name
from .frame import frame
from .grouping import cells_of, label_tuples, text, texts_of

if TYPE_CHECKING:
    import pandas as pd


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


def entries(board: Board, results: Sequence[CellResult], table: pd.DataFrame | None = None) -> list[Entry]:
    """The records with the block and the labels of the rows they are counted in; ``table`` is their ``frame``."""
    cells = cells_of(frame(results) if table is None else table, board.autobyz)

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
    rows: dict[tuple[str, ...], list[tuple[Section, Row]]] = {}
    for section in board.sections:
        for row in section.rows:
            rows.setdefault(row.labels, []).append((section, row))
    members: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for entry in found:
        members[entry.labels].append(entry)
    return [
        Contestant(
            name=row_name(board.label_names, labels) or board.scenario,
            slug=slug_of(labels),
            labels=tuple(zip(board.label_names, labels, strict=True)),
            rows=tuple(belonging),
            entries=tuple(members[labels]),
        )
        for labels, belonging in rows.items()
    ]


def slug_of(labels: Sequence[str]) -> str:
    """A file name for these labels: readable, short, safe everywhere, and different for different labels.

    >>> slug_of(["nnm+median", "fbn"])
    'nnm-median-fbn-5654b6'
    """
    plain = unicodedata.normalize("NFKD", "-".join(labels)).encode("ascii", "ignore").decode().lower()
    short = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].strip("-")
    digest = hashlib.sha256("\0".join(labels).encode()).hexdigest()[:6]
    return f"{short}-{digest}" if short else f"contestant-{digest}"


def unreliable(record: CellResult) -> str:
    """Why the numbers of a finished cell are not to be trusted; empty if nothing says so.

    Read from ``certificates["unreliable"]`` (a text, or several) and from warnings about masked gradients.
    """
    said = record.certificates.get("unreliable") or []
    reasons = [said] if isinstance(said, str) else [str(s) for s in said] if isinstance(said, list) else [str(said)]
    warnings = record.certificates.get("warnings") or []
    reasons += [str(w) for w in warnings if "gradients may be masked" in str(w)]
    return "; ".join(dict.fromkeys(reasons))
