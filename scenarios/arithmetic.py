"""Claims that need no training: sizes of networks, traffic of schemes, normalization of Gaussian clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from robustfl.contracts import Model, Norm
from robustfl.errors import UsageError, closest
from robustfl.evaluation import traffic
from robustfl.registry import create
from robustfl.reports.reproduction.measures import Panels
from robustfl.vectors import Layout, layout_of

from .clusters import normalize_clusters, separability
from .roles import at_users

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
    "cluster-points": _cluster_points,
    "cluster-errors": _cluster_errors,
}
_COUNTED: dict[str, Callable[[Arguments], float]] = {
    "parameters": _parameters,
    "sent": _sent,
    "exchanges": _exchanges,
    "mebibytes": _mebibytes,
    "mebibytes-above": _mebibytes_above,
    "gibibytes": _gibibytes,
    "extra-rounds": _extra_rounds,
    "extra-bytes": _extra_bytes,
    "gibibits-without-statistics": _gibibits_without_statistics,
    "extra-bits": _extra_bits,
    "at-users": _at_users,
    "cluster-error": _cluster_error,
    "cluster-error-ratio": _cluster_error_ratio,
    "cluster-error-growth": _cluster_error_growth,
    "cluster-accuracy": _cluster_accuracy,
}
