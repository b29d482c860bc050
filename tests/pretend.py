"""A device that is not there: what a GPU would refuse, copy and wait for, seen on any machine.

Within ``Pretend()`` the device ``DEVICE`` can be named wherever torch takes one. Tensors put there compute on the CPU,
but say that they are elsewhere, so that code takes the way it takes on an accelerator; and

* an operation that mixes them with tensors of the CPU is refused, as CUDA refuses it (numbers, tensors without axes
  and index tensors may come from the CPU), and so are a few calls that its kernels refuse alone;
* ``issued`` counts operations that compute or copy there, views and bare allocations left out;
* ``waits`` counts what stops the host until everything queued before it is done: ``item``, ``bool``, ``tolist``,
  copies to the CPU, and operations whose result has a size that depends on values;
* ``copies`` counts what is sent there from the CPU, which nobody waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE, HOST = torch.device("privateuseone:0"), torch.device("cpu")

# The size of what comes out, or an error that is looked for, depends on values.
_WAITS = {
    "_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_dim", "bincount",
    "unique_consecutive", "_linalg_check_errors", "_linalg_eigh", "linalg_eigh", "_linalg_svd", "histc",
}  # fmt: skip
# Views by another name, and allocations without a kernel.
_FREE = {
    "detach", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "alias", "_unsafe_view",
    "lift_fresh", "resize_", "set_",
}  # fmt: skip
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_JOINING = {"cat", "stack"}
_BY_INDEX = {"__getitem__", "__setitem__"}
_GET_DEVICE = Tensor.device.__get__  # type: ignore[attr-defined]
_Generator, _run_backward = torch.Generator, torch.autograd._engine_run_backward  # type: ignore[attr-defined]


class Generator(_Generator):
    """A generator that may say that it is on the pretended device."""

    place: torch.device

    def __new__(cls, device: Any = HOST) -> Generator:
        made: Generator = super().__new__(cls)
        made.place = torch.device(device)
        return made

    def __init__(self, device: Any = HOST) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place


class Pretend:
    """A world with the pretended device; counts while it is entered."""

    def __init__(self) -> None:
        self.issued, self.waits, self.copies = Counter[str](), Counter[str](), Counter[str]()
        self.making, self.moving = HOST, False
        self._there: dict[int, StorageWeakRef] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Pretend:
        self._stack.enter_context(mock.patch("torch.Generator", Generator))
        memory = "robustfl.gradients.free_memory"
        self._stack.enter_context(mock.patch(memory, return_value=1 << 40))
        self._stack.enter_context(mock.patch("torch.autograd._engine_run_backward", self._backward(_run_backward)))
        self._stack.enter_context(_Operations(self))
        self._stack.enter_context(_Functions(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run``, during which ``torch.autograd`` has switched off what it runs in, with that switched on again."""

        def again(*args: Any, **options: Any) -> Any:
            with _Functions(self):
                return run(*args, **options)

        return again

    def start(self) -> None:
        """Count from 0."""
        for counter in (self.issued, self.waits, self.copies):
            counter.clear()

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor is on the pretended device."""
        held = self._there.get(tensor.untyped_storage()._cdata)
        return held is not None and not held.expired()

    def device_of(self, tensor: Tensor) -> torch.device:
        """Where the tensor says that it is."""
        return DEVICE if self.has(tensor) else HOST

    def put(self, made: Any) -> None:
        """Say of all tensors in ``made`` that they are on the device."""
        for tensor in _tensors(made):
            storage = tensor.untyped_storage()
            self._there[storage._cdata] = StorageWeakRef(storage)
        if len(self._there) > 50_000:
            self._there = {k: held for k, held in self._there.items() if not held.expired()}

    def count(self, what: str, name: str) -> None:
        """One more of ``issued``, ``waits`` or ``copies``."""
        getattr(self, what)[name] += 1

    def moved(self, tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of the tensor on another device."""
        self.count("waits" if device == HOST else "copies", "to")
        self.moving = True
        try:
            made = tensor.to(dtype or tensor.dtype, copy=True)
        finally:
            self.moving = False
        if device != HOST:
            self.put(made)
        return made


class _Functions(TorchFunctionMode):
    """Names of devices, and what passes no dispatcher."""

    def __init__(self, world: Pretend) -> None:
        super().__init__()
        self.world = world

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        world, kwargs, name = self.world, dict(kwargs or {}), getattr(func, "__name__", "")
        if func == _GET_DEVICE:
            return world.device_of(args[0])
        first = args[0] if args and isinstance(args[0], Tensor) else None
        there = first is not None and world.has(first)
        if name in ("numpy", "__array__") and there:
            raise TypeError(f"{name} of a tensor that is not on the CPU")
        if name == "tolist" and there:
            world.count("waits", name)
        if name == "cpu":
            return world.moved(args[0], HOST) if there else args[0]
        if name == "to" and first is not None:
            return self._to(func, first, args[1:], kwargs)
        if name in ("as_tensor", "asarray") and first is not None and kwargs.get("device") is not None:
            return self._to(Tensor.to, first, (), kwargs)
        device = kwargs.get("device")
        device = HOST if device is None else torch.device(device)
        if name == "new_tensor" and there and "device" not in kwargs:
            device = DEVICE
        _check_generator(kwargs, device if first is None else world.device_of(first), name)
        if "device" in kwargs:
            kwargs["device"] = HOST if kwargs["device"] is not None else None
        if device == HOST and name not in _BY_INDEX and not isinstance(func, FunctionType):
            # What torch makes on the way, in C++, it makes where its arguments are.
            device = DEVICE if any(world.has(t) for t in _tensors([args, kwargs])) else HOST
        if device == HOST:
            return func(*args, **kwargs)
        if name in ("tensor", "as_tensor", "new_tensor"):
            world.count("copies", name)
            made = func(*args, **kwargs)
            world.put(made)
            return made
        world.making = device
        try:
            return func(*args, **kwargs)
        finally:
            world.making = HOST

    def _to(self, func: Any, tensor: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """``tensor.to(…)`` in any of its forms."""
        world, target, dtype = self.world, None, kwargs.get("dtype")
        given = [*rest, *(kwargs[k] for k in ("device", "other") if kwargs.get(k) is not None)]
        for value in given:
            if isinstance(value, Tensor):
                target, dtype = world.device_of(value), value.dtype
            elif isinstance(value, (torch.device, str)):
                target = torch.device(value)
            elif isinstance(value, torch.dtype):
                dtype = value
        if target is not None and target.type != world.device_of(tensor).type:
            return world.moved(tensor, target, dtype)
        copies = bool(kwargs.get("copy"))
        return Tensor.to(tensor, dtype or tensor.dtype, copy=copies)


class _Operations(TorchDispatchMode):
    """Every operation on tensors, those of the backward pass included."""

    def __init__(self, world: Pretend) -> None:
        super().__init__()
        self.world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        world, name = self.world, func.overloadpacket.__name__
        if world.moving:
            return func(*args, **kwargs)
        inputs = [*_tensors(args), *_tensors(kwargs)]
        there = [world.has(t) for t in inputs]
        if not any(there) and world.making == HOST:
            return func(*args, **kwargs)
        if name == "copy_" and len(set(there)) == 2:
            world.count("copies" if there[0] else "waits", name)
            return func(*args, **kwargs)
        self._check(name, inputs, there)
        _refuse(name, args)
        made = func(*args, **kwargs)
        if name in _WAITS or (name in _INDEXING and any(t.dtype == torch.bool for t in _indices(args))):
            world.count("waits", name)
        if name not in _FREE and name != "_local_scalar_dense" and not func.is_view:
            world.count("issued", name)
        world.put(made)
        return made

    def _check(self, name: str, inputs: list[Tensor], there: list[bool]) -> None:
        if all(there):
            return
        here = [t for t, away in zip(inputs, there, strict=True) if not away]
        if name in _INDEXING and there[0]:
            for _ in here:
                self.world.count("copies", name)
            return
        if name in _JOINING or any(t.dim() for t in here):
            raise RuntimeError(f"{name} mixes tensors of the CPU {[tuple(t.shape) for t in here]} with others")


def _refuse(name: str, args: Any) -> None:
    """Raise for calls of torch's kernels that CUDA has been seen to refuse, where those of the CPU oblige."""
    if name == "native_group_norm" and not args[0].is_contiguous():
        raise RuntimeError("Expected X.is_contiguous(memory_format) to be true, but got false")
    if name == "native_batch_norm_backward" and args[5] is None and any(args[-1][1:]):
        raise RuntimeError("save_mean->defined() INTERNAL ASSERT FAILED")


def _check_generator(kwargs: dict[str, Any], device: torch.device, name: str) -> None:
    generator = kwargs.get("generator")
    if isinstance(generator, Generator) and generator.device.type != device.type:
        raise RuntimeError(f"{name} on {device} with a generator on {generator.device}")


def _indices(args: Any) -> Iterator[Tensor]:
    return _tensors(args[1]) if len(args) > 1 else iter(())


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from _tensors(value)
