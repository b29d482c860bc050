"""Federations on random images, for benchmarks."""

from __future__ import annotations

import torch

from robustfl.data import Resident
from robustfl.defenses.pipeline import parse_pipeline
from robustfl.engine import Experiment, Settings
from robustfl.layout import layout_of
from robustfl.randomness import stream
from robustfl.registry import create


def federation(
    model: str, shape: tuple[int, int, int], *, n: int, f: int, batch: int, rounds: int, norm: str = "naive-bn",
    attack: str = "alie(z=1)", defense: str = "trimmed-mean", device: torch.device | str = "cpu",
    algorithm: str = "dsgd(momentum=0.9)",
) -> Experiment:  # fmt: skip
    """``n`` clients with two batches of images ``(C, H, W)`` each."""
    generator = torch.Generator().manual_seed(0)
    count = 2 * n * batch
    x = torch.randint(0, 256, (count, *shape[1:], shape[0]), generator=generator, dtype=torch.uint8).to(device)
    y = torch.randint(0, 10, (count,), generator=generator).to(device)
    scheme, architecture = create("norm", norm), create("model", model)
    network = architecture.build(scheme, shape=shape, classes=10)
    architecture.initialise(network, stream(0, "init"))
    network.to(device)
    return Experiment(
        settings=Settings(clients=n, f=f, f_declared=f, rounds=rounds, batch=batch), model=network,
        layout=layout_of(network), train=Resident(x, y), parts=tuple(torch.arange(count, device=device).chunk(n)),
        classes=10, algorithm=create("algorithm", algorithm), norm=scheme, attack=create("attack", attack),
        defense=parse_pipeline(defense), lr=lambda t: 0.01, objective=create("objective", "ce"),
        evasion=create("evasion", "fgsm"),
    )  # fmt: skip
