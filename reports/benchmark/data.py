"""A tier's board as the pages of the benchmark read it: who competes, at what cost, who cannot be told from whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from robustfl.autobyz import TITLE, asked_of
from robustfl.records import CellResult, last_round

from ..board import Board, Row, Section, hardest, in_words, metric_title, natural, row_name
from ..captions import listed
from ..frame import counted, frame
from ..grouping import ALWAYS, NO_ATTACK, text
from ..paired import Comparisons, compare
from ..published.board import Board as Published
from ..ranking import rank_board
from ..table_cell import TableCell
from ..tradeoff import front
from .cross_chosen import with_cross_chosen

Facts = Mapping[str, Any]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """A published board of a tier, ranked.

    ``facts`` is what it says of the benchmark: tier, versions, what was changed, every search. ``number`` counts the
    boards of one tier that are shown side by side, from 1; ``suffix`` is that of its file on the site.
    """

    published: Published
    board: Board
    records: tuple[CellResult, ...]
    facts: Facts
    number: int = 1
    suffix: str = ".json"

    @property
    def tier(self) -> str:
        return str(self.facts["tier"])

    @property
    def page(self) -> str:
        """The name of its page: the tier's, with its number from the second board on."""
        return self.tier if self.number == 1 else f"{self.tier}-{self.number}"

    @property
    def heading(self) -> str:
        which = "" if self.number == 1 else f", board {self.number}"
        return f"Tier {self.tier.upper()}{which}: {self.facts['title']}"

    @property
    def file(self) -> str:
        return f"bench-{self.page}{self.suffix}"

    @property
    def download(self) -> str:
        """The link of a page beside the folder ``boards`` to the board's file, with its digest."""
        return f"[{self.file}](boards/{self.file}), digest `{self.published.digest[:12]}`"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the first table of SA: the mean over tasks, where there are several."""
        return self.table("sa").rows

    @cached_property
    def robust(self) -> str | None:
        """The metric of the robust accuracy that counts, if any was measured."""
        return hardest(self.board.metrics)

    @property
    def robust_title(self) -> str:
        said = metric_title(self.robust).removeprefix("RA ") if self.robust else ""
        return f"RA ({said}) under {TITLE}" if said else f"RA under {TITLE}"

    def table(self, metric: str) -> Section:
        return next(s for s in self.board.sections if s.metric == metric)

    @cached_property
    def robust_rows(self) -> Mapping[Labels, Row]:
        """The rows of the first table of the robust accuracy; empty if none was measured."""
        return {} if self.robust is None else {r.labels: r for r in self.table(self.robust).rows}

    @cached_property
    def pareto(self) -> tuple[Row, ...]:
        """The rows than which none is both better under attack and faster, the fastest first.

        Only of those with both a number under attack, not just a bound, and a time.
        """
        timed = [r for r in self.rows if r.worst.exact and r.seconds_per_round]
        places = front([(-(r.seconds_per_round or 0.0), r.worst.mean or 0.0) for r in timed])
        return tuple(sorted((timed[i] for i in places), key=lambda r: r.seconds_per_round or 0.0))

    @cached_property
    def traffic(self) -> Mapping[Labels, float]:
        """Mebibytes of a round, every client's upload and one broadcast, by contestant; records tell the training's."""
        found: dict[Labels, list[float]] = defaultdict(list)
        for record in self.records:
            sent, rounds = record.certificates.get("traffic"), last_round(record.cell.get("cell", {}))
            if isinstance(sent, Mapping) and isinstance(sent.get("mebibytes"), (int, float)) and rounds:
                labels = tuple(text(record.labels.get(name)) for name in self.board.label_names)
                found[labels].append(float(sent["mebibytes"]) / rounds)
        return {labels: fmean(values) for labels, values in found.items()}

    def of(self, row: Row, label: str) -> str:
        """One label of a row; the board's, where all rows share it."""
        return self.board.label(row, label) or dict(self.board.constants).get(label, "–")

    def name(self, row: Row) -> str:
        """The name of a contestant: defense and norm, and what else differs; where propagations compete, only that."""
        pairs = list(zip(self.board.label_names, row.labels, strict=True))
        always = () if "propagation" in self.board.label_names else ALWAYS
        telling = [(n, v) for n, v in pairs if n in always or len({self.of(r, n) for r in self.rows}) > 1]
        kept = telling or pairs
        return row_name([n for n, _ in kept], [v for _, v in kept])

    def robust_text(self, row: Row) -> str:
        """The robust accuracy of a row, or that there is none."""
        other = self.robust_rows.get(row.labels)
        return percent(other.worst) if other else "not measured"

    def per_seed(self, row: Row) -> TableCell:
        """The accuracy of a row under the lowest member of every seed."""
        return row.cells[self.board.attacks.index(TITLE)] if TITLE in self.board.attacks else TableCell()

    def clean(self, row: Row) -> TableCell:
        return row.cells[self.board.attacks.index(NO_ATTACK)] if NO_ATTACK in self.board.attacks else TableCell()

    def base(self, row: Row) -> Row | None:
        """The mean with the same norm and all else alike; None where the defense does not vary or there is none."""
        if "defense" not in self.board.label_names:
            return None
        at = self.board.label_names.index("defense")
        wanted = (*row.labels[:at], "mean", *row.labels[at + 1 :])
        return next((r for r in self.rows if r.labels == wanted), None)

    def lost(self, row: Row) -> str:
        """The points of accuracy that a row under attack has less than the unattacked mean with the same norm."""
        base = self.base(row)
        calm = None if base is None else self.clean(base).mean
        return "–" if calm is None or row.worst.mean is None else f"{100 * (calm - row.worst.mean):.1f}"

    def cost(self, row: Row) -> str:
        """The time of a round, also as a multiple of the mean's with the same norm; a dash where it is not known."""
        if row.seconds_per_round is None:
            return "–"
        base, took = self.base(row), f"{1000 * row.seconds_per_round:.0f} ms"
        if base is None or not base.seconds_per_round:
            return took
        return f"{row.seconds_per_round / base.seconds_per_round:.1f} × mean, {took}"

    @cached_property
    def compared(self) -> Comparisons:
        """Every contestant against the first, in the first table of SA."""
        return compare(self.table("sa"))

    def p_against_first(self, row: Row) -> str:
        """The adjusted p-value of a row against the first; a dash where there is no test."""
        if self.compared.results and row.labels == self.compared.reference:
            return "first"
        adjusted = next((c.adjusted for c in self.compared.results if c.labels == row.labels), None)
        return "–" if adjusted is None else f"{adjusted:.2g}"

    @property
    def tells(self) -> bool:
        """True where the searches' words on what a contestant is told are about what competes: about defenses."""
        return "propagation" not in self.board.label_names

    def search(self, row: Row) -> Facts:
        """The search for the contestant whose chosen configuration a row is; empty if there is none."""
        for found in self.facts.get("contestants", {}).values():
            chosen = found["search"][found["chosen"]]
            if all(str(chosen[n]) == self.of(row, n) for n in self.board.label_names if n in chosen):
                return dict(found)
        return {}

    def row(self, section: Section, contestant: str) -> Row:
        """The row of a contestant. Raises ``KeyError`` for one that the board does not have."""
        search = self.facts["contestants"][contestant]
        return next(row for row in section.rows if self.search(row) == search)

    def values(self, label: str) -> list[str]:
        """The values that a setting has under attack, in words."""
        if label in self.board.task_names:
            at = self.board.task_names.index(label)
            own = sorted({s.task[at] for s in self.board.tasks}, key=natural)
        else:
            own = [v for n, v in self.board.constants if n == label]
        return [in_words(label, v).removeprefix(f"{label} = ") for v in own]

    @cached_property
    def attackers(self) -> str:
        """The Byzantine clients and all of them, in words; empty where it is not said."""
        f, clients = (listed(self.values(name)) for name in ("f", "clients"))
        return f"f = {f} of {clients} clients" if f else ""

    @cached_property
    def spread(self) -> str:
        """The difference of the clients, in words; empty where they hold domains."""
        return "" if any(self.values("domains")) else listed(self.values("partition"))

    @cached_property
    def conditions(self) -> str:
        """The conditions of the run, in a line."""
        n = len({r.labels.get("seed") for r in self.records})
        rounds = listed(self.values("rounds"))
        parts = [
            self.attackers,
            self.spread or " + ".join(self.values("domains")),
            f"{rounds} rounds" if rounds else "",
            f"{n} seed{'s' if n > 1 else ''}",
            f"RA by {metric_title(self.robust).removeprefix('RA ')}" if self.robust else "RA not measured",
        ]
        return ", ".join(filter(None, parts))


def measured(
    published: Published, records: Sequence[CellResult], defaults: Mapping[str, object] | None = None
) -> Measured:
    """A published board of a tier, whose ``records`` these are, ranked by the worst case.

    The board has to say which tier it is of. ``defaults`` are the labels of a cell that says nothing: captions leave
    them out.
    """
    said = published.protocol or {}
    table, words = counted(frame(records), said["benchmark"].get("statistic") or "final")
    board = with_cross_chosen(rank_board(table, autobyz=asked_of(said), defaults=defaults))
    board = replace(board, notes=(*board.notes, words)) if words else board
    return Measured(published, board, tuple(records), said["benchmark"])


@dataclass(frozen=True)
class Lowered:
    """One row of one table: its accuracy under AutoByz, under the attacks that came beside it, and under all of them.

    All are of the worst attack, chosen for every seed on the others.
    """

    task: str
    before: TableCell
    under: Mapping[str, TableCell]
    after: TableCell

    @property
    def lower(self) -> bool:
        """True if the attacks lowered it; a divergence is below any accuracy."""
        return _height(self.after) < _height(self.before)


def _height(place: TableCell) -> float:
    return -1.0 if place.count("diverged") else place.mean if place.mean is not None else 2.0


def lowered(before: Measured, after: Measured, contestant: str) -> list[Lowered]:
    """A contestant's row without and with the attacks that ``after`` alone has: the mean over tasks, then each.

    Raises ``KeyError`` for a contestant that the boards do not have.
    """
    found = []
    tables = ([s for s in it.board.sections if s.metric == "sa"] for it in (before, after))
    for first, second in zip(*tables, strict=True):
        row, later = before.row(first, contestant), after.row(second, contestant)
        met = {a for a, place in zip(before.board.attacks, row.cells, strict=True) if place.expected}
        cells = zip(after.board.attacks, later.cells, strict=True)
        new = {a: place for a, place in cells if place.expected and a not in met}
        found.append(Lowered(first.block, row.worst, new, later.worst))
    return found


def percent(place: TableCell) -> str:
    """A place with its unit, or its states."""
    said = place.text(unit=" %")
    return said if place.shown is None else said.replace(" ", "\N{NO-BREAK SPACE}")
