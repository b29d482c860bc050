"""Thousands of clients: what they keep between rounds lies in a file, and nothing depends on that."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from robustfl.errors import StoreError, UsageError
from robustfl.federation import initial_state, train
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.memory import bytes_of
from robustfl.storage import kept

BASE = {
    "model": "mlp(hidden=(8,))", "norm": "fbn", "clients": 40, "participation": 0.2, "batch": 4, "rounds": 5, "f": 4,
    "attack": "alie(z=1)", "defense": "trimmed-mean", "f_declared": 2,
}  # fmt: skip
KEEPING: list[dict[str, Any]] = [
    {"algorithm": "dsgd(momentum=0.9)"},
    {"algorithm": "dsgd(momentum=0.9)", "participation": 1.0},
    {"algorithm": "scaffold"},
    {"algorithm": "fedavg", "norm": "fedbn"},
    {"algorithm": "moon(mu=1)", "norm": "none"},
]


def trained(cell: dict[str, Any], limit: int) -> list[torch.Tensor]:
    experiment = build(Cell.of({**BASE, **cell})).experiment
    for record in train(experiment, limit=limit):
        state = record.state
    assert bool(state.files) == (limit == 0)
    own = [] if state.personal is None else [state.personal.parameters, state.personal.statistics]
    honest = [] if state.memory is None else [state.memory[: experiment.settings.clients - experiment.settings.f]]
    return [state.theta.clone(), state.statistics, *honest, *own]


@pytest.mark.parametrize("cell", KEEPING, ids=lambda cell: "-".join(map(str, cell.values())))
def test_the_file_changes_nothing(cell: dict[str, Any]) -> None:
    in_memory, in_a_file, again = trained(cell, 1 << 30), trained(cell, 0), trained(cell, 0)
    for a, b, c in zip(in_memory, in_a_file, again, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(b, c)


def test_rows_start_alike_and_what_is_written_stays() -> None:
    rows, file = kept(torch.tensor([1.0, 2.0]), 3, 0)
    assert file is not None
    rows[1] = 5.0
    assert rows.tolist() == [[1, 2], [5, 5], [1, 2]]
    assert kept(torch.zeros(2), 3, 24)[1] is None


def test_the_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = initial_state(build(Cell.of({**BASE, **KEEPING[0]})).experiment, limit=0)
    assert len(state.files) == 1
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_told_with_the_remedy() -> None:
    with pytest.raises(StoreError, match="TMPDIR"):
        kept(torch.zeros(1 << 20), 1 << 28, 0)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500MB", 500_000_000), ("1.5 GiB", 3 << 29), ("7", 7), ("2k", 2000)]
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "4 parsec", "i", "4ib"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="GiB"):
        bytes_of(text)
