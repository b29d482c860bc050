"""Faults of a board that show without running a cell: fields that say what no run leaves, or contradict others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from robustfl.outside import METHOD_NAME, shown
from robustfl.records import CellResult, Metrics, last_round, measured_in

PROTOCOL = {
    "autobyz": ("version", "scope"),
    "benchmark": ("tier", "title", "version", "changed", "autobyz", "budget", "tuning", "contestants"),
}
"""The parts of a store's description that its boards carry: how to count attacks, the benchmark it follows."""
_EARLIER = {"autobyz": ("cheap", "dropped", "seed")}
"""Facts that earlier boards carry, and that nothing reads: of members that were not run to the end."""
CONTESTANT = ("knowledge", "chosen", "search", "reason")
LEFT_IN_THE_STORE = ("per_class", "per_client", "per_user")
"""Metrics that boards do not carry."""
ONE_TEST_SET = "the global model on the test set,"
"""The beginning of what records say where accuracy is a share of one number of images."""
SURROUNDINGS = ("device", "threads", "versions", "source")
"""Certificates of where a cell ran, which it has however it ended."""
_SOFTWARE = ("robustfl", "torch", "numpy", "python")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")
_TRAFFIC = ("numbers_each_way", "exchanges", "mebibytes")


def is_count(value: Any) -> TypeGuard[int]:
    """True if a certificate is a number of threads that a machine may have."""
    return type(value) is int and 1 <= value <= 2**16


def _is_number(value: Any) -> bool:
    """True for a finite number of at least 0."""
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_distance(value: Any) -> bool:
    """True for a number of at least 0; one beyond all bounds is written as a text."""
    return value in ("inf", "nan") or _is_number(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_version(value: Any) -> bool:
    """True for what a requirement may name as a version."""
    return isinstance(value, str) and _VERSION.fullmatch(value) is not None


def forgotten(certificate: Any) -> dict[str, Any]:
    """The mean of what was forgotten by round, or under ``""`` where only the last round was looked at."""
    if not isinstance(certificate, Mapping):
        return {}
    rounds = {"": certificate} if "mean" in certificate else certificate
    return {round: found["mean"] for round, found in rounds.items() if isinstance(found, Mapping) and "mean" in found}


def _is_forgetting(value: Any) -> bool:
    """True for what was forgotten in one round, or under the number of each of several."""
    if not isinstance(value, Mapping):
        return False
    means = forgotten(value)
    known = all(mean == "nan" or (type(mean) in (int, float) and -1 <= mean <= 1) for mean in means.values())
    return known and len(means) == (1 if "mean" in value else len(value))


def _is_table(of: Callable[[Any], bool], names: Collection[str] = ()) -> Callable[[Any], bool]:
    """A test for a table of such values, under some of the ``names``, if there are any."""
    return lambda table: (
        isinstance(table, Mapping) and all(of(value) and (not names or name in names) for name, value in table.items())
    )


CERTIFICATES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "device": (_is_text, "device"),
    "threads": (is_count, "number of threads"),
    "versions": (_is_table(_is_version, _SOFTWARE), f"table of versions of {', '.join(_SOFTWARE)}"),
    "source": (_is_text, "source"),
    "unreliable": (lambda value: all(map(_is_text, value if isinstance(value, list) else [value])), "text"),
    "evaluation": (_is_text, "text"),
    "model": (lambda value: isinstance(value, Mapping), "model"),
    "traffic": (_is_table(_is_number, _TRAFFIC), f"table of {', '.join(_TRAFFIC)}"),
    "equal_samples": (_is_number, "number of images"),
    "attack_shift": (_is_distance, "distance"),
    "statistics": (_is_number, "number of entries"),
    "statistics_shift": (_is_distance, "distance"),
    "dropped": (_is_number, "number of rows"),
    "no_effect": (lambda value: value is True, "fact: it is true or absent"),
    "forgetting": (_is_forgetting, "table of rounds, or of one, with a mean in [-1, 1]"),
}
"""The certificates that boards carry: whether a value can be one, and what it is called."""


def undeclared(record: CellResult) -> str | None:
    """The fault in what the record of a published cell says beside its numbers, or ``None``."""
    return next(_undeclared(record), None)


def _undeclared(record: CellResult) -> Iterator[str]:
    for name, value in record.certificates.items():
        if name not in CERTIFICATES:
            yield f"its certificate {shown(name)!r} is none that boards carry"
        elif not CERTIFICATES[name][0](value):
            yield f"{name}={value!r} is no {CERTIFICATES[name][1]}"
    yield from _ends_apart(record)
    yield from _methods_apart(record)
    yield from _measures_apart(record)


def _ends_apart(record: CellResult) -> Iterator[str]:
    """Certificates of a cell that ended before it had any."""
    measured = sorted(record.certificates.keys() - set(SURROUNDINGS)) if record.status in ("refused", "failed") else []
    if measured:
        yield f"{record.status}, and has the certificate {shown(measured[0])!r} of a training"


def _methods_apart(record: CellResult) -> Iterator[str]:
    """Methods that its settings do not name; what a propagation merges by need not be said."""
    settings: Any = record.cell.get("cell", {})
    for axis, found in record.cell.get("methods", {}).items():
        said = settings.get(axis)
        for method in found if isinstance(found, list) else [found]:
            name: Any = method.get("name") if isinstance(method, Mapping) else method
            if not (_is_text(name) and METHOD_NAME.fullmatch(name) and (axis == "propagation" or name in str(said))):
                yield f"its {shown(axis)} is {shown(str(said))!r}, and its methods have {shown(str(name))!r} there"


def _measures_apart(record: CellResult) -> Iterator[str]:
    """Measures that its settings do not ask for, or that are none."""
    settings: Any = record.cell.get("cell", {})
    end = last_round(settings)
    places = [point.round for point in record.curve]
    if places != sorted(set(places)) or (places and not (places[0] >= 1 and places[-1] <= (end or math.inf))):
        yield "its curve does not go from round to round of its training"
    every, tail = settings.get("evaluate_every"), settings.get("tail", 1)
    if type(end) is type(every) is type(tail) is int and not all(measured_in(t, end, every, tail) for t in places):
        yield f"its curve holds rounds that nothing was measured in, with evaluate_every={every}"
    yield from _forgotten_apart(record.certificates.get("forgetting"), settings.get("forgetting", False))
    metrics = record.metrics
    if metrics is None:
        return
    told = next((name for name in LEFT_IN_THE_STORE if getattr(metrics, name)), None)
    if told is not None:
        yield f"it has {told}, which boards do not carry"
    if len(metrics.ra) == 1 and metrics.ra_worst is not None and metrics.ra_worst < min(metrics.ra.values()) - 1e-12:
        yield f"ra_worst={metrics.ra_worst!r} is below the accuracy under the only attack"
    yield from _no_shares(metrics, settings.get("ra_limit"))
    for group in metrics.groups:
        if group.split(", ")[0] == "selected" and settings.get("select") != "validation":
            yield "it has numbers of a selected round, and selects none"
        if group == "tail" and settings.get("tail", 1) == 1:
            yield "it has means over a tail of one round"


def _no_shares(metrics: Metrics, limit: Any) -> Iterator[str]:
    """Accuracies of one model on one test set that are no share of its images."""
    if metrics.samples < 1 or not metrics.evaluation.startswith(ONE_TEST_SET):
        return
    attacked = min(metrics.samples, limit) if type(limit) is int else metrics.samples
    measured = [("sa", metrics.sa, metrics.samples), *((name, value, attacked) for name, value in metrics.ra.items())]
    for name, value, images in measured:
        if math.isfinite(value) and abs(value * images - round(value * images)) > 1e-3:
            yield f"{shown(name)}={value!r} is no share of {images} images"


def _forgotten_apart(certificate: Any, asked: Any) -> Iterator[str]:
    """Rounds in which forgetting was not measured: the last has no name, listed ones have their number."""
    wanted = {str(round) for round in asked} if isinstance(asked, (list, tuple)) else {""} if asked is True else set()
    strange = sorted(forgotten(certificate).keys() - wanted)
    if strange:
        where = f"of round {shown(strange[0])}" if strange[0] else "of the last round"
        yield f"it has forgetting {where}, which forgetting={asked!r} does not measure"


def misdeclared(
    said: Mapping[str, Any], found: Mapping[str, Any], commits: Iterable[str], protocol: Mapping[str, Any]
) -> Iterator[str]:
    """The faults in what a board says of its cells together.

    ``said`` is its environment, ``found`` the one read off its cells, ``commits`` are those that cells name.
    """
    for name in ("versions", "devices", "threads"):
        if said[name] != found[name]:
            yield f"its environment says {name} {said[name]!r}, its cells {found[name]!r}"
    strange = set(commits) - set(said["commits"])
    if strange:
        yield f"cells name the commit {min(strange)}, which is not in its environment"
    yield from _strange_names(protocol)


def _strange_names(protocol: Mapping[str, Any]) -> Iterator[str]:
    """Parts of what a board says of its protocol that nobody reads."""
    yield from _beside("protocol", protocol, PROTOCOL)
    yield from misshaped(protocol)
    for name, known in PROTOCOL.items():
        yield from _beside(f"protocol.{name}", protocol.get(name), known, _EARLIER.get(name, ()))
    benchmark = protocol.get("benchmark")
    searches = benchmark.get("contestants") if isinstance(benchmark, Mapping) else None
    for who, entry in searches.items() if isinstance(searches, Mapping) else ():
        yield from _beside(f"the search of {shown(str(who))}", entry, CONTESTANT)


def misshaped(protocol: Mapping[str, Any]) -> Iterator[str]:
    """Parts of a protocol that are no tables, or no tables of tables."""
    for name in PROTOCOL:
        facts = protocol.get(name, {})
        if not isinstance(facts, Mapping):
            yield f"protocol.{name} is no table"
            continue
        entries = facts.get("contestants", {})
        if not isinstance(entries, Mapping) or not all(isinstance(entry, Mapping) for entry in entries.values()):
            yield f"protocol.{name}.contestants is no table of tables"


def _beside(where: str, table: Any, known: Iterable[str], unread: Iterable[str] = ()) -> Iterator[str]:
    strange = sorted(set(table) - {*known, *unread}) if isinstance(table, Mapping) else []
    if strange:
        yield f"{where} holds {shown(str(strange[0]))!r}, which says nothing; it may hold {', '.join(known)}"
