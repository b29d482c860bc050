"""FedTAN and its relatives: batch normalization that equals the centralised one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from robustfl.contracts import LockstepNorm
from robustfl.norms.lockstep import KINDS, UnionBatchNorm
from robustfl.norms.merging import AveragedNorm
from robustfl.parameters import param
from robustfl.registry import register


@dataclass(frozen=True)
class _Lockstep(AveragedNorm, LockstepNorm):
    lockstep_kinds: ClassVar[tuple[str, ...]] = KINDS

    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")

    def layer(self, channels: int) -> nn.Module:
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""
        return UnionBatchNorm(
            channels, momentum=self.momentum, eps=self.eps, backward_too="mean-gradient" in self.lockstep_kinds
        )


@register("fedtan", version=1)
@dataclass(frozen=True)
class FedTAN(_Lockstep):
    """The first local step is taken in lock-step: statistics and their gradients are those of the union of batches.

    Layer by layer forward ``μ = Σp_i m_i``, ``v = Σp_i mean((z_i−μ)²)``; layer by layer backward
    ``G_v = Σp_i G_{v,i}``, ``G_μ = Σp_i G_{μ,i}``, so that ``Σp_i g_i`` is the gradient of the centralised network.
    Further local steps are ordinary. It costs ``3L`` more exchanges a round, and every one of them can be attacked: the
    scenario's defense of statistics aggregates each, and attackers with the statistics in their scope forge each, as in
    a first round: they remember nothing of other exchanges.

    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> FedTAN().lockstep_kinds
    ('mean', 'variance', 'mean-gradient', 'variance-gradient')

    Notes: the Bessel factor counts values per channel (the released code counts images), scales start at one. A
    client's momentum starts at zero in every round, and the step in lock-step is its first: later steps carry that
    gradient on, as SGD on one machine would. The released code starts the momentum once more after that step. It draws
    batches with replacement: ``fedavg(replacement=true)``; the default walks through the data in a new order every
    epoch.
    """

    paper: ClassVar[str] = "@wang2025batch, Algorithms 1-3"
    cost: ClassVar[str] = "3 exchanges per layer and round, 4C numbers each way; 2C more once a round"


@register("fedtan-ii", version=1)
@dataclass(frozen=True)
class FedTANII(_Lockstep):
    """FedTAN for the first ``switch_round`` rounds; then the statistics are frozen and plain averaging goes on.

    In the second phase layers normalise with the server's running statistics, also in training, so nothing is
    exchanged layer by layer. Too early a switch freezes statistics that no longer fit.
    Momentum starts at zero in every round of both phases, so nothing of it outlives the switch.

    Args:
        switch_round: T̃ ≥ 1; 1000, 2000, 4000 of 10,000 rounds in the paper (10, 50, 100 of 500 for MNIST).
        momentum: step of the running values, in (0, 1].
        eps: added to variances, > 0.

    >>> norm = FedTANII(switch_round=10)
    >>> norm.frozen(9, 100), norm.frozen(10, 100)
    (False, True)
    """

    paper: ClassVar[str] = "@wang2025batch, Section V"
    cost: ClassVar[str] = "as fedtan up to switch_round, then as ordinary batch normalization"

    switch_round: int = param(100, ge=1, doc="rounds of FedTAN before statistics are frozen")

    def frozen(self, round: int, rounds: int) -> bool:
        del rounds
        return round >= self.switch_round


@register("fedavg-alg2", version=1)
@dataclass(frozen=True)
class FedAvgAlgorithm2(_Lockstep):
    """The forward half of FedTAN alone: statistics of the union, but each client's own gradients of them.

    ``μ`` and ``v`` as in ``fedtan``; backward takes ``G_{μ,i}, G_{v,i}`` of the client itself, so on heterogeneous data
    the averaged gradient is not that of any loss.

    ``momentum`` in (0, 1] moves running values; ``eps`` > 0.

    >>> FedAvgAlgorithm2().lockstep_kinds
    ('mean', 'variance')
    """

    paper: ClassVar[str] = "@wang2025batch, Algorithm 2"
    cost: ClassVar[str] = "2 exchanges per layer and round, 2C numbers each way; 2C more once a round"
    lockstep_kinds: ClassVar[tuple[str, ...]] = KINDS[:2]
