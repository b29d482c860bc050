"""Records with keys of version 1, which left out settings and parameters at the defaults they were added with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robustfl.records import KEY_VERSION, CellResult, digest, labels_of

_SETTINGS: dict[str, Any] = {
    "across": False, "attackers_data": "own", "domain_users": [], "finetune": "none", "init": "random",
    "precision": "full", "representations": 0, "rotate": 0.0, "select": "last", "statistics_defense": "same",
    "stop": None, "user_sizes": "equal",
}  # fmt: skip
_FEDAVG = "crfl fedacg fedadam fedavg fedavgm fedmeta fednova fedprox fedsam moon scaffold"
_PARAMETERS: dict[str, dict[str, Any]] = {
    **{name: {"replacement": False} for name in _FEDAVG.split()},
    "dirichlet": {"base": "prior"},
    "dsgd": {"replacement": False, "weight_decay": 0.0},
    "hbn": {"collection": "pass", "mixture": "learned", "standardised": False, "variances": "union"},
    "meamed": {"center": "middle"},
    "min-sum": {"bound": "max"},
}  # fmt: skip


def has_key1(record: CellResult) -> bool:
    """True for a record whose key is one of version 1, and the digest of its settings."""
    settings, methods = record.cell.get("cell"), record.cell.get("methods")
    formed = isinstance(settings, Mapping) and isinstance(methods, Mapping)
    return formed and record.cell.get("schema") == 1 and digest(record.cell) == record.key


def converted(record: CellResult) -> CellResult:
    """A record of key version 1 with its present key; any other as it is.

    ``mends``, which told of faults that were mended without a new version of a method, are dropped.
    """
    if not has_key1(record):
        return record
    kept = {name: value for name, value in record.cell.items() if name not in ("schema", "mends")}
    cell = {
        **kept, "key_version": KEY_VERSION, "engine": 1, "cell": {**_SETTINGS, **kept["cell"]},
        "methods": _completed(kept["methods"]),
    }  # fmt: skip
    labels = {**labels_of(_SETTINGS), **record.labels}
    return record.model_copy(update={"key": digest(cell), "cell": cell, "labels": labels})


def _completed(value: Any) -> Any:
    """Methods, and those that they wrap, with every parameter."""
    if isinstance(value, (list, tuple)):
        return [_completed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: inner if name == "params" else _completed(inner) for name, inner in value.items()}
    own = _PARAMETERS.get(str(found.get("name"))) if not found.get("origin") else None
    return found if own is None else {**found, "params": {**own, **found.get("params", {})}}
