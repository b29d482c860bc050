"""The presets of papers that need data from elsewhere, from the shell, on made data in the real layout."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from robustfl.cli import invoke
from robustfl.data.digits_fedbn import DOMAINS

TINY = [
    "--set", "seed=0", "--set", "rounds=1", "--set", "clients=25", "--set", "train_evasion=pgd(steps=1)",
    "--set", 'evasions=["pgd(steps=1)"]', "--jobs", "1",
]  # fmt: skip
SMALL_NET = ["--set", "model=digits(channels=(2,2,2), hidden=(4,4))"]


@pytest.fixture(scope="module")
def fedbn_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedBN's prepared Digits: ten pickled training parts and a test set per domain, of unequal sizes and shapes."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number, domain in enumerate(DOMAINS):
        shape = {"MNIST": (28, 28), "USPS": (16, 16)}.get(domain, (28, 28, 3))
        folder = root / "digits" / domain
        (folder / "partitions").mkdir(parents=True)
        sizes = {f"partitions/train_part{i}.pkl": 14 + number for i in range(10)} | {"test.pkl": 15 + number}
        for name, count in sizes.items():
            x = generator.integers(256, size=(count, *shape), dtype=np.uint8)
            (folder / name).write_bytes(pickle.dumps((x, np.arange(count) % 10), protocol=4))
    return root


@pytest.mark.parametrize("preset", ["fedrbn-digits", "fedrbn-ablation", "fedrbn-attacks"])
def test_presets_on_fedbns_digits_run_to_the_end(
    preset: str, fedbn_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["grid", preset, *TINY, *SMALL_NET, "--data-root", str(fedbn_digits)]) == 0, capsys.readouterr().err
    records = [json.loads(f.read_text()) for f in (tmp_path / "runs" / preset / "cells").glob("*.json")]
    assert records
    assert {r["status"] for r in records} == {"done"}
    assert all(r["metrics"]["sa"] is not None and len(r["metrics"]["per_user"]["sa"]) == 25 for r in records)
