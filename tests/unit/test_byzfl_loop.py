"""Whole training runs beside ByzFL's own clients, server and attackers: the same data, batches and initial model.

Without batch norm the parameters agree after every round to float32's rounding; ByzFL computes in nothing finer. Where
they must not agree, the reason is a test as well (``docs/byzfl.md`` tells them).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.gradients import centralised
from robustfl.data import Batches
from robustfl.engine import Experiment, train
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

pytestmark = pytest.mark.peers
byzfl = pytest.importorskip("byzfl", reason="needs the extra [peers]", exc_type=ImportError)
ROUNDS = 12


def cell(attack: str, defense: str, **settings: Any) -> Cell:
    """Ten clients of the embedded digits, unequal in what they hold,."""
    base: dict[str, Any] = {
        "dataset": "digits", "partition": "dirichlet(alpha=0.5, min_size=20)", "model": "mlp(hidden=(16,))",
        "norm": "none", "algorithm": "dsgd(momentum=0.9)", "clients": 10, "f": 0 if attack == "none" else 2,
        "batch": 16, "rounds": ROUNDS, "schedule": {"kind": "step", "values": [0.5, 0.05], "milestones": [8]},
        "evasions": [], "attack": attack, "defense": defense,
    }  # fmt: skip
    return Cell.of({**base, **settings})


def ours(experiment: Experiment) -> list[Tensor]:
    """The parameters after every round."""
    return [record.state.theta.clone() for record in train(experiment)]


class Drawn(DataLoader[Any]):
    """The batches that a client of ours draws, in their order, for a client of theirs."""

    def __init__(self, experiment: Experiment, client: int) -> None:
        super().__init__([0])  # type: ignore[arg-type]
        self._experiment, self._client = experiment, client

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        e = self._experiment
        drawn = Batches(
            e.parts, e.settings.batch, e.settings.seed, whole=True, least=1, anew="replacement" in e.algorithm.asks
        )
        for place in range(e.settings.rounds):
            index = drawn.indices(self._client, place)
            yield e.train.pixels(index, dtype=torch.float32), e.train.labels(index)


Rule = Mapping[str, Any]


def theirs(
    experiment: Experiment, attack: Rule, rule: Rule, steps: Sequence[Rule] = (), *, network: nn.Module | None = None
) -> tuple[list[Tensor], Any]:
    """The parameters after every round of their DSGD, as their benchmark runs it, and the server."""
    from byzfl import ByzantineClient, Client, Server
    from byzfl.fed_framework import models

    e = experiment
    models.model_of_the_test = lambda: copy.deepcopy(e.model if network is None else network)  # type: ignore[attr-defined]
    common = {
        "model_name": "model_of_the_test", "device": "cpu", "optimizer_name": "SGD", "learning_rate": 0.5,
        "weight_decay": 0.0, "milestones": [8], "learning_rate_decay": 0.1,
    }  # fmt: skip
    honest = [k for k in range(e.settings.clients) if k not in e.settings.byzantine()]
    clients = [
        Client({**common, "loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": 10,
                "momentum": 0.9, "training_dataloader": Drawn(e, k),
                "store_per_client_metrics": False})
        for k in honest
    ]  # fmt: skip
    for client in clients:
        client.momentum_gradient = client.momentum_gradient.double()
    server = Server({**common, "test_loader": Drawn(e, 0), "aggregator_info": rule, "pre_agg_list": list(steps)})
    attacker = ByzantineClient(copy.deepcopy({**attack, "f": e.settings.f}))
    state = server.get_dict_parameters()
    for client in clients:
        client.set_model_state(state)
    path = []
    for _ in range(e.settings.rounds):
        for client in clients:
            client.compute_gradients()
        rows = [client.get_flat_gradients_with_momentum() for client in clients]
        server.update_model_with_gradients(rows + attacker.apply_attack(rows))
        for client in clients:
            client.set_model_state(server.get_dict_parameters())
        path.append(torch.cat([p.detach().reshape(-1) for p in server.model.parameters()]))
    return path, server


NO_ATTACK = {"name": "NoAttack", "parameters": {}}
FLIP = {"name": "SignFlipping", "parameters": {}}
IPM = {"name": "InnerProductManipulation", "parameters": {"tau": 3.0}}
ALIE = {"name": "ALittleIsEnough", "parameters": {"tau": 1.5}}
MIMIC = {"name": "Mimic", "parameters": {"epsilon": 0}}


def rule(name: str, **parameters: Any) -> Rule:
    return {"name": name, "parameters": parameters}


PAIRS = [
    ("none", "mean", NO_ATTACK, rule("Average"), ()),
    ("sf", "mean", FLIP, rule("Average"), ()),
    ("sf", "trimmed-mean", FLIP, rule("TrMean", f=2), ()),
    ("ipm(tau=3)", "median", IPM, rule("Median"), ()),
    ("ipm(tau=3)", "meamed", IPM, rule("Meamed", f=2), ()),
    ("alie(z=1.5, sign=1)", "trimmed-mean", ALIE, rule("TrMean", f=2), ()),
    ("alie(z=1.5, sign=1)", "nnm+trimmed-mean", ALIE, rule("TrMean", f=2), [rule("NNM", f=2)]),
    ("alie(z=1.5, sign=1)", "krum(variant=nf)", ALIE, rule("Krum", f=2), ()),
    ("sf", "multi-krum(variant=nf)", FLIP, rule("MultiKrum", f=2), ()),
    (
        "mimic",
        "geometric-median(nu=0.1, max_steps=3, tol=0, init=zero)",
        MIMIC,
        rule("GeometricMedian", nu=0.1, T=3),
        (),
    ),
    ("sf", "mda", FLIP, rule("MDA", f=2), ()),
    ("sf", "arc+median", FLIP, rule("Median"), [rule("ARC", f=2)]),
    ("ipm(tau=3)", "clipping(c=0.5)+mean", IPM, rule("Average"), [rule("Clipping", c=0.5)]),
    ("mimic", "centered-clipping(tau=1)", MIMIC, rule("CenteredClipping", m=None, L=1, tau=1.0), ()),
]


@pytest.mark.parametrize(("attack", "defense", "peer_attack", "peer_rule", "peer_steps"), PAIRS)
def test_every_round_agrees_to_rounding(attack, defense, peer_attack, peer_rule, peer_steps):
    experiment = build(cell(attack, defense)).experiment
    start = experiment.flat.clone()
    path, _ = theirs(experiment, peer_attack, peer_rule, peer_steps)
    mine = ours(experiment)
    assert float((mine[-1] - start).abs().max()) > 0.01  # a run in which nothing happens would agree as well
    for round, (own, other) in enumerate(zip(mine, path, strict=True)):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5, msg=lambda m, r=round: f"round {r + 1}: {m}")


def test_other_batches_or_another_attack_would_be_seen() -> None:
    experiment = build(cell("sf", "trimmed-mean")).experiment
    path, _ = theirs(experiment, FLIP, rule("TrMean", f=2))
    for other in (cell("sf", "trimmed-mean", seed=1), cell("ipm(tau=3)", "trimmed-mean")):
        assert float((ours(build(other).experiment)[-1] - path[-1]).abs().max()) > 1e-2


def test_with_batch_norm_their_parameters_agree_and_their_servers_statistics_stay_at_the_start() -> None:
    """Their server aggregates gradients alone under DSGD, so it is tested with means 0 and variances 1."""
    experiment = build(cell("none", "mean", norm="naive-bn")).experiment
    path, server = theirs(experiment, NO_ATTACK, rule("Average"), network=centralised(copy.deepcopy(experiment.model)))
    last = list(train(experiment))[-1].state
    torch.testing.assert_close(last.theta, path[-1], rtol=0, atol=1e-4)
    found = dict(server.model.named_buffers())
    assert all(float(b.abs().max()) == 0 for n, b in found.items() if n.endswith("running_mean"))
    assert all(bool((b == 1).all()) for n, b in found.items() if n.endswith("running_var"))
    means, variances = last.statistics.chunk(2)
    assert float(means.abs().max()) > 0.1  # ours has learnt them
    assert float((variances - 1).abs().max()) > 0.1
