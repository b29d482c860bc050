"""The FBN paper's scenario on real CIFAR-10 images, where they are at hand.

``ROBUSTFL_TEST_IMAGES`` names a folder with an ``unpack.py`` that writes ``cifar10.npz`` and ``mnist.npz``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import robustfl
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario

IMAGES = os.environ.get("ROBUSTFL_TEST_IMAGES", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (Path(IMAGES) / "unpack.py").is_file() or not IMAGES,
        reason="ROBUSTFL_TEST_IMAGES names no folder of images; they are not part of the project",
    ),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the first images of each data set."""
    folder = tmp_path_factory.mktemp("images")
    command = [sys.executable, "unpack.py", str(folder), "cifar10", "mnist", "--limit", "2000"]
    subprocess.run(command, cwd=IMAGES, check=True, capture_output=True)
    return folder


def test_fbn_section5_trains_on_cifar10(root: Path, tmp_path: Path) -> None:
    settings = [
        "rounds=3", "seed=0", "partition=gamma(gamma=0.01)", "attack=sf", 'norm=["fbn", "naive-bn"]',
        "statistics_defense=nnm+trimmed-mean", "dataset=cifar10(test_limit=100)", "ra_limit=20", "evaluate_every=3",
        'schedule.milestones=[1, 2]',
    ]  # fmt: skip
    scenario = Scenario.load("fbn-section5", settings=settings)
    results = robustfl.grid(scenario, out=tmp_path, jobs=2, root=root)
    assert results.statuses == {"done": 2}
    for record in Store(results.folder).load().results:
        assert record.certificates["trainable"] == 1_310_922
        assert record.certificates["statistics"] == 768
        assert record.certificates["test_samples"] == 100
        assert record.metrics is not None
        assert record.metrics.loss < 10


def test_a_small_grid_on_mnist_learns(root: Path, tmp_path: Path) -> None:
    cell = {
        "dataset": "mnist(test_limit=500)", "partition": "gamma(gamma=0.5)", "model": "mnist-cnn", "norm": "fbn",
        "attack": "alie", "defense": "nnm+median", "f": 3, "rounds": 40, "batch": 25, "evasions": ["fgsm(eps=0.1)"],
    }  # fmt: skip
    results = robustfl.grid(Scenario.of({"name": "mnist", "cell": cell}), out=tmp_path, jobs=1, root=root)
    (record,) = Store(results.folder).load().results
    assert record.metrics is not None
    assert record.metrics.sa > 0.6
    assert record.metrics.ra_worst is not None
    assert record.metrics.ra_worst < record.metrics.sa
