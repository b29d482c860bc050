"""Settings that are a word or a rule with parameters, such as ``user_sizes = "dirichlet(alpha=1)"``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from robustfl.data import DirichletSizes
from robustfl.errors import UsageError, closest
from robustfl.federation import FineTuning
from robustfl.models import Weights
from robustfl.parameters import check, param, reject_unknown
from robustfl.registry import parse


@dataclass(frozen=True)
class StUsers:
    """Fine-tuning by ST users: AT users train first, among themselves; the last rounds belong to the others.

    For ``rounds`` rounds only ST users take part, with the model that AT users have made in all rounds before, and
    leave its first ``frozen`` layers as they are: convolutions and linear layers in the network's order, each with
    the scales and shifts after it. Running statistics move in all layers, as they do in the released code of FedRBN,
    whose ``AT_iters`` and ``freeze_n_layer`` this follows; the paper's text on it was not at hand.
    """

    name: ClassVar[str] = "st"

    rounds: int = param(ge=1, doc="rounds of ST users alone, the last ones")
    frozen: int = param(0, ge=0, doc="layers, from the input, that keep their weights")

    def __post_init__(self) -> None:
        check(self)

    def of(self, rounds: int, clients: int, at: frozenset[int]) -> FineTuning:
        """The fine-tuning in a training of ``rounds`` rounds with the AT users ``at``."""
        return FineTuning(rounds - self.rounds, frozenset(range(clients)) - at, self.frozen)


Rule = type[StUsers] | type[Weights] | type[DirichletSizes]
RULES: Mapping[str, tuple[str, Rule]] = {
    "finetune": ("none", StUsers), "init": ("random", Weights), "user_sizes": ("equal", DirichletSizes),
}  # fmt: skip
"""Per setting the word for doing nothing of the kind, and the rule there is beside it."""


def rule_of(setting: str, spec: str) -> StUsers | Weights | DirichletSizes:
    """The rule that a setting names. Raises ``UsageError``."""
    plain, kind = RULES[setting]
    found, params = parse(spec)
    if found != kind.name:
        raise UsageError(f"{setting}={spec!r}: no such rule; {closest(found, (plain, kind.name))}")
    fields = dataclasses.fields(kind)
    reject_unknown(f"{setting}={spec!r}", params, [f.name for f in fields])
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in params:
            raise UsageError(f"{setting}={spec!r}: parameter {field.name!r} is required")
    return kind(**params)
