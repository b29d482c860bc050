"""The worst attack as an adversary would pick it: on other seeds than the one it is measured on.

A minimum over many noisy runs is low by itself. Per seed the worst member bounds an adversary that knows the run; the
member with the lowest mean on the other seeds is what one can pick who does not, and its accuracy has no such bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from robustfl.autobyz import TITLE

from ..board import Board, Row, Section
from ..grouping import NO_ATTACK
from ..moderated_t import interval
from ..ranking import ranked_section
from ..table_cell import TableCell, acts, averaged

LEVEL = 0.95
"""How sure the lower bound is, on that side."""
MIN_SEEDS = 2
"""With one seed there is no other one to choose on."""
_WORDS = (
    f"Worst case: the attack with the lowest mean on the other seeds, seed by seed; in the column {TITLE} the lowest "
    "member of every seed, which is lower by itself the more members and the fewer seeds there are."
)


def cross_chosen(members: Mapping[str, TableCell]) -> TableCell:
    """The accuracy under the worst member, chosen for every seed on all others, of one contestant in one task.

    A member counts where it has an effect and is not refused; of equal ones the first is chosen. A training that
    diverged is worse than any accuracy: where the chosen member diverged, the place says so. A member that lacks seeds
    or a number makes the place a bound, as it does for the worst per seed.

    >>> places = {"a": TableCell((("0", 0.1), ("1", 0.9), ("2", 0.8)), 3),
    ...           "b": TableCell((("0", 0.5), ("1", 0.4), ("2", 0.6)), 3)}
    >>> cross_chosen(places).values  # on seeds 1 and 2 b is the lower, on 0 and 2 a
    (('0', 0.5), ('1', 0.9), ('2', 0.6))
    """
    known = [p for p in members.values() if p.expected and not p.idle and p.count("refused") < p.expected]
    tables = [{**dict.fromkeys(p.diverged, -1.0), **dict(p.values)} for p in known]
    seeds = sorted(set().union(*tables), key=lambda seed: (len(seed), seed)) if tables else []
    whole = [table for table in tables if len(table) == len(seeds)]
    expected = max((p.expected for p in known), default=0)
    if len(seeds) < MIN_SEEDS or not whole:
        return TableCell((), expected)
    chosen = {
        seed: min(whole, key=lambda table: fmean(v for s, v in table.items() if s != seed))[seed] for seed in seeds
    }
    diverged = frozenset(seed for seed, value in chosen.items() if value < 0)
    values = tuple((seed, value) for seed, value in chosen.items() if value >= 0)
    states = (("diverged", len(diverged)),) if diverged else ()
    missing = len(whole) < len(known) or any(not p.expected for p in members.values())
    samples = min((p.samples for p in known if p.samples), default=None)
    return TableCell(values, expected, states, missing and not diverged, samples=samples, diverged=diverged)


def with_cross_chosen(board: Board) -> Board:
    """The board with this as every row's worst case, by which rows are ranked; AutoByz's column stays that per seed.

    Attacks that have been run beside the members, to beat rows, count as these do. A row with one seed keeps the worst
    of its members, and so does a board that counts no AutoByz.
    """
    if board.autobyz is None:
        return board
    members = board.autobyz.members
    attacks = [(i, attack) for i, attack in enumerate(board.attacks) if attack not in (NO_ATTACK, TITLE)]
    found: dict[tuple[str, tuple[str, ...]], list[tuple[TableCell, bool]]] = {}

    def row_of(section: Section, row: Row) -> Row:
        if section in board.tasks:
            tried = {a: row.cells[i] for i, a in attacks if a in members or row.cells[i].expected}
            place = cross_chosen(tried)
            if len(place.values) + len(place.diverged) < MIN_SEEDS:
                place = row.worst
            acted = acts(tried.values())
            found.setdefault((section.metric, row.labels), []).append((place, acted))
        else:  # the mean over the tasks in which a member acts; no number where the row lacks a task
            places = found[section.metric, row.labels]
            lacking = [TableCell()] * (sum(s.metric == section.metric for s in board.tasks) - len(places))
            place = averaged([*([p for p, acted in places if acted] or [p for p, _ in places]), *lacking])
        return replace(row, worst=place)

    made = {
        section: ranked_section(
            section.block, section.task, section.metric, [row_of(section, r) for r in section.rows], board.attacks
        )
        for section in (*board.tasks, *(s for s in board.sections if s not in board.tasks))
    }
    return replace(board, sections=tuple(made[s] for s in board.sections), notes=(*board.notes, _WORDS))


def lower_bound(place: TableCell) -> float | None:
    """The value in [0, 1] above which the mean over seeds lies with confidence ``LEVEL``; None without two seeds."""
    if not place.is_number or len(place.values) < MIN_SEEDS:
        return None
    values = [value for _, value in place.values]
    return interval(values, prior=place.prior, samples=place.samples, confidence=2 * LEVEL - 1)[0]


def bound_text(place: TableCell) -> str:
    """The lower bound in percent, or a dash."""
    bound = lower_bound(place)
    return "–" if bound is None else f"{100 * bound:.1f}"
