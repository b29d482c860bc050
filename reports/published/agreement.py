"""Do two records of one cell agree, and in what do two cells differ?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from robustfl.errors import UsageError, some
from robustfl.records import CellResult

from .board import SURROUNDINGS

LOSS = 10.0
"""How much more than an accuracy a loss may differ, of itself: one point of accuracy is about a tenth of a loss."""
_LOSS = re.compile(r"(round \d+ )?loss")
_EQUAL = re.compile(r"samples|evaluation")
_ACCURACY = re.compile(r"sa|ra .+|ra_worst|asr|groups .+|round \d+ (sa|ra)|certificates forgetting (\d+ )?(mean|own)")
_SEED = re.compile(r"(label_counts|certificates byzantine)\b.*")  # what follows from the seed alone, on any machine

Difference = tuple[str, Any, Any]


@dataclass(frozen=True)
class Agreement:
    """Agreement of two records of a cell: ``identical``, ``within`` the tolerance, or ``differs``, and in what.

    Where they differ, what is farthest apart comes first.
    """

    verdict: str
    differences: tuple[Difference, ...] = ()

    @property
    def agrees(self) -> bool:
        return self.verdict != "differs"

    def words(self) -> str:
        if self.verdict == "identical":
            return "identical"
        return f"{'within tolerance' if self.verdict == 'within' else 'differs'}: {in_words(self.differences)}"


def in_words(differences: tuple[Difference, ...]) -> str:
    """The first differences and how many more there are."""
    return some([f"{name} {_short(a)} → {_short(b)}" for name, a, b in differences])


def agree(first: CellResult, second: CellResult, *, tolerance: float, details: bool = False) -> Agreement:
    """Compare status and accuracies of two records of the same cell.

    Accuracies (SA, every RA, attack success, those during training where both records have them, mean forgetting) may
    differ by ``tolerance``, a loss by ``LOSS`` times that of itself (at least of 1); on how many samples what was
    evaluated must be the same, and each client's labels and the Byzantine ids where both records have them; with
    ``details`` all else that both have but times and environment. A divergence agrees with a divergence whatever its
    round if the rounds that both curves have agree; a refusal with a refusal. A number that one record lacks is a
    difference. Raises ``UsageError`` for a tolerance outside [0, 1].
    """
    if not 0 <= tolerance <= 1:
        raise UsageError(f"tolerance={tolerance:g} must be in [0, 1], a difference of accuracies")
    if first.status != second.status:
        return Agreement("differs", (("status", first.status, second.status),))
    mine, yours = _comparable(first, second), _comparable(second, first)
    common = mine.keys() & yours.keys()
    distances = {one: _distance(*one, one[0] in common, details) for one in differences(mine, yours)}
    apart = [one for one, far in distances.items() if far > 0]
    if not apart:
        return Agreement("identical")
    # accuracies are multiples of 1 / samples; a hair above a tolerance is the tolerance
    if 0 < tolerance >= max(distances.values()) - 1e-9:
        return Agreement("within", tuple(apart))
    return Agreement("differs", tuple(sorted(apart, key=lambda one: -distances[one])))


def _comparable(record: CellResult, other: CellResult) -> dict[str, Any]:
    """The fields of a record, but for a curve that the other lacks, and rounds that it lacks where both diverged."""
    rounds = {point.round for point in other.curve}
    common = [p for p in record.curve if p.round in rounds or (rounds and record.status == "done")]
    return fields(record.model_copy(update={"curve": common}))


def _distance(name: str, a: Any, b: Any, common: bool, details: bool) -> float:
    """Distance of two values in points of accuracy: infinite if they must be equal, 0 if they are not compared.

    Metrics are compared also where one record lacks them, anything else only if it is ``common`` to both.
    """
    loss = _LOSS.fullmatch(name)
    if not (loss or _ACCURACY.fullmatch(name)):
        compared = _EQUAL.fullmatch(name) or (common and (_SEED.fullmatch(name) or (details and name != "reason")))
        return math.inf if compared else 0.0
    if {type(a), type(b)} - {int, float}:
        return math.inf
    far = abs(a - b) / (LOSS * max(1.0, abs(a), abs(b)) if loss else 1.0)
    return far if math.isfinite(far) else math.inf


def fields(record: CellResult) -> dict[str, Any]:
    """The outcome of a cell by field: all of its record but settings, times and environment."""
    told = record.model_dump(mode="json", include={"status", "reason", "round", "label_counts"})
    metrics = record.metrics.model_dump(mode="json") if record.metrics else {}
    metrics["groups"] = {name: of for name, of in metrics.get("groups", {}).items() if name != "best"}  # of old records
    curve = {f"round {p.round}": p.model_dump(mode="json", exclude={"round"}) for p in record.curve}
    certificates = {name: of for name, of in record.certificates.items() if name not in SURROUNDINGS}
    return dict(leaves({**told, **metrics, **curve, "certificates": certificates}, " "))


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Names under which two tables have other values, with both; one that a table lacks has None there."""
    names = {**first, **second}
    return [(n, first.get(n), second.get(n)) for n in names if not _same(first.get(n), second.get(n))]


def settings_apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Where two resolved cells (or any two records' data) differ: path, first value, second value.

    >>> settings_apart({"f": 1, "norm": {"version": 1}}, {"f": 1, "norm": {"version": 2}, "g": 0})
    [('g', None, 0), ('norm.version', 1, 2)]
    """
    return sorted(differences(dict(leaves(first)), dict(leaves(second))), key=lambda one: one[0])


def leaves(value: Any, between: str = ".", path: str = "", *, item: str = "[{}]") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested data with its path; a list of plain values is one leaf, as a tuple, so is an empty table.

    ``item`` is what the path says of a place in a list.
    """
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, between, f"{path}{between}{key}" if path else str(key), item=item)
    elif isinstance(value, list) and any(isinstance(v, (Mapping, list)) for v in value):
        for i, inner in enumerate(value):
            yield from leaves(inner, between, path + item.format(i), item=item)
    else:
        yield path, tuple(value) if isinstance(value, list) else "{}" if value == {} else value


def versions_apart(published: Mapping[str, Any], installed: Mapping[str, Any]) -> list[str]:
    """Methods of two resolved cells whose version or origin differs, in words.

    >>> versions_apart({"norm": {"name": "fbn", "version": 1}}, {"norm": {"name": "fbn", "version": 2}})
    ['norm fbn: version 1 published, 2 installed']
    """
    mine, words = dict(leaves(published)), []
    for path, a, b in differences(mine, dict(leaves(installed))):
        place, _, what = path.rpartition(".")
        if what in ("version", "origin") and f"{place}.name" in mine:
            axis = re.split(r"[.[]", place)[0]
            words.append(f"{axis} {mine[f'{place}.name']}: {what} {a} published, {b} installed")
    return list(dict.fromkeys(words))


def _same(a: Any, b: Any) -> bool:
    """True for equal values of one type, and for a number that is not finite beside how a board writes it."""
    return (type(a) is type(b) and a == b) or (str(a) == str(b) and str(a) in ("nan", "inf", "-inf"))


def _short(value: Any) -> str:
    text = "none" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
