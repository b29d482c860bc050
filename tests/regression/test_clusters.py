"""Ten clusters, one per client; how far each scheme's output is from one machine's batch norm."""

from statistics import fmean

import pytest

from robustfl.norms import FBN, FixBN, NaiveBN
from robustfl.reproductions.fbn.clusters import normalize_clusters

TABLE = {  # gamma: scheme: (mean over rounds, last round)
    0.0: {"fbn": (0.215, 0.013), "fixbn": (5.20, 8.71), "naive-bn": (1.70, 1.69)},
    0.1: {"fbn": (0.226, 0.033), "fixbn": (1.51, 1.68), "naive-bn": (1.35, 1.36)},
    0.3: {"fbn": (0.238, 0.052), "fixbn": (0.793, 0.55), "naive-bn": (1.04, 1.05)},
    1.0: {"fbn": (0.267, 0.083), "fixbn": (0.158, 0.096), "naive-bn": (0.235, 0.245)},
}
pytestmark = pytest.mark.slow
SCHEMES = {"fbn": FBN(), "fixbn": FixBN(), "naive-bn": NaiveBN()}


@pytest.fixture(scope="module")
def measured():
    table = {}
    for gamma in TABLE:
        for name, norm in SCHEMES.items():
            runs = [normalize_clusters(norm, gamma=gamma, seed=seed) for seed in range(8)]
            table[gamma, name] = (fmean(float(r.errors.mean()) for r in runs), fmean(float(r.errors[-1]) for r in runs),
                                  fmean(r.variance for r in runs))  # fmt: skip
    return table


@pytest.mark.parametrize("gamma", TABLE)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_errors_are_those_of_the_table(measured, gamma, scheme):
    mean, last, _ = measured[gamma, scheme]
    assert mean == pytest.approx(TABLE[gamma][scheme][0], rel=0.1)
    assert last == pytest.approx(TABLE[gamma][scheme][1], rel=0.1, abs=0.06)  # one round of eight seeds


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.3])
def test_fbn_is_closest_to_one_machine_when_clients_differ(measured, gamma):
    assert measured[gamma, "fbn"][0] < min(measured[gamma, "naive-bn"][0], measured[gamma, "fixbn"][0]) / 3


def test_fbn_finds_the_variance_of_the_mixture_and_naive_only_that_within_clients(measured):
    assert measured[0.0, "fbn"][2] == pytest.approx(51, abs=2)
    assert measured[0.0, "naive-bn"][2] == pytest.approx(0.99, abs=0.05)
