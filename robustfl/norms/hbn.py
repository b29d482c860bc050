"""HBN: hybrid batch normalization."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from robustfl.contracts import Layers, Norm, StatisticsAggregation, StatisticsPass, Tag
from robustfl.errors import UsageError
from robustfl.layer_kinds import layer_kind
from robustfl.norms.functional import piece_moments, values_per_channel
from robustfl.norms.layers import Normalization, ServerBatchNorm, check_values, noted
from robustfl.norms.merging import merge_layers
from robustfl.norms.normalizer_free import standardise
from robustfl.norms.sums import apart, beside, client_moments
from robustfl.parameters import only_where, param
from robustfl.registry import register

REPO_SAMPLES = 64
MOMENTUM = 0.1  # of moving averages in training, torch's default
REFRESHES: dict[str, Literal["none", "participants", "all"]] = {"ema": "none", "subset": "participants", "all": "all"}
MIXTURES = {"learned": None, "global": 1.0, "batch": 0.0, "half": 0.5}  # shares of the server's statistics


class HybridBatchNorm(ServerBatchNorm):
    """Training with a mixture of the batch's and the server's statistics, ``factor [C]`` saying how much of which.

    A pass that collects statistics in training mode reports the inputs' own, or the mixture: for a test, and always
    with ``hybrid_reports``. With a ``share`` of the server's statistics the factor stays 0 and has no part. ``moving``:
    no pass, but the moving average of the batches' statistics, from the server's on, is reported.
    """

    tags: ClassVar[dict[str, Tag]] = {**ServerBatchNorm.tags, "factor": Tag.PRIVATE}

    def __init__(
        self, channels: int, *, eps: float, hybrid_reports: bool, share: float | None = None, moving: bool = False
    ) -> None:
        super().__init__(channels, eps=eps)
        self.factor = nn.Parameter(torch.zeros(channels))
        self.hybrid_reports, self.share, self.moving = hybrid_reports, share, moving

    def forward(self, x: Tensor) -> Tensor:
        n = len(self.sizes_of(x))
        return self.normalised(x, *(own.expand(n, -1) for own in (self.weight, self.bias, self.factor)))

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor, factor: Tensor) -> Tensor:  # type: ignore[override]
        sizes = self.sizes_of(x, len(weight))
        if not self.training:
            if self.collects:
                self.look(x, sizes)
            return self.by_server(x, weight, bias, sizes)
        counts = values_per_channel(x, sizes)
        check_values(counts, "hbn")
        if self.moving and not self.unseen:
            self.average(*client_moments(x.detach(), sizes), counts)
        each = apart(x, sizes)
        rows = (torch.split(own, len(each[0])) for own in (weight, bias, factor))
        return torch.cat([self._hybrid(*own).flatten(0, 1) for own in zip(each, *rows, strict=True)])

    @noted
    def average(self, mean: Tensor, variance: Tensor, counts: list[int]) -> None:
        """Move the clients' averages ``[n C]`` towards a batch's mean and biased variance."""
        if self.add(counts) or self._own is None:
            self._own = self.running_mean.expand_as(mean), self.running_var.expand_as(variance)
        old_mean, old_variance = self._own
        self._own = torch.lerp(old_mean, mean, MOMENTUM), torch.lerp(old_variance, variance, MOMENTUM)

    def _hybrid(self, x: Tensor, weight: Tensor, bias: Tensor, factor: Tensor) -> Tensor:
        """The layer for clients of a piece ``[k b C …]``; their rows are ``[k C]``."""
        own_mean, own_variance = piece_moments(x)
        share = torch.sigmoid(factor) if self.share is None else self.share
        mean = (1 - share) * own_mean + share * self.running_mean
        variance = (1 - share) * own_variance + share * self.running_var
        if self.collects:
            mixed = self.refreshes or self.hybrid_reports
            seen_mean, seen_variance = (mean, variance) if mixed else (own_mean, own_variance)
            self.pool(seen_mean.detach(), seen_variance.detach(), [x[0, :, 0].numel()] * len(x))
        scale = weight * (variance + self.eps).rsqrt()
        return (x - beside(mean, x)) * beside(scale, x) + beside(bias, x)


layer_kind(HybridBatchNorm)(Normalization)


@register("hbn", version=2)
@dataclass(frozen=True)
class HBN(Norm):
    """Clients mix their batch's statistics with global ones, each channel in a proportion they learn.

    With ``s = σ(a)``, ``a`` private and 0 at the start: ``μ̂ = (1−s)μ_b + sμ_g``, ``v̂ = (1−s)v_b + s v_g`` in training,
    ``(μ_g, v_g)`` in evaluation. Before training, clients pass their data through the network without a gradient and
    report mean, variance and count of every layer's inputs; the server merges ``μ = ΣP_kμ_k/P``,
    ``v = ΣP_k[v_k + (μ_k−μ)²]/(P−1)`` and moves ``μ_g ← (1−λ)μ_g + λμ``, ``v_g`` alike. For every test there is one
    more such pass at the current weights, merged with λ = 1 and forgotten afterwards.

    Args:
        lam: λ in (0, 1]; the first update takes ``lambda_first`` instead. With ``mixture=batch`` only
            ``eval_stats=ema`` serves what they make.
        lambda_first: λ of the first update, in (0, 1]; 1 by default, since the initial (0, 1) would live for long.
        stats_samples: samples each client collects statistics on, ≥ 2, or None for all (the paper's ablation: 128).
        stats_mode: what normalises during a pass. ``hybrid``: the mixture, as in training, on batches of up to 256; for
            a test, clients report ``μ̂, v̂`` themselves. ``repo``: as released, the same on one batch of 64, and
            ``μ̂, v̂`` are reported always. ``eval``: the global statistics; pass follows pass with what the server made
            of the last, as often as there are layers, until statistics and inputs fit.
        tolerance: ``eval`` stops earlier, once no mean and no standard deviation moves by more than so many standard
            deviations, ≥ 0.
        eval_stats: statistics used for testing: ``subset`` (collected anew on the participants), ``all`` (on everybody)
            or ``ema`` (``μ_g, v_g`` as they are).
        eps: added to variances, > 0.
        mixture: ``s`` as a choice, for the paper's ablation: ``learned``, or fixed in all channels, with ``global``
            statistics alone (s = 1), those of the ``batch`` alone (s = 0) or ``half`` of each.
        variances: how the server merges them: as the variance of the ``union``, or by their plain ``average``
            ``v = ΣP_kv_k/P``, which misses the spread of the clients' means (the ablation).
        collection: when clients collect statistics: in a ``pass`` of their own, or in ``training``, as moving averages
            of the batches' with momentum 0.1, like ordinary running statistics (the ablation). Then there is no pass
            for a test either, which needs ``eval_stats=ema``; ``lam=1`` serves what the clients of the round report.
        standardised: convolutions with FedWon's standardised weights under the layers.

    Reference: Chen et al., Hybrid Batch Normalisation: Resolving the Dilemma of Batch Normalisation in Federated
    Learning, ICML 2025, arXiv:2505.21877.

    >>> layer = HBN().layer(1)
    >>> layer(torch.tensor([[-1.0], [3.0]])).flatten().detach()  # μ̂ = ½·1 + ½·0, v̂ = ½·4 + ½·1
    tensor([-0.9487,  1.5811])

    Notes: the paper gives the ablation's variants a line each in its Table 6; what its text leaves open is said here
    at the arguments. Counts are values per channel, not samples. The paper does not say what normalises the layers
    below while statistics are collected. With ``hybrid`` it is what the weights are trained with, and tests serve the
    mean of what clients normalised with, so that one pass does for all layers. It stays inexact where clients differ:
    the pass normalises every client and batch by its own mixture, the test all by one; of the spread between clients'
    means ``(1−s)²`` enters the served variance, of their variances ``1−s``. The batches of the pass are larger than
    those of training, and dropout is on in it, as it is for ordinary running statistics. With ``repo`` the share
    ``s`` of old statistics remains in ``μ_g, v_g`` at every update, so half of the initial (0, 1) survives the first.
    With ``eval`` the statistics are exact for the weights at hand if all clients take part and nothing is dropped,
    but they are not what the weights were trained with; one such pass alone is right in the first layer and ruins
    accuracy.
    """

    paper: ClassVar[str] = "@chen2025hybrid"
    cost: ClassVar[str] = (
        "2C numbers per layer and round each way; one more forward over the data, or as many as layers in mode eval"
    )

    lam: float = param(0.01, gt=0, le=1, doc="λ, step of the global statistics")
    lambda_first: float = param(1.0, gt=0, le=1, doc="λ of the first update")
    stats_samples: int | None = param(None, ge=2, doc="samples per client for statistics; None: all")
    stats_mode: str = param("hybrid", choices=("hybrid", "repo", "eval"), doc="what normalises in the statistics pass")
    tolerance: float = param(0.0, ge=0, doc="of repeated passes in mode eval, in standard deviations")
    eval_stats: str = param("subset", choices=("subset", "ema", "all"), doc="statistics used for testing")
    eps: float = param(1e-5, gt=0, doc="added to variances")
    mixture: str = param("learned", choices=tuple(MIXTURES), doc="share of the global statistics")
    variances: str = param("union", choices=("union", "average"), doc="how the server merges variances")
    collection: str = param("pass", choices=("pass", "training"), doc="when statistics are collected")
    standardised: bool = param(False, doc="convolutions with FedWon's standardised weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        served = self.mixture != "batch" or self.eval_stats == "ema" or self.tolerance > 0  # else nobody reads μ_g, v_g
        words = "eval_stats=ema or a mixture other than batch"
        only_where(self, served, words, "lam", "lambda_first", owner="HBN")
        if self.collection == "pass":
            only_where(self, self.stats_mode == "eval", "stats_mode=eval", "tolerance", owner="HBN")
            return
        if self.eval_stats != "ema":
            raise UsageError(
                f"HBN: collection='training' collects nothing anew for a test, as eval_stats={self.eval_stats!r} would"
                "; use eval_stats='ema'"
            )
        only_where(self, False, "collection=pass", "stats_samples", "stats_mode", "tolerance", owner="HBN")

    def layer(self, channels: int) -> nn.Module:
        return HybridBatchNorm(
            channels,
            eps=self.eps,
            hybrid_reports=self.stats_mode == "repo",
            share=MIXTURES[self.mixture],
            moving=self.collection == "training",
        )

    def adapt(self, network: nn.Module) -> None:
        """Standardise the convolutions' weights, if asked to."""
        if self.standardised:
            standardise(network, "hbn")

    @property
    def statistics_pass(self) -> StatisticsPass | None:
        if self.collection == "training":
            return None
        if self.stats_mode == "eval":
            plan = StatisticsPass(samples=self.stats_samples, repeats=True, tolerance=self.tolerance)
        else:
            few = REPO_SAMPLES if self.stats_mode == "repo" else None
            plan = StatisticsPass(samples=self.stats_samples or few, training=True)
        return replace(plan, refreshes=REFRESHES[self.eval_stats])

    def merge(
        self, messages: Tensor, counts: Tensor, previous: Tensor, layers: Layers, defense: StatisticsAggregation
    ) -> Tensor:
        """The union's statistics (or plain averages), every sum taken by the defense, and a step of λ towards them."""
        values = counts.sum(0).tolist()
        unbiased = messages.double().clone()
        for layer, total in zip(layers, values, strict=True):
            if total > 1 and self.variances == "union":
                unbiased[:, layer.variance] *= total / (total - 1)
        deviations = 1.0 if self.variances == "union" else None
        union = merge_layers(unbiased, counts, previous.double(), layers, defense, by_values=True, momentum=deviations)
        lam = 1.0 if defense.refresh else self.lambda_first if defense.first else self.lam
        return torch.lerp(previous.double(), union, lam).to(previous.dtype)
