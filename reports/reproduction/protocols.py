"""The papers' numbers as ``reports/claims`` holds them, and the protocols of their tables and figures."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from robustfl.errors import UsageError, closest
from robustfl.records import Record

from ..validation import first_fault

FOLDER = Path(__file__).parent.parent / "claims"
PAPERS = ("fbn", "wsm", "fedrbn", "hbn", "fedtan", "bucketing")
FIELDS = ("item", "place", "row", "column", "metric", "value", "spread", "seeds", "note")


@dataclass(frozen=True)
class Claim:
    """One published number: where it stands, what it is of, and how the paper says it is spread.

    ``item`` is the table or figure (``"table1"``), ``place`` the paper's own word for it; ``value`` and ``spread`` are
    as printed (``spread`` empty where none is); ``seeds`` how many runs stand behind it (empty: the paper is silent).
    """

    item: str
    place: str
    row: str
    column: str
    metric: str
    value: str
    spread: str
    seeds: str
    note: str

    @property
    def number(self) -> float | None:
        """The value as a number, accuracies in percent; None where the paper gives words."""
        try:
            found = float(self.value)
        except ValueError:
            return None
        return 100 * found if self.metric == "test accuracy" else found

    @property
    def text(self) -> str:
        """The value as a page shows it."""
        if self.number is None:
            return self.value
        shown = f"{self.number:.1f}" if self.metric == "test accuracy" else self.value
        return f"{shown} ± {self.spread}" if self.spread else shown


def file_of(paper: str, suffix: str) -> Path:
    """The file of a paper's claims or protocols. Raises ``UsageError`` for an unknown paper."""
    if paper not in PAPERS:
        raise UsageError(f"no paper {paper!r}; {closest(paper, PAPERS)}")
    return FOLDER / f"{paper}.{suffix}"


@cache
def claims(paper: str) -> tuple[Claim, ...]:
    """All published numbers of a paper, in the order of its tables. Raises ``UsageError`` for an unknown paper."""
    with file_of(paper, "csv").open(encoding="utf-8", newline="") as file:
        return tuple(Claim(**{name: row[name] for name in FIELDS}) for row in csv.DictReader(file))


Scalar = str | int | float | bool
Selector = Mapping[str, Scalar | tuple[Scalar, ...]]
ScaleName = Literal["paper", "reduced"]
SCALES: tuple[ScaleName, ...] = ("paper", "reduced")


class _Part(Record):
    """A part of a protocol's file, in which lists stand for tuples."""

    model_config = ConfigDict(strict=False)


class Run(_Part):
    """One scenario to run: a preset with settings as ``--set`` takes them."""

    preset: str
    settings: tuple[str, ...] = ()


class Scale(_Part):
    """The runs at one scale.

    ``reduced`` says what is smaller than in the paper and ``why`` the claim should survive it. ``needs`` names what a
    plain machine lacks (data, a GPU). ``seconds`` a cell takes on the reference machine with one thread, for estimates;
    0 where nobody has measured it.
    """

    runs: tuple[Run, ...] = Field(min_length=1)
    reduced: str = ""
    why: str = ""
    needs: str = ""
    seconds: float = Field(0.0, ge=0)


class Published(_Part):
    """Where the paper's own number for a side of a statement stands in the claims."""

    row: str
    column: str = ""
    metric: str = ""
    item: str = ""


class Statement(_Part):
    """A claim as a statement that a run can refute, with a tolerance fixed before running.

    ``left`` and ``right`` select cells by their labels (a list allows several values), ``where`` both; the statement is
    about ``left - right``, or about ``left`` alone where there is no ``right``, paired by seed. ``best`` names labels
    over which each side takes its best value, as papers do that tune. Exactly one of ``at_least``, ``at_most`` and
    ``within`` (the absolute value) says what must hold: percentage points for accuracies, the metric's unit otherwise.

    ``metric`` is a number of a record: ``sa``, ``loss``, ``ra_worst``, ``ra:pgd`` (the evasion attack whose text begins
    so), ``group:<name>:<metric>`` or ``certificate:<name>``; ``right_metric`` is the right side's where it is another.
    ``statistic`` is the ``final`` value, the ``best`` or ``lowest`` evaluation of the curve, the ``tail`` mean, or that
    of the round ``selected`` on validation data (the last round of a cell without a tail or a selection).
    ``scale`` says at which scale the statement holds; both where it is empty.

    ``compute`` names arithmetic in place of runs, with ``arguments``. ``not_comparable`` says why ours and the paper's
    number cannot be held against each other. ``tried`` says what was tried to explain a contradiction.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    says: str
    metric: str = "sa"
    right_metric: str = ""
    statistic: Literal["final", "best", "lowest", "tail", "selected"] = "final"
    scale: ScaleName | None = None
    where: Selector = Field(default_factory=dict)
    left: Selector = Field(default_factory=dict)
    right: Selector | None = None
    best: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    within: float | None = Field(None, ge=0)
    value: float = 0.0
    published: tuple[Published, ...] = ()
    compute: str = ""
    arguments: Mapping[str, Scalar | tuple[int, ...]] = Field(default_factory=dict)
    not_comparable: str = ""
    tried: str = ""

    @model_validator(mode="after")
    def _one_bound(self) -> Statement:
        bounds = [b for b in (self.at_least, self.at_most, self.within) if b is not None]
        if len(bounds) != 1 and not self.not_comparable:
            raise ValueError(f"statement {self.id!r} needs exactly one of at_least, at_most and within")
        if self.right_metric and self.right is None:
            raise ValueError(f"statement {self.id!r} has a right_metric and no right side")
        if bool(self.compute) == bool(self.left) and not self.not_comparable:
            raise ValueError(f"statement {self.id!r} either selects cells (left) or computes")
        return self

    @property
    def percent(self) -> bool:
        """True if the metric is an accuracy or a loss of accuracy, shown in percent."""
        if self.compute:
            return False
        whole = self.metric in ("sa", "ra_worst", "asr")
        return whole or self.metric.startswith(("ra:", "group:", "certificate:forgetting."))

    @property
    def kind(self) -> str:
        """The kind of number it is about: those of one kind vary alike from seed to seed."""
        kind, _, rest = self.metric.partition(":")
        robust = kind in ("ra", "ra_worst") or (kind == "group" and not rest.endswith(":sa"))
        return "ra" if robust else "sa" if kind == "group" else kind

    @property
    def bound(self) -> str:
        """The condition that must hold, in words; empty where nothing can be held against each other."""
        unit = " points" if self.percent and self.right is not None else " %" if self.percent else ""
        what = "difference" if self.right is not None else "value"
        if self.at_least is not None:
            return f"{what} ≥ {self.at_least:g}{unit}"
        if self.at_most is not None:
            return f"{what} ≤ {self.at_most:g}{unit}"
        if self.value and self.within is not None:
            return f"within {self.within:g} of {self.value:g}{unit}"
        return "" if self.within is None else f"|{what}| ≤ {self.within:g}{unit}"


class Plot(_Part):
    """A drawing with the paper's axes: ``lines`` over rounds in one panel per ``panels``, or ``bars`` over ``x``.

    ``points`` and ``paths`` show what ``compute`` makes of ``arguments`` instead of cells.
    """

    kind: Literal["curves", "bars", "lines", "points", "paths"] = "curves"
    compute: str = ""
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    y: str = ""
    panels: str = ""
    lines: str = "norm"
    x: str = "round"
    metric: str = "sa"
    statistic: Literal["final", "best", "tail", "selected"] = "final"
    where: Selector = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_source(self) -> Plot:
        if (self.kind in ("points", "paths")) != bool(self.compute):
            raise ValueError("a plot of kind points or paths computes, and no other does")
        return self


class Item(_Part):
    """One table or figure: its title, how it is run at each scale, and its statements.

    ``missing`` says what robustfl cannot express of it, or why nothing is run, in place of runs.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.]*$")
    title: str
    paper: Scale | None = None
    reduced: Scale | None = None
    statements: tuple[Statement, ...] = ()
    plots: tuple[Plot, ...] = ()
    missing: str = ""

    def statements_at(self, scale: ScaleName) -> tuple[Statement, ...]:
        """The statements that hold at a scale."""
        return tuple(s for s in self.statements if s.scale in (None, scale))

    def at(self, scale: ScaleName) -> Scale | None:
        """The runs at a scale, or None."""
        return self.paper if scale == "paper" else self.reduced


class Paper(_Part):
    """One paper with all its tables and figures."""

    name: str
    citation: str
    items: tuple[Item, ...]

    def claims(self, item: str) -> tuple[Claim, ...]:
        """The published numbers of one table or figure."""
        return tuple(c for c in claims(self.name) if c.item == item)

    def find(self, published: Published, item: str) -> Claim:
        """The published number a statement points to. Raises ``UsageError`` where there is none."""
        found = [
            c
            for c in self.claims(published.item or item)
            if c.row == published.row and published.column in ("", c.column) and published.metric in ("", c.metric)
        ]
        if len(found) != 1:
            raise UsageError(f"{self.name}/{item}: {published!r} names {len(found)} published numbers, not one")
        return found[0]


@cache
def paper(name: str) -> Paper:
    """The protocols of one paper. Raises ``UsageError`` for an unknown name and for a file that is wrong."""
    data = tomllib.loads(file_of(name, "toml").read_text(encoding="utf-8"))
    try:
        return Paper.model_validate({"name": name, **data})
    except ValidationError as error:
        raise UsageError(f"reports/claims/{name}.toml: {first_fault(error)}") from None


def papers() -> tuple[Paper, ...]:
    """All papers with their protocols."""
    return tuple(paper(name) for name in PAPERS)


def find_items(target: str | None) -> list[tuple[Paper, Item]]:
    """The tables and figures that ``"fbn"`` or ``"fbn/figure3"`` names; all without a target.

    >>> [item.id for _, item in find_items("fbn/figure3")]
    ['figure3']
    """
    if not target:
        return [(p, item) for p in papers() for item in p.items]
    name, _, wanted = target.strip("/").partition("/")
    chosen = paper(name)
    if not wanted:
        return [(chosen, item) for item in chosen.items]
    wanted = _full(wanted)
    found = [(chosen, item) for item in chosen.items if item.id == wanted]
    if not found:
        ids = [item.id for item in chosen.items]
        raise UsageError(f"{name} has no table or figure {wanted!r}; {closest(wanted, ids)}")
    return found


def _full(name: str) -> str:
    """``fig3`` and ``tab1`` are short for ``figure3`` and ``table1``."""
    for short, long in (("fig", "figure"), ("tab", "table")):
        if name.startswith(short) and not name.startswith(long):
            return long + name[len(short) :].lstrip(".")
    return name
