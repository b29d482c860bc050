"""Golden cases of §3: Byzantine attacks on updates, on data and on normalization statistics."""

from __future__ import annotations

from typing import Any

import torch
from drivers_aggregators import pipeline_parts
from golden_cases import Arithmetic, Case

import robustfl
from robustfl.attacks import forge_statistics, supporters, z_max
from robustfl.contracts import Forged, View
from robustfl.randomness import stream

_SEARCH = ("evals", "start", "delta", "ratio", "eta_max")


def _chosen(case: Case, *names: str) -> dict[str, Any]:
    return {name: case.params[name] for name in names if name in case.params}


def _forged(name: str, case: Case, on: Arithmetic, **params: Any) -> dict[str, Any]:
    rows = robustfl.forge(name, on.tensor(case.inputs["honest"]), case.params.get("f", 1), **params)
    return {"v": _one(rows)}


def _one(rows: torch.Tensor) -> torch.Tensor:
    """The vector that all attackers send."""
    assert torch.equal(rows, rows[:1].expand_as(rows))
    return rows[0]


def _sign_flip(case: Case, on: Arithmetic) -> dict[str, Any]:
    if "own" not in case.inputs:
        return _forged("sf", case, on, mode="mean")
    own = on.tensor(case.inputs["own"])
    view = View(n=4, f=1, own=own.reshape(1, -1))
    return {"v": robustfl.attack("sf", mode="own").forge(view, generator=stream(0))[0]}


def _ipm(case: Case, on: Arithmetic) -> dict[str, Any]:
    return _forged("ipm", case, on, **_chosen(case, "tau"))


def _foe(case: Case, on: Arithmetic) -> dict[str, Any]:
    return _forged("foe", case, on, **_chosen(case, "eta"))


def _alie(case: Case, on: Arithmetic) -> dict[str, Any]:
    return _forged("alie", case, on, **_chosen(case, "z", "ddof", "sign"))


def _alie_factor(case: Case, on: Arithmetic) -> dict[str, Any]:
    n, f = case.inputs["n"], case.inputs["f"]
    s = supporters(n, f)
    return {"s": s, "cdf": (n - f - s) / (n - f), "z_max": z_max(n, f)}


def _search(case: Case, on: Arithmetic) -> dict[str, Any]:
    _, _, direction, *rule = case.name.split("_")
    honest, f = on.tensor(case.inputs["honest"]), case.params["f"]
    pipeline = robustfl.defense("+".join(pipeline_parts("_".join(rule))))
    attack = robustfl.attack(f"opt-{direction}", search="linear", **_chosen(case, *_SEARCH))
    sent = _one(robustfl.forge(attack, honest, f, defense=pipeline))
    view = View(n=len(honest) + f, f=f, honest=honest, aggregate=lambda rows: pipeline(rows, f=f))
    found = attack.found(view)
    assert torch.equal(sent, found.vector)
    return {"eta": found.eta, "distance": found.distance, "v": sent}


def _label_flip(case: Case, on: Arithmetic) -> dict[str, Any]:
    y = on.integers(case.inputs["y"])
    x = on.tensor([[0.0]] * len(y))
    _, flipped = robustfl.attack("label-flip").poison(x, y, classes=case.inputs["num_classes"], generator=stream(0))
    return {"y_flipped": flipped}


def _statistics(case: Case, on: Arithmetic) -> dict[str, Any]:
    name = case.name.split("_")[2]
    means, variances = on.tensor(case.inputs["means"]), on.tensor(case.inputs["vars"])
    honest, width = torch.cat([means, variances], dim=1), means.shape[1]
    f = case.params.get("f", 3)
    mask = torch.arange(2 * width, device=on.device) >= width
    view = View(n=len(honest) + f, f=f, channel="statistics", honest=honest, variance=mask)
    attack = robustfl.attack(name, **_chosen(case, "eta", "tau", "z", "ddof", "sign"))
    row = _one(forge_statistics(attack, view, target=case.params.get("target", "mean"), generator=stream(0)))
    return {"mean": row[:width], "var": row[width:]}


def _mimic(case: Case, on: Arithmetic) -> dict[str, Any]:
    if "z_init" not in case.inputs:
        return _forged("mimic", case, on, **_chosen(case, "epsilon"))
    honest, f = on.tensor(case.inputs["honest"]), case.params.get("f", 1)
    start = {"z": on.tensor(case.inputs["z_init"])}
    attack = robustfl.attack("mimic", variant="variance")
    made = Forged.of(attack.forge(View(n=len(honest) + f, f=f, honest=honest, state=start), generator=stream(0)))
    return {"v": _one(made.rows), "z": made.state["z"], "target": int(made.state["target"])}


def _min_max(case: Case, on: Arithmetic) -> dict[str, Any]:
    honest, f = on.tensor(case.inputs["honest"]), case.params.get("f", 1)
    attack = robustfl.attack("-".join(case.name.split("_")[:2]), **_chosen(case, "deviation", "ddof"))
    gamma, vector = attack.solve(View(n=len(honest) + f, f=f, honest=honest))
    assert torch.equal(_one(robustfl.forge(attack, honest, f)), vector)
    return {"gamma": gamma, "v": vector}


DRIVERS = {
    ("3.1", "sign_flip"): _sign_flip,
    ("3.2", "ipm"): _ipm,
    ("3.2", "foe"): _foe,
    ("3.3", "alie"): _alie,
    ("3.3", "alie_zmax"): _alie_factor,
    ("3.4", "linear_search"): _search,
    ("3.5", "mimic"): _mimic,
    ("3.6", "min_max"): _min_max,
    ("3.6", "min_sum"): _min_max,
    ("3.7", "label_flip"): _label_flip,
    ("3.8", "bn_stats"): _statistics,
}
