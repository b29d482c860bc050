"""Batch and group normalization over the samples of several clients, with gradients of the affine part per client.

Each function works on the merged batch; on the CPU it loops over clients where their statistics or gradients differ,
with torch's own fused kernels. ``sizes`` are the clients' samples, one after another along the first axis; ``weight``
and ``bias`` hold a row for each of them, ``[n C]``, equal ones (an expanded vector) where they share a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robustfl.layer_kinds import first_order, per_sample
from robustfl.norms.sums import beside, channel_rows, client_moments, client_sums, pieces, sum_pieces, sum_rows, within

aten = torch.ops.aten


def values_per_channel(x: Tensor, sizes: tuple[int, ...]) -> list[int]:
    """The number of values that each client's part of ``x`` contributes to one channel (``K_i``)."""
    spatial = x.shape[2:].numel()
    return [size * spatial for size in sizes]


def like_layout(gradient: Tensor, x: Tensor) -> Tensor:
    """``gradient`` in the memory layout of ``x``; the kernels are slow on, or wrong for, mixed layouts."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return gradient.contiguous(memory_format=torch.channels_last)
    return gradient.contiguous()


def packed(x: Tensor) -> Tensor:
    """``x`` itself if it is dense in one of the two layouts, else a contiguous copy."""
    dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    return x if dense else x.contiguous()


# Values per channel up to which torch's fused kernels, which add up float32 in one chain, are exact enough.
FUSED = 2**13


def _fused(x: Tensor, sizes: tuple[int, ...]) -> bool:
    """True for one client alone with so little data that the calls are what costs; torch's own layers serve it."""
    return len(sizes) == 1 and x.device.type == "cpu" and x.numel() <= FUSED * x.shape[1]


def _distinct(rows: Tensor) -> Tensor:
    """The first of the rows ``[n C]`` where all are known to be equal."""
    return rows[:1] if rows.stride(0) == 0 else rows


def factors(rows: Tensor, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Distinct rows as factors of the samples ``x``."""
    each = rows if len(rows) == 1 else per_sample(rows, sizes)
    return each.view(len(each), -1, *(1,) * (x.dim() - 2))


def _by_client(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The sums ``[n C]`` of each client's values in ``x [Σb C …]``."""
    return client_sums(x.flatten(2).sum(2) if x.dim() > 2 else x, sizes)


def _counts(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The clients' values per channel as a column ``[n 1]``, made on the device without a copy from the host."""
    return torch.cat([x.new_full((1, 1), count) for count in values_per_channel(x, sizes)])


class OwnStatistics(torch.autograd.Function):
    """Every client normalised with the mean and variance of its own batch, both ``[n C]``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...], eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and each client's mean and unbiased variance, constants for whoever goes on with them."""
        x = packed(x)
        out = torch.empty_like(x)
        ins, outs = channel_rows(x, sizes), channel_rows(out, sizes)
        if ins is not None and outs is not None:
            mean, variance = client_moments(x, sizes)
            inverse = (variance + eps).rsqrt_()
            scale = inverse * weight
            torch.addcmul((bias - mean * scale)[:, None, None], ins, scale[:, None, None], out=outs)
            values = ins.shape[1] * ins.shape[2]
            unbiased = variance * (values / (values - 1))
        elif x.device.type != "cpu":
            mean, variance = client_moments(x, sizes)
            inverse = (variance + eps).rsqrt_()
            scale, counts = inverse * weight, _counts(x, sizes)
            out = torch.addcmul(factors(bias - mean * scale, x, sizes), x, factors(scale, x, sizes))
            unbiased = variance * (counts / (counts - 1))
        else:
            mean, unbiased, inverse = (x.new_zeros(len(sizes), x.shape[1]) for _ in range(3))
            parts = zip(torch.split(x, list(sizes)), torch.split(out, list(sizes)), strict=True)
            for k, (part, target) in enumerate(parts):
                aten.native_batch_norm.out(
                    part, weight[k], bias[k], mean[k], unbiased[k], True, 1.0, eps,
                    out=target, save_mean=x.new_empty(x.shape[1]), save_invstd=inverse[k],
                )  # fmt: skip
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.settings = (sizes, eps)
        ctx.mark_non_differentiable(mean, unbiased)
        return out, mean, unbiased

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, means, inverse = ctx.saved_tensors
        sizes, eps = ctx.settings
        gradient = like_layout(gradient, x)
        into = torch.empty_like(x)
        outers, inners, intos = (channel_rows(t, sizes) for t in (gradient, x, into))
        if outers is not None and inners is not None and intos is not None:
            values = inners.shape[1] * inners.shape[2]
            mean, inverse = means[:, None, None], inverse[:, None, None]
            dw = sum_pieces(inners, lambda n, b: (inners[n, b] - mean[n]).mul_(inverse[n]).mul_(outers[n, b]))
            db = sum_rows(outers)
            scale, shift, slope = weight[:, None, None] * inverse, -db / values, -dw / values
            for n, b in pieces(inners):
                standard = (inners[n, b] - mean[n]).mul_(inverse[n])
                torch.addcmul(shift[n], standard, slope[n], out=intos[n, b])
                intos[n, b].add_(outers[n, b]).mul_(scale[n])
            return into, dw[:, 0, 0], db[:, 0, 0], None, None
        if x.device.type != "cpu":
            counts, scale = _counts(x, sizes), factors(weight * inverse, x, sizes)
            standard = (x - factors(means, x, sizes)) * factors(inverse, x, sizes)
            db, dw = _by_client(gradient, sizes), _by_client(gradient * standard, sizes)
            shift, slope = factors(-db / counts, x, sizes), factors(-dw / counts, x, sizes)
            return (torch.addcmul(shift, standard, slope) + gradient) * scale, dw, db, None, None
        found = []
        each = (torch.split(t, list(sizes)) for t in (gradient, x, into))
        for k, (outer, inner, target) in enumerate(zip(*each, strict=True)):
            dx, *sums = aten.native_batch_norm_backward(
                outer, inner, weight[k], None, None, means[k], inverse[k], True, eps, [True, True, True]
            )
            target.copy_(dx)
            found.append(sums)
        dw, db = (torch.stack(list(part)) for part in zip(*found, strict=True))
        return into, dw, db, None, None


class ServerStatistics(torch.autograd.Function):
    """Clients normalised with given statistics, all the same ``[C]`` or each its own ``[n C]``, which are constants."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: tuple[int, ...],
        statistics: tuple[Tensor, Tensor],
        eps: float,
    ) -> Tensor:
        x = packed(x)
        mean, variance = statistics
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.settings = (sizes, eps)
        if len(_distinct(weight)) == 1 and mean.dim() == 1:
            out: Tensor = torch.native_batch_norm(x, weight[0], bias[0], mean, variance, False, 0.0, eps)[0]
            return out
        scale = weight * (variance + eps).rsqrt()
        return torch.addcmul(factors(bias - mean * scale, x, sizes), x, factors(scale, x, sizes))

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        sizes, eps = ctx.settings
        gradient = like_layout(gradient, x)
        inverse = (variance + eps).rsqrt()
        into = None
        if ctx.needs_input_grad[0]:  # a plain product is several times faster here than the fused kernel
            into = gradient * factors(_distinct(weight) * inverse, x, sizes)
        if not ctx.needs_input_grad[1]:  # somebody asks for the gradient of the input alone
            return into, *(None,) * 5
        outers, inners = channel_rows(gradient, sizes), channel_rows(x, sizes)
        if outers is not None and inners is not None:
            means = mean.view(-1, 1, 1, mean.shape[-1]).expand(len(sizes), -1, -1, -1)
            dw = sum_pieces(inners, lambda k, at: (inners[k, at] - means[k]).mul_(outers[k, at]))[:, 0, 0] * inverse
            return into, dw, sum_rows(outers)[:, 0, 0], *(None,) * 3
        if x.device.type != "cpu":  # torch's kernel for GPUs asks for statistics of the batch even where it uses none
            each = factors(mean.view(-1, mean.shape[-1]), x, sizes)
            dw = _by_client((x - each) * gradient, sizes) * inverse
            return into, dw, _by_client(gradient, sizes), *(None,) * 3
        found = []
        means, variances = mean.expand(len(sizes), -1), variance.expand(len(sizes), -1)
        for k, (outer, inner) in enumerate(
            zip(torch.split(gradient, list(sizes)), torch.split(x, list(sizes)), strict=True)
        ):
            _, *sums = aten.native_batch_norm_backward(
                outer, inner, weight[k], means[k], variances[k], None, None, False, eps, [False, True, True]
            )
            found.append(sums)
        dw, db = (torch.stack(list(part)) for part in zip(*found, strict=True))
        return into, dw, db, *(None,) * 3


class PieceMoments(torch.autograd.Function):
    """Mean and biased variance ``[k C]`` of each client's values in a piece ``[k b C …]``.

    In two passes: on the CPU torch's own ``var_mean`` takes several times as long as both, and its backward more.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(within(x))
        centred = x - beside(mean, x)
        ctx.save_for_backward(centred)
        return mean, centred.square().mean(within(x))

    @staticmethod
    @first_order
    def backward(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> Tensor:
        (centred,) = ctx.saved_tensors
        values = centred[0, :, 0].numel()
        shift, slope = beside(by_mean / values, centred), beside(by_variance * (2 / values), centred)
        return torch.addcmul(shift, slope, centred)


class GroupStatistics(torch.autograd.Function):
    """Group normalization: statistics per sample, gradients of the affine part per client."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...], groups: int, eps: float
    ) -> Tensor:
        x = packed(x) if x.device.type == "cpu" else x.contiguous()  # as torch's kernel for GPUs wants it
        n, c, spatial = x.shape[0], x.shape[1], x.shape[2:].numel()
        alike = len(_distinct(weight)) == 1
        w, b = (weight[0], bias[0]) if alike else (None, None)
        out, mean, inverse = torch.native_group_norm(x, w, b, n, c, spatial, groups, eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.settings = (sizes, groups)
        result: Tensor = out if alike else torch.addcmul(factors(bias, x, sizes), out, factors(weight, x, sizes))
        return result

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        sizes, groups = ctx.settings
        gradient = like_layout(gradient, x)
        if x.device.type != "cpu":
            return *_group_gradients(gradient, x, weight, mean, inverse, sizes, groups), *(None,) * 3
        c, spatial = x.shape[1], x.shape[2:].numel()
        into, found = torch.empty_like(x), []
        parts = zip(*(torch.split(t, list(sizes)) for t in (gradient, x, mean, inverse, into)), strict=True)
        for k, (outer, inner, part_mean, part_inverse, target) in enumerate(parts):
            dx, *sums = aten.native_group_norm_backward(
                outer, inner, part_mean, part_inverse, weight[k], sizes[k], c, spatial, groups, [True, True, True]
            )
            target.copy_(dx)
            found.append(sums)
        dw, db = (torch.stack(list(part)) for part in zip(*found, strict=True))
        return into, dw, db, *(None,) * 3


def _group_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, sizes: tuple[int, ...], groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weights and biases of all clients at once, for devices on which a call is what costs."""
    n, c, spatial = x.shape[0], x.shape[1], x.shape[2:].numel()
    scaled = gradient * factors(_distinct(weight), x, sizes)
    into = aten.native_group_norm_backward(scaled, x, mean, inverse, None, n, c, spatial, groups, [True, False, False])[
        0
    ]
    standard = (x.reshape(n, groups, -1) - mean[..., None]) * inverse[..., None]
    products = (standard.view(n, c, -1) * gradient.reshape(n, c, -1)).sum(2)
    return into, client_sums(products, sizes), client_sums(gradient.reshape(n, c, -1).sum(2), sizes)


piece_moments: Callable[[Tensor], tuple[Tensor, Tensor]] = PieceMoments.apply
_own_statistics: Callable[..., tuple[Tensor, Tensor, Tensor]] = OwnStatistics.apply
_server_statistics: Callable[..., Tensor] = ServerStatistics.apply
_group_statistics: Callable[..., Tensor] = GroupStatistics.apply


def own_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Every client normalised with its own batch; and its mean and unbiased variance, both ``[n C]``, constants."""
    if not _fused(x, sizes):
        return _own_statistics(x, weight, bias, sizes, eps)
    mean, unbiased = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    out = torch.batch_norm(x, weight.squeeze(0), bias.squeeze(0), mean, unbiased, True, 1.0, eps, False)
    return out, mean[None], unbiased[None]


def server_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...], statistics: tuple[Tensor, Tensor], eps: float
) -> Tensor:
    """Clients normalised with given statistics, all the same ``[C]`` or each its own ``[n C]``, which are constants."""
    if _fused(x, sizes) and statistics[0].dim() == 1:
        return torch.batch_norm(x, weight.squeeze(0), bias.squeeze(0), *statistics, False, 0.0, eps, False)
    return _server_statistics(x, weight, bias, sizes, statistics, eps)


def group_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...], groups: int, eps: float
) -> Tensor:
    """Group normalization of every sample, with each client's scale and shift."""
    if _fused(x, sizes):
        return torch.group_norm(x, groups, weight.squeeze(0), bias.squeeze(0), eps)
    return _group_statistics(x, weight, bias, sizes, groups, eps)
