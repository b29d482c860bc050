"""Both passes on batches given as tensors: one client at a time, and all clients together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustfl.contracts import NormLayer, Reports
from robustfl.engine.statistics import begin, collect
from robustfl.gradients import Plan, batched, channels_last, client_means, sequential
from robustfl.layout import Layout, flatten_parameters

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each sample ``[b]``."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class ClientPass:
    """The results of a pass besides the gradients: mean loss per client ``[n]`` and the statistics reports."""

    losses: Tensor
    reports: Reports


def is_centralised(model: nn.Module) -> bool:
    """True if one machine runs the model on everybody's samples."""
    return any(isinstance(m, NormLayer) and m.centralised for m in model.modules())


def plain_gradients(
    model: nn.Module,
    layout: Layout,
    x: Tensor,
    y: Tensor,
    sizes: Sequence[int],
    *,
    generators: Sequence[torch.Generator] = (),
    frozen: bool = False,
    loss: Loss = cross_entropy,
    thetas: Tensor | None = None,
    out: Tensor,
) -> ClientPass:
    """The oracle: client after client forward, mean loss, backward; ``out [n d]`` takes the gradients.

    ``x [Σb …]`` and ``y [Σb]`` hold ``sizes[k]`` samples of each client ``k``; ``generators`` are the clients' dropout
    streams; ``thetas [n d]`` their models (default: the one in ``model``).
    """
    if is_centralised(model):
        return shared_gradients(model, layout, x, y, sizes, generators=generators, loss=loss, out=out)
    theta, kept = _flat(model, layout), []
    common, parts = theta.clone(), list(zip(torch.split(x, list(sizes)), torch.split(y, list(sizes)), strict=True))

    def backward(k: int) -> Tensor:
        begin(model, None, frozen=frozen, generators=tuple(generators[k : k + 1]))
        mean = loss(model(parts[k][0]), parts[k][1]).mean()
        mean.backward()  # type: ignore[no-untyped-call]
        kept.append(collect(model, layout))
        return mean.detach()

    given = common.expand(len(sizes), -1) if thetas is None else thetas
    losses = sequential(model, layout, theta, given, backward, out=out)
    theta.copy_(common)
    rows, counts = zip(*((report.rows, report.counts) for report in kept), strict=True)
    return ClientPass(losses, Reports(torch.cat(rows), torch.cat(counts)))


def shared_gradients(
    model: nn.Module,
    layout: Layout,
    x: Tensor,
    y: Tensor,
    sizes: Sequence[int],
    *,
    generators: Sequence[torch.Generator] = (),
    frozen: bool = False,
    loss: Loss = cross_entropy,
    thetas: Tensor | None = None,
    out: Tensor,
) -> ClientPass:
    """The same as ``plain_gradients`` by one forward and one backward; raises ``Unsupported`` as ``together`` does.

    Where a layer is ``centralised`` there is one machine: every row is the gradient of the merged batch's mean.
    """
    x, clients, n = channels_last(x), tuple(sizes), len(sizes)
    merged = is_centralised(model)
    shares = (sum(clients),) if merged else clients
    each: list[Tensor] = []

    def losses() -> Tensor:
        each.append(loss(model(x), y))
        return client_means(each[0], shares)

    given = _read(model, layout).expand(n, -1) if thetas is None else thetas
    begin(model, clients, frozen=frozen, generators=generators)
    found = batched(Plan(model, layout), given[: len(shares)], shares, losses, out=out[: len(shares)])
    if merged:
        out[1:], found = out[0], client_means(each[0].detach(), clients)
    return ClientPass(found, collect(model, layout, clients=n))


def _read(model: nn.Module, layout: Layout) -> Tensor:
    named = dict(model.named_parameters())
    return torch.cat([named[slot.name].detach().reshape(-1) for slot in layout.update])


def _flat(model: nn.Module, layout: Layout) -> Tensor:
    """The vector the parameters are views of, found or made."""
    first = next(model.parameters())
    whole = first.data.new_empty(0).set_(first.data.untyped_storage())
    start = {slot.name: slot.start for slot in layout.update}
    lies = all(p.data_ptr() == whole.data_ptr() + start[n] * p.element_size() for n, p in model.named_parameters())
    return whole if lies and len(whole) == layout.d else flatten_parameters(model, layout)
