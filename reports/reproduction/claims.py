"""Numbers the papers publish, one row per number, as ``reports/claims/<paper>.csv`` holds them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from robustfl.errors import UsageError, closest

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
