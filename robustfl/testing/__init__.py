"""The public contract suite: what robustfl expects of every method, also of one it has never seen.

``check_attack``, ``check_evasion``, ``check_defense``, ``check_norm``, ``check_algorithm``, ``check_objective``,
``check_partition``, ``check_dataset`` and ``check_model`` take a spec, a class or an instance, and return one ``Check``
per law; ``check`` takes a method of any kind; ``laws`` names what is checked.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from robustfl import contracts
from robustfl.contracts import Method
from robustfl.data import data_root
from robustfl.errors import UsageError
from robustfl.registry import create
from robustfl.testing import attacks, data, defenses, networks, training
from robustfl.testing.common import TEXTS, held
from robustfl.testing.suite import LIMIT, Check, Law, Suite, Trial, run

__all__ = [
    "Check", "Law", "check", "check_algorithm", "check_attack", "check_dataset", "check_defense", "check_evasion",
    "check_model", "check_norm", "check_objective", "check_partition", "laws",
]  # fmt: skip

_SUITES: dict[type[Method], Suite] = {
    contracts.Attack: attacks.ATTACK,
    contracts.Evasion: attacks.EVASION,
    contracts.Aggregator: defenses.AGGREGATOR,
    contracts.Step: defenses.STEP,
    contracts.Propagation: defenses.PROPAGATION,
    contracts.Norm: networks.NORM,
    contracts.Algorithm: training.ALGORITHM,
    contracts.Objective: training.OBJECTIVE,
    contracts.Partition: data.PARTITION,
    contracts.Dataset: data.DATASET,
    contracts.Model: networks.MODEL,
}


def laws(cls: type[Method]) -> tuple[Law, ...]:
    """The laws that the suite checks of such a method, in order."""
    return _suite(cls).laws


def _suite(cls: type[Method]) -> Suite:
    return next(suite for kind, suite in _SUITES.items() if issubclass(cls, kind))


def check(method: Method | type[Method], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a method of any kind, law by law.

    >>> all(check.passed for check in check_attack("foe", eta=2) + check_defense("median"))
    True
    """
    return _check(method.kind, method, limit=limit, **params)


def _check(
    kind: str,
    method: str | Method | type[Method],
    *,
    limit: float = LIMIT,
    root: str | Path | None = None,
    **params: Any,
) -> list[Check]:
    """Check a method of a kind, given as a spec, a class or an instance, with these parameters, law by law.

    Of a data set whose files are not below ``root`` only what its class says is looked at. Raises ``UsageError`` for
    another kind of method, and for a parameter that names a file that is not there.
    """
    found: Any = create(kind, method, **params) if isinstance(method, str) else method
    if isinstance(method, type):
        found = method(**params)
    elif isinstance(method, Method) and params:
        found = dataclasses.replace(method, **params)  # type: ignore[type-var]
    if getattr(found, "kind", None) != kind:
        raise UsageError(f"{type(found).__name__} is no {kind}")
    suite, place = _suite(type(found)), data_root(root) if kind == "dataset" else None
    absent = data.absent(found, place) if place else ""
    left = [Check(law.name, True, absent, "its files") for law in suite.laws if absent and law not in TEXTS]
    return run(TEXTS if absent else suite.laws, Trial(found, suite, held(found), place), limit=limit) + left


check_attack = partial(_check, "attack")
check_evasion = partial(_check, "evasion")
check_defense = partial(_check, "defense")
check_norm = partial(_check, "norm")
check_algorithm = partial(_check, "algorithm")
check_objective = partial(_check, "objective")
check_partition = partial(_check, "partition")
check_dataset = partial(_check, "dataset")
check_model = partial(_check, "model")
