"""The words below the tables: what the numbers are, and why some places have none."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .board import in_words
from .estimate import CONFIDENCE, MIN_SEEDS, NO_EFFECT, NORMAL, Estimate
from .paired import LEVEL, METHOD

if TYPE_CHECKING:
    from .board import Board

_ROUND = re.compile(r" in round (\d+)\b")


@dataclass
class _Note:
    state: str
    summary: str
    cells: int = 0
    rounds: set[int] = field(default_factory=set)


class Footnotes:
    """Numbers the distinct reasons in order of appearance; reasons that differ in the round only are one note."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str], _Note] = {}

    def number(self, state: str, reason: object, round: object) -> int:
        """The number of the note for a cell with this state, reason and round."""
        first = reason.strip().splitlines()[0] if isinstance(reason, str) and reason.strip() else "no reason recorded"
        key = state, _ROUND.sub("", first) if state == "diverged" else first
        note = self._notes.setdefault(key, _Note(*key))
        note.cells += 1
        if isinstance(round, (int, float)) and round == round:
            note.rounds.add(int(round))
        return list(self._notes).index(key) + 1

    def texts(self) -> tuple[str, ...]:
        """The notes, the first with number 1."""
        return tuple(map(_note_text, self._notes.values()))


def _note_text(note: _Note) -> str:
    rounds = ""
    if note.state == "diverged" and note.rounds:
        low, high = min(note.rounds), max(note.rounds)
        rounds = f" in round {low}" if low == high else f" in rounds {low}–{high}"
    return f"{note.state}: {note.summary}{rounds} ({note.cells} cell{'s' if note.cells > 1 else ''})"


def caption(board: Board, *, seeds: set[str]) -> str:
    """Caption of every table of the board: constants, statistics, worst case, marks."""
    idle = {
        attack for i, attack in enumerate(board.attacks)
        if all(row.cells[i].idle for section in board.sections for row in section.rows)
    }  # fmt: skip
    inside = set() if board.autobyz is None else set(board.autobyz.members)
    attacks = [a for a in board.attacks if a not in {"none"} | idle | inside] or list(board.attacks)
    places = [e for s in board.sections for r in s.rows for e in (*r.cells, r.worst)]
    parts = [
        _seeds(len(seeds), places),
        f"Worst case: per seed the minimum over {', '.join(attacks)}, then the mean over seeds; it gives the rank.",
    ]
    if any(r.ranks is not None and r.ranks[0] < r.ranks[1] for s in board.sections for r in s.rows):
        parts.append(f"Ranks such as 1–4: rows that cannot be told apart ({METHOD}, {LEVEL:.0%}).")
    if board.task_names:
        names = " and ".join(filter(None, [", ".join(board.task_names[:-1]), board.task_names[-1]]))
        parts.append(f"Overall: per seed the mean over the {len(board.tasks) // len(board.metrics)} tasks ({names}).")
    if board.own_names:
        parts.append(f"Every contestant has its own {' and '.join(board.own_names)}.")
    if any(p.idle for p in places):
        parts.append(f"{NO_EFFECT}: the attackers left the honest mean where it was; it counts in no worst case.")
    if any(p.bound for p in places):
        parts.append("≤: some attack has no number, so the worst case may be lower; such a row has no rank.")
    if any(p.is_number and len(p.values) < p.expected for p in places):
        parts.append("k/n: only k of n seeds have finished.")
    if any(p.states for p in places):
        parts.append("If any seed of a cell diverged, failed or was refused, the table says so instead of a number.")
    if any(p.mean is None and not (p.states or p.dropped) for p in places):
        parts.append("–: not run.")
    parts.append(_test_error(places))
    parts.append("Costs: seconds per round (mean) and peak memory (maximum) over a row's finished cells.")
    return " ".join(filter(None, parts))


def _seeds(count: int, places: Sequence[Estimate]) -> str:
    if not count:
        return "No cell has finished."
    if count == 1:
        return "One seed, so there is no interval."
    said = [f"Mean over {count} seeds"]
    if any(p.interval for p in places):
        said.append(f"[{CONFIDENCE:.0%} interval on the logit scale with moderated variance]")
    if any(p.seeds and not p.interval for p in places):
        said.append(f"(lowest–highest seed; an interval needs {MIN_SEEDS})")
    return " ".join(said) + "."


def _test_error(places: Sequence[Estimate]) -> str:
    """The uncertainty that the test set adds; all seeds and rows of a task share it, so it is in no interval."""
    known = {p.samples for p in places if p.samples}
    if not known:
        return ""
    low, high = min(known), max(known)
    most = 100 * NORMAL * 0.5 / math.sqrt(low)
    images = f"{low}" if low == high else f"{low} to {high}"
    return (
        f"Test-set error: {images} test images leave an accuracy uncertain by up to ±{most:.1f} points "
        f"({CONFIDENCE:.0%}), the same images for all rows of a task; it is in no interval."
    )


def setting(board: Board) -> str:
    """The settings all cells share and that are not the defaults, for the line above the tables.

    The data set and the model are always named. Where a store does not know the defaults, all settings are.
    """
    skip, nothing = {"seed", "attack", "f_declared"}, {"–", ""}
    told = [
        (name, value) for name, value in board.constants
        if name not in skip and value not in nothing and (name in ALWAYS or value != board.defaults.get(name))
    ]  # fmt: skip
    return ", ".join(_words(name, value) for name, value in told)


ALWAYS = ("dataset", "domains", "model")


def _words(name: str, value: str) -> str:
    said = in_words(name, value)
    return said if said != value else f"{name} {value}"
