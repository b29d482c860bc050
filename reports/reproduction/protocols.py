"""Published numbers and protocols of papers, read from the packages behind ``robustfl.reproductions``."""

from __future__ import annotations

import csv
import importlib
import math
import pkgutil
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from robustfl.errors import UsageError, closest
from robustfl.records import Record

from ..board import natural
from ..validation import first_fault

GROUP = "robustfl.reproductions"


@cache
def packages() -> dict[str, str]:
    """The package in which the folder of every known paper lies. Raises ``UsageError`` where none is installed."""
    found = {name: point.value for point in entry_points(group=GROUP) for name in point.load().PAPERS}
    if not found:
        raise UsageError(f"no package has the entry point {GROUP!r}, not even robustfl's own: install robustfl again")
    return found


@cache
def _text(name: str, file: str) -> str:
    """The text of a file of a paper's folder. Raises ``UsageError`` for an unknown paper."""
    if name not in packages():
        raise UsageError(f"no paper {name!r}; {closest(name, packages())}")
    return files(packages()[name]).joinpath(name, file).read_text(encoding="utf-8")


Claim = Mapping[str, str]
"""A published number: ``item`` (the table or figure) ``place row column metric value spread seeds note``, as printed.

``spread`` is empty where none is, ``seeds`` (how many runs stand behind it) where the paper is silent.
"""


@cache
def claims(paper: str) -> tuple[Claim, ...]:
    """All published numbers of a paper, in the order of its tables. Raises ``UsageError`` for an unknown paper."""
    return tuple(csv.DictReader(_text(paper, "claims.csv").splitlines()))


def in_print(claim: Claim) -> str:
    """A published number as a page shows it: fractions in percent, a spread beside its value.

    >>> in_print({"metric": "test accuracy", "value": "0.771", "spread": "0.3"})
    '77.1 ± 0.3'
    """
    shown = claim["value"]
    try:
        number = float(shown)
    except ValueError:  # words
        return shown
    shown = f"{100 * number:.1f}" if claim["metric"] == "test accuracy" else shown
    return f"{shown} ± {claim['spread']}" if claim["spread"] else shown


Scalar = str | int | float | bool
Selector = Mapping[str, Scalar | tuple[Scalar, ...]]
ScaleName = Literal["paper", "reduced"]
Statistic = Literal["final", "best", "lowest", "mean", "tail", "selected"]
SCALES: tuple[ScaleName, ...] = ("paper", "reduced")


class Part(Record):
    """A part of a protocol's file, in which lists stand for tuples."""

    model_config = ConfigDict(strict=False)


class Run(Part):
    """One scenario to run: a preset with settings as ``--set`` takes them."""

    preset: str
    settings: tuple[str, ...] = ()


class Scale(Part):
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


class Statement(Part):
    """A claim as a statement that a run can refute, with a tolerance fixed before running.

    ``left`` and ``right`` select cells by their labels (a list allows several values), ``where`` both; the statement is
    about ``left - right``, or about ``left`` alone where there is no ``right``, paired by seed. ``best`` names labels
    over which each side takes its best value, as papers do that tune. Exactly one of ``at_least``, ``at_most`` and
    ``within`` (of ``value``) says what must hold: percentage points for accuracies, the metric's unit otherwise.

    ``metric`` is a number of a record: ``sa``, ``loss``, ``ra_worst``, ``ra:pgd`` (the evasion attack whose text begins
    so), ``group:<name>:<metric>`` or ``certificate:<name>``. ``statistic`` is the ``final`` value, the ``best`` or
    ``lowest`` evaluation of the curve, its ``mean`` over rounds (high for those that learn fast), the ``tail`` mean, or
    that of the round ``selected`` on validation data (the last round of a cell without a tail or a selection).
    ``right_metric`` and ``right_statistic`` are the right side's where they are others.
    ``scale`` says at which scale the statement holds; both where it is empty.

    ``published`` says where the paper's own numbers for both sides stand: some fields of a claim each.
    ``compute`` names a function that counts the number from ``arguments``, in place of runs. ``not_comparable`` says
    why ours and the paper's number cannot be held against each other. ``tried`` says what was tried to explain a
    contradiction. A ``headline`` is among the few that the page begins with.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    says: str
    metric: str = "sa"
    right_metric: str = ""
    statistic: Statistic = "final"
    right_statistic: Statistic | None = None
    scale: ScaleName | None = None
    where: Selector = Field(default_factory=dict)
    left: Selector = Field(default_factory=dict)
    right: Selector | None = None
    best: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    within: float | None = Field(None, ge=0)
    value: float = 0.0
    published: tuple[Claim, ...] = ()
    compute: str = ""
    arguments: Mapping[str, Scalar | tuple[int, ...]] = Field(default_factory=dict)
    not_comparable: str = ""
    tried: str = ""
    headline: bool = False

    @model_validator(mode="after")
    def _one_bound(self) -> Statement:
        bounds = [b for b in (self.at_least, self.at_most, self.within) if b is not None]
        if len(bounds) != 1 and not self.not_comparable:
            raise ValueError(f"statement {self.id!r} needs exactly one of at_least, at_most and within")
        if (self.right_metric or self.right_statistic) and self.right is None:
            raise ValueError(f"statement {self.id!r} has a right_metric or right_statistic and no right side")
        if bool(self.compute) == bool(self.left) and not self.not_comparable:
            raise ValueError(f"statement {self.id!r} either selects cells (left) or computes")
        return self

    @property
    def percent(self) -> bool:
        """True if the metric is an accuracy or a loss of accuracy, shown in percent."""
        accuracies = ("ra:", "group:", "certificate:forgetting.")
        return not self.compute and (self.metric in ("sa", "ra_worst", "asr") or self.metric.startswith(accuracies))

    @property
    def kind(self) -> str:
        """The kind of number it is about: those of one kind vary alike from seed to seed."""
        kind, _, rest = self.metric.partition(":")
        robust = kind in ("ra", "ra_worst") or (kind == "group" and not rest.endswith(":sa"))
        return "ra" if robust else "sa" if kind == "group" else kind

    @property
    def allowed(self) -> tuple[float, float]:
        """The lowest and the highest number that satisfy it."""
        if self.within is not None:
            return self.value - self.within, self.value + self.within
        return (
            -math.inf if self.at_least is None else self.at_least,
            math.inf if self.at_most is None else self.at_most,
        )

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


class Item(Part):
    """One table or figure: its title, how it is run at each scale, and its statements.

    ``plots`` are for the ``drawings`` of the paper's package. ``missing`` says what robustfl cannot express of it, or
    why nothing is run, in place of runs.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.]*$")
    title: str
    paper: Scale | None = None
    reduced: Scale | None = None
    statements: tuple[Statement, ...] = ()
    plots: tuple[Mapping[str, Any], ...] = ()
    missing: str = ""

    def statements_at(self, scale: ScaleName) -> tuple[Statement, ...]:
        """The statements that hold at a scale."""
        return tuple(s for s in self.statements if s.scale in (None, scale))

    def at(self, scale: ScaleName) -> Scale | None:
        return self.paper if scale == "paper" else self.reduced


class Paper(Part):
    """One paper with all its tables and figures."""

    name: str
    citation: str
    items: tuple[Item, ...]

    def find(self, published: Claim, item: str) -> Claim:
        """The published number that a statement about ``item`` points to. Raises ``UsageError`` where there is none."""
        asked = {"item": item, **published}
        found = [claim for claim in claims(self.name) if asked.items() <= claim.items()]
        if len(found) != 1:
            raise UsageError(f"{self.name}/{item}: {dict(published)} names {len(found)} published numbers, not one")
        return found[0]

    def compute(self, statement: Statement) -> float:
        """The number of a statement that needs no runs."""
        function = pkgutil.resolve_name(f"{packages()[self.name]}.{statement.compute}")
        return float(function(**statement.arguments))

    def drawings(self, item: Item, evidence: Any) -> list[tuple[str, Any]]:
        """A title and a figure for every plot of a table or figure that can be drawn."""
        drawn: list[tuple[str, Any]] = importlib.import_module(packages()[self.name]).drawings(item, evidence)
        return drawn


@cache
def paper(name: str) -> Paper:
    """The protocols of one paper, its figures and tables by their numbers.

    Raises ``UsageError`` for an unknown name and for a file that is wrong.
    """
    try:
        made = Paper.model_validate({"name": name, **tomllib.loads(_text(name, "protocol.toml"))})
    except ValidationError as error:
        raise UsageError(f"{packages()[name]}: {name}/protocol.toml: {first_fault(error)}") from None
    return made.model_copy(update={"items": tuple(sorted(made.items, key=lambda item: natural(item.id)))})


def papers() -> tuple[Paper, ...]:
    return tuple(map(paper, packages()))


def find_items(target: str | None) -> list[tuple[Paper, Item]]:
    """The tables and figures that ``"fbn"`` or ``"fbn/figure3"`` (``fig3``) names; all without a target.

    >>> [item.id for _, item in find_items("fbn/fig3")]
    ['figure3']
    """
    name, _, short = (target or "").strip("/").partition("/")
    chosen = [paper(name)] if name else papers()
    wanted = re.sub(r"^(fig|tab)\.?(?=\d)", lambda found: {"fig": "figure", "tab": "table"}[found[1]], short)
    found = [(one, item) for one in chosen for item in one.items if wanted in ("", item.id)]
    if not found:
        raise UsageError(
            f"{name} has no table or figure {wanted!r}; {closest(wanted, [i.id for i in chosen[0].items])}"
        )
    return found
