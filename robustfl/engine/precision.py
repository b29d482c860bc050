"""Training in bfloat16 where a cell asks for it: the products of a model's layers, nothing that is exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from robustfl.contracts import NormLayer

Precision = Literal["full", "tf32", "bf16"]


@contextmanager
def computing(model: nn.Module, precision: Precision) -> Iterator[None]:
    """Within, with ``"bf16"``, forwards of the model and their backwards run under torch's autocast to bfloat16.

    The model takes and returns float32, so that losses and what crafts inputs from them compute in it, and so does
    every normalization layer. Parameters and their gradients stay float32. Other precisions change nothing here.
    """
    if precision != "bf16":
        yield
        return
    with ExitStack() as stack:
        for module in model.modules():
            if module is model or isinstance(module, NormLayer):
                scope = _Scope(short=not isinstance(module, NormLayer))
                stack.callback(module.register_forward_pre_hook(scope.enter).remove)
                stack.callback(module.register_forward_hook(scope.leave, always_call=True).remove)
        yield


class _Scope:
    """Hooks that put one module's forward under autocast, or take it out, with float32 at both ends."""

    def __init__(self, *, short: bool) -> None:
        self._short = short
        self._open: list[Any] = []

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # Without the cache a layer used twice adds up its gradients in float32, as in the shared pass.
        self._open.append(
            torch.autocast(_device_of(inputs), dtype=torch.bfloat16, enabled=self._short, cache_enabled=False)
        )
        self._open[-1].__enter__()
        return tuple(_full(value) for value in inputs)

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        self._open.pop().__exit__(None, None, None)
        return _full(output)


def _device_of(inputs: tuple[Any, ...]) -> str:
    return next((value.device.type for value in inputs if isinstance(value, Tensor)), "cpu")


def _full(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
