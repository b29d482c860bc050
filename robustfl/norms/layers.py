"""The layers behind the schemes: server statistics in the buffers, the clients' own kept apart from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import NormLayer, StatisticsLayer
from robustfl.errors import Refused
from robustfl.layer_kinds import LayerKind, Rows, layer_kind
from robustfl.norms.functional import group_statistics, own_statistics, server_statistics, values_per_channel
from robustfl.norms.sums import client_moments

Put = Callable[..., None]


def noted(put: Put) -> Put:
    """A method by which a layer puts down what a forward has seen: at once, or by whoever ``notes`` the calls."""

    @wraps(put)
    def noting(layer: _Statistics, *values: Any) -> None:
        if layer.notes is None:
            put(layer, *values)
        else:
            layer.notes.append((layer, put, values))

    return noting


class _Affine(NormLayer):
    """Scale and shift per channel, and the checks every layer makes of its input."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.channels, self.eps = channels, eps

    def forward(self, x: Tensor) -> Tensor:
        """The layer with its own scale and shift for all clients."""
        n = len(self.sizes_of(x))
        return self.normalised(x, self.weight.expand(n, -1), self.bias.expand(n, -1))

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The layer with the clients' scales and shifts, both ``[n C]``."""
        raise NotImplementedError

    def sizes_of(self, x: Tensor, clients: int = 1) -> tuple[int, ...]:
        """The clients' samples in ``x``, in evaluation those of one client unless there are more.

        Raises ``Refused`` for an input that is not ``[b C]`` or ``[b C H W]``.
        """
        if x.dim() not in (2, 4) or x.shape[1] != self.channels:
            raise Refused(f"normalization of {self.channels} channels got an input of shape {tuple(x.shape)}")
        apart = self.sizes is not None and (self.training or clients > 1)
        sizes = self.sizes if apart and self.sizes is not None else (x.shape[0],)
        if sum(sizes) != x.shape[0]:
            raise Refused(f"clients with {sizes} samples announced, {x.shape[0]} given")
        return sizes

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps:g}"


class _Statistics(_Affine, StatisticsLayer):
    """Buffers with the server's statistics, and normalization with them."""

    notes: list[tuple[_Statistics, Put, tuple[Any, ...]]] | None = None

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, eps)
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self._counts: list[int] | None = None
        self._own: tuple[Tensor, Tensor] | None = None

    def begin(self, sizes: tuple[int, ...] | None, *, frozen: bool = False) -> None:
        super().begin(sizes, frozen=frozen)
        self._counts = self._own = None

    def start(self, mean: Tensor, variance: Tensor) -> None:
        self.running_mean, self.running_var = mean, variance

    def add(self, counts: list[int]) -> bool:
        """Count the values of one more forward; True for the first of the round."""
        if self._counts is None or len(self._counts) != len(counts):
            self._counts = counts
            return True
        self._counts = [old + new for old, new in zip(self._counts, counts, strict=True)]
        return False

    def by_server(self, x: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """``x`` normalised with the server's statistics, which are constants in the backward pass."""
        return server_statistics(x, weight, bias, sizes, (self.running_mean, self.running_var), self.eps)

    def report(self) -> tuple[Tensor, Tensor, Tensor]:
        """Each client's own mean and variance; of clients without a value this round the server's, count 0."""
        if self._counts is not None and self._own is not None:
            return *self._own, self.counts()
        n = 1 if self.sizes is None else len(self.sizes)
        counts = torch.zeros(n, dtype=torch.int64)
        return self.running_mean.expand(n, -1).clone(), self.running_var.expand(n, -1).clone(), counts

    def counts(self) -> Tensor:
        """Values per channel ``[n]`` seen since ``begin``, on the CPU: nothing on a device depends on them."""
        return torch.tensor(self._counts, dtype=torch.int64)


def check_values(counts: list[int], scheme: str) -> None:
    """Raise ``Refused`` if a client has one value per channel, which has no variance."""
    for k, count in enumerate(counts):
        if count < 2:
            raise Refused(
                f"{scheme}: client {k} of the batch has {count} value per channel; a variance needs at least 2"
            )


class OwnBatchNorm(_Statistics):
    """Training with the statistics of each client's own batch, or the server's once frozen."""

    def __init__(self, channels: int, *, momentum: float, eps: float) -> None:
        super().__init__(channels, eps)
        self.momentum = momentum

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        sizes = self.sizes_of(x, len(weight))
        if not self.training and self.as_client and self._own is not None:
            return server_statistics(x, weight, bias, sizes, (self._own[0][0], self._own[1][0]), self.eps)
        if not self.training or self.frozen:
            return self.by_server(x, weight, bias, sizes)
        counts = values_per_channel(x, sizes)
        check_values(counts, "batch statistics")
        out, mean, variance = own_statistics(x, weight, bias, sizes, self.eps)
        if not self.unseen:
            self.move(mean, variance, counts)
        return out

    @noted
    def move(self, mean: Tensor, variance: Tensor, counts: list[int]) -> None:
        """Move the clients' running statistics by torch's rule, from the server's at first."""
        n = len(counts)
        if self.add(counts) or self._own is None:
            self._own = (self.running_mean.expand(n, -1), self.running_var.expand(n, -1))
        old_mean, old_variance = self._own
        self._own = (torch.lerp(old_mean, mean, self.momentum), torch.lerp(old_variance, variance, self.momentum))


class ServerBatchNorm(_Statistics):
    """Training with the server's statistics while the clients' own are pooled."""

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        sizes = self.sizes_of(x, len(weight))
        if self.training and not self.unseen:
            self.look(x, sizes)
        return self.by_server(x, weight, bias, sizes)

    def look(self, x: Tensor, sizes: tuple[int, ...]) -> None:
        self.pool(*client_moments(x, sizes), values_per_channel(x, sizes))

    @noted
    def pool(self, mean: Tensor, variance: Tensor, counts: list[int]) -> None:
        """Chan's rule: pooled mean and biased variance ``[n C]`` over the forwards of the round."""
        before = self._counts
        if self.add(counts) or self._own is None or before is None:
            self._own = (mean, variance)
            return
        old_mean, old_variance = self._own
        share = (torch.tensor(counts).to(mean.dtype) / self.counts()).unsqueeze(1).to(mean.device)
        step = mean - old_mean
        pooled = old_variance + share * (variance - old_variance) + share * (1 - share) * step.square()
        self._own = (old_mean + share * step, pooled)


class MergedBatchNorm(OwnBatchNorm):
    """Ordinary batch normalization of the merged batch, whoever the samples belong to."""

    centralised: ClassVar[bool] = True

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        sizes = self.sizes_of(x, len(weight))
        if not self.training:
            return self.by_server(x, weight[:1], bias[:1], (len(x),))
        counts = values_per_channel(x, sizes)
        check_values([sum(counts)], "centralised-bn")
        out, mean, variance = own_statistics(x, weight[:1], bias[:1], (len(x),), self.eps)
        if not self.unseen:
            self.move(mean, variance, counts)
        return out


class ClientGroupNorm(_Affine):
    """Group normalization of each sample by itself: no statistics to share."""

    def __init__(self, channels: int, groups: int, *, eps: float) -> None:
        if channels % groups:
            raise Refused(f"group normalization: {channels} channels are not divisible into {groups} groups")
        super().__init__(channels, eps)
        self.groups = groups

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        sizes = self.sizes_of(x, len(weight))
        if x.shape[2:].numel() * self.channels // self.groups < 2:
            raise Refused(
                f"group normalization: {self.groups} groups of {self.channels} channels leave one value per group "
                f"in an input of shape {tuple(x.shape)}"
            )
        return group_statistics(x, weight, bias, sizes, self.groups, self.eps)


@layer_kind(OwnBatchNorm, ServerBatchNorm, MergedBatchNorm, ClientGroupNorm)
class Normalization(LayerKind):
    """A normalization layer, which keeps clients apart by itself; its type must be registered by name."""

    def forward(self, layer: Any, x: Tensor, weights: Rows) -> Tensor:
        return self.own(layer, x, {name: weight[None] for name, weight in weights.items()}, (len(x),))

    def own(self, layer: Any, x: Tensor, rows: Rows, sizes: tuple[int, ...]) -> Tensor:
        y: Tensor = layer.normalised(x, **rows)
        return y
