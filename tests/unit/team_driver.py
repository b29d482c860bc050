"""One rank of a team that trains many small cells; run as a script by ``test_team.py``."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from robustfl.distributed import ALONE, Team
from robustfl.engine import train
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

SMALL = {
    "model": "mlp(hidden=(8,))", "norm": "fbn", "clients": 7, "f": 1, "batch": 8, "rounds": 2, "attack": "alie(z=1)",
    "dtype": "float64",
}  # fmt: skip
DEFENSES = (
    "mean", "median", "trimmed-mean", "meamed", "phocas", "sign-majority", "mean-of-medians", "krum", "multi-krum",
    "nnm+trimmed-mean", "geometric-median", "rfa", "bulyan", "mda", "smea", "cge", "monna", "caf", "arc+median",
    "bucketing+median", "dnc(b=100)", "centered-clipping(L=2, tau=0.1)", "flame", "foolsgold",
    "clipped-clustering", "rlr", "huber", "gas(p=4)", "lasa", "fldetector(window=2)", "flanders",
    "foundationfl", "freqfed", "alignins", "multi-metrics(p=0.5)", "weak-dp", "clustering", "auror", "rflbat",
)  # fmt: skip
OTHERS: tuple[dict[str, Any], ...] = (
    {"attack": "min-max"},
    {"attack": "opt-alie", "defense": "nnm+median"},
    {"attack": "gaussian", "defense": "krum"},
    {"attack": "nan", "defense": "nnm+median"},
    {"attack": "sf(mode=own)", "defense": "median"},
    {"attack": "mimic", "defense": "median"},
    {"attack": "hidra", "defense": "median"},
    {"attack": "poisonedfl", "defense": "median", "rounds": 3},
    {"attack": "label-flip", "defense": "trimmed-mean"},
    {"algorithm": "dsgd(momentum=0.9)", "defense": "nnm+median"},
    {"algorithm": "dsgd(momentum=0.9)", "defense": "median", "participation": 0.6, "rounds": 4},
    {"algorithm": "fedavg", "defense": "median"},
    {"algorithm": "scaffold", "defense": "mean", "participation": 0.6, "attack": "none", "f": 0},
    {"algorithm": "fedadam", "defense": "median", "clients": 2, "f": 0, "attack": "none"},
    {"norm": "fedbn", "algorithm": "fedavg", "defense": "median", "participation": 0.8},
    {"norm": "naive-bn", "defense": "median", "engine": "reference"},
    {"defense": "fltrust", "server_samples": 50, "norm": "none"},
    {"defense": "flare", "server_samples": 50, "norm": "none"},
    {"attack": "a3fl(size=2, steps=2)", "defense": "median", "norm": "gn"},
    {"attack": "altermin(ls=1)", "algorithm": "fedavg(local_steps=2)", "defense": "median"},
    {"attack": "chameleon(contrastive=1)", "algorithm": "fedavg(local_steps=2)", "defense": "median"},
    {"algorithm": "dp-dsgd", "norm": "gn", "defense": "trimmed-mean"},
    {"algorithm": "local-dp(local_steps=2)", "norm": "none", "defense": "median"},
)
CELLS = [{**SMALL, "defense": d} for d in DEFENSES] + [{**SMALL, **other} for other in OTHERS]


def result(cell: dict[str, Any], team: Team = ALONE) -> dict[str, Any]:
    """What training leaves behind."""
    built = build(Cell.of(cell))
    warnings: list[str] = []
    for record in train(built.experiment, measure=lambda round: True, warn=warnings.append, team=team):
        state, facts = record.state, record.facts
    own = [] if state.personal is None else [state.personal.parameters, state.personal.statistics]
    shifts = torch.tensor([facts["attack_shift"], facts["defense_shift"], float(facts["dropped"])])
    return {"tensors": [state.theta.clone(), state.statistics, shifts, *own], "warnings": sorted(set(warnings))}


def main(rank: int, size: int, port: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
                            timeout=timedelta(minutes=10))  # fmt: skip
    team = Team(rank, size)
    found = [result(cell, team) for cell in CELLS]
    if team.is_rank0:
        torch.save(found, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
