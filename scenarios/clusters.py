"""Ten Gaussian clusters on a circle, one per client: what a scheme's normalization does to them, beside one machine's.

The FBN paper's Section 3 (Figures 1 and 2): centres ``10 (cos, sin)(2π i / 10)``, unit covariance, 30 fresh points per
client and round, of which ``round(30 γ)`` come from the mixture of all clusters; one normalization layer without an
affine part, statistics from (0, 1). The paper leaves open how errors are averaged; here it is the mean over points of
the Euclidean distance to centralised batch normalization of the same points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from robustfl.contracts import Norm
from robustfl.defenses.aggregation import PlainMean
from robustfl.federation.statistics import begin, collect
from robustfl.randomness import stream
from robustfl.vectors import layout_of, write_statistics

CLIENTS, POINTS, RADIUS, ROUNDS, EPS = 10, 30, 10.0, 100, 1e-5


@dataclass(frozen=True)
class Normalized:
    """Clusters as a scheme normalises them: ``errors [rounds]``, last ``points [P 2]``, ``labels [P]``."""

    errors: Tensor
    points: Tensor
    labels: Tensor
    variance: float


@cache  # several statements ask for one
def normalize_clusters(norm: Norm, *, gamma: float, seed: int) -> Normalized:
    """Let the clients normalise with ``norm`` for 100 rounds, the server merging what they report without attack."""
    generator = stream(seed, "clusters")
    network = nn.Sequential(norm.layer(2)).double().train()
    layout = layout_of(network)
    statistics = layout.initial_statistics(torch.zeros(1, dtype=torch.float64))
    errors = []
    for t in range(ROUNDS):
        x, labels = _points(gamma, generator)
        begin(network, (POINTS,) * CLIENTS, frozen=norm.frozen(t, ROUNDS))
        with torch.no_grad():
            mine = network(x)
        reference = (x - x.mean(0)) / (x.var(0, correction=0) + EPS).sqrt()
        errors.append((mine - reference).norm(dim=1).mean())
        reports = collect(network, layout)
        messages = norm.messages(reports, statistics, layout.layers)
        if norm.sends_statistics:
            statistics = norm.merge(messages, reports.counts, statistics, layout.layers, PlainMean())
            write_statistics(network, layout, statistics)
    return Normalized(torch.stack(errors), mine, labels, float(statistics[2:].mean()))


def separability(points: Tensor, labels: Tensor) -> float:
    """The training accuracy of softmax regression on standardised ``points [P 2]``: 1 if clusters are separable.

    >>> centres = torch.tensor([[0.0, 0.0], [5.0, 5.0]], dtype=torch.float64).repeat(5, 1)
    >>> separability(centres, torch.tensor([0, 1]).repeat(5))
    1.0
    """
    x = (points - points.mean(0)) / (points.std(0) + EPS)
    classes = int(labels.max()) + 1
    weights = torch.zeros((3, classes), dtype=x.dtype, requires_grad=True)
    inputs = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    optimiser = torch.optim.LBFGS([weights], max_iter=400, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = nn.functional.cross_entropy(inputs @ weights, labels) + 1e-6 * weights.square().sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return float(((inputs @ weights).argmax(1) == labels).double().mean())


def _points(gamma: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    angles = 2 * math.pi * torch.arange(CLIENTS, dtype=torch.float64) / CLIENTS
    centres = RADIUS * torch.stack([angles.cos(), angles.sin()], dim=1)
    mixed = round(POINTS * gamma)
    labels = torch.arange(CLIENTS).repeat_interleave(POINTS).view(CLIENTS, POINTS).clone()
    labels[:, :mixed] = torch.randint(CLIENTS, (CLIENTS, mixed), generator=generator)
    noise = torch.randn(CLIENTS * POINTS, 2, generator=generator, dtype=torch.float64)
    return centres[labels.flatten()] + noise, labels.flatten()
