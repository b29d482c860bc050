"""The public contract suite: what robustfl expects of every method, also of one it has never seen.

``check_attack``, ``check_evasion``, ``check_defense``, ``check_norm``, ``check_algorithm``, ``check_objective``,
``check_partition``, ``check_dataset`` and ``check_model`` return one ``Check`` per law; ``check`` takes a method of any
kind; ``laws`` names what is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robustfl.contracts import Method, Propagation, Step
from robustfl.testing import attacks, data, defenses, evasions, norms, training
from robustfl.testing.attacks import check_attack
from robustfl.testing.data import check_dataset, check_model, check_partition
from robustfl.testing.defenses import check_defense
from robustfl.testing.evasions import check_evasion
from robustfl.testing.norms import check_norm
from robustfl.testing.suite import LIMIT, Check, Law
from robustfl.testing.training import check_algorithm, check_objective

__all__ = [
    "Check", "Law", "check", "check_algorithm", "check_attack", "check_dataset", "check_defense", "check_evasion",
    "check_model", "check_norm", "check_objective", "check_partition", "laws",
]  # fmt: skip

_CHECKS: dict[str, Callable[..., list[Check]]] = {
    "attack": check_attack,
    "evasion": check_evasion,
    "defense": check_defense,
    "norm": check_norm,
    "algorithm": check_algorithm,
    "objective": check_objective,
    "partition": check_partition,
    "dataset": check_dataset,
    "model": check_model,
}


def check(method: Method | type[Method], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a method of any kind, law by law."""
    return _CHECKS[method.kind](method, limit=limit, **params)


def laws(cls: type[Method]) -> tuple[Law, ...]:
    """The laws that the suite checks of such a method, in order."""
    if cls.kind == "defense":
        if issubclass(cls, Step):
            return defenses.STEP_LAWS
        return defenses.PROPAGATION_LAWS if issubclass(cls, Propagation) else defenses.AGGREGATOR_LAWS
    known = {
        "attack": attacks.LAWS, "evasion": evasions.LAWS, "norm": norms.LAWS, "partition": data.PARTITION_LAWS,
        "dataset": data.DATASET_LAWS, "model": data.MODEL_LAWS, "algorithm": training.ALGORITHM_LAWS,
        "objective": training.OBJECTIVE_LAWS,
    }  # fmt: skip
    return known[cls.kind]
