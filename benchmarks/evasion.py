"""PGD-7 training steps against naive ones with the same iterates; ``python -m benchmarks.evasion``.

The naive way sends ``loss.backward()`` through all parameters at every iteration, on images as they come from disk, and
takes the input's gradient; once in evaluation mode, as ours, and once in training mode, as is common, where batch norm
makes other iterates. Then both train on what they found: forward, backward and SGD update in training mode. Ratios are
medians over paired turns, with quartiles; the last column is the largest difference between the images found in float64
(in float32 the sign of a vanishing gradient is a matter of rounding).
"""

from __future__ import annotations

import copy
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import robustfl
from robustfl.attacks.evasion.pgd import ascend
from robustfl.attacks.evasion.whitebox import frozen
from robustfl.gradients import channels_last
from robustfl.registry import create

from .gradients import centralised, interleaved

EPS, STEPS = 8 / 255, 7


@dataclass(frozen=True)
class Case:
    model: str
    shape: tuple[int, int, int]
    batch: int
    rounds: int


CASES = (
    Case("fbn-cnn", (3, 32, 32), 50, 5),
    Case("mnist-cnn", (1, 28, 28), 25, 15),
    Case("digits", (3, 28, 28), 32, 5),
)


def naive(network: nn.Module, x: Tensor, y: Tensor, *, training: bool) -> Tensor:
    """PGD-7 from x as it is written down most often."""
    network.train(training)
    found = x
    for _ in range(STEPS):
        found = found.detach().requires_grad_(True)
        F.cross_entropy(network(found), y).backward()
        assert found.grad is not None
        moved = found.detach() + EPS / 4 * found.grad.sign()
        found = torch.clamp(x + torch.clamp(moved - x, -EPS, EPS), 0, 1)
    return found.detach()


def ours(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same iterates by ``pgd``."""
    return robustfl.evasion("pgd", eps=EPS, steps=STEPS, random_start=False).perturb(network, x, y)


def inner(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same by the iteration alone, as a training loop may call it."""
    with frozen(network):
        return ascend(network, channels_last(x), y, eps=EPS, step=EPS / 4, steps=STEPS)


def ways_of(case: Case) -> tuple[dict[str, Callable[[], None]], float]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(case.batch, *case.shape, generator=generator)
    y = torch.randint(10, (case.batch,), generator=generator)
    norm = create("norm", "naive-bn")
    network = centralised(create("model", case.model).build(norm, shape=case.shape, classes=10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)  # every turn the same model

    def trained(found: Tensor) -> None:
        network.train()
        optimizer.zero_grad()
        F.cross_entropy(network(found), y).backward()
        optimizer.step()

    ways: dict[str, Callable[[], None]] = {
        "naive, train mode": lambda: trained(naive(network, x, y, training=True)),
        "naive, eval mode": lambda: trained(naive(network, x, y, training=False)),
        "pgd": lambda: trained(channels_last(ours(network, x, y))),
        "ascend": lambda: trained(channels_last(inner(network, x, y))),
        "standard step": lambda: trained(x),
    }
    return ways, _apart(network, x[:4].double(), y[:4])


def _apart(network: nn.Module, x: Tensor, y: Tensor) -> float:
    exact = copy.deepcopy(network).double()
    return float((naive(exact, x, y, training=False) - ours(exact, x, y)).abs().max())


def main() -> None:
    torch.set_num_threads(2)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads, float32")
    print(f"{'model':<10} {'PGD-7 training step':<20} {'ms':>9} {'ratio':>7}  spread (quartiles)  difference")
    for case in CASES:
        ways, apart = ways_of(case)
        times = interleaved(ways, case.rounds)
        base = times["naive, train mode"]
        for name, seconds in times.items():
            ratios = [mine / reference for mine, reference in zip(seconds, base, strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            note = f"{apart:.1e}" if name == "pgd" else ""
            print(
                f"{case.model:<10} {name:<20} {1e3 * statistics.median(seconds):9.2f} "
                f"{statistics.median(ratios):7.2f}  {low:.2f} to {high:.2f}        {note}"
            )


if __name__ == "__main__":
    main()
