"""The statistics channel of a round: telling layers whose samples come, collecting reports, the server's side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from robustfl.contracts import LockstepLayer, NormLayer, Reducer, Reports, StatisticsLayer
from robustfl.errors import RobustflError
from robustfl.layout import Layout, write_statistics
from robustfl.models.network import ClientDropout


def begin(
    model: nn.Module,
    sizes: tuple[int, ...] | None,
    *,
    frozen: bool = False,
    generators: Sequence[torch.Generator] = (),
) -> None:
    """Start a round in every normalization and dropout layer of ``model``.

    The next training forwards hold ``sizes`` samples of each client, one client after another (``None``: one client,
    any number of samples and forwards); ``generators`` are the clients' streams for dropout masks.
    """
    for module in model.modules():
        if isinstance(module, NormLayer):
            module.begin(sizes, frozen=frozen)
        elif isinstance(module, ClientDropout):
            module.begin(sizes, tuple(generators))


def resize(model: nn.Module, sizes: tuple[int, ...]) -> None:
    """Within a round: from now on batches hold so many samples of the same clients."""
    for module in model.modules():
        if isinstance(module, (NormLayer, ClientDropout)):
            module.sizes = sizes


@contextmanager
def alone(model: nn.Module, sizes: tuple[int, ...], generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Within, batches hold the ``sizes`` samples of one of the round's clients, with its stream for dropout masks."""
    layers = [m for m in model.modules() if isinstance(m, (NormLayer, ClientDropout))]
    before = [(layer, layer.sizes, getattr(layer, "generators", ())) for layer in layers]
    resize(model, sizes)
    for layer in layers:
        if isinstance(layer, ClientDropout):
            layer.generators = tuple(generators)
    try:
        yield
    finally:
        for layer, own, streams in before:
            layer.sizes = own
            if isinstance(layer, ClientDropout):
                layer.generators = streams


@contextmanager
def _told(model: nn.Module, kind: type[NormLayer] = StatisticsLayer, **attributes: object) -> Iterator[None]:
    """Within, layers of a ``kind`` have ``attributes``; afterwards those of their class again."""
    layers = [m for m in model.modules() if isinstance(m, kind)]
    try:
        for layer in layers:
            vars(layer).update(attributes)
        yield
    finally:
        for layer in layers:
            for name in attributes:
                vars(layer).pop(name, None)


def seen_by_client(model: nn.Module) -> AbstractContextManager[None]:
    """Within, evaluation-mode forwards use what the round's one client has made of the statistics so far."""
    return _told(model, as_client=True)


def collecting(model: nn.Module, *, refresh: bool = False) -> AbstractContextManager[None]:
    """Within, forwards are those of a pass that collects statistics; ``refresh``: for a test."""
    return _told(model, collects=True, refreshes=refresh)


def unseen(model: nn.Module) -> AbstractContextManager[None]:
    """Within, training forwards leave no trace in the statistics reports."""
    return _told(model, unseen=True)


def lockstep(model: nn.Module, reducer: Reducer) -> AbstractContextManager[None]:
    """Within, layers that can exchange their clients' rows through ``reducer``."""
    return _told(model, LockstepLayer, reducer=reducer)


def start_apart(model: nn.Module) -> bool:
    """True if all statistics layers take a row for each client to start from."""
    return all(type(m).start is not StatisticsLayer.start for m in model.modules() if isinstance(m, StatisticsLayer))


@contextmanager
def starting(model: nn.Module, layout: Layout, rows: Tensor | None) -> Iterator[None]:
    """Within, clients start from statistics of their own, ``rows [n s]``; those of a single one are written."""
    layers = [m for m in model.modules() if isinstance(m, StatisticsLayer)] if rows is not None else []
    if rows is None or len(rows) == 1:
        if rows is not None:
            write_statistics(model, layout, rows[0])
        yield
        return
    before = [(layer.running_mean, layer.running_var) for layer in layers]
    try:
        for layer, at in zip(layers, layout.layers, strict=True):
            layer.start(rows[:, at.mean], rows[:, at.variance])
        yield
    finally:
        for layer, (mean, variance) in zip(layers, before, strict=True):
            layer.running_mean, layer.running_var = mean, variance


def collect(model: nn.Module, layout: Layout, *, clients: int = 1) -> Reports:
    """Collect clients' statistics since ``begin``, in the layout's order: per layer the mean, then the variance.

    ``clients`` tells the number of rows where no layer has statistics to report.
    """
    layers = [m for m in model.modules() if isinstance(m, StatisticsLayer)]
    if not layers:
        like = next(model.parameters(), torch.empty(0)).detach()
        return Reports(like.new_zeros((clients, 0)), torch.zeros((clients, 0), dtype=torch.int64))
    reports = [_reported(layer) for layer in layers]
    rows = torch.cat([part for mean, variance, _ in reports for part in (mean, variance)], dim=1)
    if rows.shape[1] != layout.s:
        raise ValueError(
            f"the layers report {rows.shape[1]} statistics, the layout has {layout.s}; a StatisticsLayer keeps its two "
            "in buffers called running_mean and running_var, [C] each"
        )
    return Reports(rows, torch.stack([counts for _, _, counts in reports], dim=1))


def _reported(layer: StatisticsLayer) -> tuple[Tensor, Tensor, Tensor]:
    """The report of a layer, in the form that all have. Raises ``RobustflError`` naming the layer otherwise."""
    made: object = layer.report()
    if isinstance(made, tuple) and len(made) == 3 and all(isinstance(part, Tensor) for part in made):
        mean, variance, counts = made
        right = mean.dim() == 2 and mean.shape == variance.shape
        right = right and mean.dtype == variance.dtype == layer.running_mean.dtype
        whole = counts.shape == mean.shape[:1] and counts.device.type == "cpu"
        whole = whole and (torch.compiler.is_compiling() or not bool(((counts < 0) | (counts % 1 != 0)).any()))
        if right and whole and not (mean.requires_grad or variance.requires_grad):
            return mean, variance, counts
    raise RobustflError(
        f"{type(layer).__name__}.report() returned {type(made).__name__}; mean [n C] and variance [n C] that require "
        "no gradient are wanted, and the values per channel [n], whole numbers on the CPU"
    )
