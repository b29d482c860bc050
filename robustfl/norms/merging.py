"""The server's merge of statistics rows, layer by layer, under any defense."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustfl.contracts import Layers, Norm, StatisticsAggregation
from robustfl.errors import Refused
from robustfl.norms.layers import OwnBatchNorm


def merge_layers(
    messages: Tensor, counts: Tensor, previous: Tensor, layers: Layers, defense: StatisticsAggregation, *,
    by_values: bool = False, momentum: float | None = None, joint: bool = False,
) -> Tensor:  # fmt: skip
    """New statistics ``[s]`` from received rows ``[n s]`` and values per channel ``[n L]``.

    The pre-aggregation is fixed on ``[m_i; v_i]`` of a layer, or of all layers (``joint``), and then applied to
    means, variances and, if a ``momentum`` is given, squared deviations from the new mean. ``by_values`` weighs
    clients by their values ``K_i/K`` instead of the round's sample weights. Layers nobody has a value for keep their
    statistics. Received variances and the result are floored at 0; arithmetic is in float64.
    """
    new = previous.double().clone()
    totals = counts.sum(0).tolist()
    seen = [i for i, total in enumerate(totals) if total > 0]
    if momentum is not None and 1 in totals:
        raise Refused("a layer saw one value per channel in the round; a variance needs at least 2")
    counted = counts.double()
    for group in [seen] if (joint or defense.by_columns) and seen else [[i] for i in seen]:
        chosen = [layers[i] for i in group]
        each = [layer.mean.stop - layer.mean.start for layer in chosen]
        widths = [sum(each)] if joint else each
        m = torch.cat([messages[:, layer.mean] for layer in chosen], dim=1).double()
        v = torch.cat([messages[:, layer.variance] for layer in chosen], dim=1).double().clamp(min=0.0)
        ms, vs = torch.split(m, widths, dim=1), torch.split(v, widths, dim=1)
        values = counted[:, group].sum(1, keepdim=True) if joint else counted[:, group]
        weights = (values / values.sum(0)).unbind(1) if by_values else None
        aggregate = defense.each([torch.cat(basis, dim=1) for basis in zip(ms, vs, strict=True)], weights=weights)
        mean, variance = torch.cat(aggregate(ms)), torch.cat(aggregate(vs))
        if momentum is not None:
            unbias = [totals[i] / ((totals[i] - 1) * momentum) for i in group]
            factor = torch.cat([m.new_full((width,), value) for width, value in zip(each, unbias, strict=True)])
            variance = variance + factor * torch.cat(aggregate(torch.split((m - mean).square(), widths, dim=1)))
        places = zip(chosen, torch.split(mean, each), torch.split(variance.clamp(min=0.0), each), strict=True)
        for layer, own, spread in places:
            new[layer.mean], new[layer.variance] = own, spread
    return new.to(previous.dtype)


class AveragedNorm(Norm):
    """Ordinary batch normalization of each client, whose running statistics the server aggregates like weights."""

    momentum: float
    eps: float

    def layer(self, channels: int) -> nn.Module:
        return OwnBatchNorm(channels, momentum=self.momentum, eps=self.eps)

    def merge(
        self, messages: Tensor, counts: Tensor, previous: Tensor, layers: Layers, defense: StatisticsAggregation
    ) -> Tensor:
        """Means and variances aggregated by the defense; unchanged when nobody reports."""
        return merge_layers(messages, counts, previous, layers, defense)
