"""Model replacement by scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import own_rows
from .wrapping import Wrapper


@register("model-replacement", version=1)
@dataclass(frozen=True)
class ModelReplacement(Wrapper):
    """The attackers train on poisoned data and scale what they get, so that it survives the average.

    ``x_i ← γ x_i``, ``γ = n/f``: the ``f`` rows then weigh as much in the plain mean as if everybody had sent them.
    With a norm bound ``S`` no row is longer than ``S``, ``x_i ← x_i min(1, S/‖x_i‖)``, against servers that filter
    norms. With ``α < 1`` local steps also stay near the received model, ``g ← α g + (1-α)(θ - θ_t)``, against servers
    that look for far models (constrain-and-scale). Robust rules see an outlier unless ``S`` or ``α`` is small;
    statistics are sent as they are.

    Args:
        attack: the data poisoning: ``badnets`` (default), ``dba``, ``label-flip(source=1, target=7)``, …
        scale: factor γ ≥ 0, or None (default) for ``n/f``.
        bound: largest norm ``S > 0`` of a row, or None (default).
        alpha: weight α in (0, 1] of the task beside the anomaly term ``½‖θ - θ_t‖²``; 1 (default) leaves it out. With
            one gradient per round ``θ = θ_t``, and α only scales.

    Reference: Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020, arXiv:1807.00459 (model
    replacement, train-and-scale; for one attacker and a server that averages it is ``γ = n``). Deviations: attackers
    share the factor; the anomaly term is the squared distance, one of those the paper names (others use cosines).

    >>> from robustfl.contracts import View
    >>> view = View(n=4, f=1, own=torch.tensor([[3.0, 4.0]]))
    >>> [ModelReplacement(bound=s).forge(view, generator=torch.Generator()).tolist() for s in (None, 10)]
    [[[12.0, 16.0]], [[6.0, 8.0]]]
    """

    paper: ClassVar[str] = "@bagdasaryan2020backdoor"
    cost: ClassVar[str] = "fd besides the data poisoning"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    poisons_data: ClassVar[bool] = True
    leaves_statistics: ClassVar[bool] = True
    strength: ClassVar[str] = "scale"

    attack: str = param("badnets", doc="the data poisoning whose result is scaled")
    scale: float | None = param(None, ge=0.0, lt=math.inf, doc="factor of the own message; None for n/f")
    bound: float | None = param(None, gt=0.0, lt=math.inf, doc="largest norm of a row; None for no bound")
    alpha: float = param(1.0, gt=0.0, le=1.0, doc="weight of the task beside the distance from the received model")

    def __post_init__(self) -> None:
        parameters.check(self)
        self._adopt_poison()

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        own = own_rows(view, self.name)
        if view.channel == "statistics" or not self.on(view.round):
            return own.clone()
        rows = own * (view.n / view.f if self.scale is None else self.scale)
        if self.bound is not None:
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            rows *= (self.bound / norms.clamp(min=torch.finfo(rows.dtype).tiny)).clamp(max=1.0)
        return rows

    def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
        idle = self.alpha == 1.0 or not self.on(round)
        return gradient if idle else self.alpha * gradient + (1.0 - self.alpha) * moved
