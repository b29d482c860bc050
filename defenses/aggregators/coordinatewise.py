"""Rules that go coordinate by coordinate: mean, medians, trimmed mean, Phocas, mean of medians, FoundationFL."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import ClassVar, Literal

import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.kernels import RankMean
from robustfl.parameters import param
from robustfl.registry import register

from ..columns import NearestMean, WeightedMedian, WeightedTrim
from ..draws import generator_of, permutation
from ..reference import least, lengths, middle, trimmed_mean, weights_of
from ..rows import MajorityRule, Mixed, MixedRule, shares
from ..ties import largest, smallest


@register("mean", version=1)
@dataclass(frozen=True)
class Mean(MixedRule):
    """The mean, weighted by ``context.weights`` if there are any.

        F(X) = Σ p_i x_i,   p_i = w_i / Σ w_j   (1/n without weights)

    A single Byzantine client moves it anywhere; it is the baseline.

    >>> import robustfl, torch
    >>> robustfl.defense("mean")(torch.tensor([[0.0], [4.0]]), f=0, weights=[3, 1])
    tensor([1.])

    Reference: the server step of FedAvg.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@mcmahan2017communication"
    cost: ClassVar[str] = "nd"
    by_columns: ClassVar[bool] = True
    isometric: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        share = weights_of(X, context)
        return share / share.sum() @ X

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        return Aggregated(rows.combine(shares(rows, context, self.name)))

    def min_clients(self, f: int) -> int:
        return 1


@register("median", version=1)
@dataclass(frozen=True)
class Median(MajorityRule):
    """Per coordinate, the middle value; of an even number of rows the mean of the middle two.

        F(X)_k = median(x_1k, …, x_nk)

    It ignores how coordinates belong together, so on heterogeneous clients it is biased even without attackers.

    Args: ``weighted`` (False) takes the weighted median for sample weights, if there are any: the middle between the
    least value that holds half of the weight with those below it and the greatest that does with those above it.

    >>> import torch, robustfl
    >>> robustfl.defense("median")(torch.tensor([[0.0], [1.0], [4.0], [90.0]]), f=1)
    tensor([2.5000])

    Reference: Option I of Algorithm 1 of the paper below.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@yin2018byzantine"
    cost: ClassVar[str] = "O(n log² n) comparisons per entry"
    by_columns: ClassVar[bool] = True

    weighted: bool = param(False, doc="weigh values by the clients' samples")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        if not self.weighted or context.weights is None:
            return middle(X)
        values, order = X.sort(dim=0)
        share = context.weights.to(X)[order] / context.weights.sum()
        below, above = share.cumsum(0) >= 0.5, share.flip(0).cumsum(0) >= 0.5
        low = values.gather(0, below.long().argmax(0)[None])
        high = values.flip(0).gather(0, above.long().argmax(0)[None])
        return (low + high)[0] / 2

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        if self.weighted and context.weights is not None:
            return Aggregated(rows.columns(WeightedMedian(context.weights.cpu())))
        return Aggregated(rows.median())


@register("trimmed-mean", version=1)
@dataclass(frozen=True)
class TrimmedMean(MajorityRule):
    """Per coordinate, the mean without the ``f`` lowest and the ``f`` highest values.

        F(X)_k = 1/(n-2f) Σ_{i=f+1}^{n-f} x_(i)k,   x_(1)k ≤ … ≤ x_(n)k

    Attackers that stay within the honest spread (ALIE) are never trimmed and still shift it.

    Args: ``weighted`` (False) takes the mean of what is left with the sample weights of the rows, if there are any.
    What is trimmed is counted in rows either way; of equal values the one from the lower row counts as the lower.

    >>> import torch, robustfl
    >>> robustfl.defense("trimmed-mean")(torch.tensor([[0.0], [1.0], [4.0], [90.0]]), f=1)
    tensor([2.5000])

    Reference: Option II of Algorithm 1 of the paper below. Notes: the paper trims a fraction β; here ``f`` values.
    The weighted mean is ours.
    """

    paper: ClassVar[str] = "@yin2018byzantine"
    cost: ClassVar[str] = "O(n log² n) comparisons per entry"
    by_columns: ClassVar[bool] = True

    weighted: bool = param(False, doc="weigh the values left by the clients' samples")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        kept = X.argsort(dim=0, stable=True)[f : len(X) - f]
        share = weights_of(X, context if self.weighted else Context())
        return (X.gather(0, kept) * share[kept]).sum(0) / share[kept].sum(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        if self.weighted and context.weights is not None:
            return Aggregated(rows.columns(WeightedTrim(context.weights.cpu(), f)))
        return Aggregated(rows.trimmed_mean(f))


@register("meamed", version=2)
@dataclass(frozen=True)
class MeaMed(MajorityRule):
    """Per coordinate, the mean of the ``n - f`` values nearest to the median.

        F(X)_k = 1/(n-f) Σ_{i ∈ N_k} x_ik,   N_k = the n-f rows with least |x_ik - median_k|, ties to the lowest index

    It keeps one-sided attackers that stay close to the median, so they shift it as they shift a trimmed mean.

    >>> import torch, robustfl
    >>> robustfl.defense("meamed")(torch.tensor([[0.0], [1.0], [5.0], [6.0], [90.0]]), f=1)
    tensor([3.])

    Args: ``center`` of an even number of values, ``"middle"`` (default): the mean of the middle two, as in ByzFL and
    NumPy; ``"lower"``: the lower of them, as ``torch.median`` has it.

    Reference: the mean around the median of the paper below, which does not say what the median of an even number is.
    Notes: distances that are equal but for rounding are ties.
    """

    paper: ClassVar[str] = "@xie2018generalized"
    cost: ClassVar[str] = "O(nd log² n): sorted columns, then the nearest values"
    by_columns: ClassVar[bool] = True

    center: Literal["middle", "lower"] = param(
        "middle", choices=("middle", "lower"), doc="the median of an even number of values"
    )

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        centre = middle(X) if self.center == "middle" else X.median(dim=0).values
        return X.gather(0, least((X - centre).abs(), len(X) - f)).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        low = (n - 1) // 2
        return Aggregated(rows.columns(NearestMean(n, low, n // 2 + 1 if self.center == "middle" else low + 1, n - f)))


@register("phocas", version=2)
@dataclass(frozen=True)
class Phocas(MajorityRule):
    """Per coordinate, the mean of the ``n - f`` values nearest to the trimmed mean.

        F(X)_k = 1/(n-f) Σ_{i ∈ N_k} x_ik,   N_k = the n-f rows with least |x_ik - trimmed-mean_k|

    Like the trimmed mean it is shifted by attackers within the honest spread.

    >>> import torch, robustfl
    >>> robustfl.defense("phocas")(torch.tensor([[0.0], [1.0], [5.0], [6.0], [90.0]]), f=1)
    tensor([3.])

    Reference: the rule Phocas of the paper below, with ``b = f``. Notes: ties go to the lowest index; distances
    that are equal but for rounding tie.
    """

    paper: ClassVar[str] = "@xie2018phocas"
    cost: ClassVar[str] = "O(nd log² n): sorted columns, then the nearest values"
    by_columns: ClassVar[bool] = True

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return X.gather(0, least((X - trimmed_mean(X, f)).abs(), len(X) - f)).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        return Aggregated(rows.columns(NearestMean(n, f, n - f, n - f)))


@register("mean-of-medians", version=1)
@dataclass(frozen=True)
class MeanOfMedians(MixedRule):
    """Clients are put in ``g`` random groups too large for attackers to rule; the groups' medians are averaged.

        F(X) = 1/g Σ_j median{x_i : i ∈ G_j},   |G_j| ≥ 2f + 1, sizes differ by at most one

    Every median lies among honest values even if all attackers meet in one group, so averaging them only removes
    noise. With few clients there is one group, which is the plain median.

    Args: ``groups`` ≥ 1; ``None`` (default) for ``⌊n / (2f + 1)⌋``, which for f = 0 gives the mean.

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> robustfl.defense("mean-of-medians")(torch.tensor([[1.0]] * 5 + [[90.0]]), f=1, generator=stream(0, "defense"))
    tensor([1.])

    Reference: the grouping of Algorithm 2 of the paper below, a median of means. Notes: the order is turned round, for
    which we know no definition in the literature: medians within groups, coordinate-wise, then their mean.
    """

    paper: ClassVar[str] = "after @chen2017distributed"
    cost: ClassVar[str] = "O(n log² n) comparisons per entry"
    on_host: ClassVar[str] = "draws which rows make a group"

    groups: int | None = param(None, ge=1, doc="number of groups; None means as many as have 2f + 1 clients each")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        groups = self.groups or len(X) // (2 * f + 1)
        order = permutation(len(X), generator_of(context, "mean-of-medians"))
        return torch.stack([middle(X[group]) for group in order.tensor_split(groups)]).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        groups = n // (2 * f + 1) if self.groups is None else self.groups
        if groups == n:
            return Aggregated(rows.combine(rows.even()))
        if groups == 1:
            return Aggregated(rows.median())
        order = permutation(n, generator_of(context, "mean-of-medians"))
        first, *others = (rows.chosen(group).median() for group in torch.tensor_split(order, groups))
        for other in others:
            first += other
        return Aggregated(first.div_(groups))

    def min_clients(self, f: int) -> int:
        return (self.groups or 1) * (2 * f + 1)


_RULES = ("trimmed-mean", "median")
_COPIED = ("farthest", "nearest")


@register("foundationfl", version=1)
@dataclass(frozen=True)
class FoundationFL(MajorityRule):
    """Copies of the row farthest from the extremes join the rows before the trimmed mean or the median is taken.

        F(X) = R(x_1 … x_n, x_* … x_*),   * = argmax_i min(‖x_i - max X‖, ‖x_i - min X‖),   m copies of x_*

    ``max X`` and ``min X`` are the largest and the smallest value of every coordinate. The copies shall make the stack
    more alike. Everything hangs on the row that is copied: one attacker who sends huge entries of both signs is
    farther from both extremes than anybody else, and with his copies outlives the trimming.

    Args: ``rule`` R, ``trimmed-mean`` (default; it trims ``f`` of ``n + m`` values at either end) or ``median``;
    ``copied``, the row ``farthest`` from the extremes (default) or ``nearest`` to one of them; ``share`` > 0, how many
    copies: ``m = ⌊share · n⌋`` (0.5).

    >>> import torch, robustfl
    >>> X = torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 2.0], [90.0, -9.0]])
    >>> robustfl.defense("foundationfl(rule=median)")(X, f=1)
    tensor([2., 2.])

    Reference: Algorithm 1 of the paper below. Notes: the paper contradicts itself. Its Equation 5 and Algorithm 1 copy
    the row with the highest score, which is the default here; its text calls high scores likely malicious, and its
    results under Gaussian noise are out of reach of Equation 5 (noise is copied: on iid digits 6.8 % SA), but not of
    the lowest score (``copied=nearest``: 94.1 %). Of rows that are equally far away, the lowest is copied.
    """

    paper: ClassVar[str] = "@fang2025foundationfl"
    cost: ClassVar[str] = "extremes, 2nd for the scores, then the rule on n + m rows"

    rule: str = param("trimmed-mean", choices=_RULES, doc="rule on rows and copies")
    copied: str = param(
        "farthest", choices=_COPIED, doc="the row that is copied, by its distance to the nearer extreme"
    )
    share: float = param(0.5, gt=0, lt=float("inf"), doc="copies per row received")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        near = torch.minimum(lengths(X - X.max(dim=0).values), lengths(X - X.min(dim=0).values))
        copied = X[near.argmax() if self.copied == "farthest" else near.argmin()]
        both = torch.cat([X, copied.expand(floor(self.share * len(X) + 1e-9), -1)])
        return middle(both) if self.rule == "median" else trimmed_mean(both, f)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        n = rows.count
        high, low = (rows.columns(RankMean(n, rank, rank + 1)) for rank in (n - 1, 0))
        scores = torch.minimum(rows.distances_to(high), rows.distances_to(low))
        slack = 2 * rows.stack.last_bits * scores
        chosen = (largest if self.copied == "farthest" else smallest)(scores, 1, slack)
        copies = floor(self.share * n + 1e-9)
        made = rows.chosen(torch.cat([torch.arange(n, device=chosen.device), chosen.repeat(copies)]))
        vector = made.median() if self.rule == "median" else made.trimmed_mean(f)
        return Aggregated(vector, facts={"copied": chosen[0], "copies": copies})
