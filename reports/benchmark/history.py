"""Which boards the benchmark's site has shown: when, from which commit, under which protocol, and what they changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from robustfl.errors import some

from ..board import Row
from ..documents import read_document
from ..store import write_atomic
from ..tables.markdown import code, escape, table
from .data import Measured

FORMAT = "robustfl-history"
SCHEMA: Literal[1] = 1
POINTS = 1.0
"""What moved by less is not told."""
_SHOWN = 6


class Entry(BaseModel):
    """One board. ``scores`` are SA and RA under AutoByz in percent by contestant, ``None`` without a number.

    ``page`` is the page that it was entered on where it is not the tier's own: one of a board beside another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    tier: str
    page: str = ""
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    commit: str = Field(default="", pattern=r"^([0-9a-f]{40})?$")
    protocol: int
    autobyz: int | None
    robustfl: list[str]
    changed: list[str]
    cells: int
    scores: dict[str, list[float | None]]


class History(BaseModel):
    """All boards, the first shown first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["robustfl-history"] = "robustfl-history"
    schema_version: Literal[1] = SCHEMA
    boards: list[Entry]

    def with_entry(self, entry: Entry) -> History:
        """The history with a new board at the end; a known one stays as it was entered."""
        known = any(own.digest == entry.digest for own in self.boards)
        return self if known else self.model_copy(update={"boards": [*self.boards, entry]})

    def before(self, entry: Entry) -> Entry | None:
        """The board that it took the place of: the last one on the same page of the same tier."""
        place = self.boards.index(entry)
        return next((e for e in reversed(self.boards[:place]) if (e.tier, e.page) == (entry.tier, entry.page)), None)


def read_history(path: Path) -> History:
    """The history at ``path``; an empty one if there is no file."""
    try:
        return read_document(path, History, schema=(FORMAT, SCHEMA), none="no history of boards")
    except (FileNotFoundError, NotADirectoryError):
        return History(boards=[])


def write_history(history: History, path: Path) -> None:
    """Write the history as JSON."""
    write_atomic(path, json.dumps(history.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def entry_of(it: Measured, *, date: str, commit: str) -> Entry:
    """The entry of a board that is shown from a date on, as it stands in a commit."""
    return Entry(
        date=date,
        tier=it.tier,
        page="" if it.number == 1 else it.page,
        digest=it.published.digest,
        commit=commit,
        protocol=it.facts["version"],
        autobyz=it.facts["autobyz"],
        robustfl=it.published.environment.versions.get("robustfl", []),
        changed=list(it.facts["changed"]),
        cells=len(it.published.cells),
        scores=dict(sorted((it.name(row), _scores(it, row)) for row in it.rows)),
    )


def _scores(it: Measured, row: Row) -> list[float | None]:
    both = [row, *([it.robust_rows[row.labels]] if row.labels in it.robust_rows else [])]
    return [round(100 * r.worst.mean, 1) if r.worst.exact and r.worst.mean is not None else None for r in both]


def entry_words(entry: Entry) -> str:
    """When and from which commit, with the digest."""
    commit = f", commit `{entry.commit[:12]}`" if entry.commit else ""
    return f"shown since {entry.date}{commit}, digest `{entry.digest[:12]}`"


def history_page(history: History, shown: Sequence[str]) -> str:
    """The page, the newest board first; ``shown`` are the digests of the boards that the site shows now."""
    head = (
        "# History of boards\n\nEvery board that the [benchmark](index.md) has shown, the newest first; as data: "
        "[history.json](history.json). A board is never edited: a later one takes its place.\n"
    )
    heads = ["since", "tier", "protocol", "AutoByz", "robustfl", "commit", "contestants", "cells", "what changed"]
    lines = []
    for entry in reversed(history.boards):
        tier = entry.page or entry.tier
        tier = f"[{tier}]({tier}.md)" if entry.digest in shown else tier
        lines.append([
            entry.date, tier, str(entry.protocol), str(entry.autobyz or "–"), escape(" and ".join(entry.robustfl)),
            f"`{entry.commit[:12]}`" if entry.commit else "–", str(len(entry.scores)), str(entry.cells),
            _change(entry, history.before(entry)),
        ])  # fmt: skip
    return f"{head}\n{table(heads, 'llrrllrrl', lines)}\n"


def _change(entry: Entry, before: Entry | None) -> str:
    """What a board changed against the one before it."""
    whole = f"not the whole protocol ({', '.join(map(code, entry.changed))})" if entry.changed else "whole protocol"
    if before is None:
        return f"the first board {'beside another of its tier' if entry.page else 'of its tier'}; {whole}"
    parts = [whole] if entry.changed != before.changed else []
    if entry.protocol != before.protocol:
        parts.append(f"protocol {before.protocol} → {entry.protocol}: no number is comparable")
    parts += _named("new", [n for n in entry.scores if n not in before.scores])
    parts += _named("gone", [n for n in before.scores if n not in entry.scores])
    moved = [
        f"{name} {_text(before.scores[name][0])} → {_text(scores[0])}"
        for name, scores in entry.scores.items()
        if name in before.scores and _moved(before.scores[name][0], scores[0])
    ]
    return "; ".join(parts + _named("SA moved", moved)) or "no score moved by a point"


def _named(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}: {some([*map(escape, names)], _SHOWN)}"] if names else []


def _moved(old: float | None, new: float | None) -> bool:
    return (old is None) != (new is None) or (old is not None and new is not None and abs(old - new) > POINTS)


def _text(score: float | None) -> str:
    return "no number" if score is None else f"{score:.1f}"
