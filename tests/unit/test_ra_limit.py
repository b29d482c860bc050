"""Robust accuracy on a part of the test images is told where the part lacks classes or is no part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import robustfl
from robustfl.evaluation import limit_doubt
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=40)", "model": "mlp(hidden=(8,))", "norm": "gn", "clients": 5,
    "batch": 8, "dtype": "float64", "evasions": [], "partition": "dirichlet(alpha=1)",
}  # fmt: skip


def test_classes_that_a_random_part_would_hold_are_missed() -> None:
    ordered = torch.arange(10).repeat_interleave(100)
    assert "first 300 of 1000 test images, which lack 7 of 10 classes" in limit_doubt(ordered, 300)
    assert limit_doubt(ordered[torch.randperm(1000, generator=torch.Generator().manual_seed(0))], 300) == ""
    assert limit_doubt(ordered, 1000) == ""
    late = torch.cat([torch.zeros(60, dtype=torch.int64), torch.ones(40, dtype=torch.int64)])
    assert "first 50 of 100 test images, which lack 1 of 2 classes" in limit_doubt(
        late, 50
    )  # 20 of it were to be expected
    assert limit_doubt(late, 49) == ""
    assert limit_doubt(ordered, 50) == ""  # of so few, five of a class, some may well be missing
    assert limit_doubt(torch.cat([torch.zeros(990, dtype=torch.int64), torch.ones(10, dtype=torch.int64)]), 500) == ""


def archive(folder: Path, *, ordered: bool) -> Path:
    """Images of two classes, the test images in the order of their classes or by turns."""
    draws = np.random.default_rng(0)
    y = np.arange(200) % 2
    file = folder / f"{ordered}.npz"
    test_y = np.sort(y) if ordered else y
    x = {f"{part}_x": draws.random((200, 4, 4, 1)).astype(np.float32) for part in ("train", "test")}
    np.savez(file, train_y=y, test_y=test_y, **x)
    return file


@pytest.mark.parametrize("ordered", [True, False])
def test_robust_accuracy_on_some_classes_only_is_told(tmp_path: Path, ordered: bool) -> None:
    file = archive(tmp_path, ordered=ordered)
    settings = {**SMALL, "dataset": f"npz:{file}", "rounds": 1, "evasions": ["fgsm"]}
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for limit, told in ((80, ordered), (None, False)):
        warnings = run_cell(Cell.of({**settings, "ra_limit": limit}), fingerprint="x").certificates["warnings"]
        assert any("lack 1 of 2 classes" in words for words in warnings) is told
        notes = robustfl.evaluate(model, f"npz:{file}", ["fgsm"], ra_limit=limit, batch=30).notes
        assert any("lack 1 of 2 classes" in words for words in notes) is told


def test_a_bound_beyond_the_test_images_is_told(tmp_path: Path) -> None:
    file = archive(tmp_path, ordered=False)
    settings = {**SMALL, "dataset": f"npz:{file}", "rounds": 1, "evasions": ["fgsm"]}
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for limit, told in ((201, True), (200, False)):
        words = "ra_limit = 201 changes nothing: there are 200 test images"
        assert (
            words in run_cell(Cell.of({**settings, "ra_limit": limit}), fingerprint="x").certificates["warnings"]
        ) is told
        assert (words in robustfl.evaluate(model, f"npz:{file}", ["fgsm"], ra_limit=limit, batch=30).notes) is told


def test_a_share_for_validation_that_keeps_nothing_is_told() -> None:
    told = {}
    for share in (0.001, 0.2):
        warnings = run_cell(Cell.of({**SMALL, "validation": share, "rounds": 1}), fingerprint="x").certificates[
            "warnings"
        ]
        told[share] = any("keeps none of any client" in words for words in warnings)
    assert told == {0.001: True, 0.2: False}
