"""Fine-tuning: AT users train first, ST users afterwards, and the layers they are told to leave stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robustfl.algorithms import FedAvg
from robustfl.contracts import LocalWork
from robustfl.engine import train
from robustfl.errors import Refused
from robustfl.layout import layout_of
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=240, test_limit=40)", "model": "domains-cnn", "norm": "naive-bn", "clients": 4,
    "batch": 16, "algorithm": "fedavg", "objective": "at", "at": "users(ids=(0, 2))", "train_evasion": "pgd(steps=1)",
    "rounds": 3,
    "evasions": [], "dtype": "float64",
}  # fmt: skip


def states(**more: Any) -> list[torch.Tensor]:
    """θ after every round, the initial one first."""
    built = build(Cell.of({**SMALL, **more}))
    theta = built.experiment.flat
    return [theta.clone(), *(record.state.theta.clone() for record in train(built.experiment))]


@pytest.mark.parametrize(
    "more",
    [
        {"algorithm": "crfl(sigma=0.1, rho=2)"},
        {"defense": "flame(noise=0.1)"},
        {"defense": "centered-clipping(tau=0.1)", "statistics_defense": "mean"},
    ],
)
def test_neither_noise_nor_the_memory_of_a_server_moves_frozen_layers(more: dict[str, Any]) -> None:
    one, other = states(finetune="st(rounds=2, frozen=2)", rounds=4, **more)[-2:]
    moved = (one != other).nonzero().flatten()
    starts = [s.start for s in layout_of(build(Cell.of(SMALL)).experiment.model).update if len(s.shape) > 1]
    assert int(moved[0]) >= starts[2]


@pytest.mark.parametrize("algorithm", ["fedavg(local_steps=2)", "fedsam(local_steps=2)"])
def test_clients_leave_frozen_layers_alone_in_every_local_step(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a step is another gradient of its batch; the server would not see what moved on the way."""
    messages: list[torch.Tensor] = []
    original = FedAvg.local

    def noted(self: FedAvg, work: LocalWork) -> tuple[torch.Tensor, torch.Tensor | None]:
        made = original(self, work)
        messages.append(made[0].clone())
        return made

    monkeypatch.setattr(FedAvg, "local", noted)
    states(finetune="st(rounds=1, frozen=2)", rounds=2, algorithm=algorithm)
    starts = [s.start for s in layout_of(build(Cell.of(SMALL)).experiment.model).update if len(s.shape) > 1]
    held = [bool((message[:, : starts[2]] == 0).all()) for message in messages]
    assert held == [False, False, True, True]  # two AT users first, then two ST users
    assert all(bool(message[:, starts[2] :].any()) for message in messages)


def test_a_network_keeps_one_layer_to_train() -> None:
    """It is said before the first round."""
    cell = Cell.of({**SMALL, "finetune": "st(rounds=1, frozen=4)"})
    with pytest.raises(Refused, match="frozen=4 of the network's 4 layers leaves nothing to train; at most 3 can be"):
        build(cell)
    assert run_cell(cell, fingerprint="x").status == "refused"


def test_traffic_counts_those_who_take_part() -> None:
    record = run_cell(Cell.of({**SMALL, "at": "users(ids=(0,))", "finetune": "st(rounds=2)"}), fingerprint="x")
    traffic = record.certificates["traffic"]
    each = traffic["numbers_each_way"] * 4 / 2**20
    assert traffic["mebibytes"] == pytest.approx((1 + 1) * each + 2 * (3 + 1) * each)
