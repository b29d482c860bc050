"""Numbers that papers count and do not measure: sizes of networks and traffic of schemes."""

from __future__ import annotations

from typing import Any

import torch

from robustfl.contracts import Model, Norm
from robustfl.evaluation import traffic
from robustfl.layout import Layout, layout_of
from robustfl.registry import create


def _layout(*, model: str, norm: str, shape: tuple[int, int, int], classes: int = 10) -> tuple[Norm, Layout]:
    scheme: Norm = create("norm", norm)
    network: Model = create("model", model)
    with torch.random.fork_rng(devices=[]):
        return scheme, layout_of(network.build(scheme, shape=shape, classes=classes))


def sent(**network: Any) -> float:
    """Numbers that a client sends in a round without exchanges inside the layers.

    >>> sent(model="resnet20", shape=(3, 32, 32), norm="gn(groups=2)")
    269722.0
    """
    found = traffic(*_layout(**network))
    return float(found.parameters + found.statistics)


def exchanges(**network: Any) -> float:
    """Exchanges of a round."""
    return float(traffic(*_layout(**network)).exchanges)


def mebibytes(*, clients: int, **network: Any) -> float:
    """MiB of a round: the uploads of ``clients`` clients and one broadcast."""
    return traffic(*_layout(**network)).mebibytes(clients)


def mebibytes_above(*, norm: str, above: str, **given: Any) -> float:
    """By how many percent the traffic of a round exceeds that of the norm ``above``."""
    other = mebibytes(norm=above, **given)
    return 100 * (mebibytes(norm=norm, **given) - other) / other


def _totals(*, clients: int, rounds: int, **network: Any) -> tuple[float, float, float]:
    """MiB of all rounds, their exchanges, the numbers exchanged inside layers."""
    norm, layout = _layout(**network)
    each = [traffic(norm, layout, round=t, rounds=rounds) for t in range(rounds)]
    exchanges, exchanged = sum(t.exchanges for t in each), sum(t.exchanged for t in each)
    return sum(t.mebibytes(clients) for t in each), float(exchanges), float(exchanged)


def gibibytes(**given: Any) -> float:
    """GiB of all rounds."""
    return _totals(**given)[0] / 1024


def extra_rounds(*, rounds: int, **given: Any) -> float:
    """Share of all exchanges, in percent, beyond one a round."""
    exchanges = _totals(rounds=rounds, **given)[1]
    return 100 * (exchanges - rounds) / exchanges


def extra_bytes(*, norm: str, **given: Any) -> float:
    """Share of all traffic, in percent, beyond that of naive batch norm."""
    total = _totals(norm=norm, **given)[0]
    return 100 * (total - _totals(norm="naive-bn", **given)[0]) / total


def gibibits_without_statistics(*, clients: int, rounds: int, **network: Any) -> float:
    """Traffic of all rounds in 2^30 bit, statistics outside of exchanges left out (the FedTAN paper's Table 5)."""
    numbers = _layout(**network)[1].d * rounds + _totals(clients=clients, rounds=rounds, **network)[2]
    return numbers * 32 * (clients + 1) / 2**30


def extra_bits(*, clients: int, rounds: int, **network: Any) -> float:
    """Share of that traffic, in percent, exchanged inside layers."""
    extra = _totals(clients=clients, rounds=rounds, **network)[2]
    return 100 * extra / (_layout(**network)[1].d * rounds + extra)
