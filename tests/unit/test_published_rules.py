"""FedBN's and FedTAN's rounds as their authors' code computes them, written again with torch's own layers.

FedBN (med-air/FedBN, ``fed_digits.py``): every client takes SGD steps with torch's batch norm, whatever is no
batch-norm layer is averaged with equal weights, batch norm stays. FedTAN (wangyanmeng/FedTAN): the first local step of
an iteration is one on the union of the batches, whose gradient all clients take.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gradients import centralised
from robustfl.data import Batches
from robustfl.engine import Experiment, State, train
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

RATE, STEPS, ROUNDS = 0.1, 3, 4


def experiment_of(norm: str, **settings: Any) -> Experiment:
    """Four clients with equally many digits, in float64."""
    base: dict[str, Any] = {
        "dataset": "digits(limit=400)", "partition": "iid", "model": "digits-cnn", "norm": norm, "clients": 4,
        "algorithm": f"fedavg(local_steps={STEPS}, weighting=uniform)", "batch": 16, "rounds": ROUNDS,
        "schedule": {"kind": "constant", "lr": RATE}, "dtype": "float64", "evasions": [],
    }  # fmt: skip
    return build(Cell.of({**base, **settings})).experiment


def last(experiment: Experiment) -> State:
    return list(train(experiment))[-1].state


def batch(experiment: Experiment, client: int, place: int) -> tuple[Tensor, Tensor]:
    """The ``place``-th batch that a client draws."""
    e = experiment
    drawn = Batches(
        e.parts, e.settings.batch, e.settings.seed, whole=False, least=1, anew="replacement" in e.algorithm.asks
    )
    index = drawn.indices(client, place)
    return e.train.pixels(index, dtype=torch.float64), e.train.labels(index)


def stepped(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """One step of torch's SGD."""
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def normalizing(network: nn.Module) -> set[str]:
    """The names of what belongs to batch-norm layers."""
    layers = {name for name, m in network.named_modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))}
    return {n for n in network.state_dict() if n.rpartition(".")[0] in layers}


def test_fedbn_keeps_batch_norm_and_averages_the_rest() -> None:
    experiment = experiment_of("fedbn")
    clients = [centralised(copy.deepcopy(experiment.model)).double().train() for _ in range(4)]
    private = normalizing(clients[0])
    for round in range(ROUNDS):
        for k, network in enumerate(clients):
            for step in range(STEPS):
                stepped(network, *batch(experiment, k, round * STEPS + step))
        with torch.no_grad():
            for name in clients[0].state_dict().keys() - private:
                mean = torch.stack([c.state_dict()[name] for c in clients]).mean(0)
                for c in clients:
                    c.state_dict()[name].copy_(mean)
    state = last(experiment)
    shared = torch.cat([p.detach().reshape(-1) for n, p in clients[0].named_parameters() if n not in private])
    mine = state.theta[experiment.privacy.shared]
    assert len(mine) < experiment.layout.d
    torch.testing.assert_close(mine, shared, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["fedtan", "centralised-bn"])
def test_fedtans_first_step_is_one_on_the_union_of_the_batches(norm: str) -> None:
    algorithm = "fedavg(local_steps=1, weighting=uniform)" if norm == "fedtan" else "dsgd(momentum=0)"
    experiment = experiment_of(norm, algorithm=algorithm, rounds=ROUNDS)
    network = centralised(copy.deepcopy(experiment.model)).double().train()
    seed, one = experiment.settings.seed, norm != "fedtan"
    drawn = Batches(experiment.parts, 16, seed, whole=one, least=1, anew=False)
    for round in range(ROUNDS):
        index = torch.cat([drawn.indices(k, round) for k in range(4)])
        stepped(network, experiment.train.pixels(index, dtype=torch.float64), experiment.train.labels(index))
    path = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    torch.testing.assert_close(last(experiment).theta, path, rtol=0, atol=1e-9)
