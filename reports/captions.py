"""The words with the tables: a caption of one sentence, notes on how to read the numbers, why some places have none."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from robustfl.autobyz import TITLE
from robustfl.errors import some

from .board import in_words, metric_title, natural, row_name
from .grouping import DECLARED, NO_ATTACK, Cell, absent, bare, text
from .paired import LEVEL, METHOD, PAIRS, span
from .table_cell import CONFIDENCE, NO_EFFECT, NORMAL, STATES, TableCell, acts

if TYPE_CHECKING:
    from .board import Board

_ROUND = re.compile(r" in round (\d+)\b")


def footnotes(cells: Sequence[Cell]) -> tuple[list[int], tuple[str, ...]]:
    """The number of every cell's footnote, 0 for none, and the notes in the order of appearance.

    Reasons that differ in the round only are one note.
    """
    notes: dict[tuple[str, str], list[Cell]] = {}
    reasons = [*map(_reason, cells)]
    for cell, key in zip(cells, reasons, strict=True):
        if key is not None:
            notes.setdefault(key, []).append(cell)
    numbers = {key: number for number, key in enumerate(notes, 1)}
    return [numbers[key] if key else 0 for key in reasons], tuple(_note_text(*key, of) for key, of in notes.items())


def _reason(cell: Cell) -> tuple[str, str] | None:
    """The state of a cell and the reason for it; an ``f_declared`` of its own."""
    state, reason = str(cell["status"]), cell.get("reason")
    if state == "done" and not absent(cell.get(DECLARED)):
        return NO_ATTACK, f"the rule was told f_declared = {text(cell[DECLARED])}"
    if state not in STATES:
        return None
    first = reason.strip().splitlines()[0] if isinstance(reason, str) and reason.strip() else "no reason recorded"
    return state, _ROUND.sub("", first) if state == "diverged" else first


def _note_text(state: str, summary: str, cells: Sequence[Cell]) -> str:
    rounds = sorted({int(cell["round"]) for cell in cells if not absent(cell.get("round"))})
    where = ""
    if state == "diverged" and rounds:
        where = f" in round {rounds[0]}" if len(rounds) == 1 else f" in rounds {rounds[0]}–{rounds[-1]}"
    return f"{state}: {summary}{where} ({len(cells)} cell{'s' if len(cells) > 1 else ''})"


def caption(board: Board, *, seeds: set[str]) -> str:
    """One sentence for every table of the board: the numbers, what ranks them, settings that are no defaults."""
    told = f" ({settings})" if (settings := setting(board)) else ""
    if not seeds:
        return f"No cell has finished{told}."
    ranked_by = ", ".join(f"{_minimum(counted)}{which}" for counted, which in _counted(board))
    return f"{_seeds(len(seeds), board.places)}, ranked by {ranked_by}{told}."


def how_to_read(board: Board, compare: Sequence[str] = ()) -> tuple[str, ...]:
    """Sentences for below the tables: what a reader must know to trust the numbers, each only where it applies."""
    rows, places = board.rows, board.places
    tasks, doubt = len(board.tasks) // max(1, len(board.metrics)), _test_error(places)
    resting = _resting(board)
    idle = [name for name in map(bare, dict.fromkeys(compare)) if name not in board.label_names]
    constants = {bare(name) for name, _ in board.constants}
    whys = [f"{name} ({'all cells have one' if name in constants else 'the same as f'})" for name in idle]
    told = [
        (bool(idle), f"--compare has no effect for {listed(whys)}."),
        *((len(counted) > _NAMED, f"Worst case{which} over {listed(counted)}.") for counted, which in _counted(board)),
        (
            any(r.ranks is not None and r.ranks[0] < r.ranks[1] for r in rows),
            f"Ranks such as 1–4: no significant difference at {LEVEL:.0%} ({PAIRS})."
            if board.all_pairs
            else f"Ranks such as 1–4: no significant difference from the first row at {LEVEL:.0%} ({METHOD}).",
        ),
        (bool(board.task_names), f"Overall: per seed the mean over the {tasks} tasks ({listed(board.task_names)})."),
        (
            bool(resting),
            "An attack's mean, and the worst case, is over the tasks where the attack has an effect "
            f"({resting}); the mean without attack is over all tasks.",
        ),
        (bool(board.own_names), f"Every contestant has its own {listed(board.own_names)} (own.* in leaderboard.csv)."),
        (
            any(p.idle for p in places),
            f"{NO_EFFECT}: the attack did not move the honest mean; it is ignored unless it gives the lowest accuracy.",
        ),
        (
            any(p.bound for p in places),
            "≤: an attack or a seed is missing, so the worst case may be lower and the row has no rank.",
        ),
        (any(p.is_number and len(p.values) < p.expected for p in places), "k/n: k of n seeds."),
        (
            any(p.states for p in places),
            "A seed that diverged, failed or was refused gives no number: diverged 2/5 means 2 of 5 seeds.",
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


def _seeds(count: int, places: Sequence[TableCell]) -> str:
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


def _test_error(places: Sequence[TableCell]) -> str:
    """The uncertainty that the test set adds; all seeds and rows of a task share it, so it is in no interval."""
    known = {p.samples for p in places if p.samples}
    if not known:
        return ""
    most = 100 * NORMAL * 0.5 / math.sqrt(min(known))
    return (
        f"Not in the intervals: a test set of {span(known)} images adds up to ±{most:.1f} points ({CONFIDENCE:.0%}), "
        "the same for all rows of a task."
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
    return ", ".join(said if (said := in_words(name, value)) != value else f"{name} {value}" for name, value in told)


_ALWAYS = ("dataset", "domains", "model")


def notes_of_cells(board: Board, cells: Sequence[tuple[tuple[str, ...], Cell]]) -> tuple[str, ...]:
    """Sentences about the finished cells, given with the labels of their rows: AutoByz, backdoors, what was tested."""
    told = (
        _autobyz_words(board),
        _backdoors(board, cells),
        *(f([c for _, c in cells]) for f in (_unequal_users, _tested)),
    )
    return tuple(filter(None, told))


def _autobyz_words(board: Board) -> str:
    """The words on the AutoByz column, if there is one, and on members that are refused where others are not."""
    autobyz = board.autobyz
    if autobyz is None:
        return ""
    at = board.attacks.index(TITLE)
    rows = [r for s in board.tasks if s.metric == "sa" for r in s.rows if not r.cells[at].count("refused")]
    said = (
        f"{TITLE} version {autobyz.ensemble.version}: per seed the worst of {', '.join(autobyz.members)}; worst "
        "member: which it was, and in how many of the seeds; one with several worst members counts for each."
    )
    refused = []
    for name in (name for name in autobyz.members if name in board.attacks):
        count = sum(row.cells[board.attacks.index(name)].count("refused") > 0 for row in rows)
        refused += [f"{name} ({count} row{'s' if count > 1 else ''})"] if count else []
    if refused:
        said += f" Refused members are no attacks on a row and do not count in it: {', '.join(refused)}."
    return said


def _unequal_users(cells: Sequence[Cell]) -> str:
    """The reason why a test set counts as smaller: an equal mean over unequal users is less certain than their sum."""
    sizes = [(float(c["certificates.equal_samples"]), int(c["samples"])) for c in cells
             if not absent(c.get("certificates.equal_samples")) and not absent(c.get("samples"))]  # fmt: skip
    if not sizes:
        return ""
    equal, images = min(sizes)
    return (
        "Users with unequally many test images weigh alike: their mean is as uncertain as accuracy on "
        f"{int(equal)} images, not on all {images}."
    )


def _tested(cells: Sequence[Cell]) -> str:
    """Which model was tested on what; schemes with models of their own beside others are named."""
    found: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        if not absent(cell.get("evaluation")) and cell.get("evaluation"):
            found[in_plain_words(str(cell["evaluation"]))].add(text(cell.get("norm")))
    if not found:
        return ""
    if len(found) == 1:
        return f"Tested: {next(iter(found))}."
    parts = (f"{how} ({', '.join(sorted(norms, key=natural))})" for how, norms in sorted(found.items()))
    return f"Tested: {'; '.join(parts)}."


def _backdoors(board: Board, cells: Sequence[tuple[tuple[str, ...], Cell]]) -> str:
    """The success rates of backdoors by attack and contestant: means over seeds and tasks, the least first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for who, cell in cells:
        if not absent(cell.get("asr")):
            found[text(cell["attack"]), row_name(board.label_names, who)].append(float(cell["asr"]))
    rates = sorted((fmean(rates), attack, who) for (attack, who), rates in found.items())
    by_attack: dict[str, list[str]] = defaultdict(list)
    for rate, attack, row in rates:
        by_attack[attack].append(f"{row} {100 * rate:.1f}")
    told = "; ".join(f"{attack}: {some(each, _RATES)}" for attack, each in by_attack.items())
    return f"ASR, the share of images with the trigger that are taken for its target, in %: {told}." if told else ""


_RATES = 12
