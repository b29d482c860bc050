"""Ten Gaussian clusters on a circle, one per client: the FBN paper's Section 3 (Figures 1 and 2).

Centres ``10 (cos, sin)(2π i / 10)``, unit covariance, 30 fresh points per client and round, of which ``round(30 γ)``
come from the mixture of all clusters; one normalization layer without an affine part, statistics from (0, 1). The paper
leaves open how errors are averaged; here it is the mean over points of the Euclidean distance to centralised batch
normalization of the same points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from robustfl.contracts import Norm
from robustfl.defenses.aggregation import PlainMean
from robustfl.engine.statistics import begin, collect
from robustfl.layout import layout_of, write_statistics
from robustfl.randomness import stream
from robustfl.registry import create

from ..drawings import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def _points(gamma: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    angles = 2 * math.pi * torch.arange(CLIENTS, dtype=torch.float64) / CLIENTS
    centres = RADIUS * torch.stack([angles.cos(), angles.sin()], dim=1)
    mixed = round(POINTS * gamma)
    labels = torch.arange(CLIENTS).repeat_interleave(POINTS).view(CLIENTS, POINTS).clone()
    labels[:, :mixed] = torch.randint(CLIENTS, (CLIENTS, mixed), generator=generator)
    noise = torch.randn(CLIENTS * POINTS, 2, generator=generator, dtype=torch.float64)
    return centres[labels.flatten()] + noise, labels.flatten()


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


# --- its statements --------------------------------------------------------------------------------------------------


def _over_seeds(norm: str, gamma: float, seeds: int) -> list[Normalized]:
    return [normalize_clusters(create("norm", norm), gamma=gamma, seed=seed) for seed in range(seeds)]


def error(*, norm: str, gamma: float, seeds: int = 5, last: bool = False) -> float:
    """Distance to centralised batch norm over all rounds, or of the ``last`` one; mean over seeds."""
    return sum(float(f.errors[-1] if last else f.errors.mean()) for f in _over_seeds(norm, gamma, seeds)) / seeds


def error_growth(*, norm: str, gamma: float, gamma_from: float, seeds: int = 5) -> float:
    """The error at ``gamma`` relative to that at ``gamma_from``."""
    return error(norm=norm, gamma=gamma, seeds=seeds) / error(norm=norm, gamma=gamma_from, seeds=seeds)


def accuracy(*, norm: str, gamma: float, seeds: int = 5) -> float:
    """Training accuracy, in percent, of softmax regression on the normalised clusters of the last round."""
    return sum(100 * separability(f.points, f.labels) for f in _over_seeds(norm, gamma, seeds)) / seeds


# --- its figures -----------------------------------------------------------------------------------------------------


def draw_points(*, norms: Sequence[str], gamma: float, seed: int = 0) -> Figure:
    """Figure 1: the clusters of the last round, a panel per scheme, each cluster in its colour."""
    import seaborn
    from matplotlib.figure import Figure

    colors = seaborn.color_palette("husl", CLIENTS)
    figure = Figure(figsize=(2.6 * len(norms) + 0.6, 3.0), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
        found = normalize_clusters(create("norm", name), gamma=gamma, seed=seed)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        for label in range(CLIENTS):
            x, y = found.points[found.labels == label].T.tolist()
            axis.scatter(x, y, s=6, color=colors[label], linewidths=0)
        axis.set_aspect("equal", adjustable="datalim")
    return figure


def draw_errors(*, norms: Sequence[str], gammas: Sequence[float], seeds: int = 5) -> Figure:
    """Figure 2: the error of every round, mean over seeds; a panel per γ, a line per scheme."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * len(gammas) + 0.6, 3.0), layout="constrained")
    axes = figure.subplots(1, len(gammas), sharey=True, squeeze=False)[0]
    for axis, gamma in zip(axes, gammas, strict=True):
        axis.set_title(f"γ = {gamma:g}", fontsize=9)
        axis.tick_params(labelsize=7)
        for place, name in enumerate(norms):
            errors = torch.stack([f.errors for f in _over_seeds(name, gamma, seeds)]).mean(0)
            axis.plot(range(1, ROUNDS + 1), errors.tolist(), label=name, **look(place))
        axis.set_yscale("log")
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("distance from centralised batch norm")
    axes[0].legend(fontsize=8)
    return figure
