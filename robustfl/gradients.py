"""The gradients of several clients' batches at one model each: *sequential*, one client at a time, or *batched*.

Both take models ``thetas [n d]``, a row per client (equal rows, an expanded vector, where all share one model), write
every client's gradient to ``out [n d]``, and return the clients' losses ``[n]``. What normalization layers report is
collected by whoever told them whose samples come (``statistics.begin``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from robustfl.errors import RobustflError
from robustfl.layer_kinds import LayerKind, Rows, Sizes, equal, kind_of
from robustfl.layout import Layout, read_gradient


class Unsupported(RobustflError):
    """The clients of this model cannot be kept apart in one pass; it runs one client at a time."""


def sequential(
    model: nn.Module, layout: Layout, theta: Tensor, thetas: Tensor, backward: Callable[[int], Tensor], *, out: Tensor
) -> Tensor:
    """Client after client: load its model into ``theta``, which the parameters are views of; backward; read."""
    losses = []
    for k, own in enumerate(thetas):
        theta.copy_(own)
        model.zero_grad(set_to_none=True)
        losses.append(backward(k))
        read_gradient(model, layout, out[k])
    model.zero_grad(set_to_none=True)
    return torch.stack(losses)


class Plan:
    """The layers of a model with their kinds, and where their parameters lie in a row; looked up once for many passes.

    Raises ``Unsupported`` for a model that the table of layer kinds (``robustfl.layer_kinds``) does not cover.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.named = dict(model.named_parameters())
        self.slots = [(self.named[slot.name], slice(slot.start, slot.stop)) for slot in layout.update]
        place = {id(parameter): k for k, (parameter, _) in enumerate(self.slots)}
        self.layers: list[tuple[str, nn.Module, LayerKind, dict[str, int]]] = []
        for name, module in model.named_modules():
            own = dict(module.named_parameters(recurse=False))
            _check(name, module, own.values())
            kind = kind_of(module)
            if kind is not None:
                if len(list(module.parameters())) > len(own):
                    raise Unsupported(
                        f"{name}: {type(module).__name__} has a row in the table of layer kinds and layers within; "
                        "rows are for layers that hold their parameters themselves"
                    )
                self.layers.append((name, module, kind, {k: place[id(p)] for k, p in own.items()}))
            elif own:
                raise Unsupported(f"{name}: {type(module).__name__} is not in the table of layer kinds")


def batched(plan: Plan, thetas: Tensor, sizes: Sizes, losses: Callable[[], Tensor], *, out: Tensor) -> Tensor:
    """One forward and one backward over all clients, by the table of layer kinds (``robustfl.layer_kinds``).

    ``losses()`` runs the model on the clients' samples, ``sizes[k]`` of each, one client after another, and returns
    their mean losses. Raises ``Unsupported`` for a layer that is known to mix clients; one without parameters is taken
    at its word (``federation.one_pass`` tries it).
    """
    with serving(plan, thetas, sizes) as leaves:
        return differentiated(plan, leaves, losses, out)


def differentiated(plan: Plan, leaves: list[Tensor], losses: Callable[[], Tensor], out: Tensor) -> Tensor:
    """The losses ``[n]`` of a model that is ``serving``, with their gradients by the leaves in ``out [n d]``.

    Nothing here waits for a value or depends on one, so that ``torch.compile`` takes it whole.
    """
    found = losses()
    made = torch.autograd.grad(found.sum(), [*leaves, *plan.named.values()], allow_unused=True)
    for name, outside in zip(plan.named, made[len(leaves) :], strict=True):
        if outside is not None:
            raise Unsupported(f"{name} is used outside its own layer's forward")
    for (_, at), gradient in zip(plan.slots, made, strict=False):
        out[:, at] = 0.0 if gradient is None else gradient.reshape(len(out), -1)
    return found.detach()


@contextmanager
def serving(plan: Plan, thetas: Tensor, sizes: Sizes) -> Iterator[list[Tensor]]:
    """Within, a forward of the model takes each client's samples through its own row of ``thetas [n d]``.

    Yields those rows cut up by parameter, ``[n …]`` (``[…]`` of a client alone); they are what to differentiate by.
    """
    n = len(sizes)
    alike = thetas.stride(0) == 0
    leaves = [_leaf(thetas, at, parameter, n, alike) for parameter, at in plan.slots]
    try:
        for name, module, kind, places in plan.layers:
            serve = partial(kind.forward, module) if n == 1 else partial(kind.shared if alike else kind.own, module)
            rows = {k: leaves[place] for k, place in places.items()}
            module.forward = _forward(serve, name, rows, sizes)
        yield leaves
    finally:
        for _, module, _, _ in plan.layers:
            vars(module).pop("forward", None)


def _leaf(thetas: Tensor, at: slice, like: Tensor, n: int, alike: bool) -> Tensor:
    if n == 1:
        rows = thetas[0, at].view(like.shape)
    else:
        rows = thetas[:1, at].view(like.shape).expand(n, *like.shape) if alike else thetas[:, at].view(n, *like.shape)
    return rows.detach().requires_grad_()


def _check(name: str, module: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
    """Raise ``Unsupported`` for a layer that mixes the clients' samples or whose gradients somebody watches."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        raise Unsupported(f"{name}: {type(module).__name__} mixes the clients' samples")
    for parameter in parameters:
        if not parameter.requires_grad:
            raise Unsupported(f"{name}: some parameters are switched off (requires_grad=False)")
        if parameter._backward_hooks:
            raise Unsupported(f"{name}: a hook on its gradients sees one model at a time")


def _forward(serve: Callable[..., Tensor], name: str, rows: Rows, sizes: Sizes) -> Callable[[Tensor], Tensor]:
    """The forward of a layer that serves these clients: ``serve(x, rows, sizes)``, of a client alone without sizes."""
    total, alone = sum(sizes), len(sizes) == 1

    def forward(x: Tensor) -> Tensor:
        if x.shape[0] != total:
            raise Unsupported(f"{name}: the first axis of its input {tuple(x.shape)} is not the clients' samples")
        return serve(x, rows) if alone else serve(x, rows, sizes)

    return forward


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, every layer of a model in evaluation mode."""
    training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


NEAR = 256
"""Images that a CPU takes at a time: a layer's activations are still in its cache."""


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """Which samples are classified right, ``bool [b]``: none whose logits ``[b c]`` hold NaN, which is no answer."""
    return (logits.argmax(1) == labels) & ~logits.isnan().any(1)


def channels_last(x: Tensor) -> Tensor:
    """Images ``[b C H W]`` with channels innermost in memory, also where one channel makes that ambiguous to torch.

    Layers keep the layout; with it normalization and pooling are several times faster on the CPU.
    """
    if x.dim() != 4:
        return x
    _, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, (c * h * w, 1, w * c, c))


def client_means(per_sample: Tensor, sizes: Sizes) -> Tensor:
    """Each client's mean ``[n]`` of ``[Σb]``."""
    if equal(sizes):
        return per_sample.view(len(sizes), -1).mean(1)
    return torch.stack([part.mean() for part in torch.split(per_sample, list(sizes))])


# --- how many at once ------------------------------------------------------------------------------------------------

LARGEST_ACTIVATION = 2**25  # bytes; beyond, the C library maps and clears the memory of every tensor anew
SIDE_BY_SIDE = 2**16  # entries of a client's activation up to which walking side by side is faster on the CPU
LARGEST_WEIGHTS = 2**24  # bytes of the models that walk side by side on the CPU
_COPIES = 8  # of a client's model while it walks beside others: weights, gradients, momentum and what is between them


def at_once(model: nn.Module, d: int, pixels: int, batch: int, like: Tensor, *, alike: bool) -> int:
    """The number of clients with ``batch`` samples each to take together, in the dtype and on the device of ``like``.

    On a GPU as many as fit. On the CPU, at one model (``alike``), as many as keep activations below 32 MiB; with models
    of their own one where layers are so large that calling them takes no time to speak of, several with small layers,
    two to six times as fast, as long as their weights fit a cache.
    """
    widths = [w for m in model.modules() if (kind := kind_of(m)) is not None and (w := kind.width(m, pixels))]
    size = like.element_size()
    if like.device.type != "cpu":
        rows = (1 if alike else _COPIES) * d + 3 * batch * sum(widths)
        return max(1, free_memory(like.device) // 2 // (rows * size))
    if alike:
        return max(1, LARGEST_ACTIVATION // max(1, batch * max(widths, default=1) * size))
    small = batch * max(widths, default=1) <= SIDE_BY_SIDE
    return max(1, LARGEST_WEIGHTS // (d * size)) if small else 1


def grouped(ids: Sequence[int], amount: Callable[[int], int], most: Callable[[int], int]) -> list[list[int]]:
    """Places of clients with the same ``amount`` of work together, evenly, at most ``most`` of that amount."""
    alike: dict[int, list[int]] = {}
    for place, k in enumerate(ids):
        alike.setdefault(amount(k), []).append(place)
    groups = []
    for each, places in alike.items():
        parts = -(-len(places) // most(each))
        sizes = [len(places) // parts + (k < len(places) % parts) for k in range(parts)]
        groups += [places[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(parts)]
    return groups


def free_memory(device: torch.device) -> int:
    """Bytes that new tensors can take on a GPU, those that torch holds in reserve included."""
    told = torch.cuda.memory_stats_as_nested_dict(device)  # the flat one takes longer than a small layer
    reserve = told["reserved_bytes"]["all"]["current"] - told["allocated_bytes"]["all"]["current"]
    return int(torch.cuda.mem_get_info(device)[0]) + int(reserve)
