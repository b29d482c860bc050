"""The words with the tables: a caption of one sentence, notes on how to read the numbers, why some places have none."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from robustfl.errors import some

from .axes import NO_ATTACK
from .board import in_words, metric_title
from .estimate import CONFIDENCE, NO_EFFECT, NORMAL, Estimate, acts
from .paired import LEVEL, METHOD, span

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
    """One sentence for every table of the board: the numbers, what ranks them, settings that are no defaults."""
    told = f" ({settings})" if (settings := setting(board)) else ""
    if not seeds:
        return f"No cell has finished{told}."
    ranked_by = ", ".join(f"{_minimum(counted)}{which}" for counted, which in _counted(board))
    return f"{_seeds(len(seeds), board.places)}, ranked by {ranked_by}{told}."


def how_to_read(board: Board) -> tuple[str, ...]:
    """Sentences for below the tables: what a reader must know to trust the numbers, each only where it applies."""
    rows, places = board.rows, board.places
    tasks, doubt = len(board.tasks) // max(1, len(board.metrics)), _test_error(places)
    resting = _resting(board)
    told = [
        *((len(counted) > _NAMED, f"Worst case{which} over {listed(counted)}.") for counted, which in _counted(board)),
        (
            any(r.ranks is not None and r.ranks[0] < r.ranks[1] for r in rows),
            f"Ranks such as 1–4: rows that cannot be told apart ({METHOD}, {LEVEL:.0%}).",
        ),
        (bool(board.task_names), f"Overall: per seed the mean over the {tasks} tasks ({listed(board.task_names)})."),
        (
            bool(resting),
            "Under an attack, and in the worst case, it leaves out tasks in which no row was attacked with effect "
            f"({resting}); the mean without attack is over all.",
        ),
        (bool(board.own_names), f"Every contestant has its own {listed(board.own_names)} (own.* in leaderboard.csv)."),
        (
            any(p.idle for p in places),
            f"{NO_EFFECT}: the attackers left the honest mean where it was, and accuracy is not below that under all "
            "other attacks and without any; it counts in no worst case.",
        ),
        (
            any(p.bound for p in places),
            "≤: some attack has no number, or lacks a seed, so the worst case may be lower; such a row has no rank.",
        ),
        (any(p.is_number and len(p.values) < p.expected for p in places), "k/n: only k of n seeds are there."),
        (
            any(p.states for p in places),
            "Where a seed diverged, failed or was refused, the table says so instead of a number.",
        ),
        (any(p.mean is None and not p.states for p in places), "–: not run."),
        (any(p.interval for p in places), "Intervals: logit scale, moderated variance."),
        (bool(doubt), doubt),
        (
            any(r.seconds_per_round is not None for r in rows),
            f"Costs: mean seconds per round{' without attack' if board.calm_costs else ''}, highest peak memory.",
        ),
    ]
    return tuple(words for applies, words in told if applies)


def listed(names: Sequence[str]) -> str:
    """Names in a row.

    >>> listed(["sf", "foe", "alie"])
    'sf, foe and alie'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _resting(board: Board) -> str:
    """The attacks that act in some tasks only, with in how many; empty if there are none."""
    sections = [s for s in board.tasks if s.metric == "sa"]
    acting = {
        a: sum(acts(row.cells[i] for row in s.rows) for s in sections)
        for i, a in enumerate(board.attacks)
        if a != NO_ATTACK
    }
    found = [f"{a} acts in {k} of {len(sections)}" for a, k in acting.items() if 0 < k < len(sections)]
    return some(found, _NAMED)


_NAMED = 8
"""So many attacks stand in a caption; where there are more, the notes name them."""


def _counted(board: Board) -> list[tuple[list[str], str]]:
    """The attacks whose minimum is the worst case, and the metrics it is so for in words where they differ in that."""
    metrics: dict[tuple[str, ...], list[str]] = {}
    for metric in board.metrics or ("sa",):
        metrics.setdefault(tuple(_counted_in(board, metric)), []).append(metric_title(metric))
    return [(list(c), f" for {listed(names)}" if len(metrics) > 1 else "") for c, names in metrics.items()]


def _counted_in(board: Board, metric: str) -> list[str]:
    """The attacks whose minimum is the worst case of a metric; no attack, where no other had an effect."""
    rows = [row for section in board.sections if section.metric == metric for row in section.rows]
    idle = {attack for i, attack in enumerate(board.attacks) if all(row.cells[i].idle for row in rows)}
    inside = set() if board.autobyz is None else set(board.autobyz.members)
    counted = [a for a in board.attacks if a not in {NO_ATTACK} | idle | inside]
    return counted or [a for a in board.attacks if a == NO_ATTACK] or list(board.attacks)


def _minimum(counted: Sequence[str]) -> str:
    """The worst case over these attacks in words."""
    if list(counted) == [NO_ATTACK]:
        return "accuracy without attack"
    if len(counted) == 1:
        return f"accuracy under {counted[0]}"
    return f"each seed's worst case over {listed(counted) if len(counted) <= _NAMED else f'{len(counted)} attacks'}"


def _seeds(count: int, places: Sequence[Estimate]) -> str:
    if count == 1:
        return "One seed, without interval"
    counts = [len(p.values) for p in places if p.is_number] or [count]
    said = [f"Mean over {count if min(counts) == max(counts) else f'{min(counts)} to {max(counts)}'} seeds"]
    if any(p.interval for p in places):
        said.append(f"[{CONFIDENCE:.0%} interval]")
    if any(p.seeds and not p.interval for p in places):
        said.append("(lowest–highest)")
    return " ".join(said)


def in_plain_words(evaluation: str) -> str:
    """Reword a record's line on how its model was tested for readers; records keep theirs, which boards compare.

    >>> in_plain_words("the global model on the test set, evaluation mode, white box through the evaluated model")
    'the global model on the test set, in evaluation mode; evasion attacks know this very model'
    """
    told = "in evaluation mode; evasion attacks know this very model"
    return evaluation.replace("evaluation mode, white box through the evaluated model", told)


def _test_error(places: Sequence[Estimate]) -> str:
    """The uncertainty that the test set adds; all seeds and rows of a task share it, so it is in no interval."""
    known = {p.samples for p in places if p.samples}
    if not known:
        return ""
    most = 100 * NORMAL * 0.5 / math.sqrt(min(known))
    return (
        f"A test set of {span(known)} images leaves accuracies uncertain by up to ±{most:.1f} points "
        f"({CONFIDENCE:.0%}), alike for all rows of a task; no interval contains that."
    )


def setting(board: Board) -> str:
    """The settings all cells share and that are not the defaults.

    The data set and the model are always named. Where a store does not know the defaults, all settings are.
    """
    skip, nothing = {"seed", "attack", "f_declared"}, {"–", ""}
    told = [
        (name, value) for name, value in board.constants
        if name not in skip and value not in nothing and (name in _ALWAYS or value != board.defaults.get(name))
    ]  # fmt: skip
    return ", ".join(_words(name, value) for name, value in told)


_ALWAYS = ("dataset", "domains", "model")


def _words(name: str, value: str) -> str:
    said = in_words(name, value)
    return said if said != value else f"{name} {value}"
