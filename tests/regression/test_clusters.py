"""Ten clusters, one per client; how far each scheme's output is from one machine's batch norm."""

import math

import pytest
import torch
from torch import nn

from robustfl.federation.statistics import PlainMean, begin, collect
from robustfl.norms import FBN, FixBN, NaiveBN
from robustfl.vectors import layout_of, write_statistics

ROUNDS, CLIENTS, POINTS = 100, 10, 30
ANGLES = 2 * math.pi * torch.arange(CLIENTS, dtype=torch.float64) / CLIENTS
CENTRES = 10 * torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
TABLE = {  # gamma: scheme: (mean over rounds, last round)
    0.0: {"fbn": (0.215, 0.013), "fixbn": (5.20, 8.71), "naive-bn": (1.70, 1.69)},
    0.1: {"fbn": (0.226, 0.033), "fixbn": (1.51, 1.68), "naive-bn": (1.35, 1.36)},
    0.3: {"fbn": (0.238, 0.052), "fixbn": (0.793, 0.55), "naive-bn": (1.04, 1.05)},
    1.0: {"fbn": (0.267, 0.083), "fixbn": (0.158, 0.096), "naive-bn": (0.235, 0.245)},
}
SCHEMES = {"fbn": FBN(), "fixbn": FixBN(), "naive-bn": NaiveBN()}


def points(gamma, generator):
    mixed = round(POINTS * gamma)
    origin = torch.arange(CLIENTS).repeat_interleave(POINTS).view(CLIENTS, POINTS)
    origin[:, :mixed] = torch.randint(CLIENTS, (CLIENTS, mixed), generator=generator)
    noise = torch.randn(CLIENTS * POINTS, 2, generator=generator, dtype=torch.float64)
    return CENTRES[origin.flatten()] + noise


def run(norm, gamma, seed):
    """The error of every round and the final statistics."""
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(norm.layer(2)).double().train()
    layout = layout_of(network)
    statistics = layout.initial_statistics(CENTRES)
    errors = []
    for t in range(ROUNDS):
        u = points(gamma, generator)
        begin(network, (POINTS,) * CLIENTS, frozen=norm.frozen(t, ROUNDS))
        with torch.no_grad():
            mine = network(u)
        reference = (u - u.mean(0)) / (u.var(0, correction=0) + 1e-5).sqrt()
        errors.append((mine - reference).norm(dim=1).mean())
        reports = collect(network, layout)
        messages = norm.messages(reports, statistics, layout.layers)
        statistics = norm.merge(messages, reports.counts, statistics, layout.layers, PlainMean())
        write_statistics(network, layout, statistics)
    return torch.stack(errors), statistics


@pytest.fixture(scope="module")
def measured():
    table = {}
    for gamma in TABLE:
        for name, norm in SCHEMES.items():
            runs = [run(norm, gamma, seed) for seed in range(2)]
            errors = torch.stack([e for e, _ in runs])
            variances = torch.stack([s[2:] for _, s in runs])
            table[gamma, name] = (float(errors.mean()), float(errors[:, -1].mean()), float(variances.mean()))
    return table


@pytest.mark.parametrize("gamma", TABLE)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_errors_are_those_of_the_table(measured, gamma, scheme):
    mean, last, _ = measured[gamma, scheme]
    assert mean == pytest.approx(TABLE[gamma][scheme][0], rel=0.1)
    assert last == pytest.approx(TABLE[gamma][scheme][1], rel=0.1, abs=0.03)  # one round, few seeds


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.3])
def test_fbn_is_closest_to_one_machine_when_clients_differ(measured, gamma):
    assert measured[gamma, "fbn"][0] < min(measured[gamma, "naive-bn"][0], measured[gamma, "fixbn"][0]) / 3


def test_fbn_finds_the_variance_of_the_mixture_and_naive_only_that_within_clients(measured):
    assert measured[0.0, "fbn"][2] == pytest.approx(51, abs=2)
    assert measured[0.0, "naive-bn"][2] == pytest.approx(0.99, abs=0.05)
