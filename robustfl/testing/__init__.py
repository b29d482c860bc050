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

_KINDS: dict[str, tuple[Callable[..., list[Check]], tuple[Law, ...]]] = {
    "attack": (check_attack, attacks.LAWS),
    "evasion": (check_evasion, evasions.LAWS),
    "defense": (check_defense, defenses.AGGREGATOR_LAWS),
    "norm": (check_norm, norms.LAWS),
    "algorithm": (check_algorithm, training.ALGORITHM_LAWS),
    "objective": (check_objective, training.OBJECTIVE_LAWS),
    "partition": (check_partition, data.PARTITION_LAWS),
    "dataset": (check_dataset, data.DATASET_LAWS),
    "model": (check_model, data.MODEL_LAWS),
}


def check(method: Method | type[Method], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """Check the contract of a method of any kind, law by law."""
    return _KINDS[method.kind][0](method, limit=limit, **params)


def laws(cls: type[Method]) -> tuple[Law, ...]:
    """The laws that the suite checks of such a method, in order."""
    if issubclass(cls, Step):
        return defenses.STEP_LAWS
    return defenses.PROPAGATION_LAWS if issubclass(cls, Propagation) else _KINDS[cls.kind][1]
