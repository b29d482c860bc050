"""Records of a grid: one JSON file per cell. No torch here; reports read nothing else.

A record is pure data. Everything that may differ between two runs of the same cell is under ``timing``; all other
fields of a finished cell are identical, bit for bit, for the same key, software and thread count.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from robustfl.file_io import LONGEST_REASON, cut, shown

SCHEMA = 1
KEY_VERSION = 2
"""The form of what keys are digests of."""
Status = Literal["done", "refused", "diverged", "failed"]
STATUSES: tuple[Status, ...] = ("done", "refused", "diverged", "failed")
LATER: dict[str, Any] = {"tests": "common", "imbalance": 1.0}
"""Settings that were added since key version 2, with their defaults: a cell that has the default keeps its key."""


WORST_CLIENT = "sa_worst_client"
"""The column with the lowest standard accuracy of an honest client, where each has test images of its own."""


class Record(BaseModel):
    """Base of the frozen records; an unknown field, or a value of another type, is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Real = Annotated[float, BeforeValidator(lambda v: float(v) if v in ("nan", "inf", "-inf") else v)]
"""A number, in files also the words that ``plain`` writes for those that JSON lacks."""


class CurvePoint(Record):
    """One evaluation during training; accuracies in [0, 1]."""

    round: int
    sa: Real
    loss: Real
    ra: Real | None = None


def measured_in(round: int, rounds: int, every: int, tail: int) -> bool:
    """True for rounds after which a run of ``rounds`` is evaluated: all ``every``, or ten of them for 0, and the tail.

    >>> [r for r in range(1, 26) if measured_in(r, 25, every=10, tail=2)]
    [10, 20, 24, 25]
    """
    return round % (every or max(1, math.ceil(rounds / 10))) == 0 or round > rounds - tail


def last_round(settings: Mapping[str, Any]) -> int | None:
    """The round in which a training with these settings ends: ``stop``, else ``rounds``; ``None`` without either.

    >>> last_round({"rounds": 80}), last_round({"rounds": 80, "stop": 20})
    (80, 20)
    """
    found = [settings.get(name) for name in ("stop", "rounds")]
    return next((value for value in found if type(value) is int), None)


class Metrics(Record):
    """Final accuracies in [0, 1]. ``ra`` maps each evasion attack to its robust accuracy.

    ``ra_worst`` is the accuracy on inputs that resist every evasion attack of the cell. ``per_class`` maps ``"sa"``
    and each evasion to a list over classes; ``per_client`` maps ``"sa"`` to a list over clients, accuracy on each
    client's own validation split (empty without one). ``per_user`` maps ``"sa"`` and each evasion to a list over
    clients where every user is tested by itself (None for Byzantine ones); ``sa`` and ``ra`` are then unweighted means
    over the honest users. ``groups`` holds means per domain, role and branch and the spread over users, under ``worst
    client`` with ``tests = "own"`` the lowest values of a user, under ``tail`` the means of the last evaluations, and
    under ``selected`` (and ``selected, <group>``) what the model of the round chosen on validation data has on the test
    data; ``evaluation`` says which model was tested on what; ``asr`` is the success rate of a backdoor. ``loss`` is the
    mean cross-entropy over all test images where users share one model, and over users, whatever their numbers of
    images, where each has its own.
    """

    sa: Real
    loss: Real
    ra: dict[str, Real] = Field(default_factory=dict)
    ra_worst: Real | None = None
    per_class: dict[str, list[Real | None]] = Field(default_factory=dict)
    per_client: dict[str, list[Real | None]] = Field(default_factory=dict)
    per_user: dict[str, list[Real | None]] = Field(default_factory=dict)
    groups: dict[str, dict[str, Real]] = Field(default_factory=dict)
    evaluation: str = ""
    asr: Real | None = None
    samples: int = 0


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A measured time."""
Commit = Annotated[str, Field(pattern=r"^([0-9a-f]{40,64}(-modified)?|unknown)$")]
"""The commit of robustfl's own code (``robustfl.provenance.commit``)."""


class Timing(Record):
    """The measurements that may differ between two runs of one cell; of one that was resumed, all runs together.

    ``notes`` say where it was resumed, and why a checkpoint could not be used or written. ``device`` is the name of the
    processor or GPU; ``commits`` are those of robustfl's own code that computed it, several where it was resumed.
    """

    seconds: Seconds = 0.0
    seconds_training: Seconds = 0.0
    seconds_per_round: Seconds | None = None
    peak_memory_bytes: int = Field(default=0, ge=0)
    started: str = ""
    host: str = ""
    device: str = ""
    commits: list[Commit] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @field_validator("notes")
    @classmethod
    def _shown(cls, notes: list[str]) -> list[str]:
        return [cut(shown(note), LONGEST_REASON) for note in notes]


class CellResult(Record):
    """The record of one cell.

    ``cell`` is the resolved cell (every parameter and version); ``labels`` the short names tables print
    (``dataset partition model norm algorithm attack defense`` and ``seed f f_declared clients``). ``key`` is the
    digest of ``cell``.
    ``certificates`` are facts about the run: deviation of the aggregate from the honest mean, smallest variance
    served, versions, threads. ``reason`` says why a cell was refused, diverged or failed.
    """

    schema_version: int = SCHEMA
    key: str
    scenario: str
    status: Status
    reason: str | None = None
    round: int | None = None
    cell: dict[str, Any]
    labels: dict[str, Any]
    metrics: Metrics | None = None
    curve: list[CurvePoint] = Field(default_factory=list)
    label_counts: list[list[int]] = Field(default_factory=list)
    certificates: dict[str, Any] = Field(default_factory=dict)
    timing: Timing = Field(default_factory=Timing)

    def _repr_html_(self) -> str:
        from html import escape

        rows = [
            ("status", self.status if self.reason is None else f"{self.status}: {self.reason.partition(chr(10))[0]}")
        ]
        if self.metrics is not None:
            ra = {"RA " + spec: value for spec, value in self.metrics.ra.items()}
            worst = {} if self.metrics.ra_worst is None else {"RA worst": self.metrics.ra_worst}
            rows += [(name, f"{value:.1%}") for name, value in ({"SA": self.metrics.sa} | ra | worst).items()]
        rows += [(name, str(value)) for name, value in self.labels.items()]
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
        return f"<table>{cells}</table>"

    @field_validator("reason")
    @classmethod
    def _shown(cls, reason: str | None) -> str | None:
        """Make the words of a failed method safe to show, and cut them: they may hold anything."""
        return None if reason is None else cut(shown(reason), LONGEST_REASON)


def plain(value: Any) -> Any:
    """``value`` as JSON data: tuples become lists; non-finite numbers become the strings ``nan inf -inf``."""
    if isinstance(value, dict):
        return {str(k): v if type(v) in _PLAIN else plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [v if type(v) in _PLAIN else plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


_PLAIN = {str, int, bool, type(None)}


def canonical(value: Any) -> str:
    """The one JSON text of ``value``: sorted keys, no spaces, shortest round-trip floats."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """A 16-byte hexadecimal digest of ``canonical(value)``."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def text_without(labels: Mapping[str, Any], *names: str) -> str:
    """The canonical text of labels but for some: cells that differ in these alone share it."""
    return canonical({name: value for name, value in labels.items() if name not in names})


def labels_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Labels of a cell's settings for tables (``record.cell["cell"]``): every one of them, methods as specs."""
    flat = dict(settings)
    schedule = flat.get("schedule")
    if isinstance(schedule, Mapping):
        rate, factor = (_short(schedule.get(name)) for name in ("lr", "factor"))
        values, milestones = (_listed(schedule.get(name)) for name in ("values", "milestones"))
        flat["schedule"] = {
            "constant": f"constant(lr={rate})",
            "step": f"step(values={values}, milestones={milestones})",
            "cosine": f"cosine(lr={rate})",
            "geometric": f"geometric(lr={rate}, factor={factor})",
        }.get(str(schedule.get("kind")), "")
    for name in ("evasions", "domains", "domain_users", "forgetting"):
        if isinstance(flat.get(name), (list, tuple)):
            flat[name] = " ".join(map(str, flat[name]))
    return flat


def completed(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The settings with those of ``names`` that came later and are left out, at their values from before."""
    return {**{name: value for name, value in LATER.items() if name in names}, **settings}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def misnamed(record: CellResult) -> str | None:
    """In what the key or the labels of a record are not those of its settings, or ``None``."""
    key = digest(record.cell)
    if key != record.key:
        return f"its settings have the key {key}"
    settings = record.cell.get("cell")
    if not isinstance(settings, Mapping):
        return None
    right = labels_of(completed(settings, record.labels))
    if repr(right) == repr(record.labels) or canonical(right) == canonical(record.labels):
        return None  # nearly always by the first, which is faster
    for name in sorted({*right, *record.labels}):
        if name not in right:
            return f"its label {name}={record.labels[name]!r} is no setting"
        if name not in record.labels:
            return f"its label {name} is missing; its setting is {right[name]!r}"
        if canonical(right[name]) != canonical(record.labels[name]):
            return f"its label {name}={record.labels[name]!r} is not its setting {right[name]!r}"
    return None
