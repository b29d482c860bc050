"""Rules that take rows apart: gradient splitting (GAS) and LASA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Aggregator, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import create, describe, register
from robustfl.torch_settings import float32_default

from ..draws import generator_of, permutation
from ..reference import least, lengths
from ..rows import MajorityRule, Mixed, direct_distances
from ..ties import smallest, usual
from .krum import Choosing

# Differences of so many entries take less time than a call of the rule for each piece.
_FEW = 1 << 26


@register("gas", version=1)
@dataclass(frozen=True)
class GradientSplitting(Aggregator):
    """Coordinates are divided at random into pieces that a rule aggregates; rows far from the pieces' results go.

        F(X) = 1/(n-f) Σ_{i ∈ S} x_i,   S = the n-f rows of least s_i = Σ_q ‖x_i^(q) - R(X^(q))‖,   q = 1 … p

    Rules that compare whole rows see little of an attack in high dimension; on short pieces it stands out. Attackers
    that stay within the honest spread in every piece pass, as they do with the rule itself.

    Args: ``rule``, the aggregator R of a piece, with its parameters (multi-krum); ``p`` ≥ 1 pieces, at most as many as
    coordinates (100).

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [9.0, 9.0]])
    >>> robustfl.defense("gas(rule=median, p=2)")(X, f=1, generator=stream(0, "defense"))
    tensor([0.6667, 0.6667])

    Reference: Algorithm 1 of the paper below. Notes: the paper chooses ``p`` by experiment; rules with a memory are
    refused; scores that are equal but for rounding go to the lowest index.
    """

    paper: ClassVar[str] = "@liu2023byzantine"
    cost: ClassVar[str] = "the rule on every piece (Krum's: all distances in one go), 2nd for the scores, one sum"
    on_host: ClassVar[str] = "draws which coordinates go together"

    rule: str = param("multi-krum", doc="aggregator of a piece")
    p: int = param(100, ge=1, doc="pieces of the coordinates, at most all")

    def __post_init__(self) -> None:
        super().__post_init__()
        own = type(self).__name__
        object.__setattr__(self, "rule", describe(self.inner))
        if self.inner.needs_reference:
            raise UsageError(f"{own}: rule={self.rule!r} needs the server's own update, of which pieces have none")
        if isinstance(self.inner, GradientSplitting):
            raise UsageError(f"{own}: rule=gas would split pieces again; name another aggregator")
        if _remembers(self.inner):
            raise UsageError(
                f"{own}: rule={self.rule!r} goes on from its last rounds, and pieces are drawn anew in each; name a "
                "rule without memory, such as multi-krum, median or geometric-median"
            )

    @cached_property
    def inner(self) -> Aggregator:
        own = type(self).__name__
        try:
            made = create("defense", self.rule)
        except UsageError as error:
            raise UsageError(f"{own}: rule={self.rule!r}: {error}") from error
        if not isinstance(made, Aggregator):
            raise UsageError(f"{own}: rule={self.rule!r} is not an aggregator such as median, krum or geometric-median")
        return made

    @property
    def weighs(self) -> bool:
        return self.inner.weighs

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor | None:
        order, scores = permutation(X.shape[1], generator_of(context, "gas")), torch.zeros(len(X)).to(X)
        for piece in X[:, order].tensor_split(min(self.p, X.shape[1]), dim=1):
            made = self.inner.reference(piece, f=f, context=context)
            if made is None:
                return None
            scores += lengths(piece - made)
        return X[least(scores, len(X) - f)].mean(0)

    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Aggregated:
        n, d = X.shape
        order = permutation(d, generator_of(context, "gas")).to(X.device)
        scores = torch.zeros(n, dtype=torch.float64, device=X.device)
        rest = Context(generator=context.generator, round=context.round, weights=context.weights)
        for pieces in _of_one_width(X[:, order], min(self.p, d)):
            centres = self._centres(pieces, f, rest)
            scores += torch.linalg.vector_norm(pieces - centres, dim=2, dtype=torch.float64).sum(0)
        scores = scores.cpu()
        kept = smallest(scores, n - f, 8 * torch.finfo(X.dtype).eps * scores)
        return Aggregated(X[kept.to(X.device)].mean(0), facts={"kept": kept.tolist()})

    def _centres(self, pieces: Tensor, f: int, context: Context) -> Tensor:
        """What the rule makes of each of the ``pieces [m n k]``: ``[m 1 k]``."""
        if isinstance(self.inner, Choosing) and pieces.numel() * pieces.shape[1] <= _FEW:
            chosen = self.inner.chosen(*direct_distances(pieces), f)
            weights = pieces.new_zeros(pieces.shape[:2]).scatter_(1, chosen, 1 / chosen.shape[1])
            return weights[:, None] @ pieces
        made = [self.inner.aggregate(piece, f=f, context=context) for piece in pieces]
        return torch.stack([one.vector if isinstance(one, Aggregated) else one for one in made])[:, None]

    def min_clients(self, f: int) -> int:
        return max(2 * f + 1, self.inner.min_clients(f))

    def refuses(self, n: int, f: int) -> str | None:
        reason = self.inner.refuses(n, f)
        return None if reason is None else f"rule={self.rule}: {reason}"


def _of_one_width(X: Tensor, p: int) -> Iterator[Tensor]:
    """``p`` pieces of the columns of ``X [n d]``, widths ``k`` as even as can be, as one or two stacks ``[m n k]``."""
    width, wider = divmod(X.shape[1], p)
    parts = torch.split(X, [wider * (width + 1), (p - wider) * width], dim=1)
    for part, m in zip(parts, (wider, p - wider), strict=True):
        if m:
            yield part.reshape(len(X), m, -1).transpose(0, 1)


@float32_default()
def _remembers(rule: Aggregator) -> bool:
    """True if a rule hands on a state; it is tried."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn((max(8, rule.min_clients(1)), 4), generator=generator)
    made = rule.aggregate(X, f=1, context=Context(generator=generator))
    return isinstance(made, Aggregated) and bool(made.state)


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
