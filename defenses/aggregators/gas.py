"""Gradient splitting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Aggregated, Aggregator, Context
from robustfl.errors import UsageError
from robustfl.parameters import param
from robustfl.registry import create, describe, register
from robustfl.torch_settings import float32_default

from ..draws import generator_of, permutation
from ..reference import least, lengths
from ..rows import direct_distances
from ..ties import smallest
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
        parameters.check(self)
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
