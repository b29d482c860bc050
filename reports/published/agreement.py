"""Do two records of one cell agree, and what exactly differs between two records?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from robustfl.errors import UsageError, some
from robustfl.records import CellResult

from .board import LEFT_IN_THE_STORE, SURROUNDINGS, forgotten

LOSS = 10.0
"""How much more than an accuracy a loss may differ, of itself: one point of accuracy is about a tenth of a loss."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of two records of a cell: ``identical``, ``within`` the tolerance, or ``differs``, and in what.

    Where they differ, what is farthest apart comes first.
    """

    verdict: str
    differences: tuple[tuple[str, Any, Any], ...] = ()

    @property
    def agrees(self) -> bool:
        """True if the records agree."""
        return self.verdict != "differs"

    def words(self) -> str:
        """The verdict in one line."""
        if self.verdict == "identical":
            return "identical"
        shown = some([f"{name} {_short(a)} → {_short(b)}" for name, a, b in self.differences])
        return f"{'within tolerance' if self.verdict == 'within' else 'differs'}: {shown}"


def agree(first: CellResult, second: CellResult, *, tolerance: float) -> Agreement:
    """Compare status and accuracies of two records of the same cell.

    Accuracies (SA, every RA, attack success, those during training where both records have them, mean forgetting) may
    differ by ``tolerance``, a loss by ``LOSS`` times that of itself (at least of 1); on how many samples what was
    evaluated must be the same. A divergence agrees with a divergence whatever its round if the rounds that both curves
    have agree; a refusal with a refusal. A number that one record lacks is a difference. Raises ``UsageError`` for a
    tolerance outside [0, 1].
    """
    if not 0 <= tolerance <= 1:
        raise UsageError(f"tolerance={tolerance:g} must be in [0, 1], a difference of accuracies")
    if first.status != second.status:
        return Agreement("differs", (("status", first.status, second.status),))
    found = list(_apart(first, second))
    if not found:
        return Agreement("identical")
    largest = max(apart for *_, apart in found)
    # accuracies are multiples of 1 / samples; a hair above the tolerance is the tolerance
    verdict = "within" if largest <= tolerance + 1e-9 else "differs"
    if verdict == "differs":
        found.sort(key=lambda one: -one[3])
    return Agreement(verdict, tuple((name, a, b) for name, a, b, _ in found))


def _apart(first: CellResult, second: CellResult) -> Iterator[tuple[str, Any, Any, float]]:
    """The numbers that differ, each with by how much in points of accuracy: infinitely where one record lacks it."""
    mine, yours = accuracies(first), accuracies(second)
    if first.curve and second.curve and first.status in ("done", "diverged"):
        common = None if first.status == "done" else _rounds(first) & _rounds(second)
        mine, yours = mine | _curve(first, common), yours | _curve(second, common)
    for name in {**mine, **yours}:
        a, b = mine.get(name), yours.get(name)
        if a != b:
            yield name, a, b, _finite(abs(a - b)) if a is not None and b is not None else math.inf
    if first.metrics is None or second.metrics is None:
        return
    for name in ("samples", "evaluation"):
        a, b = getattr(first.metrics, name), getattr(second.metrics, name)
        if a != b:
            yield name, a, b, math.inf
    theirs = {point.round: point.loss for point in second.curve}
    losses = [(f"round {p.round} loss", p.loss, theirs[p.round]) for p in first.curve if p.round in theirs]
    for name, a, b in [("loss", first.metrics.loss, second.metrics.loss), *losses]:
        if not _same(a, b):
            yield name, a, b, _finite(abs(a - b) / (LOSS * max(1.0, abs(a), abs(b))))


def _finite(apart: float) -> float:
    return apart if math.isfinite(apart) else math.inf


def accuracies(record: CellResult) -> dict[str, float | None]:
    """Everything a published board shows of a finished cell."""
    if record.metrics is None:
        return {}
    m = record.metrics
    found: dict[str, float | None] = {"sa": m.sa}
    found |= {f"ra {name}": value for name, value in m.ra.items()}
    found |= {} if m.ra_worst is None else {"ra_worst": m.ra_worst}
    found |= {} if m.asr is None else {"asr": m.asr}
    means = forgotten(record.certificates.get("forgetting"))
    found |= {f"forgetting {round}".strip(): mean for round, mean in means.items() if isinstance(mean, (int, float))}
    groups = {g: values for g, values in m.groups.items() if g != "best"}  # of older records: nothing measures it now
    return found | {f"{g} {name}": value for g, values in groups.items() for name, value in values.items()}


def _rounds(record: CellResult) -> set[int]:
    return {point.round for point in record.curve}


def _curve(record: CellResult, rounds: set[int] | None) -> dict[str, float | None]:
    """The accuracies during training, in all rounds or in these."""
    found: dict[str, float | None] = {}
    for point in record.curve:
        if rounds is None or point.round in rounds:
            found |= {f"round {point.round} sa": point.sa}
            found |= {} if point.ra is None else {f"round {point.round} ra": point.ra}
    return found


def details_apart(first: CellResult, second: CellResult, *, draws_only: bool = False) -> list[tuple[str, Any, Any]]:
    """Differences in what both records say beyond the accuracies of a board; times and the environment do not count.

    ``draws_only`` compares what follows from the seed alone, on any machine: each client's labels, the Byzantine ids.
    """
    mine, yours = (dict(leaves(_details(record, draws_only=draws_only))) for record in (first, second))
    return [(path, a, yours[path]) for path, a in mine.items() if path in yours and not _same(a, yours[path])]


def _details(record: CellResult, *, draws_only: bool) -> dict[str, Any]:
    facts = {name: value for name, value in record.certificates.items() if name not in SURROUNDINGS}
    found: dict[str, Any] = {"label_counts": record.label_counts, "certificates": facts}
    if draws_only:
        found["certificates"] = {"byzantine": facts["byzantine"]} if "byzantine" in facts else {}
    else:
        lists = {name: getattr(record.metrics, name) for name in LEFT_IN_THE_STORE} if record.metrics else {}
        found |= {"metrics": lists, "round": record.round}
    return found


def settings_apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Where two resolved cells (or any two records' data) differ: path, first value, second value.

    >>> settings_apart({"f": 1, "norm": {"version": 1}}, {"f": 1, "norm": {"version": 2}, "g": 0})
    [('g', None, 0), ('norm.version', 1, 2)]
    """
    mine, yours = dict(leaves(first)), dict(leaves(second))
    paths = sorted({**mine, **yours})
    return [(p, mine.get(p), yours.get(p)) for p in paths if not _same(mine.get(p), yours.get(p))]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested data with its path; a list of plain values is one leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(v, (Mapping, list)) for v in value):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{i}]")
    else:
        yield path, value


def versions_apart(published: Mapping[str, Any], installed: Mapping[str, Any]) -> list[str]:
    """Methods of two resolved cells whose version or origin differs, in words.

    >>> versions_apart({"norm": {"name": "fbn", "version": 1}}, {"norm": {"name": "fbn", "version": 2}})
    ['norm fbn: version 1 published, 2 installed']
    """
    mine, yours = dict(_methods(published)), dict(_methods(installed))
    words = []
    for place, method in mine.items():
        other = yours.get(place, {})
        for what in ("version", "origin"):
            a, b = method.get(what), other.get(what)
            if a != b:
                words.append(f"{place.split('[')[0]} {method.get('name')}: {what} {a} published, {b} installed")
    return list(dict.fromkeys(words))


def _methods(methods: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for axis, found in methods.items():
        for i, method in enumerate(found if isinstance(found, list) else [found]):
            place = f"{axis}[{i}]"
            while isinstance(method, Mapping):
                yield place, method
                place, method = f"{place}.inner", method.get("inner")


def _same(a: Any, b: Any) -> bool:
    return (type(a) is type(b) and a == b) or (
        isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    )


def _short(value: Any) -> str:
    text = "none" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
