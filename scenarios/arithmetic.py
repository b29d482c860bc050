"""Claims that need no training: sizes of networks, traffic of schemes, normalization of Gaussian clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from robustfl.contracts import Model, Norm
from robustfl.defenses.aggregation import PlainMean
from robustfl.engine.statistics import begin, collect
from robustfl.errors import UsageError, closest
from robustfl.evaluation import traffic
from robustfl.layout import Layout, layout_of, write_statistics
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.reports.reproduction.verdicts import Panels

from .methods import at_users

Arguments = Mapping[str, Any]


def compute(name: str, arguments: Arguments) -> float:
    """The value of a counted claim. Raises ``UsageError`` for an unknown name.

    >>> compute("parameters", {"model": "resnet20", "shape": (3, 32, 32), "norm": "gn(groups=2)"})
    269722.0
    """
    if name not in _COUNTED:
        raise UsageError(f"no arithmetic {name!r}; {closest(name, _COUNTED)}")
    return _COUNTED[name](arguments)


def trace(name: str, arguments: Arguments) -> Panels:
    """The lines of a computed plot, by panel. Raises ``UsageError`` for an unknown name.

    >>> found = trace("cluster-errors", {"norms": ["fbn"], "gammas": [1.0], "seeds": 1})
    >>> {panel: list(lines) for panel, lines in found.items()}, len(found["γ = 1"]["fbn"])
    ({'γ = 1': ['fbn']}, 100)
    """
    if name not in _TRACED:
        raise UsageError(f"no trace {name!r}; {closest(name, _TRACED)}")
    return _TRACED[name](arguments)


def _layout(a: Arguments) -> tuple[Norm, Layout]:
    norm: Norm = create("norm", a["norm"])
    model: Model = create("model", a["model"])
    with torch.random.fork_rng(devices=[]):
        return norm, layout_of(model.build(norm, shape=tuple(a["shape"]), classes=int(a.get("classes", 10))))


def _parameters(a: Arguments) -> float:
    return float(_layout(a)[1].d)


def _sent(a: Arguments) -> float:
    """Numbers a client sends in a round that has no exchange inside the layers."""
    found = traffic(*_layout(a))
    return float(found.parameters + found.statistics)


def _exchanges(a: Arguments) -> float:
    """The number of exchanges of a round."""
    return float(traffic(*_layout(a)).exchanges)


def _mebibytes(a: Arguments) -> float:
    """Traffic of a round of some clients' uploads and one broadcast."""
    return traffic(*_layout(a)).mebibytes(int(a["clients"]))


def _mebibytes_above(a: Arguments) -> float:
    """By how many percent the traffic of a round exceeds that of the norm ``above``."""
    other = _mebibytes({**a, "norm": a["above"]})
    return 100 * (_mebibytes(a) - other) / other


def _totals(a: Arguments) -> tuple[float, float, float]:
    """MiB of all rounds, exchanges, numbers exchanged inside layers."""
    norm, layout = _layout(a)
    rounds = int(a["rounds"])
    each = [traffic(norm, layout, round=t, rounds=rounds) for t in range(rounds)]
    return (
        sum(t.mebibytes(int(a["clients"])) for t in each),
        float(sum(t.exchanges for t in each)),
        float(sum(t.exchanged for t in each)),
    )


def _gibibytes(a: Arguments) -> float:
    return _totals(a)[0] / 1024


def _extra_rounds(a: Arguments) -> float:
    """Share of all exchanges, in percent, beyond one a round."""
    exchanges, rounds = _totals(a)[1], int(a["rounds"])
    return 100 * (exchanges - rounds) / exchanges


def _extra_bytes(a: Arguments) -> float:
    """Share of all traffic, in percent, beyond that of naive batch norm."""
    total, plain = _totals(a)[0], _totals({**a, "norm": "naive-bn"})[0]
    return 100 * (total - plain) / total


def _gibibits_without_statistics(a: Arguments) -> float:
    """Traffic of all rounds in 2^30 bit, statistics outside of exchanges left out (the FedTAN paper's Table 5)."""
    _, layout = _layout(a)
    numbers = layout.d * int(a["rounds"]) + _totals(a)[2]
    return numbers * 32 * (int(a["clients"]) + 1) / 2**30


def _extra_bits(a: Arguments) -> float:
    """Share of that traffic, in percent, exchanged inside layers."""
    _, layout = _layout(a)
    extra = _totals(a)[2]
    return 100 * extra / (layout.d * int(a["rounds"]) + extra)


def _at_users(a: Arguments) -> float:
    """The number of ``clients`` in ``domains`` equal blocks that the rule ``at`` makes train adversarially."""
    each, over = divmod(int(a["clients"]), int(a["domains"]))
    assert over == 0
    return float(len(at_users(str(a["at"]), [each] * int(a["domains"]))))


def _over_seeds(a: Arguments, measure: Callable[[int], float]) -> float:
    seeds = int(a.get("seeds", 5))
    return sum(measure(seed) for seed in range(seeds)) / seeds


def _cluster_error(a: Arguments) -> float:
    """Distance to centralised batch norm over all rounds, or, with ``last``, of the last one; mean over seeds."""

    def error(seed: int) -> float:
        found = normalize_clusters(create("norm", a["norm"]), gamma=float(a["gamma"]), seed=seed)
        return float(found.errors[-1] if a.get("last") else found.errors.mean())

    return _over_seeds(a, error)


def _cluster_error_ratio(a: Arguments) -> float:
    """The error of ``norm`` relative to that of the norm ``above``."""
    return _cluster_error(a) / _cluster_error({**a, "norm": a["above"]})


def _cluster_error_growth(a: Arguments) -> float:
    """The error at ``gamma`` relative to that at ``gamma_from``."""
    return _cluster_error(a) / _cluster_error({**a, "gamma": a["gamma_from"]})


def _cluster_accuracy(a: Arguments) -> float:
    """Training accuracy, in percent, of softmax regression on the normalised clusters of the last round."""

    def accuracy(seed: int) -> float:
        found = normalize_clusters(create("norm", a["norm"]), gamma=float(a["gamma"]), seed=seed)
        return 100 * separability(found.points, found.labels)

    return _over_seeds(a, accuracy)


def _cluster_points(a: Arguments) -> Panels:
    """The clusters of the last round, a panel per scheme."""
    return {name: _clusters(str(name), float(a["gamma"]), int(a.get("seed", 0))) for name in a["norms"]}


def _clusters(name: str, gamma: float, seed: int) -> Mapping[str, list[tuple[float, float]]]:
    found = normalize_clusters(create("norm", name), gamma=gamma, seed=seed)
    places: dict[int, list[tuple[float, float]]] = {}
    for (x, y), label in zip(found.points.tolist(), found.labels.tolist(), strict=True):
        places.setdefault(label, []).append((x, y))
    return {f"cluster {label}": places[label] for label in sorted(places)}


def _cluster_errors(a: Arguments) -> Panels:
    """The error of every round, mean over seeds: a panel per γ, a line per scheme."""

    def line(name: str, gamma: float) -> list[tuple[float, float]]:
        norm, seeds = create("norm", name), range(int(a.get("seeds", 5)))
        errors = torch.stack([normalize_clusters(norm, gamma=gamma, seed=seed).errors for seed in seeds]).mean(0)
        return [(float(t), float(e)) for t, e in enumerate(errors, 1)]

    return {f"γ = {gamma:g}": {str(n): line(str(n), float(gamma)) for n in a["norms"]} for gamma in a["gammas"]}


_TRACED: dict[str, Callable[[Arguments], Panels]] = {
    "cluster-points": _cluster_points, "cluster-errors": _cluster_errors,
}  # fmt: skip
_COUNTED: dict[str, Callable[[Arguments], float]] = {
    counted.__name__.strip("_").replace("_", "-"): counted
    for counted in (
        _parameters, _sent, _exchanges, _mebibytes, _mebibytes_above, _gibibytes, _extra_rounds, _extra_bytes,
        _gibibits_without_statistics, _extra_bits, _at_users, _cluster_error, _cluster_error_ratio,
        _cluster_error_growth, _cluster_accuracy,
    )
}  # fmt: skip


# --- ten Gaussian clusters on a circle, one per client ---------------------------------------------------------------
# The FBN paper's Section 3 (Figures 1 and 2): centres ``10 (cos, sin)(2π i / 10)``, unit covariance, 30 fresh points
# per client and round, of which ``round(30 γ)`` come from the mixture of all clusters; one normalization layer without
# an affine part, statistics from (0, 1). The paper leaves open how errors are averaged; here it is the mean over points
# of the Euclidean distance to centralised batch normalization of the same points.

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
