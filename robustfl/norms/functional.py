"""Batch and group normalization over the samples of several clients, with gradients of the affine part per client.

Each function works on the merged batch and loops over clients only where their statistics or gradients differ, with
torch's own fused kernels. ``sizes`` are the clients' samples, one after another along the first axis. ``rows`` holds
two tensors ``[n C]`` to which backward adds each client's gradients of weight and bias; with ``None`` the sums over
clients become ordinary gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from robustfl.norms.sums import channel_rows, client_moments, pieces, sample_sums, sum_rows

Rows = tuple[Tensor, Tensor] | None
aten = torch.ops.aten
first_order: Callable[[Any], Any] = once_differentiable  # typed, as torch's own is not in every version


def values_per_channel(x: Tensor, sizes: tuple[int, ...]) -> list[int]:
    """How many values each client's part of ``x`` contributes to one channel (``K_i``)."""
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


class OwnStatistics(torch.autograd.Function):
    """Every client normalised with the statistics of its own batch, which also move its own running rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: tuple[int, ...],
        running: tuple[Tensor, Tensor],
        momentum: float,
        eps: float,
        rows: Rows,
    ) -> Tensor:
        """``running``: the clients' running means and variances ``[n C]``, updated in place by torch's rule."""
        x = packed(x)
        out, saved = torch.empty_like(x), x.new_empty(2, len(sizes), x.shape[1])
        ins, outs = channel_rows(x, sizes), channel_rows(out, sizes)
        if ins is not None and outs is not None:
            mean, variance = client_moments(x, sizes)
            saved[0], saved[1] = mean, (variance + eps).rsqrt_()
            scale = saved[1] * weight
            torch.addcmul((bias - mean * scale)[:, None, None], ins, scale[:, None, None], out=outs)
            values = ins.shape[1] * ins.shape[2]
            unbiased = variance.mul_(values / (values - 1))
            for old, new in zip(running, (mean, unbiased), strict=True):
                old.lerp_(new, momentum)
        else:
            parts = zip(torch.split(x, list(sizes)), torch.split(out, list(sizes)), strict=True)
            for k, (part, target) in enumerate(parts):
                aten.native_batch_norm.out(
                    part, weight, bias, running[0][k], running[1][k], True, momentum, eps,
                    out=target, save_mean=saved[0, k], save_invstd=saved[1, k],
                )  # fmt: skip
        ctx.save_for_backward(x, weight, saved)
        ctx.settings = (sizes, eps, rows)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, (means, inverse) = ctx.saved_tensors
        sizes, eps, rows = ctx.settings
        gradient = like_layout(gradient, x)
        into = torch.empty_like(x)
        mine = rows or (torch.zeros_like(means), torch.zeros_like(means))
        outers, inners, intos = (channel_rows(t, sizes) for t in (gradient, x, into))
        if outers is not None and inners is not None and intos is not None:
            values = inners.shape[1] * inners.shape[2]
            mean, inverse = means[:, None, None], inverse[:, None, None]
            products = inners.new_empty(*inners.shape[:2], 1, inners.shape[3])
            for n, b in pieces(inners):
                products[n, b] = sample_sums((inners[n, b] - mean[n]).mul_(inverse[n]).mul_(outers[n, b]))
            db, dw = sum_rows(outers), products.sum(1, keepdim=True)
            mine[0].add_(dw[:, 0, 0])
            mine[1].add_(db[:, 0, 0])
            scale, shift, slope = weight * inverse, -db / values, -dw / values
            for n, b in pieces(inners):
                standard = (inners[n, b] - mean[n]).mul_(inverse[n])
                torch.addcmul(shift[n], standard, slope[n], out=intos[n, b])
                intos[n, b].add_(outers[n, b]).mul_(scale[n])
        else:
            each = (torch.split(t, list(sizes)) for t in (gradient, x, into))
            for k, (outer, inner, target) in enumerate(zip(*each, strict=True)):
                dx, part_w, part_b = aten.native_batch_norm_backward(
                    outer, inner, weight, None, None, means[k], inverse[k], True, eps, [True, True, True]
                )
                target.copy_(dx)
                mine[0][k] += part_w
                mine[1][k] += part_b
        sums = (None, None) if rows else (mine[0].sum(0), mine[1].sum(0))
        return into, *sums, None, None, None, None, None


class ServerStatistics(torch.autograd.Function):
    """Every client normalised with the same given statistics, constants in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: tuple[int, ...],
        statistics: tuple[Tensor, Tensor],
        eps: float,
        rows: Rows,
    ) -> Tensor:
        x = packed(x)
        mean, variance = statistics
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.settings = (sizes, eps, rows)
        out: Tensor = torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        sizes, eps, rows = ctx.settings
        gradient = like_layout(gradient, x)
        inverse = (variance + eps).rsqrt()
        into = None
        if ctx.needs_input_grad[0]:  # a plain product is several times faster here than the fused kernel
            into = gradient * (weight * inverse).view(1, -1, *(1,) * (x.dim() - 2))
        if not rows and not ctx.needs_input_grad[1]:  # somebody asks for the gradient of the input alone
            return into, None, None, None, None, None, None
        outers, inners = channel_rows(gradient, sizes), channel_rows(x, sizes)
        if rows and outers is not None and inners is not None:
            rows[0].add_(sum_rows((inners - mean).mul_(outers))[:, 0, 0] * inverse)
            rows[1].add_(sum_rows(outers)[:, 0, 0])
            return into, None, None, None, None, None, None
        mine = rows or (torch.zeros_like(weight)[None], torch.zeros_like(weight)[None])
        parts = sizes if rows else (x.shape[0],)
        for k, (outer, inner) in enumerate(
            zip(torch.split(gradient, list(parts)), torch.split(x, list(parts)), strict=True)
        ):
            _, dw, db = aten.native_batch_norm_backward(
                outer, inner, weight, mean, variance, None, None, False, eps, [False, True, True]
            )
            mine[0][k] += dw
            mine[1][k] += db
        sums = (None, None) if rows else (mine[0][0], mine[1][0])
        return into, *sums, None, None, None, None


class GroupStatistics(torch.autograd.Function):
    """Group normalization: statistics per sample, gradients of the affine part per client."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...], groups: int, eps: float, rows: Rows
    ) -> Tensor:
        x = packed(x)
        n, c, spatial = x.shape[0], x.shape[1], x.shape[2:].numel()
        out, mean, inverse = torch.native_group_norm(x, weight, bias, n, c, spatial, groups, eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.settings = (sizes, groups, rows)
        result: Tensor = out
        return result

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        sizes, groups, rows = ctx.settings
        gradient = like_layout(gradient, x)
        c, spatial = x.shape[1], x.shape[2:].numel()
        if rows is None:
            whole = aten.native_group_norm_backward(
                gradient, x, mean, inverse, weight, x.shape[0], c, spatial, groups, [True, True, True]
            )
            return *whole, None, None, None, None
        into = torch.empty_like(x)
        parts = zip(*(torch.split(t, list(sizes)) for t in (gradient, x, mean, inverse, into)), strict=True)
        for k, (outer, inner, part_mean, part_inverse, target) in enumerate(parts):
            dx, dw, db = aten.native_group_norm_backward(
                outer, inner, part_mean, part_inverse, weight, sizes[k], c, spatial, groups, [True, True, True]
            )
            target.copy_(dx)
            rows[0][k] += dw
            rows[1][k] += db
        return into, None, None, None, None, None, None


own_statistics: Callable[..., Tensor] = OwnStatistics.apply
server_statistics: Callable[..., Tensor] = ServerStatistics.apply
group_statistics: Callable[..., Tensor] = GroupStatistics.apply
