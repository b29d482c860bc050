"""A federation that several processes share is the same federation."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from team_driver import CELLS, result

from robustfl.cli import invoke
from robustfl.distributed import Team
from robustfl.engine import train
from robustfl.errors import Refused
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.single import processes, rank

DRIVER = Path(__file__).parent / "team_driver.py"
WHOLE = "looks at messages as a whole"


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All cells by three processes."""
    out, port = tmp_path_factory.mktemp("team") / "found.pt", free_port()
    command = [sys.executable, "-W", "ignore", str(DRIVER)]
    ranks = [
        subprocess.Popen([*command, str(rank), "3", port, str(out)], stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        said = [rank.communicate(timeout=900)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said[0][-3000:]
    return torch.load(out, weights_only=True)


def named(cell: dict[str, Any]) -> str:
    return "-".join(str(cell[k]) for k in ("defense", "attack", "algorithm", "norm", "participation") if k in cell)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(CELLS)), ids=[named(cell) for cell in CELLS])
def test_three_processes_find_what_one_finds(place: int, shared: list[dict[str, Any]]) -> None:
    alone = result(CELLS[place])
    for mine, theirs in zip(alone["tensors"], shared[place]["tensors"], strict=True):
        # Sums in another order, through two rounds and rules that iterate until a tolerance of their own.
        torch.testing.assert_close(theirs, mine, rtol=1e-7, atol=1e-8, equal_nan=True)


@pytest.mark.slow
def test_only_what_must_is_gathered_and_says_so(shared: list[dict[str, Any]]) -> None:
    gathered = {cell.get("defense"): found for cell, found in zip(CELLS, shared, strict=True) if WHOLE in str(found)}
    assert "nnm+trimmed-mean" not in gathered
    assert "geometric-median" not in gathered
    assert all(len(found["warnings"]) <= 2 for found in gathered.values())
    assert "foolsgold looks at messages as a whole: one process gathers them" in gathered["foolsgold"]["warnings"]


def test_every_client_and_every_column_has_one_rank() -> None:
    seats, teams = [0, 3, 4, 5, 9, 12], [Team(r, 4) for r in range(4)]
    assert sorted(i for team in teams for i in team.mine(seats)) == list(range(6))
    for d in (0, 1, 5, 10):
        assert [column for team in teams for column in range(d)[team.part(d)]] == list(range(d))


@pytest.mark.parametrize("norm", ["centralised-bn", "fedtan"])
def test_norms_in_which_clients_meet_in_every_layer_are_refused(norm: str) -> None:
    experiment = build(Cell.of({"model": "mlp(hidden=(8,))", "norm": norm, "batch": 8, "rounds": 1})).experiment
    with pytest.raises(Refused, match="run it in one process"):
        next(train(experiment, team=Team(0, 2)))


@pytest.mark.slow
def test_torchrun_writes_one_record_equal_to_that_of_one_process(tmp_path: Path) -> None:
    settings = ["model=mlp(hidden=(8,))", "norm=fbn", "f=1", "attack=alie(z=1)", "defense=nnm+median", "rounds=3",
                "batch=8", "evasions=fgsm(eps=0.1)"]  # fmt: skip
    run = ["run", *(word for s in settings for word in ("--set", s)), "--device", "cpu"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port(), "-m", "robustfl"]
    command = [sys.executable, "-W", "ignore", *torchrun, *run, "--out", str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("SA") == 1
    assert invoke([*run, "--out", str(tmp_path / "one")]) == 0
    one, two = (json.loads(next((tmp_path / n / "run" / "cells").glob("*.json")).read_text()) for n in ("one", "two"))
    assert one["key"] == two["key"]
    assert two["certificates"]["processes"] == 2
    assert one["metrics"]["loss"] == pytest.approx(two["metrics"]["loss"], abs=1e-6)
    assert one["metrics"]["per_class"] == two["metrics"]["per_class"]


def test_of_processes_on_several_machines_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "4"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    assert (rank(), processes()) == (4, 8)


def test_a_grid_is_not_shared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert invoke(["grid"]) == 2
    assert "robustfl run" in capsys.readouterr().err
