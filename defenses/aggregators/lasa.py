"""LASA: layer-adaptive sparsified aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import register

from ..rows import MajorityRule, Mixed
from ..ties import usual


@register("lasa", version=1)
@dataclass(frozen=True)
class LayerAdaptiveSparsified(MajorityRule):
    """Clipped rows lose their small entries; layer by layer, those of usual length and usual signs are averaged.

        F(X)^l = mean of y_i^l over i with |z(‖y_i^l‖)| ≤ λ_n and |z(ρ_i^l)| ≤ λ_s,   z(u)_i = (u_i - median u) / std u

    ``y_i``: row ``i`` clipped to the median length, with zeros for the share ``sparsity`` of its smallest weights;
    ``ρ_i^l = Σ sign(y_i^l) / Σ |sign(y_i^l)|``, by which signs a layer goes. It needs to know the layers: in training
    it does, of a plain row it takes the whole for one. Attackers that match lengths and shares of signs pass.

    Args: ``sparsity`` in [0, 1) (0.3); ``norm_bound`` λ_n > 0 (2) and ``sign_bound`` λ_s > 0 (1), in deviations.

    >>> import robustfl
    >>> rows = [[torch.tensor([v]), torch.tensor([w])] for v, w in [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, -1.0)]]
    >>> robustfl.defense("lasa(sparsity=0)")(rows, f=1)
    [tensor([1.]), tensor([1.])]

    Reference: the algorithm of the paper below. Notes: where nobody is usual in a layer, everybody is averaged, as in
    the authors' code. As there, tensors are the layers, only those of two or more axes (of a plain row: the whole) are
    made sparse, by one threshold for the whole row, and what is averaged is sparse. Medians are means of the middle
    two; entries at the threshold are kept, where the code drops them. Of ``k`` weights ``⌊(1 - sparsity) k⌋`` are kept.
    Standard deviations divide by ``n``. Equal scores are usual, whatever their deviation, and so is one on the bound,
    which the code leaves out; its λ_n is 1 for CIFAR and 2 for other data.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@xu2025achieving"
    cost: ClassVar[str] = "a selection of the largest of d entries a row, 4nd"
    on_host: ClassVar[str] = "leaves out rows layer by layer"
    unfit_for_statistics: ClassVar[str] = "rows are shortened and made sparse, so variances would become zero"
    exempt: ClassVar[Mapping[str, str]] = {"no harm": "small entries become zero"}

    sparsity: float = param(0.3, ge=0, lt=1, doc="share of the weights that become zero")
    norm_bound: float = param(2.0, gt=0, doc="farthest length from the median, in deviations")
    sign_bound: float = param(1.0, gt=0, doc="farthest balance of signs from the median, in deviations")

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        del f
        X, length = rows.materialise(), rows.norms()
        shapes = context.shapes or ((1, X.shape[1]),)
        if sum(map(prod, shapes)) != X.shape[1]:
            raise UsageError(f"lasa: layers {list(shapes)} have {sum(map(prod, shapes))} entries, rows {X.shape[1]}")
        share = (length.quantile(0.5) / length.clamp(min=1e-300)).clamp(max=1)
        Y = self._sparse(X * share.to(X)[:, None], shapes)
        made, kept = torch.empty_like(X[0]), []
        for layer, out in zip(_pieces(Y, shapes), _pieces(made, shapes), strict=True):
            near = self._near(layer)
            out.copy_(layer[near.to(layer.device)].mean(0))
            kept.append(int(near.sum()))
        return Aggregated(made, facts={"kept_by_layer": kept})

    def _sparse(self, Y: Tensor, shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """The rows without their smallest weights; other tensors (biases, affine parameters) as they are."""
        weights = torch.cat([torch.full((prod(shape),), len(shape) > 1) for shape in shapes]).to(Y.device)
        count = int(weights.sum())
        drop = count - int(count * (1 - self.sparsity) + 1e-9)
        if drop == 0:
            return Y
        if drop == count:
            return Y.masked_fill(weights, 0.0)
        sizes = Y.abs()
        threshold = sizes[:, weights].kthvalue(drop + 1, dim=1).values
        return Y.masked_fill(weights & (sizes < threshold[:, None]), 0.0)

    def _near(self, layer: Tensor) -> Tensor:
        """Which rows ``[n]`` of a layer ``[n k]`` have a usual length and a usual balance of signs."""
        signs = layer.sign()
        balance = signs.double().sum(1) / signs.abs().double().sum(1).clamp(min=1)
        lengths = torch.linalg.vector_norm(layer.double(), dim=1)
        near = usual(lengths, self.norm_bound) & usual(balance, self.sign_bound)
        return near if bool(near.any()) else torch.ones_like(near)


def _pieces(rows: Tensor, shapes: Sequence[tuple[int, ...]]) -> Sequence[Tensor]:
    return torch.split(rows, [prod(shape) for shape in shapes], dim=-1)
