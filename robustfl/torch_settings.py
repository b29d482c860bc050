"""Global settings of torch and global random generators: what every cell computes with, and the caller's put back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.backends.opt_einsum  # torch 2.6 does not by itself

_SMALLEST = float(np.finfo(np.float64).tiny)


class _Setting(NamedTuple):
    """A global setting: its name in messages, how to read it, how to set it, and its value in every cell, if any."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    standard: Any = None


def _attribute(place: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(place, name), lambda value: setattr(place, name, value)


def _default_device() -> torch.device:
    try:
        return torch.get_default_device()
    except AttributeError:  # torch 2.6 cannot tell once a default device was taken back
        return torch.device("cpu")


def _put_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device == torch.device("cpu") else device)  # a device slows down every call


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _put_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _put_autocast(value: tuple[bool, bool]) -> None:
    for device, on in zip(("cpu", "cuda"), value, strict=True):
        torch.set_autocast_enabled(device, on)


def _precisions() -> Iterator[_Setting]:
    """The precision of products by place, as newer versions of torch keep it."""
    for path in ("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul"):
        place: Any = torch.backends
        for part in filter(None, path.split(".")):
            place = getattr(place, part, None)
        if hasattr(place, "fp32_precision"):
            usual = "tf32" if path in ("cudnn.conv", "cudnn.rnn") else "none"
            yield _Setting(f"{path}.fp32_precision".lstrip("."), *_attribute(place, "fp32_precision"), usual)


def _attention() -> Iterator[_Setting]:
    """The kernels that attention may use."""
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        get, put = (getattr(torch.backends.cuda, f, None) for f in (f"{name}_sdp_enabled", f"enable_{name}_sdp"))
        if get and put:
            yield _Setting(f"torch's {name} attention", get, put, True)


_cudnn, _products, _mkldnn = torch.backends.cudnn, torch.backends.cuda.matmul, torch.backends.mkldnn
_matmul_precision = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
_SETTINGS = (
    *_precisions(),  # before the older names for the same
    _Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    _Setting("torch's default device", _default_device, _put_default_device, torch.device("cpu")),
    _Setting("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _Setting("torch's deterministic algorithms", _deterministic, _put_deterministic, (False, False)),
    _Setting("torch's autocast", _autocast, _put_autocast, (False, False)),
    _Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    _Setting("torch's precision of products", *_matmul_precision, "highest"),
    _Setting("cudnn.deterministic", *_attribute(_cudnn, "deterministic"), False),
    _Setting("cudnn.benchmark", *_attribute(_cudnn, "benchmark"), False),
    _Setting("cudnn.enabled", *_attribute(_cudnn, "enabled"), True),
    _Setting("cudnn.allow_tf32", *_attribute(_cudnn, "allow_tf32")),
    _Setting("cuda.matmul.allow_tf32", *_attribute(_products, "allow_tf32")),
    _Setting("mkldnn.enabled", *_attribute(_mkldnn, "enabled"), True),
    _Setting("mkldnn.deterministic", *_attribute(_mkldnn, "deterministic"), False),
    _Setting("nnpack.enabled", torch._C._get_nnpack_enabled, torch.backends.nnpack.set_flags, True),
    _Setting("opt_einsum.enabled", *_attribute(torch.backends.opt_einsum, "enabled")),
    *_attention(),
    _Setting("flushing of denormal numbers", lambda: _SMALLEST / 2 == 0, torch.set_flush_denormal, False),
    _Setting("numpy's handling of floating-point errors", np.geterr, lambda value: np.seterr(**value)),
)


class Snapshot:
    """The settings and the states of the global generators as they are now."""

    def __init__(self) -> None:
        self._settings = [_read(setting) for setting in _SETTINGS]
        self._generators = _generators()

    def settings(self) -> list[str]:
        """The names of settings that have changed since."""
        return [s.name for s, old in zip(_SETTINGS, self._settings, strict=True) if _read(s) != old]

    def generators(self) -> list[str]:
        """The names of generators that have been used or seeded since."""
        now = _generators()
        return [n for n in now if n in self._generators and not _same(n, now[n], self._generators[n])]

    def restore(self) -> None:
        """Put back what has changed since."""
        for setting, old in 2 * list(zip(_SETTINGS, self._settings, strict=True)):  # some move others along
            _put(setting, old)
        put: dict[str, Callable[[Any], Any]] = {
            "torch": torch.set_rng_state, "numpy": np.random.set_state, "random": random.setstate,
            "torch.cuda": torch.cuda.set_rng_state_all,
        }  # fmt: skip
        for name in self.generators():
            put[name](self._generators[name])


@contextmanager
def restored() -> Iterator[Snapshot]:
    """Put settings and generators back on exit; the snapshot is of the entry."""
    before = Snapshot()
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def standard_settings() -> Iterator[None]:
    """Compute as a fresh process does, whatever torch settings the caller has, and put the caller's back on exit."""
    with restored():
        for setting in 2 * [s for s in _SETTINGS if s.standard is not None]:
            _put(setting, setting.standard)
        on_cpu = nullcontext() if _default_device().type == "cpu" else torch.device("cpu")  # over a caller's ``with``
        with torch.inference_mode(False), torch.enable_grad(), on_cpu:
            yield


@contextmanager
def float32_default() -> Iterator[None]:
    """Make new tensors float32 and on the CPU unless told otherwise, outside autocast, whatever the caller's defaults.

    Called for every aggregation, it costs some microseconds where nothing is to change. ``torch.compile`` sees none.
    """
    dtype, device, autocast = torch.get_default_dtype(), _default_device(), _autocast()
    usual = dtype is torch.float32 and device.type == "cpu" and not any(autocast)
    if torch.compiler.is_compiling() or usual:
        yield
        return
    try:
        torch.set_default_dtype(torch.float32)
        _put_autocast((False, False))
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
        _put_autocast(autocast)


def _read(setting: _Setting) -> Any:
    try:
        return setting.get()
    except RuntimeError:  # torch refuses to answer where its settings contradict each other
        return None


def _put(setting: _Setting, value: Any) -> None:
    if _read(setting) != value:
        with suppress(RuntimeError):  # one that cannot be set must not keep the others
            setting.put(value)


def _generators() -> dict[str, Any]:
    """Global generators by name; CUDA's once they are in use.

    Python's only in the main thread: elsewhere, as on a cluster's workers, threads beside this one draw from it too.
    """
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "numpy": np.random.get_state()}
    if threading.current_thread() is threading.main_thread():
        states["random"] = random.getstate()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["torch.cuda"] = torch.cuda.get_rng_state_all()
    return states


def _same(name: str, one: Any, other: Any) -> bool:
    if name == "random":
        return bool(one == other)
    if name == "torch":
        return torch.equal(one, other)
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
