"""A tier's board as the pages of the benchmark read it: who competes, at what cost, who cannot be told from whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from robustfl.autobyz import TITLE, asked_of
from robustfl.origins import named_methods
from robustfl.records import CellResult, last_round

from ..board import Board, Row, Section, hardest, in_words, metric_title, natural, row_name
from ..captions import listed
from ..columns import rank_text
from ..entries import Contestant, contestants, entries, slug_of
from ..frame import counted, frame
from ..grouping import ALWAYS, NO_ATTACK
from ..paired import alike
from ..published.board import Board as Published
from ..ranking import rank_board
from ..table_cell import TableCell
from ..tables import markdown_escape as escape
from ..tradeoff import front
from .cross_chosen import with_cross_chosen

if TYPE_CHECKING:
    import pandas as pd

Facts = Mapping[str, Any]
Labels = tuple[str, ...]
PARTS = {
    "defense": "defense", "statistics_defense": "defense", "propagation": "defense", "norm": "norm",
    "algorithm": "algorithm", "objective": "objective",
}  # fmt: skip
"""The settings whose methods make a contestant, and the kind of their methods."""


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
    cells: pd.DataFrame = field(repr=False, compare=False)
    number: int = 1
    suffix: str = ".json"

    @property
    def tier(self) -> str:
        """The name of the tier."""
        return str(self.facts["tier"])

    @property
    def page(self) -> str:
        """The name of its page: the tier's, with its number from the second board on."""
        return self.tier if self.number == 1 else f"{self.tier}-{self.number}"

    @property
    def heading(self) -> str:
        """The tier with what it is about."""
        which = "" if self.number == 1 else f", board {self.number}"
        return f"Tier {self.tier.upper()}{which}: {self.facts['title']}"

    @property
    def file(self) -> str:
        """The name of its file on the site."""
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
        """The heading of the robust accuracy under AutoByz."""
        said = metric_title(self.robust).removeprefix("RA ") if self.robust else ""
        return f"RA ({said}) under {TITLE}" if said else f"RA under {TITLE}"

    def table(self, metric: str) -> Section:
        """The first table of a metric."""
        return next(s for s in self.board.sections if s.metric == metric)

    @cached_property
    def robust_rows(self) -> Mapping[Labels, Row]:
        """The rows of the first table of the robust accuracy; empty if none was measured."""
        return {} if self.robust is None else {r.labels: r for r in self.table(self.robust).rows}

    @cached_property
    def found(self) -> Mapping[Labels, Contestant]:
        """The contestants by their labels."""
        found = contestants(self.board, entries(self.board, self.records, self.cells))
        return {tuple(v for _, v in c.labels): c for c in found}

    @cached_property
    def timed(self) -> tuple[Row, ...]:
        """The rows with both a number under attack, not just a bound, and a time."""
        return tuple(r for r in self.rows if r.worst.exact and r.seconds_per_round)

    @cached_property
    def pareto(self) -> tuple[Row, ...]:
        """The rows than which none is both better under attack and faster, the fastest first."""
        places = front([(-(r.seconds_per_round or 0.0), r.worst.mean or 0.0) for r in self.timed])
        return tuple(sorted((self.timed[i] for i in places), key=lambda r: r.seconds_per_round or 0.0))

    @cached_property
    def with_statistics(self) -> frozenset[str]:
        """The norms that have statistics of batches, by what their cells say."""
        found = (r for r in self.records if (r.certificates.get("statistics") or 0) > 0)
        return frozenset(str(r.labels["norm"]) for r in found)

    @cached_property
    def traffic(self) -> Mapping[Labels, float]:
        """Mebibytes of a round, every client's upload and one broadcast, by contestant; records tell the training's."""
        found: dict[Labels, list[float]] = defaultdict(list)
        for labels, contestant in self.found.items():
            for record in contestant.records:
                sent, settings = record.certificates.get("traffic"), record.cell.get("cell", {})
                rounds = last_round(settings)
                if isinstance(sent, Mapping) and isinstance(sent.get("mebibytes"), (int, float)) and rounds:
                    found[labels].append(float(sent["mebibytes"]) / rounds)
        return {labels: fmean(values) for labels, values in found.items()}

    def of(self, row: Row, label: str) -> str:
        """One label of a row; the board's, where all rows share it."""
        return self.board.label(row, label) or dict(self.board.constants).get(label, "–")

    def name(self, row: Row, *, apart: Sequence[str] = ()) -> str:
        """The name of a contestant, without the labels ``apart``: defense and norm, and what else differs.

        Where propagations compete, only what differs.
        """
        pairs = [(n, v) for n, v in zip(self.board.label_names, row.labels, strict=True) if n not in apart]
        always = () if "propagation" in self.board.label_names else ALWAYS
        telling = [(n, v) for n, v in pairs if n in always or len({self.of(r, n) for r in self.rows}) > 1]
        kept = telling or pairs
        return row_name([n for n, _ in kept], [v for _, v in kept])

    def link(self, row: Row, up: str = "", *, apart: Sequence[str] = ()) -> str:
        """The name of a contestant, without the labels ``apart``, with a link to its page."""
        return f"[{escape(self.name(row, apart=apart))}]({up}{self.page}/{slug_of(row.labels)}.md)"

    def robust_text(self, row: Row) -> str:
        """The robust accuracy of a row, or that there is none."""
        other = self.robust_rows.get(row.labels)
        return percent(other.worst) if other else "not measured"

    def per_seed(self, row: Row) -> TableCell:
        """The accuracy of a row under the lowest member of every seed."""
        return row.cells[self.board.attacks.index(TITLE)] if TITLE in self.board.attacks else TableCell()

    def clean(self, row: Row) -> TableCell:
        """The accuracy of a row without attack."""
        return row.cells[self.board.attacks.index(NO_ATTACK)] if NO_ATTACK in self.board.attacks else TableCell()

    @cached_property
    def yardstick(self) -> str:
        """The contestant that times are relative to: the mean, or the fastest where the defense does not vary."""
        return "mean" if len({self.of(r, "defense") for r in self.rows}) > 1 else "fastest"

    def relative(self, row: Row) -> str:
        """Seconds per round relative to the yardstick's with the same norm; a dash where there is none."""
        if self.yardstick == "mean":
            at = self.board.label_names.index("defense")
            rest = row.labels[:at] + row.labels[at + 1 :]
            means = (r for r in self.rows if r.labels[at] == "mean")
            base = next((r.seconds_per_round for r in means if r.labels[:at] + r.labels[at + 1 :] == rest), None)
        else:
            own = [r for r in self.rows if self.of(r, "norm") == self.of(row, "norm")]
            base = min((r.seconds_per_round for r in own if r.seconds_per_round), default=None)
        return f"{row.seconds_per_round / base:.1f}" if base and row.seconds_per_round is not None else "–"

    def cost(self, row: Row) -> str:
        """The time of a row in words: ``1.2 × mean``."""
        relative = self.relative(row)
        return relative if relative == "–" else f"{relative} × {self.yardstick}"

    @cached_property
    def alike(self) -> Mapping[Labels, tuple[Labels, ...]]:
        """For every contestant with a number those that cannot be told from it."""
        return alike(self.table("sa"))

    def rivals(self, row: Row) -> tuple[list[Row], list[Row]]:
        """The rows that the test does not tell from this one: those whose intervals (or seeds) meet its, and others.

        The test corrects for all pairs of a table, so among many rows it tells few apart that a look does.
        """
        names = self.alike.get(row.labels, ())
        low, high = _reach(row)
        parts: tuple[list[Row], list[Row]] = [], []
        for other in (r for r in self.rows if r.labels in names):
            least, most = _reach(other)
            parts[not (least <= high and low <= most)].append(other)
        return parts

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
    return Measured(published, board, tuple(records), said["benchmark"], table)


def best(rows: Iterable[Row]) -> Row | None:
    """The first row with a number."""
    return next((row for row in rows if row.worst.exact), None)


def percent(place: TableCell, *, spread: bool = True) -> str:
    """A place with its unit, or its states."""
    said = place.text(spread=spread, unit=" %")
    return said if place.shown is None else said.replace(" ", "\N{NO-BREAK SPACE}")


def _reach(row: Row) -> tuple[float, float]:
    """The interval of a row under attack, the lowest and highest seed without one, or its one number twice."""
    mean = row.worst.mean or 0.0
    return row.worst.interval or row.worst.seeds or (mean, mean)


def ranks_of(measured: Measured, row: Row) -> str:
    """The ranks that a row may have, of how many."""
    return f"rank {rank_text(row)} of {len(measured.rows)}"


def methods_of(contestant: Contestant) -> dict[tuple[str, str], None]:
    """The kinds and names of the methods that a contestant is made of, in the order of ``PARTS``."""
    found: dict[tuple[str, str], None] = {}
    for record in contestant.records[:1]:
        methods = list(named_methods(record.cell))
        for setting, kind in PARTS.items():
            found |= {(kind, str(method["name"])): None for name, method in methods if name == setting}
    return found
