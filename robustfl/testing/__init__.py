"""The public contract suite: what robustfl expects of every method, also of one it has never seen.

``check_attack``, ``check_evasion``, ``check_defense``, ``check_norm``, ``check_algorithm``, ``check_objective``,
``check_partition``, ``check_dataset`` and ``check_model`` take a spec, a class or an instance, and return one ``Check``
per law; ``check`` takes a method of any kind; ``laws`` names what is checked.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from robustfl import contracts
from robustfl.contracts import Method
from robustfl.data import data_root
from robustfl.testing import attacks, data, defenses, networks, training
from robustfl.testing.common import TEXTS, built, held
from robustfl.testing.suite import LIMIT, Check, Law, Suite, Trial, run

__all__ = [
    "Check", "Law", "check", "check_algorithm", "check_attack", "check_dataset", "check_defense", "check_evasion",
    "check_model", "check_norm", "check_objective", "check_partition", "laws",
]  # fmt: skip

_Method = str | Method | type[Method]
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
    return next(suite.laws for kind, suite in _SUITES.items() if issubclass(cls, kind))


def check(method: Method | type[Method], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a method of any kind, law by law.

    >>> all(check.passed for check in check_attack("foe", eta=2) + check_defense("median"))
    True
    """
    return (check_dataset if method.kind == "dataset" else partial(_check, method.kind))(method, limit=limit, **params)


def _check(kind: str, method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    found = built(kind, method, params)
    suite = next(suite for base, suite in _SUITES.items() if isinstance(found, base))
    return run(suite.laws, Trial(found, suite, held(found)), limit=limit)


def check_dataset(
    method: _Method, *, limit: float = LIMIT, root: str | Path | None = None, **params: Any
) -> list[Check]:
    """Check the contract of a data set, law by law; without its files here, only what its class says.

    Raises ``UsageError`` if a parameter names a file that is not there.
    """
    found, place = built("dataset", method, params), data_root(root)
    suite = Suite(data.DATASET.laws, partial(data.loading, root=place))
    absent = data.absent(found, place)
    left = [Check(law.name, True, absent, "its files") for law in suite.laws if absent and law not in TEXTS]
    return run(TEXTS if absent else suite.laws, Trial(found, suite, held(found), place), limit=limit) + left


def check_attack(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a Byzantine attack, law by law."""
    return _check("attack", method, limit=limit, **params)


def check_evasion(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of an evasion attack, law by law."""
    return _check("evasion", method, limit=limit, **params)


def check_defense(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of one part of a defense, a step, an aggregator or a propagation, law by law."""
    return _check("defense", method, limit=limit, **params)


def check_norm(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a normalization scheme, law by law."""
    return _check("norm", method, limit=limit, **params)


def check_algorithm(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of an algorithm, law by law."""
    return _check("algorithm", method, limit=limit, **params)


def check_objective(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of an objective, law by law."""
    return _check("objective", method, limit=limit, **params)


def check_partition(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a partition, law by law."""
    return _check("partition", method, limit=limit, **params)


def check_model(method: _Method, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a model, law by law, on the first usual shape of images that it does not refuse."""
    return _check("model", method, limit=limit, **params)
