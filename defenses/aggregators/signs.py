"""Rules that look at signs: majority vote, robust learning rate, SignGuard and AlignIns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from robustfl.contracts import Aggregated, Context
from robustfl.errors import Refused, UsageError
from robustfl.kernels.blocks import at_once
from robustfl.parameters import param
from robustfl.registry import register

from ..columns import SignMajority
from ..draws import generator_of, subset
from ..reference import clipped, lengths
from ..rows import MajorityRule, Mixed, MixedRule, shortened
from ..ties import usual


@register("sign-majority", version=1)
@dataclass(frozen=True)
class SignMajorityVote(MajorityRule):
    """Per coordinate, the sign most rows have; the server moves by the learning rate in every coordinate.

        F(X)_k = sign(Σ_i sign x_ik),   0 for a tie

    Lengths are lost: it needs a learning rate of its own, and heterogeneous clients can outvote the true mean.

    >>> import torch, robustfl
    >>> robustfl.defense("sign-majority")(torch.tensor([[0.1, -5], [2, 5], [-90, 0]]), f=1)
    tensor([1., 0.])

    Reference: signSGD with majority vote, Algorithm 1 of the paper below.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@bernstein2019signsgd"
    cost: ClassVar[str] = "nd"
    exempt: ClassVar[Mapping[str, str]] = {"no harm": "it returns signs"}
    unfit_for_statistics: ClassVar[str] = "it returns signs, so every variance would be one"

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        return X.sign().sum(0).sign()

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        return Aggregated(rows.columns(SignMajority()))


@register("rlr", version=1)
@dataclass(frozen=True)
class RobustLearningRate(MixedRule):
    """The mean, turned around in every coordinate on whose sign too few rows agree.

        F(X)_j = mean_i x_ij   if |Σ_i sign(x_ij)| ≥ θ,   else   -mean_i x_ij

    Made against backdoors, which live in coordinates that few clients move: there the model is moved away from what
    they want. It bounds no lengths, so that one huge row rules the mean (put ``clipping`` before it), and where honest
    clients disagree it unlearns what they learn.

    Args: ``theta`` ≥ 0, or None (default) for ``f + 1``: with it, the majority that is followed is an honest one.

    >>> import robustfl
    >>> robustfl.defense("rlr")(torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, -4.0], [1.0, 8.0]]), f=1)
    tensor([ 1., -1.])

    Reference: the robust learning rate of the paper below. Notes: rows count alike, as in the mean without weights; the
    paper chooses ``theta`` by hand, larger than the number of corrupt clients.
    """

    paper: ClassVar[str] = "@ozdayi2021defending"
    cost: ClassVar[str] = "nd"
    unfit_for_statistics: ClassVar[str] = "a variance on which too few rows agree would turn negative"

    theta: int | None = param(None, ge=0, doc="least surplus of one sign; None for f + 1")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        agreed = X.sign().sum(0).abs() >= (f + 1 if self.theta is None else self.theta)
        return torch.where(agreed, 1.0, -1.0) * X.mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        theta = f + 1 if self.theta is None else self.theta
        if theta > rows.count:
            raise Refused(f"rlr: theta={theta} is more than the {rows.count} rows, so that no coordinate could pass")
        return Aggregated(rows.columns(_Voted(rows.count, theta)), facts={"theta": theta})

    @property
    def uses_f(self) -> bool:
        return self.theta is None

    def min_clients(self, f: int) -> int:
        return max(2 * f + 1, self.theta or 0)


@dataclass(frozen=True)
class _Voted:
    """Per column, the mean, negative where the signs sum to less than ``theta``."""

    n: int
    theta: int
    scratch_rows: int = 2

    def whole(self, X: Tensor) -> bool:
        """Not on the CPU: signs of a block are made one row at a time."""
        return at_once(X)

    def reduce(self, rows: Tensor, out: Tensor, scratch: Tensor) -> None:
        if at_once(rows):
            agreed = rows.sign().sum(0).abs_() >= self.theta
            torch.mul(rows.mean(0, dtype=torch.float64).to(out), torch.where(agreed, 1.0, -1.0).to(out), out=out)
            return
        votes, sign = scratch
        votes.zero_()
        out.zero_()
        for row in rows:
            votes.add_(torch.sign(row, out=sign))
            out.add_(row, alpha=1 / self.n)  # a sum of float32 entries of 3e38 would be infinite
        out.mul_(torch.where(votes.abs_() >= self.theta, 1.0, -1.0).to(out))


_FEWEST_COORDINATES = 1_000
_LAST_BITS = 1e-9


@register("signguard", version=2)
@dataclass(frozen=True)
class SignGuard(MajorityRule):
    """Rows of unusual length or with unusual shares of signs are left out; the others are clipped and averaged.

        F(X) = 1/|S| Σ_{i ∈ S} min(1, M / ‖x_i‖) x_i,   M = median length,   S = S_1 ∩ S_2

    ``S_1``: rows with ``lower ≤ ‖x_i‖ / M ≤ upper``; ``S_2``: the largest cluster (mean shift) of the shares of
    positive, zero and negative entries among random coordinates. Attackers that imitate honest sign shares (and are no
    longer) pass.

    Args: ``lower`` ≥ 0 (0.1) and ``upper`` > 0 (3), bounds of lengths; ``fraction`` in (0, 1] of the coordinates (0.1).

    >>> import robustfl
    >>> from robustfl.randomness import stream
    >>> X = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [90.0, 90.0]])
    >>> robustfl.defense("signguard")(X, f=2, generator=stream(0, "defense"))
    tensor([1., 1.])

    Reference: plain SignGuard (no similarity) of the paper below. Notes: at least 1,000 coordinates are looked at
    (or all); the bandwidth is the mean distance to the farther end of the nearest half of the rows; if ``S`` is
    empty, ``S_2``; a length on a bound is within it. Biases before a batch norm have no gradient but rounding,
    whose signs are counted like others: elsewhere other rows may be kept. The authors' code differs: it looks at
    one window of consecutive coordinates, divides each of the three shares by its largest among the rows, leaves
    rows that reach no cluster out, starts mean shift from bins, and takes the lower of two middle lengths to clip
    at.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@xu2022byzantine"
    cost: ClassVar[str] = "fraction·n·d signs, a clustering of n points, 2nd for lengths and the sum"
    on_host: ClassVar[str] = "draws coordinates and clusters rows"

    lower: float = param(0.1, ge=0, doc="least length, in median lengths")
    upper: float = param(3.0, gt=0, doc="greatest length, in median lengths")
    fraction: float = param(0.1, gt=0, le=1, doc="share of the coordinates whose signs are counted")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower > self.upper:
            raise UsageError(f"SignGuard: lower={self.lower:g} > upper={self.upper:g}: no length is between")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        d, length = X.shape[1], lengths(X)
        count = max(ceil(self.fraction * d), min(d, _FEWEST_COORDINATES))
        seen = X if count == d else X[:, subset(d, count, generator_of(context, "signguard"))]
        shares = torch.stack([(seen.sign() == sign).double().mean(1) for sign in (1, 0, -1)], dim=1)
        alike = _largest_cluster(shares.numpy())
        usual = (self.lower * length.quantile(0.5) <= length) & (length <= self.upper * length.quantile(0.5))
        kept = alike & usual if bool((alike & usual).any()) else alike
        return clipped(X[kept], length.quantile(0.5)).mean(0)

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        d = rows.stack.shape[1]
        looked_at = max(ceil(self.fraction * d), min(d, _FEWEST_COORDINATES))
        seen = rows if looked_at == d else rows.at(subset(d, looked_at, generator_of(context, "signguard")))
        alike = _largest_cluster(_sign_shares(seen))
        length = rows.norms()
        middle = length.quantile(0.5)
        # A length on a bound is within it, on whichever side its last bit lies.
        off = rows.slack_of_norms(length)
        usual = (length + off >= self.lower * middle) & (length - off <= self.upper * middle)
        kept = alike & usual if bool((alike & usual).any()) else alike
        weights = shortened(kept, length, middle)
        return Aggregated(rows.combine(weights), facts={"kept": kept.nonzero().flatten().tolist()})


def _sign_shares(rows: Mixed) -> np.ndarray:
    """Shares ``[n 3]`` of positive, zero and negative entries; what mixing left of rounding alone counts as zero."""
    X = rows.materialise()
    zero = X.abs() <= 4 * rows.stack.last_bits * rows.magnitudes()
    positive = ((X > 0) & ~zero).sum(1).double().cpu()
    negative = ((X < 0) & ~zero).sum(1).double().cpu()
    counts = torch.stack([positive, X.shape[1] - positive - negative, negative], dim=1)
    return np.asarray(counts / X.shape[1])


def _largest_cluster(features: np.ndarray) -> Tensor:
    """Which rows ``[n]`` belong to the largest cluster; of equally large ones that of the lowest row."""
    # Imported late: it takes a second that other rules need not wait for.
    from sklearn.cluster import MeanShift, estimate_bandwidth

    with _threads().limit(limits=1, user_api="openmp"):  # for so few points several only wait for each other
        bandwidth = float(estimate_bandwidth(features, quantile=0.5))
        if bandwidth > 1e-9:
            # A little wider, so that points at exactly that distance count as near on any machine.
            labels = MeanShift(bandwidth=bandwidth * (1 + _LAST_BITS)).fit_predict(features)
        else:
            labels = np.unique(features, axis=0, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(labels)[labels]
    return torch.from_numpy(labels == labels[int(sizes.argmax())])


@cache
def _threads() -> ThreadpoolController:
    """The pools of threads of the libraries that are loaded; looking for them takes longer than clustering."""
    return ThreadpoolController()


@register("alignins", version=1)
@dataclass(frozen=True)
class AlignIns(MajorityRule):
    """Rows whose direction and main signs agree with model and majority as usual are clipped and averaged.

        F(X) = 1/|S| Σ_{i ∈ S} min(1, M / ‖x_i‖) x_i,   S = {i : |z(ω_i)| ≤ λ_c and |z(ρ_i)| ≤ λ_s}

        ω_i = cos(x_i, θ),   ρ_i = share of x_i's top entries with most rows' sign,   z(u)_i = (u_i - median u) / std u

    ``M`` is the median length of the rows in ``S``, ``θ`` the server's model; most rows' sign is ``sign Σ_i sign x_i``,
    and a row's top entries are its ``⌊share · d⌋`` largest in magnitude. Made against backdoors. Attackers who keep
    both numbers usual pass; honest clients with unusual data do not: of normal scores one in three is farther than 1.

    Args: ``share`` in (0, 1] of the entries (0.3); ``direction_bound`` λ_c > 0 (1) and ``sign_bound`` λ_s > 0 (1), in
    deviations.

    >>> import robustfl
    >>> X = torch.tensor([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [-9.0, -9.0]])
    >>> robustfl.defense("alignins(share=1)")(X, f=1).round(decimals=2)
    tensor([1.3300, 1.3300])

    Reference: the algorithm of the paper below. Notes: where nobody is usual the result is zero, as in the authors'
    code, and the fact ``no_trust`` says so. Medians are means of the middle two. Entries tied with the smallest of the
    top count too; a zero in a row agrees with everybody, and with a tied majority nothing else does, as in the paper's
    formula, where the code compares its sign. A score on the bound is usual, as are equal ones, where the code wants
    less than the bound and trusts nobody of equals; rows count alike, where it weighs them by samples. A row of one's
    own comes without a model: then signs decide alone.
    """

    uses_f: ClassVar[bool] = False
    paper: ClassVar[str] = "@xu2025detecting"
    cost: ClassVar[str] = "a selection of the largest of d entries a row, 4nd"
    on_host: ClassVar[str] = "leaves out rows"
    unfit_for_statistics: ClassVar[str] = "rows are shortened towards the origin, so variances would shrink"

    share: float = param(0.3, gt=0, le=1, doc="share of the entries whose signs are compared")
    direction_bound: float = param(1.0, gt=0, doc="farthest cosine with the model from the median, in deviations")
    sign_bound: float = param(1.0, gt=0, doc="farthest agreement of signs from the median, in deviations")

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor:
        kept = usual(agreement(X, self.share), self.sign_bound)
        if context.model is not None:
            kept &= usual(torch.cosine_similarity(X, context.model.to(X)[None]), self.direction_bound)
        return clipped(X[kept], lengths(X[kept]).quantile(0.5)).mean(0) if bool(kept.any()) else torch.zeros_like(X[0])

    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        length = rows.norms()
        aligned = agreement(rows.materialise(), self.share)
        kept = usual(aligned, self.sign_bound)
        if context.model is not None:
            kept = kept & usual(_cosines(rows, length, context.model), self.direction_bound)
        nobody = not bool(kept.any())
        weights = torch.zeros_like(length) if nobody else shortened(kept, length, length[kept].quantile(0.5))
        facts = {"kept": kept.nonzero().flatten().tolist(), "aligned": aligned.tolist(), "no_trust": nobody}
        return Aggregated(rows.combine(weights), facts=facts)


def agreement(X: Tensor, share: float) -> Tensor:
    """The share of every row's largest entries that have the sign of most rows ``X [n d]``: ``[n]``, in float64."""
    votes = torch.zeros_like(X[0])
    for row in X:
        votes += row.sign()
    majority, top = votes.sign(), max(1, int(share * X.shape[1] + 1e-9))
    made = torch.empty(len(X), dtype=torch.float64)
    for i, row in enumerate(X):
        size = row.abs()
        largest = (size >= size.topk(top).values[-1]) & (row != 0)
        against = largest & (row.sign() != majority)
        made[i] = 1 - int(against.sum()) / max(top, int(largest.sum()))
    return made


def _cosines(rows: Mixed, length: Tensor, model: Tensor) -> Tensor:
    """``cos(x_i, θ)`` of all rows ``[n]``; 0 for a row of zeros, and without a direction of the model."""
    X = rows.stack.X
    if model.shape != X.shape[1:]:
        raise UsageError(f"alignins: the model has {model.numel()} entries, rows have {X.shape[1]}")
    inner = rows.inner(model.detach().to(X))
    return inner[:-1, -1] / (length * inner[-1, -1].clamp(min=0).sqrt()).clamp(min=1e-300)
