"""Tensor operations of a round, values waited for on the host, and copies, as an accelerator would see them.

``python -m benchmarks operations`` prints them for rounds like those that ``tests/unit/test_operations.py`` bounds.
Rounds run on a pretended device (``tests.pretend``), so that code takes the way it takes on an accelerator: whole
columns at once, no blocks for the caches of a CPU, no C code, all clients of a round in one pass.
"""

from __future__ import annotations

from benchmarks.federations import federation
from robustfl.engine import train
from tests.pretend import DEVICE, Pretend

SHAPES = {"mnist-cnn": (1, 28, 28), "digits-cnn": (1, 8, 8)}


def round_of(model: str, n: int, *, algorithm: str = "dsgd(momentum=0.9)", norm: str = "fbn",
             defense: str = "nnm+trimmed-mean", attack: str = "sf", batch: int = 4) -> Pretend:  # fmt: skip
    """What the third round of a federation with ``n`` clients, ``n // 5`` of them Byzantine, issues and waits for."""
    with Pretend() as device:
        e = federation(model, SHAPES.get(model, (3, 32, 32)), n=n, f=n // 5, batch=batch, rounds=4, norm=norm,
                       attack=attack, defense=defense, algorithm=algorithm, device=DEVICE)  # fmt: skip
        rounds = train(e)
        next(rounds), next(rounds)
        device.start()
        next(rounds)
    return device


def main() -> None:
    print(
        f"{'model':<12}{'n':>5} {'algorithm':<24}{'defense':<20}{'issued':>8}{'waits':>7}{'copies':>8}  most frequent"
    )
    for model, n, algorithm, defense in (
        ("mnist-cnn", 10, "dsgd(momentum=0.9)", "nnm+trimmed-mean"),
        ("mnist-cnn", 100, "dsgd(momentum=0.9)", "nnm+trimmed-mean"),
        ("mnist-cnn", 10, "fedavg(local_steps=2)", "nnm+trimmed-mean"),
        ("mnist-cnn", 100, "fedavg(local_steps=2)", "nnm+trimmed-mean"),
        ("mnist-cnn", 10, "dsgd(momentum=0.9)", "geometric-median"),
        ("resnet18", 10, "dsgd(momentum=0.9)", "nnm+trimmed-mean"),
    ):
        found = round_of(model, n, algorithm=algorithm, defense=defense)
        most = ", ".join(f"{name} {k}" for name, k in found.issued.most_common(6))
        print(
            f"{model:<12}{n:>5} {algorithm:<24}{defense:<20}{found.issued.total():>8}{found.waits.total():>7}"
            f"{found.copies.total():>8}  {most}",
            flush=True,
        )


if __name__ == "__main__":
    main()
