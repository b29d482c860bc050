"""Instruments of the laws: time limits, global states put back, inputs compared, results looked at."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import Context, Method, StatisticsLayer, View
from robustfl.errors import Refused, RobustflError, UsageError
from robustfl.federation.one_pass import in_one_pass


class Broken(AssertionError):
    """A law is broken; the message says what was seen."""


class Differs(Broken):
    """Two results that should be equal are not, for whatever reason."""


class Hung(Exception):
    """The work did not end in time."""


class _Stop(BaseException):
    """Raised in a thread that is given up; no ``except Exception`` of a plug-in catches it."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Python reports errors that end a thread or are swallowed by a finalizer or a callback; within, a stop is none."""
    hooks = sys.unraisablehook, threading.excepthook

    def quiet(report: Callable[[Any], object]) -> Callable[[Any], None]:
        def hook(error: Any) -> None:
            if error.exc_type is not _Stop:
                report(error)

        return hook

    sys.unraisablehook, threading.excepthook = quiet(hooks[0]), quiet(hooks[1])
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook = hooks


def within(limit: float, work: Callable[[], Any]) -> Any:
    """The result of ``work``, or its error; raises ``Hung`` after ``limit`` seconds."""
    result: list[Any] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as error:  # handed to the caller, whatever it is
            errors.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(limit)
    if thread.is_alive():
        with _quiet():
            for _ in range(4):  # again, should the first one be swallowed
                if thread.ident is not None and thread.is_alive():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop))
                thread.join(0.25)
        raise Hung
    if errors:
        raise errors[0]
    return result[0]


def same(once: Sequence[Tensor], again: Sequence[Tensor]) -> bool:
    """True if two outcomes are equal bit for bit; NaN equals NaN."""
    return len(once) == len(again) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(nan=7e7), b.nan_to_num(nan=7e7))
        for a, b in zip(once, again, strict=True)
    )


@contextmanager
def untouched(**shown: Tensor | None) -> Iterator[None]:
    """Raise ``Broken`` if one of the named tensors is written to."""
    before = {k: (t, t.clone(), t._version) for k, t in shown.items() if t is not None}
    yield
    for name, (tensor, copy, version) in before.items():
        if tensor.shape != copy.shape or not torch.equal(tensor, copy) or tensor._version != version:
            raise Broken(f"{name} was written to; work on a copy (use x + y, not x += y)")


def expect(made: Any, like: Tensor, shape: tuple[int, ...], what: str, *, graph: bool = False) -> Tensor:
    """``made`` if it is a tensor of that shape in the dtype and on the device of ``like``.

    It may require a gradient only where it is part of a ``graph``.
    """
    found = tensor(made, what)
    if tuple(found.shape) != shape:
        raise Broken(f"{what} has shape {tuple(found.shape)}, not {shape}")
    if found.dtype != like.dtype:
        raise Broken(f"{what} has dtype {found.dtype}, not {like.dtype}")
    if found.device != like.device:
        raise Broken(f"{what} is on {found.device}, not {like.device}")
    if found.requires_grad and not graph:
        raise Broken(f"{what} requires a gradient; return it with .detach()")
    return found


def tensor(made: Any, what: str) -> Tensor:
    """``made`` if it is a tensor."""
    if not isinstance(made, Tensor):
        raise Broken(f"{what} is {type(made).__name__}, not a tensor")
    return made


def own_memory(made: Tensor, what: str, *shown: Tensor | None) -> None:
    """Raise ``Broken`` if ``made`` lies in the memory of something the method was shown."""
    if made.numel() and made.untyped_storage().data_ptr() in {
        t.untyped_storage().data_ptr() for t in shown if t is not None
    }:
        raise Broken(f"{what} is memory the method was shown, and its caller may write to it; return a clone")


def devices() -> list[str]:
    """Every device of this machine that robustfl runs on."""
    return ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def attempt(work: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """The result of ``work``, or None and the reason if it is refused at the door; other errors pass."""
    try:
        return work(*arguments), None
    except (Refused, UsageError) as reason:
        return None, str(reason)


def check_state(state: Mapping[str, Any]) -> None:
    """Raise ``Broken`` unless a state is one of tensors."""
    wrong = [k for k, v in state.items() if not isinstance(v, Tensor)]
    if wrong:
        raise Broken(f"state {wrong} is no tensor; state is a mapping from names to tensors")


def check_pixels(x: Tensor, what: str) -> None:
    """Raise ``Broken`` unless all pixels lie in [0, 1]."""
    if not (float(x.min()) >= 0.0 and float(x.max()) <= 1.0):
        raise Broken(f"{what} pixels reach from {float(x.min()):g} to {float(x.max()):g}, not in [0, 1]")


@contextmanager
def hinted(method: Method, given: View | Context, more: str = "") -> Iterator[None]:
    """Within, an error that may come from what the view or context does not hold is ``Broken``, and names that."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        if not (lack := absent(error, method, (given,))):
            raise
        raise Broken(f"{error}: {lack}{more}") from error


def absent(error: Exception, method: Method, given: tuple[Any, ...]) -> str:
    """The fields that the view or the context of a call does not hold, where that may be the error; else empty."""
    if "NoneType" not in str(error):
        return ""
    for value in given:
        if isinstance(value, View):
            return f"with knowledge={getattr(method, 'knowledge', '')!r} the view holds {held(value)} only"
        if isinstance(value, Context):
            gone = (f.name for f in fields(value) if getattr(value, f.name) is None)
            return f"the context has no {', no '.join(gone)} here"
    return ""


def held(view: View) -> str:
    """The fields of a view that an attack gets, in words."""
    always = ("channel", "round", "state")
    return ", ".join(f.name for f in fields(view) if f.name not in always and getattr(view, f.name) is not None)


def said(made: Any) -> str:
    """A value in few words: of tensors and arrays their form.

    >>> said(torch.ones(2, 3)), said(None), said((1, None))
    ('a tensor (2, 3) of torch.float32', 'None', '(int, NoneType)')
    """
    if isinstance(made, Tensor):
        forms = [str(made.layout)] if made.layout != torch.strided else []
        forms += [f"on {made.device}"] if made.device.type == "meta" else []
        forms += ["that requires a gradient"] if made.requires_grad else []
        return " ".join([f"a tensor {tuple(made.shape)} of {made.dtype}", *forms])
    if isinstance(made, np.ndarray):
        return f"an array {made.shape} of {made.dtype}"
    if isinstance(made, (tuple, list)):
        words = ", ".join(type(part).__name__ for part in made[:4])
        return f"({words}{', …' if len(made) > 4 else ''})" if isinstance(made, tuple) else f"a list of {len(made)}"
    return repr(made) if isinstance(made, (str, int, float, bool, type(None))) else f"a {type(made).__name__}"


def unheard(made: nn.Module) -> str:
    """The type of a layer whose running statistics nobody asks for; empty without one."""
    with_statistics = (m for m in made.modules() if isinstance(getattr(m, "running_mean", None), Tensor))
    return next((type(m).__name__ for m in with_statistics if not isinstance(m, StatisticsLayer)), "")


def held_in_one_pass(network: nn.Module, images: Tensor, classes: int, *, training: bool = True) -> str:
    """The outcome of ``in_one_pass`` as that of a law: ``Broken`` where it raises."""
    try:
        return in_one_pass(network, images, classes, training=training)
    except Refused:
        raise
    except RobustflError as error:
        raise Broken(f"in {'training' if training else 'evaluation'}, {error}") from None
