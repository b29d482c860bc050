"""The table of layer kinds: how a layer serves several clients in one forward.

A forward takes the samples of all clients one after another, ``sizes[k]`` of client ``k``, and for every parameter of
the layer one row per client, ``rows[name] [n …]``. The gradient of a row is that of its client's samples. The engine
asks the table what can run together; a model with a layer that is not in it runs one client at a time.

A new kind is one class with ``forward``, registered for its layer's type; ``own`` and ``shared`` may be faster:

>>> @layer_kind(nn.PReLU)
... class Slopes(LayerKind):
...     def forward(self, layer, x, weights):
...         return nn.functional.prelu(x, weights["weight"])
>>> kind_of(nn.PReLU()).own(nn.PReLU(), -torch.ones(3, 1), {"weight": torch.tensor([[0.5], [2.0]])}, (1, 2)).tolist()
[[-0.5], [-2.0], [-2.0]]
>>> del TABLE[nn.PReLU]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from robustfl.errors import UsageError

Rows = Mapping[str, Tensor]
Sizes = tuple[int, ...]
# Entries of a client's output gradient up to which a grouped convolution beats a loop, on the CPU and on a GPU (H100).
SMALL, LARGE = 28_000, 2**21

aten = torch.ops.aten
first_order: Callable[[Any], Any] = once_differentiable  # typed, as torch's own is not in every version


class LayerKind(ABC):
    """One row of the table: how layers of one type serve several clients at once."""

    def serves(self, layer: Any) -> bool:
        """True if it holds for this layer, whatever its settings."""
        return True

    @abstractmethod
    def forward(self, layer: Any, x: Tensor, weights: Rows) -> Tensor:
        """The output for a client alone, with ``weights``, by name, in the place of the layer's parameters."""

    def own(self, layer: Any, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        """Each client's samples with its own row of every parameter."""
        parts = torch.split(x, list(sizes))
        each = [{name: row[k] for name, row in rows.items()} for k in range(len(sizes))]
        return torch.cat([self.forward(layer, part, mine) for part, mine in zip(parts, each, strict=True)])

    def shared(self, layer: Any, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        """``own`` where all clients' rows are equal."""
        return self.own(layer, x, rows, sizes)

    def width(self, layer: Any, pixels: int) -> int:
        """About how many entries the layer puts out for a sample of so many ``pixels``; 0 where that is few."""
        return 0


TABLE: dict[type[nn.Module], LayerKind] = {}


def layer_kind(*types: type[nn.Module]) -> Callable[[type[LayerKind]], type[LayerKind]]:
    """Register a kind for layers of exactly these types: a subclass may do something else in its forward."""

    for type_ in types:
        if not isinstance(type_, type) or issubclass(type_, LayerKind):
            raise UsageError(f"layer_kind takes types of layers, as in @layer_kind(nn.PReLU); {type_!r} is none")

    def registered(kind: type[LayerKind]) -> type[LayerKind]:
        if not issubclass(kind, LayerKind):
            raise UsageError(f"{kind.__name__} must derive from LayerKind to be a row of the table of layer kinds")
        for type_ in types:
            if type_ in TABLE:
                raise UsageError(f"{type_.__name__} has a layer kind already: {type(TABLE[type_]).__name__}")
            TABLE[type_] = kind()
        return kind

    return registered


def kind_of(layer: nn.Module) -> LayerKind | None:
    kind = TABLE.get(type(layer))
    return kind if kind is not None and kind.serves(layer) else None


def equal(sizes: Sizes) -> bool:
    """True if all clients have equally many samples."""
    return min(sizes) == max(sizes)


def as_product(x: Tensor) -> Tensor:
    """``x`` in the dtype in which torch's autocast, where it is on, hands it to a product."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def per_sample(rows: Tensor, sizes: Sizes) -> Tensor:
    """The clients' rows ``[n …]`` as one for each of their samples ``[Σb …]``."""
    if equal(sizes):
        return rows.unsqueeze(1).expand(-1, sizes[0], *rows.shape[1:]).flatten(0, 1)
    return torch.cat([row.expand(size, *row.shape) for row, size in zip(rows, sizes, strict=True)])


# --- convolutions ----------------------------------------------------------------------------------------------------


class ClientConvolution(torch.autograd.Function):
    """A convolution of the merged batch with equal weights ``[n …]``, whose gradients come back client by client."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...], sizes: Sizes
    ) -> Tensor:
        x, kernel = as_product(x), as_product(weight[0])
        ctx.save_for_backward(x, kernel)
        ctx.settings, ctx.sizes, ctx.biased = settings, sizes, bias is not None
        return F.conv2d(x, kernel, None if bias is None else as_product(bias[0]), *settings)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        *_, groups = ctx.settings
        sizes, n, wanted = ctx.sizes, len(ctx.sizes), [False, True, ctx.biased]
        db: Tensor | None = None
        grouped = gradient.numel() <= n * (SMALL if x.device.type == "cpu" else LARGE)
        if n > 1 and equal(sizes) and grouped:
            outer, inner = _clients_as_channels(gradient, n), _clients_as_channels(x, n)
            _, dw, sums = _back(outer, inner, weight.repeat(n, 1, 1, 1), ctx.settings, n * groups, wanted)
            dw, db = dw.view(n, *weight.shape), sums.view(n, -1) if ctx.biased else None
        else:
            summed = x.device.type != "cpu" and equal(sizes)  # biases of all clients in one sum, not one for each
            wanted[2] &= not summed
            parts = zip(torch.split(gradient, list(sizes)), torch.split(x, list(sizes)), strict=True)
            each = [_back(outer, inner, weight, ctx.settings, groups, wanted) for outer, inner in parts]
            dw = each[0][1][None] if n == 1 else torch.stack([one[1] for one in each])
            if ctx.biased and summed:
                db = gradient.view(n, -1, *gradient.shape[1:]).sum((1, 3, 4))
            elif ctx.biased:
                db = torch.stack([one[2] for one in each])
        into = None
        if ctx.needs_input_grad[0]:
            into = _back(gradient, x, weight, ctx.settings, groups, [True, False, False])[0]
        return into, dw, db, None, None


def _back(
    outer: Tensor, inner: Tensor, by: Tensor, settings: tuple[Any, ...], groups: int, mask: list[bool]
) -> tuple[Tensor, ...]:
    stride, padding, dilation, _ = settings
    result: tuple[Tensor, ...] = aten.convolution_backward(
        outer, inner, by, [by.shape[0]], stride, padding, dilation, False, [0, 0], groups, mask
    )
    return result


def _clients_as_channels(x: Tensor, n: int) -> Tensor:
    """``[n·b C H W]`` to ``[b n·C H W]``: one grouped convolution then serves all clients."""
    _, c, h, w = x.shape
    return x.view(n, -1, c, h, w).transpose(0, 1).reshape(-1, n * c, h, w)


@layer_kind(nn.Conv2d)
class Convolution(LayerKind):
    """``nn.Conv2d`` padded with zeros; own weights make it one convolution with a group of channels per client."""

    def serves(self, layer: nn.Conv2d) -> bool:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)

    def forward(self, layer: nn.Conv2d, x: Tensor, weights: Rows) -> Tensor:
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return F.conv2d(x, weights["weight"], weights.get("bias"), *settings)  # type: ignore[arg-type]

    def shared(self, layer: nn.Conv2d, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return convolution(x, rows["weight"], rows.get("bias"), settings, sizes)

    def own(self, layer: nn.Conv2d, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        if not equal(sizes):
            return super().own(layer, x, rows, sizes)
        n, weight, bias = len(sizes), rows["weight"], rows.get("bias")
        samples, c, h, w = x.shape
        # Channels innermost in memory before and after.
        beside = x.view(n, -1, c, h, w).permute(1, 3, 4, 0, 2).reshape(-1, h, w, n * c).permute(0, 3, 1, 2)
        flat = None if bias is None else bias.flatten()
        settings = (layer.stride, layer.padding, layer.dilation, n * layer.groups)
        y = F.conv2d(beside, weight.flatten(0, 1), flat, *settings)  # type: ignore[arg-type]
        h, w = y.shape[2:]
        apart = y.view(-1, n, weight.shape[1], h, w).permute(1, 0, 3, 4, 2)
        return apart.reshape(samples, h, w, -1).permute(0, 3, 1, 2)

    def width(self, layer: nn.Conv2d, pixels: int) -> int:
        return layer.out_channels * pixels  # as if it kept the input's height and width


# --- linear layers ---------------------------------------------------------------------------------------------------


class ClientProduct(torch.autograd.Function):
    """A linear layer on the merged batch ``[N … I]`` with equal weights, whose gradients come back by client."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
        x, kernel = as_product(x), as_product(weight[0])
        ctx.save_for_backward(x, kernel)
        ctx.sizes, ctx.biased, ctx.kind = sizes, bias is not None, weight.dtype
        return F.linear(x, kernel, None if bias is None else as_product(bias[0]))

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        sizes, n = ctx.sizes, len(ctx.sizes)
        into, db = gradient @ weight if ctx.needs_input_grad[0] else None, None
        if equal(sizes):
            outer, inner = gradient.reshape(n, -1, weight.shape[0]), x.reshape(n, -1, weight.shape[1])
            dw = torch.bmm(outer.transpose(1, 2), inner)
            db = outer.sum(1, dtype=ctx.kind) if ctx.biased else None
        else:
            outers = [part.flatten(0, -2) for part in torch.split(gradient, list(sizes))]
            inners = [part.flatten(0, -2) for part in torch.split(x, list(sizes))]
            dw = torch.stack([outer.t() @ inner for outer, inner in zip(outers, inners, strict=True)])
            db = torch.stack([outer.sum(0, dtype=ctx.kind) for outer in outers]) if ctx.biased else None
        return into, dw, db, None


@layer_kind(nn.Linear)
class Product(LayerKind):
    """``nn.Linear``; own weights make it one batched product.

    A layer that serves several vectors of a sample, as in a transformer, may say how many in ``positions``.
    """

    def forward(self, layer: nn.Linear, x: Tensor, weights: Rows) -> Tensor:
        return F.linear(x, weights["weight"], weights.get("bias"))

    def shared(self, layer: nn.Linear, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        return product(x, rows["weight"], rows.get("bias"), sizes)

    def own(self, layer: nn.Linear, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        if not equal(sizes):
            return super().own(layer, x, rows, sizes)
        inner, across, bias = x.reshape(len(sizes), -1, x.shape[-1]), rows["weight"].transpose(1, 2), rows.get("bias")
        y = torch.bmm(inner, across) if bias is None else torch.baddbmm(bias.unsqueeze(1), inner, across)
        return y.view(*x.shape[:-1], -1)

    def width(self, layer: nn.Linear, pixels: int) -> int:
        return layer.out_features * int(getattr(layer, "positions", 1))


# --- torch's other layers --------------------------------------------------------------------------------------------


@layer_kind(nn.LayerNorm)
class SampleNorm(LayerKind):
    """``nn.LayerNorm``: one standardisation, then every client's scale and shift."""

    def serves(self, layer: nn.LayerNorm) -> bool:
        return layer.elementwise_affine

    def forward(self, layer: nn.LayerNorm, x: Tensor, weights: Rows) -> Tensor:
        return F.layer_norm(x, layer.normalized_shape, weights["weight"], weights.get("bias"), layer.eps)

    def own(self, layer: nn.LayerNorm, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        y = F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
        between = (1,) * (x.dim() - 1 - len(layer.normalized_shape))
        shape = (len(x), *between, *layer.normalized_shape)
        y = y * per_sample(rows["weight"], sizes).view(shape)
        return y + per_sample(rows["bias"], sizes).view(shape) if "bias" in rows else y


@layer_kind(nn.Embedding)
class Lookup(LayerKind):
    """``nn.Embedding`` without a bound on its rows: one table, the clients' one after another."""

    def serves(self, layer: nn.Embedding) -> bool:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse

    def forward(self, layer: nn.Embedding, x: Tensor, weights: Rows) -> Tensor:
        return F.embedding(x, weights["weight"], layer.padding_idx)

    def own(self, layer: nn.Embedding, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        if layer.padding_idx is not None:
            return super().own(layer, x, rows, sizes)
        first = torch.arange(len(sizes), device=x.device) * layer.num_embeddings
        return F.embedding(x + per_sample(first, sizes).view(-1, *(1,) * (x.dim() - 1)), rows["weight"].flatten(0, 1))


class KeepLayout(torch.autograd.Function):
    """``x.flatten(1)`` whose backward returns the gradient in the layout of ``x``.

    The gradient would come back contiguous, and everything elementwise before it would mix two layouts, at up to
    40 times the cost.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.flatten(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.reshape(ctx.shape).contiguous(memory_format=torch.channels_last)


@layer_kind(nn.Flatten)
class Flattened(LayerKind):
    """``nn.Flatten`` of each sample; nothing of a client's own, but a gradient in the layout of what came in."""

    def serves(self, layer: nn.Flatten) -> bool:
        return (layer.start_dim, layer.end_dim) == (1, -1)

    def forward(self, layer: nn.Flatten, x: Tensor, weights: Rows) -> Tensor:
        if x.dim() == 4 and x.requires_grad and x.is_contiguous(memory_format=torch.channels_last):
            return flatten(x)
        return x.flatten(1)

    def own(self, layer: nn.Flatten, x: Tensor, rows: Rows, sizes: Sizes) -> Tensor:
        return self.forward(layer, x, rows)


convolution: Callable[..., Tensor] = ClientConvolution.apply
product: Callable[..., Tensor] = ClientProduct.apply
flatten: Callable[..., Tensor] = KeepLayout.apply
