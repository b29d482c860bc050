"""TF32 is a choice of the cell: part of its key, written down, and never left on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robustfl.scenarios import run
from robustfl.scenarios.expand import fingerprints, key_of, resolve
from robustfl.scenarios.spec import Cell

TINY = {"model": "mlp(hidden=(8,))", "rounds": 1, "batch": 8, "evasions": ["fgsm"]}
PLACES = (torch.backends.cuda.matmul, torch.backends.cudnn)


@pytest.mark.parametrize(("precision", "on"), [("full", False), ("tf32", True)])
def test_products_are_as_the_cell_says_and_afterwards_as_before(
    precision: str, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    original = run.build

    def build(*args: Any, **rest: Any) -> Any:
        seen.extend(place.allow_tf32 for place in PLACES)
        return original(*args, **rest)

    monkeypatch.setattr(run, "build", build)
    before = [place.allow_tf32 for place in PLACES]
    cell = Cell.of({**TINY, "precision": precision})
    record = run.run_cell(cell, fingerprint=fingerprints([cell], None)[cell])
    assert seen == [on, on]
    assert [place.allow_tf32 for place in PLACES] == before
    assert record.status == "done"
    assert record.certificates["precision"] == precision


def test_precision_tells_cells_apart_and_leaves_old_keys_alone() -> None:
    full, short = Cell.of(TINY), Cell.of({**TINY, "precision": "tf32"})
    assert key_of(resolve(full, "x")) != key_of(resolve(short, "x"))
    assert "precision" not in resolve(full, "x")["cell"]
