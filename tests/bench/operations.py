"""Tensor operations of a round, and values waited for on the host, as an accelerator would see them.

``python -m tests.bench operations`` prints both for the rounds that ``tests/unit/test_operations.py`` bounds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# On an accelerator each of these stops the host until everything queued before it is done.
_WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select"}
# Views by another name, and allocations without a kernel.
_FREE = {
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "alias",
    "_unsafe_view",
    "lift_fresh",
    "resize_",
}


class Operations(TorchDispatchMode):
    """Counts, within, operations that compute or copy (``issued``) and those the host waits for (``waits``).

    Operations on small matrices that rules keep on the host (``off_device`` says of which arguments) are not issued to
    the device; what goes there and back is a wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.issued: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _WAITS:
            self.waits[name] += 1
        elif name not in _FREE and not func.is_view:
            self.issued[name] += 1
        return func(*args, **(kwargs or {}))


def counted(call: Callable[[], Any]) -> Operations:
    """What ``call`` issues and waits for."""
    with Operations() as operations:
        call()
    return operations


def round_of(model: str, n: int, *, algorithm: str = "dsgd(momentum=0.9)", norm: str = "fbn",
             defense: str = "nnm+trimmed-mean", attack: str = "sf", batch: int = 25) -> Operations:  # fmt: skip
    """The third round of a federation, on one thread, with the kernels in C, one operation each."""
    from robustfl.federation import train
    from tests.bench.federations import federation

    shape = {"mnist-cnn": (1, 28, 28), "digits-cnn": (1, 8, 8)}.get(model, (3, 32, 32))
    torch.set_num_threads(1)
    os.environ["ROBUSTFL_NATIVE"] = "always"
    e = federation(model, shape, n=n, f=n // 5, batch=batch, rounds=3, norm=norm, attack=attack,
                   defense=defense, algorithm=algorithm)  # fmt: skip
    rounds = train(e)
    next(rounds), next(rounds)
    return counted(lambda: next(rounds))


def main() -> None:
    print(f"{'model':<12}{'n':>5} {'algorithm':<24}{'issued':>8}{'waits':>7}  most frequent")
    for model, n, algorithm in (
        ("mnist-cnn", 10, "dsgd(momentum=0.9)"),
        ("mnist-cnn", 100, "dsgd(momentum=0.9)"),
        ("mnist-cnn", 10, "fedavg(local_steps=2)"),
        ("mnist-cnn", 40, "fedavg(local_steps=2)"),
    ):
        found = round_of(model, n, algorithm=algorithm)
        most = ", ".join(f"{name} {k}" for name, k in found.issued.most_common(6))
        print(f"{model:<12}{n:>5} {algorithm:<24}{found.issued.total():>8}{found.waits.total():>7}  {most}")


if __name__ == "__main__":
    main()
