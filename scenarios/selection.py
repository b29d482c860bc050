"""The round chosen on validation data: its model is kept while training goes on, and tested at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from robustfl.federation import Experiment, Personal, State, lent

_HANDED_ON = ("propagation", "propagated")


class Selection:
    """The best of the states it was shown, by their validation value; of equal values the earliest.

    What tells models apart is kept: θ, the statistics, and the clients' private entries (in a file beyond ``limit``
    bytes); and what attackers remember of statistics that users hand on, which they do before every test.
    """

    def __init__(self, experiment: Experiment, limit: int) -> None:
        self._e, self._limit = experiment, limit
        self._kept: dict[str, Tensor] = {}
        self._attack: dict[str, Mapping[str, Tensor]] = {}
        self._files: list[Any] = []
        self.round = 0
        self.values: list[list[float]] = []

    @property
    def value(self) -> float:
        """The validation value of the chosen round."""
        return next(value for round, value in self.values if round == self.round)

    def see(self, state: State, value: float) -> None:
        """Note the validation value of a state, and keep the state if no earlier one has such a high value."""
        better = not self.round or value > self.value
        self.values.append([state.round, value])
        if better:
            self.round = state.round
            self._keep(_telling(state))
            self._attack = {name: dict(state.attack[name]) for name in _HANDED_ON if name in state.attack}

    def progress(self) -> dict[str, Any]:
        """The part of it that a checkpoint holds."""
        return {"kept": self._kept, "attack": self._attack, "values": self.values}

    def resume(self, progress: Mapping[str, Any], like: State) -> None:
        """Go on from a checkpoint. Raises ``ValueError`` if what was kept is no such state."""
        kept, values = progress["kept"], progress["values"]
        if not values:  # it was written before the first evaluation
            return
        shapes = {name: tensor.shape for name, tensor in _telling(like).items()}
        if {name: tensor.shape for name, tensor in kept.items()} != shapes:
            raise ValueError("its selected model does not fit this cell")
        self.values = values
        self.round = int(max(values, key=lambda seen: seen[1])[0])  # of equal values the first
        self._keep(kept)
        self._attack = dict(progress.get("attack", {}))

    @contextmanager
    def lent(self, now: State) -> Iterator[State]:
        """The chosen state in the memory of the model, which holds ``now`` before and after."""
        personal = None
        if now.personal is not None:
            personal = Personal(self._kept["parameters"], self._kept["own statistics"])
        with lent(now.theta, self._kept["theta"]):
            statistics = self._kept["statistics"]
            yield replace(now, round=self.round, statistics=statistics, personal=personal, attack=self._attack)

    def _keep(self, tensors: Mapping[str, Tensor]) -> None:
        if not self._kept:
            self._kept = {name: tensors[name].clone() for name in ("theta", "statistics")}
            if "parameters" in tensors:
                e, theta = self._e, self._kept["theta"]
                own, self._files = Personal.initial(e.privacy, e.layout, theta, e.settings.clients, self._limit)
                self._kept |= {"parameters": own.parameters, "own statistics": own.statistics}
        for name, tensor in tensors.items():
            self._kept[name].copy_(tensor)


def _telling(state: State) -> dict[str, Tensor]:
    """The tensors in which the models of two rounds differ."""
    found = {"theta": state.theta, "statistics": state.statistics}
    if state.personal is not None:
        found |= {"parameters": state.personal.parameters, "own statistics": state.personal.statistics}
    return found
