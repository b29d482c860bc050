"""The leaderboard as a frozen value; writers and figures read nothing else."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from robustfl.autobyz import Asked
from robustfl.errors import UsageError, closest
from robustfl.records import WORST_CLIENT

from .display import METHODS, Display
from .table_cell import TableCell, member_text

OVERALL = "overall"
WORST_MEMBER = "worst member"


@dataclass(frozen=True)
class Row:
    """One contestant: its labels, its rank by worst case, one estimate per attack, and what it cost.

    ``rank`` is ``None`` if the worst case is unknown or only a bound; ``ranks`` are the lowest and the highest rank it
    may have, since some rows cannot be told apart. ``own`` are the values of the board's ``own_names``.
    ``seconds_per_round`` is the mean and ``peak_memory`` (bytes) the maximum over the row's finished cells; with
    AutoByz the mean is that of cells without attack, where the board has any. ``members`` are the worst members of
    AutoByz with in how many of the ``member_seeds`` they were it, several of them in one where they tie. ``chance`` is
    the accuracy of guessing, for a row that is no better without attack.
    """

    labels: tuple[str, ...]
    rank: int | None
    cells: tuple[TableCell, ...]
    worst: TableCell
    seconds_per_round: float | None = None
    peak_memory: int | None = None
    ranks: tuple[int, int] | None = None
    own: tuple[str, ...] = ()
    members: tuple[tuple[str, int], ...] = ()
    member_seeds: int = 0
    chance: float | None = None

    @property
    def may_be_best(self) -> bool:
        """True if the row may have the first rank, and has learned anything without attack."""
        return self.ranks is not None and self.ranks[0] == 1 and self.chance is None

    @property
    def places(self) -> tuple[TableCell, ...]:
        return (*self.cells, self.worst)


@dataclass(frozen=True)
class Section:
    """One table: one metric (``sa``, ``ra_<evasion>``, ``ra_worst``) of one task, or of the mean over all tasks.

    ``task`` are the values of the board's ``task_names``, ``block`` the same in words; the mean over tasks has none and
    is called ``overall``, as is the only task of a board with one.
    """

    block: str
    metric: str
    rows: tuple[Row, ...]
    task: tuple[str, ...] = ()

    @property
    def metric_title(self) -> str:
        return metric_title(self.metric)


@dataclass(frozen=True)
class Board:
    """A leaderboard: tables of the same shape, and what a reader must know about all of them.

    Rows are contestants, named by ``label_names``; whatever else varies (``task_names``) makes tables of its own, so
    that rows of one table solve one task. ``own_names`` are settings of training that each contestant has its own of.
    ``caption`` is one sentence, ``notes`` are those below the tables.
    ``defaults`` are the labels of a cell that says nothing, as far as the store knows them. ``autobyz`` is what the
    column AutoByz, if there is one, is the worst case of. ``calm_costs``: seconds are those of rounds without attack,
    where rows have such. Where it is ``validated``, SA is that on validation data. ``display`` says what printed tables
    show. With ``all_pairs`` ranges of ranks are of all pairs of rows, else of every row against the first.
    """

    scenario: str
    label_names: tuple[str, ...]
    attacks: tuple[str, ...]
    sections: tuple[Section, ...]
    task_names: tuple[str, ...] = ()
    own_names: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    constants: tuple[tuple[str, str], ...] = ()
    caption: str = ""
    notes: tuple[str, ...] = ()
    footnotes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    versions: tuple[tuple[str, str], ...] = ()
    autobyz: Asked | None = None
    calm_costs: bool = False
    validated: bool = False
    all_pairs: bool = False
    display: Display = field(default_factory=Display)

    def label(self, row: Row, name: str, default: str = "") -> str:
        """A label of a row by its name; ``default`` where rows do not have it."""
        return dict(zip(self.label_names, row.labels, strict=True)).get(name, default)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.metric for s in self.sections))

    @property
    def blocks(self) -> tuple[str, ...]:
        """The tasks that have tables, in words; where there are several, their mean comes first."""
        return tuple(dict.fromkeys(s.block for s in self.sections))

    def select(self, metric: str | None) -> Board:
        """The board with the tables of one metric, or all. Raises ``UsageError`` for an unknown one."""
        if metric is None:
            return self
        wanted = _find_metric(metric, self.metrics)
        return replace(self, sections=tuple(s for s in self.sections if s.metric == wanted))

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    @property
    def places(self) -> list[TableCell]:
        return [place for row in self.rows for place in row.places]

    @property
    def tasks(self) -> tuple[Section, ...]:
        """The tables of tasks, without the mean over them."""
        return tuple(s for s in self.sections if s.task or not self.task_names)

    def _repr_html_(self) -> str:
        """Ranks, contestants and means in percent, for notebooks; ``reports.tables.to_html`` writes all there is."""
        found = self.frame()
        names = ["task", "metric", "rank", *self.label_names, *self.attacks, "worst case"]
        shown = found if found.empty else found[[name for name in names if name in found]]
        table: str = shown.to_html(index=False, float_format="{:.1f}".format, na_rep="")
        return table

    def frame(self) -> pd.DataFrame:
        """One row per table row: task, metric, rank with its range, labels, attacks, worst case, costs.

        ``sf``, ``worst case`` … are means in percent at full precision, missing where there is none; ``sf status``
        says ``ok``, ``at most``, ``no effect``, ``missing``, ``diverged 1/5`` …; ``sf low`` and ``sf high`` are the
        interval, or below five seeds the lowest and the highest seed.
        """
        rows, names = [], (*self.attacks, "worst case")
        for section in self.sections:
            for row in section.rows:
                named = [*zip(names, row.places, strict=True)]
                line: dict[str, object] = {"task": section.block, "metric": section.metric, "rank": row.rank}
                line |= dict(zip(("rank low", "rank high"), row.ranks or (None, None), strict=True))
                line |= dict(zip(self.label_names, row.labels, strict=True))
                for name, place in named:
                    line |= {name: _percent(place.mean), f"{name} status": place.status}
                line |= {"seeds": len(row.worst.values), "seconds per round": row.seconds_per_round}
                line["peak memory (MiB)"] = None if row.peak_memory is None else row.peak_memory / 2**20
                for name, place in named:
                    low, high = place.interval or place.seeds or (None, None)
                    line |= {f"{name} low": _percent(low), f"{name} high": _percent(high)}
                line |= dict(zip(self.own_names, row.own, strict=True))
                line |= {} if self.autobyz is None else {WORST_MEMBER: member_text(row.members, row.member_seeds)}
                rows.append(line)
        table = pd.DataFrame(rows)
        if table.empty:
            return table
        numbers = [*names, *(f"{n} {end}" for n in names for end in ("low", "high"))]
        types = dict.fromkeys([*numbers, "seconds per round", "peak memory (MiB)"], "float64")
        return table.astype(types | dict.fromkeys(("rank", "rank low", "rank high"), "Int64"))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def in_words(name: str, value: str) -> str:
    """A setting as people say it: methods by themselves, heterogeneity as a number, other settings with their name.

    >>> in_words("partition", "gamma(gamma=0.0)"), in_words("f", "3"), in_words("norm", "fbn")
    ('γ = 0', 'f = 3', 'fbn')
    >>> in_words("partition", "dirichlet(alpha=0.3, min_size=10)")
    'Dirichlet α = 0.3 (min_size=10)'
    >>> in_words("data", "0123456789abcdef" * 4)
    'data = 0123456789ab'
    """
    if name == "partition":
        return _partition(value)
    if name == "statistics_defense":
        return f"statistics: {value}"
    if name == "data":  # a digest, where two data sets of one name are on a board
        return f"data = {value[:12]}"
    return value if name in METHODS else f"{name} = {value}"


def below_heading(name: str, value: str) -> str:
    """A setting below its name: a partition in words, anything else as it is."""
    return in_words(name, value) if name == "partition" else value


def _partition(spec: str) -> str:
    match = re.fullmatch(r"(gamma\(gamma|dirichlet\(alpha)=([0-9.eE+-]+)(?:, )?(.*)\)", spec)
    if match is None:
        return spec
    letter = "γ" if spec.startswith("gamma") else "Dirichlet α"
    return f"{letter} = {float(match[2]):g}" + (f" ({match[3]})" if match[3] else "")


def row_name(names: Sequence[str], labels: Sequence[str]) -> str:
    """Several settings in words.

    >>> row_name(("defense", "norm", "f"), ("median", "fbn", "3"))
    'median · fbn · f = 3'
    """
    return " · ".join(in_words(n, v) for n, v in zip(names, labels, strict=True))


def slug_of(labels: Sequence[str]) -> str:
    """A file name for these labels: readable, short, safe everywhere, and different for different labels.

    >>> slug_of(["nnm+median", "fbn"])
    'nnm-median-fbn-5654b6'
    """
    plain = unicodedata.normalize("NFKD", "-".join(labels)).encode("ascii", "ignore").decode().lower()
    short = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].strip("-")
    digest = hashlib.sha256("\0".join(labels).encode()).hexdigest()[:6]
    return f"{short}-{digest}" if short else f"contestant-{digest}"


def metric_title(metric: str) -> str:
    if metric in (WORST_CLIENT, "ra_worst"):
        return "SA worst client" if metric == WORST_CLIENT else "RA worst evasion"
    return "RA " + metric[3:] if metric.startswith("ra_") else metric.upper()


def hardest(metrics: Sequence[str]) -> str | None:
    """The metric of robust accuracy that counts: under the worst of several evasions, or under the only one."""
    robust = [m for m in metrics if m.startswith("ra_")]
    return "ra_worst" if "ra_worst" in robust else next(iter(robust), None)


def metric_meaning(metric: str, *, validated: bool = False) -> str:
    """A metric in words; where it is ``validated``, of the clients' validation data."""
    if metric == "sa" and validated:
        return "validation accuracy, %"
    if metric == "sa":
        return "accuracy on clean test inputs, %"
    if metric == WORST_CLIENT:
        return "accuracy on clean test inputs of the honest client for whom it is lowest, %"
    if metric == "ra_worst":
        return "accuracy on inputs that resist every evasion attack, %"
    return f"accuracy on test inputs perturbed by {metric[3:]}, %"


def _find_metric(metric: str, known: tuple[str, ...]) -> str:
    lower = metric.lower().replace(" ", "_")
    exact = [m for m in known if m.lower().replace(" ", "_") == lower]
    short = [m for m in known if m.split("(")[0].lower() == lower]
    if lower == "ra" and (robust := hardest(known)):
        return robust
    if exact or len(short) == 1:
        return (exact or short)[0]
    raise UsageError(f"leaderboard: no metric {metric!r}; {closest(metric, known)}")


def natural(text: str) -> tuple[tuple[bool, float, str], ...]:
    """A sort key that orders numbers inside names by value: ``gamma(gamma=0.01)`` before ``gamma(gamma=0.5)``."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return tuple((i % 2 == 0, 0.0 if i % 2 == 0 else float(p), p) for i, p in enumerate(parts))
