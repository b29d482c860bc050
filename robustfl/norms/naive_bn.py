"""Batch normalization as federated averaging treats it: local statistics, averaged like weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.norms.merging import AveragedNorm
from robustfl.parameters import param
from robustfl.registry import register


@register("naive-bn", version=1)
@dataclass(frozen=True)
class NaiveBN(AveragedNorm):
    """Clients normalise with their own batch; the server averages their running statistics.

    Train: ``y = γ(u − ū_i)/√(σ_i² + ε) + ζ``; server: ``m⁺ = F(m_i)``, ``v⁺ = F(v_i)``. On heterogeneous data it
    breaks: ``v⁺`` misses the variance between the clients' means, so that evaluation differs from training.

    ``momentum`` in (0, 1] moves running values (torch's convention and default); ``eps`` > 0 stabilises the root.

    >>> import torch
    >>> layer = NaiveBN().layer(2)
    >>> x = torch.tensor([[1.0, 4.0], [3.0, 8.0]])
    >>> layer(x).detach().sign(), layer.report()[0]
    (tensor([[-1., -1.],
            [ 1.,  1.]]), tensor([[0.2000, 0.6000]]))

    Notes: with a pipeline such as ``nnm+median`` one mixing, fixed on a layer's means and variances together, serves
    both, so that schemes differ in their formulas alone.
    """

    paper: ClassVar[str] = "@ioffe2015batch; as averaged by @mcmahan2017communication"
    cost: ClassVar[str] = "2C numbers per layer and round each way"

    momentum: float = param(0.1, gt=0, le=1, doc="step of the running statistics")
    eps: float = param(1e-5, gt=0, doc="added to variances")
