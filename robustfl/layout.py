"""The layout that turns a model's state into rows: trainables ``[d]`` and statistics ``[s]``, typed by module.

Entries are tagged by the type of the module that owns them, never by a name, so that no batch-norm buffer is mistaken
for a weight and no weight for a buffer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from robustfl.contracts import BranchedLayer, NormLayer, StatisticsSlices, Tag

_TORCH_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
_TORCH_BUFFERS = {"running_mean": Tag.MEAN, "running_var": Tag.VARIANCE, "num_batches_tracked": Tag.COUNTER}


@dataclass(frozen=True)
class Slot:
    """One tensor of the model's state and its place in its row."""

    name: str
    shape: tuple[int, ...]
    tag: Tag
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Where every entry of a model's state lies in the update row and in the statistics row.

    ``start [s]`` are the statistics that training begins with; (0, 1) without it.
    """

    update: tuple[Slot, ...]
    layers: tuple[StatisticsSlices, ...]
    start: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def d(self) -> int:
        """Number of trainable entries."""
        return self.update[-1].stop if self.update else 0

    @property
    def s(self) -> int:
        """Number of statistics entries."""
        return self.layers[-1].variance.stop if self.layers else 0

    def tagged(self, tags: Collection[Tag]) -> Tensor:
        """Boolean ``[d]``: which trainable entries have one of the ``tags``."""
        mask = torch.zeros(self.d, dtype=torch.bool)
        for slot in self.update:
            mask[slot.start : slot.stop] = slot.tag in tags
        return mask

    def branch_mask(self, branch: str) -> Tensor:
        """Boolean ``[s]``: which statistics entries belong to a ``branch`` of branched layers."""
        mask = torch.zeros(self.s, dtype=torch.bool)
        for layer in self.layers:
            if layer.branch == branch:
                mask[layer.mean] = mask[layer.variance] = True
        return mask

    def variance_mask(self) -> Tensor:
        """Boolean ``[s]``: which statistics entries are variances."""
        mask = torch.zeros(self.s, dtype=torch.bool)
        for layer in self.layers:
            mask[layer.variance] = True
        return mask

    def initial_statistics(self, like: Tensor) -> Tensor:
        """Means 0 and variances 1, or ``start``, in the dtype and on the device of ``like``."""
        if self.start is not None:
            return self.start.to(device=like.device, dtype=like.dtype, copy=True)
        return self.variance_mask().to(device=like.device, dtype=like.dtype)


def tag_of(module: nn.Module, name: str) -> Tag:
    """The tag of the parameter or buffer ``name`` that ``module`` owns directly."""
    if isinstance(module, NormLayer):
        return module.tags[name]
    if isinstance(module, _TORCH_NORMS):
        return _TORCH_BUFFERS.get(name, Tag.AFFINE)
    return Tag.WEIGHT


def statistics_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers with running statistics, in the order of the statistics row."""
    return [(n, m) for n, m in model.named_modules() if isinstance(getattr(m, "running_mean", None), Tensor)]


def layout_of(model: nn.Module) -> Layout:
    """The layout of ``model``: parameters in ``named_parameters`` order, statistics layer by layer, mean first."""
    slots: list[Slot] = []
    seen: set[int] = set()
    start = 0
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix="", recurse=False):
            tag = tag_of(module, name)
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            stop = start + parameter.numel()
            slots.append(Slot(f"{prefix}.{name}".lstrip("."), tuple(parameter.shape), tag, start, stop))
            start = stop
    branch_of = {
        id(getattr(module, branch)): branch
        for module in model.modules()
        if isinstance(module, BranchedLayer)
        for branch in module.branches
    }
    layers: list[StatisticsSlices] = []
    start = 0
    for prefix, module in statistics_layers(model):
        channels = int(module.running_mean.numel())  # type: ignore[operator]
        middle, stop = start + channels, start + 2 * channels
        branch = branch_of.get(id(module), "")
        layers.append(StatisticsSlices(prefix, slice(start, middle), slice(middle, stop), branch))
        start = stop
    return Layout(tuple(slots), tuple(layers))


def flatten_parameters(model: nn.Module, layout: Layout) -> Tensor:
    """Move the model's parameters into one vector ``[d]`` and return it.

    The parameters become views of that vector, so writing to it (``theta.copy_(...)``) is loading a model.
    """
    named = dict(model.named_parameters())
    first = next(iter(named.values()))
    theta = torch.empty(layout.d, dtype=first.dtype, device=first.device)
    for slot in layout.update:
        parameter = named[slot.name]
        view = theta[slot.start : slot.stop].view(slot.shape)
        view.copy_(parameter.detach())
        parameter.data = view
    return theta


def read_gradient(model: nn.Module, layout: Layout, out: Tensor) -> Tensor:
    """Copy the parameters' gradients into ``out [d]``; a parameter without one counts as zero."""
    named = dict(model.named_parameters())
    for slot in layout.update:
        gradient = named[slot.name].grad
        part = out[slot.start : slot.stop]
        if gradient is None:
            part.zero_()
        else:
            part.view(slot.shape).copy_(gradient)
    return out


def read_statistics(model: nn.Module, layout: Layout, like: Tensor) -> Tensor:
    """The running statistics of the model as one row ``[s]``."""
    row = torch.empty(layout.s, dtype=like.dtype, device=like.device)
    for slices, (_, module) in zip(layout.layers, statistics_layers(model), strict=True):
        row[slices.mean] = module.running_mean  # type: ignore[assignment]
        row[slices.variance] = module.running_var  # type: ignore[assignment]
    return row


def write_statistics(model: nn.Module, layout: Layout, row: Tensor) -> None:
    """Load a statistics row ``[s]`` into the model's running statistics."""
    layers = statistics_layers(model)
    if not layers:
        return
    into: list[Tensor] = [buffer for _, m in layers for buffer in (m.running_mean, m.running_var)]  # type: ignore[misc]
    row = row.to(into[0].device)
    parts = [row[part] for slices in layout.layers for part in (slices.mean, slices.variance)]
    torch._foreach_copy_(into, parts)
