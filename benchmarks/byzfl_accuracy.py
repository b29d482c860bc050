"""Final accuracies beside ByzFL's, each side with its own partition, initial model and batches.

``ROBUSTFL_DATA=FOLDER python -m benchmarks byzfl_accuracy [--seeds N] [--same-split]`` trains the network
784-100-10 on MNIST, on their side with ByzFL's own ``DataDistributor``, ``Client``, ``ByzantineClient`` and ``Server``.
It prints a JSON line per pair of attack and rule: means and standard deviations over seeds, in percent, and the
interval of the difference. Their attackers hold no data, so here ours get a batch each and the honest clients the rest.
With ``--same-split`` both sides of the heterogeneous pairs get our partition, and differences are paired over seeds.
Needs ``[peers]``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from robustfl.contracts import Partition
from robustfl.parameters import param
from robustfl.registry import create, register
from robustfl.scenarios import Cell, run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.expand import fingerprints

SETTINGS: dict[str, Any] = {
    "dataset": "mnist", "model": "mlp(hidden=(100,))", "norm": "none",
    "algorithm": "dsgd(momentum=0.9)", "batch": 25, "rounds": 300, "schedule": {"kind": "constant", "lr": 0.1},
    "evasions": [],
}  # fmt: skip
HONEST, F, BATCH = 10, 3, SETTINGS["batch"]


@register("idle-attackers")
@dataclass(frozen=True)
class IdleAttackers(Partition):
    """The partition ``of`` the honest clients, who come first; every further client holds a batch of its own."""

    paper: ClassVar[str] = "none: the setting of ByzFL's benchmark"
    of: str = param("iid", doc="partition of the honest clients")

    def split(
        self, labels: np.ndarray[Any, Any], *, clients: int, classes: int, generator: np.random.Generator
    ) -> list[np.ndarray[Any, Any]]:
        order = generator.permutation(len(labels))
        spare = [order[BATCH * k : BATCH * (k + 1)] for k in range(clients - HONEST)]
        rest = order[BATCH * len(spare) :]
        parts = create("partition", self.of).split(labels[rest], clients=HONEST, classes=classes, generator=generator)
        return [rest[part] for part in parts] + spare


@dataclass(frozen=True)
class Pair:
    """An attack and a rule, in our words and in theirs."""

    partition: str
    attack: str
    defense: str
    peer_attack: str
    parameters: tuple[tuple[str, float], ...]
    peer_rule: str

    @property
    def f(self) -> int:
        """How many attack; there are ten honest clients besides."""
        return 0 if self.attack == "none" else F

    @property
    def alpha(self) -> float:
        """Concentration of the Dirichlet distribution; without a meaning for iid."""
        return 1.0 if self.partition == "iid" else float(create("partition", self.partition).alpha)


PAIRS = (
    Pair("dirichlet(alpha=1)", "none", "mean", "NoAttack", (), "Average"),
    Pair("iid", "sf", "trimmed-mean", "SignFlipping", (), "TrMean"),
    Pair("iid", "alie(z=1.5, sign=1)", "trimmed-mean", "ALittleIsEnough", (("tau", 1.5),), "TrMean"),
    Pair("iid", "ipm(tau=3)", "median", "InnerProductManipulation", (("tau", 3.0),), "Median"),
    Pair("dirichlet(alpha=0.1)", "alie(z=1.5, sign=1)", "trimmed-mean", "ALittleIsEnough", (("tau", 1.5),), "TrMean"),
    Pair("dirichlet(alpha=0.1)", "sf", "trimmed-mean", "SignFlipping", (), "TrMean"),
)


def cell_of(pair: Pair, seed: int) -> Cell:
    """Our side of a pair."""
    attackers = {"at": f"users(ids={tuple(range(HONEST, HONEST + pair.f))})", "byzantine": "at"} if pair.f else {}
    return Cell.of(
        {**SETTINGS, "partition": f"idle-attackers(of={pair.partition!r})", "clients": HONEST + pair.f, "f": pair.f,
         "attack": pair.attack, "defense": pair.defense, "seed": seed, **attackers}
    )  # fmt: skip


def ours(pair: Pair, seed: int) -> float:
    """The final accuracy of one run of ours."""
    cell = cell_of(pair, seed)
    record = run_cell(cell, fingerprint=fingerprints([cell], None, download=False)[cell])
    assert record.metrics is not None, record.reason
    return 100 * record.metrics.sa


def theirs(pair: Pair, seed: int, *, same_split: bool = False) -> float:
    """The final accuracy of one run of theirs, drawn from their own generators."""
    from byzfl import ByzantineClient, Client, DataDistributor, Server
    from byzfl.utils.misc import set_random_seed
    from torch.utils.data import DataLoader, TensorDataset

    from robustfl.data import data_root
    from robustfl.data.specs import dataset_from_spec

    arrays = dataset_from_spec("mnist").load(data_root(None), download=False)

    def images(x: np.ndarray, y: np.ndarray) -> TensorDataset:
        pixels = (torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255 - 0.1307) / 0.3081
        data = TensorDataset(pixels, torch.from_numpy(y).long())
        data.targets = data.tensors[1]  # type: ignore[attr-defined]
        return data

    set_random_seed(seed)
    training = DataLoader(images(arrays.train_x, arrays.train_y), batch_size=BATCH)
    kind = "iid" if pair.partition == "iid" else "dirichlet_niid"
    distributor = DataDistributor(
        {"data_distribution_name": kind, "distribution_parameter": pair.alpha, "nb_honest": HONEST,
         "data_loader": training, "batch_size": BATCH}
    )  # fmt: skip
    if same_split:
        parts = distributor.idx_to_dataloaders(
            [part.tolist() for part in build(cell_of(pair, seed)).experiment.parts][:HONEST]
        )
    else:
        parts = distributor.split_data()
    common = {
        "model_name": "fc_mnist", "device": "cpu", "optimizer_name": "SGD", "learning_rate": 0.1, "weight_decay": 0.0,
        "milestones": [10**6], "learning_rate_decay": 1.0,
    }  # fmt: skip
    clients = [
        Client({**common, "loss_name": "NLLLoss", "LabelFlipping": False, "nb_labels": 10, "momentum": 0.9,
                "training_dataloader": part, "store_per_client_metrics": False})
        for part in parts
    ]  # fmt: skip
    test = DataLoader(images(arrays.test_x, arrays.test_y), batch_size=1000)
    rule = {"name": pair.peer_rule, "parameters": {"f": F} if pair.peer_rule == "TrMean" else {}}
    server = Server({**common, "test_loader": test, "aggregator_info": rule, "pre_agg_list": []})
    attacker = ByzantineClient({"f": pair.f, "name": pair.peer_attack, "parameters": dict(pair.parameters)})
    for client in clients:
        client.set_model_state(server.get_dict_parameters())
    for _ in range(SETTINGS["rounds"]):
        for client in clients:
            client.compute_gradients()
        rows = [client.get_flat_gradients_with_momentum() for client in clients]
        server.update_model_with_gradients(rows + attacker.apply_attack(rows))
        for client in clients:
            client.set_model_state(server.get_dict_parameters())
    return 100 * float(server.compute_test_accuracy())


def compared(pair: Pair, seeds: Sequence[int], *, same_split: bool) -> dict[str, Any]:
    """Both sides' accuracies over the seeds; the difference with Welch's interval, paired where the split is one."""
    from scipy.special import stdtrit

    mine, other = [ours(pair, s) for s in seeds], [theirs(pair, s, same_split=same_split) for s in seeds]
    if same_split:
        apart = [a - b for a, b in zip(mine, other, strict=True)]
        error, freedom = statistics.stdev(apart) / math.sqrt(len(seeds)), len(seeds) - 1.0
    else:
        variances = [statistics.variance(values) / len(values) for values in (mine, other)]
        error = math.sqrt(sum(variances))
        freedom = sum(variances) ** 2 / sum(v**2 / (len(seeds) - 1) for v in variances)
    half = float(stdtrit(freedom, 0.975)) * error
    difference = statistics.mean(mine) - statistics.mean(other)
    return {
        "partition": pair.partition, "attack": pair.attack, "defense": pair.defense, "seeds": len(seeds),
        **({"split": "the same"} if same_split else {}),
        "robustfl": [round(statistics.mean(mine), 2), round(statistics.stdev(mine), 2)],
        "byzfl": [round(statistics.mean(other), 2), round(statistics.stdev(other), 2)],
        "difference": [round(difference, 2), round(difference - half, 2), round(difference + half, 2)],
    }  # fmt: skip


def main(arguments: Sequence[str] = ()) -> None:
    """Print one line per pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--same-split", action="store_true")
    chosen = parser.parse_args(arguments)
    for pair in PAIRS:
        if not chosen.same_split or pair.partition != "iid":
            print(json.dumps(compared(pair, range(chosen.seeds), same_split=chosen.same_split)), flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
