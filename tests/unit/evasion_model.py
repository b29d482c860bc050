"""A small network trained on scikit-learn's digits, once per process, for tests of evasion attacks."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.contracts import Evasion
from robustfl.randomness import stream


@cache
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """The network in evaluation mode, and 300 test images with their labels."""
    torch.set_num_threads(1)  # on small tensors threads would only wait for each other
    digits = load_digits()
    x = torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1, stride=2),
            nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
        )  # fmt: skip
    generator = stream(0, "training")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        for index in torch.randperm(1400, generator=generator).split(50):
            noise = 0.3 * (torch.rand(len(index), 1, 8, 8, generator=generator) - 0.5)
            optimizer.zero_grad()
            F.cross_entropy(model((x[index] + noise).clamp(0, 1)), y[index]).backward()
            optimizer.step()
    optimizer.zero_grad()
    return model.eval(), x[1400:1700], y[1400:1700]


def hits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images are classified right."""
    with torch.no_grad():
        return model(x).argmax(1) == y


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float(hits(model, x, y).double().mean())


def resisting(attack: Evasion, seed: int = 0, count: int = 300) -> Tensor:
    """Which of the first ``count`` test images are still classified right after the attack."""
    model, x, y = trained()
    found = attack.perturb(model, x[:count], y[:count], generator=stream(seed, "attack"))
    return hits(model, found, y[:count])
