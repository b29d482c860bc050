"""Passes recorded once and replayed: on a GPU a CUDA graph takes the place of hundreds of launches.

A pass computes tensors from tensors. What else it does is kept out of the recording: masks of dropout are drawn before
a replay, from the clients' streams as ever, and what normalization layers have seen they put down after it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from robustfl.contracts import NormLayer
from robustfl.layer_kinds import kind_of

Results = tuple[Tensor, ...]
Pass = Callable[..., Results]
"""``pass(*inputs, out)`` writes to ``out`` and returns more tensors."""
Recorder = Callable[[Callable[[], Results]], tuple[Callable[[], None], Results]]
"""Runs a computation on tensors that stay where they are; how to run it again, and the results, which stay too."""


@runtime_checkable
class Masked(Protocol):
    """A layer that draws masks: where ``masks`` is set it asks it instead (``robustfl.models.ClientDropout``)."""

    masks: Callable[[Any, torch.Size], Tensor] | None
    training: bool

    def drawn(self, keep: Tensor) -> Tensor:
        """Fill the booleans ``keep`` with the next mask."""
        ...


_Asked = tuple[Masked, torch.Size]
_Note = tuple[nn.Module, Callable[..., None], tuple[Any, ...]]

WARMUP_CALLS = 3  # passes of a kind before it is recorded
MAX_GRAPHS = 64  # recordings
BYTES = 2**31  # of what they read and write, all together
KINDS = 4096  # kinds counted before counting starts anew
_OURS = {"torch", "torchvision", "robustfl"}


def recorded_on(device: torch.device) -> Recorder | None:
    """The way to record on a device; ``None`` where launches cost little."""
    return CudaRecorder(device) if device.type == "cuda" else None


class CudaRecorder:
    """Records CUDA graphs on a stream of its own; they share their passing memory, since replays follow each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        self._pool: Any = None

    def __call__(self, run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        with torch.cuda.device(self._device):
            self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            ours, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
            self._stream.wait_stream(ours)
            try:
                with torch.cuda.stream(self._stream):
                    run()  # libraries choose their algorithms and take their workspaces outside of the recording
                ours.wait_stream(self._stream)
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", "The CUDA Graph is empty", UserWarning)
                    with torch.cuda.graph(
                        graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                    ):
                        results = run()
            except UserWarning as warning:
                raise RuntimeError(str(warning)) from warning
            finally:
                torch.cuda.set_stream(ours)  # which a recording that fails does not do
        return graph.replay, results


@dataclass(frozen=True)
class _Recording:
    """A recorded pass: where it reads and writes, how to run it; ``made`` are its ``results``, then what is noted."""

    inputs: list[Tensor]
    masks: list[tuple[Masked, Tensor]]
    out: Tensor
    made: Results
    results: int
    notes: list[_Note]
    replay: Callable[[], None]

    def __call__(self, inputs: Sequence[Tensor], out: Tensor) -> Results:
        for into, value in zip(self.inputs, inputs, strict=True):
            into.copy_(_distinct(value))
        for layer, mask in self.masks:
            layer.drawn(mask)
        self.replay()
        out.copy_(self.out)
        found = [tensor.clone() for tensor in self.made]  # the next replay writes to the same memory
        noted = iter(found[self.results :])
        for norm, put, values in self.notes:
            put(norm, *(next(noted) if isinstance(value, Tensor) else value for value in values))
        return tuple(found[: self.results])


class GraphCache:
    """The passes of one model, recorded from the third of a kind on where ``recorder`` is there.

    A kind is all that a recording cannot follow: shapes, modes of layers, where their buffers lie. Only models whose
    layers are all torch's or robustfl's own, without hooks, are recorded: nobody knows what others do on the way.
    """

    def __init__(self, model: nn.Module, recorder: Recorder | None, warn: Callable[[str], None]) -> None:
        self._recorder, self._warn = recorder, warn
        self._counts: Counter[Any] = Counter()
        self._places: dict[torch.Size, Tensor] = {}
        self._known: dict[Any, _Recording] = {}
        self._bytes = 0
        self._norms = [m for m in model.modules() if isinstance(m, NormLayer)]
        layers: list[Any] = list(model.modules())
        self._dropouts = [m for m in layers if isinstance(m, Masked)]
        if not all(_ours(m) for m in model.modules()):
            self._recorder = None

    def run(
        self, kind: Any, made: Pass, inputs: Sequence[Tensor], out: Tensor, *, room: Callable[[], bool] = lambda: True
    ) -> Results:
        """``made(*inputs, out)``, where everything but values is told by ``kind`` and the model's state.

        Without a ``kind`` it is never recorded, and not yet where ``room()`` says that there is no memory for it.
        """
        if self._recorder is None or kind is None:
            return made(*inputs, out)
        kind = (kind, out.shape, *map(_form, inputs), *map(_mode, self._norms), *(m.training for m in self._dropouts))
        if kind in self._known:
            return self._known[kind](inputs, out)
        if (
            len(self._known) >= MAX_GRAPHS or self._bytes > BYTES
        ):  # to let go of one for another costs more than it saves
            return made(*inputs, out)
        if len(self._counts) > KINDS:
            self._counts.clear()
        self._counts[kind] += 1
        if self._counts[kind] < WARMUP_CALLS or not room():
            return made(*inputs, out)
        asked: list[_Asked] = []
        with self._masked(lambda layer, shape: _drawn(asked, layer, shape, out.device)):
            results = made(*inputs, out)
        recorded = self._recorded(made, inputs, out, asked, len(results))
        if recorded is not None:
            self._known[kind] = recorded
            self._bytes += sum(t.numel() * t.element_size() for t in (*recorded.inputs, recorded.out))
        return results

    def placed(self, rows: Tensor) -> Tensor:
        """The ``rows`` of layers' statistics, where those of the same shape lay before if passes are recorded."""
        if self._recorder is None:
            return rows
        if rows.shape not in self._places:
            self._places[rows.shape] = torch.empty_like(rows)
        return self._places[rows.shape].copy_(rows)

    def _recorded(
        self, made: Pass, inputs: Sequence[Tensor], out: Tensor, asked: Sequence[_Asked], results: int
    ) -> _Recording | None:
        """The pass as a recording; ``None``, and none from now on, where the device does not take one."""
        still = [torch.empty_like(_distinct(value)).copy_(_distinct(value)) for value in inputs]
        given = [mine.expand(value.shape) for mine, value in zip(still, inputs, strict=True)]
        masks = [(layer, torch.ones(shape, dtype=torch.bool, device=out.device)) for layer, shape in asked]
        into = torch.empty_like(out, memory_format=torch.contiguous_format)
        notes: list[_Note] = []

        def run() -> Results:
            notes.clear()
            queue = iter(masks)
            with self._masked(lambda layer, shape: next(queue)[1]), self._noting(notes):
                found = made(*given, into)
            return *found, *(value for _, _, values in notes for value in values if isinstance(value, Tensor))

        assert self._recorder is not None
        try:
            replay, found = self._recorder(run)
        except RuntimeError as error:  # of torch: no memory for it, or something that cannot be recorded
            self._recorder = None
            self._known.clear()
            why = [*str(error.__context__ or error).splitlines(), type(error).__name__][0]
            self._warn(f"passes are launched operation by operation; recording them failed ({why})")
            return None
        return _Recording(still, masks, into, found, results, list(notes), replay)

    @contextmanager
    def _masked(self, masks: Callable[[Any, torch.Size], Tensor]) -> Iterator[None]:
        for layer in self._dropouts:
            layer.masks = masks
        try:
            yield
        finally:
            for layer in self._dropouts:
                layer.masks = None

    @contextmanager
    def _noting(self, notes: list[Any]) -> Iterator[None]:
        """Within, layers let ``notes`` know what they have seen, and put nothing down."""
        for layer in self._norms:
            vars(layer)["notes"] = notes
        try:
            yield
        finally:
            for layer in self._norms:
                vars(layer).pop("notes", None)


def _ours(layer: nn.Module) -> bool:
    kind = kind_of(layer)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(layer, name) for name in hooks):
        return False
    return all(type(x).__module__.split(".")[0] in _OURS for x in (layer, kind) if x is not None)


def _drawn(asked: list[_Asked], layer: Masked, shape: torch.Size, device: torch.device) -> Tensor:
    asked.append((layer, shape))
    return layer.drawn(torch.empty(shape, dtype=torch.bool, device=device))


def _distinct(value: Tensor) -> Tensor:
    """The first of rows that are one in memory."""
    return value[:1] if value.stride(0) == 0 else value


def _form(value: Tensor) -> Any:
    return value.shape, value.stride(), value.dtype, value.device


def _mode(layer: NormLayer) -> Any:
    told = tuple(sorted((k, v) for k, v in vars(layer).items() if isinstance(v, (bool, str))))
    return layer.sizes, layer.frozen, told, *((b.data_ptr(), b.shape) for b in layer._buffers.values() if b is not None)
