"""Drives the cases of §3: the rows attackers send."""

from __future__ import annotations

import re
from typing import Any

import torch
from cases import Case, Mode, need, undriven
from drivers_aggregators import rule_name

import robustfl
import robustfl.attacks
from robustfl.contracts import View
from robustfl.randomness import stream


def run(case: Case, mode: Mode) -> dict[str, Any]:
    number = case.section[1]
    drivers = {1: _sign_flip, 2: _inner_product, 3: _alie, 4: _searched, 5: _mimic, 6: _min_max, 7: _labels, 8: _stats}
    if number not in drivers:
        return undriven(case)
    return drivers[number](case, mode)


def _sent(name: str, case: Case, mode: Mode, **params: Any) -> dict[str, Any]:
    """The vector all attackers send against ``inputs.honest``."""
    rows = robustfl.forge(name, mode.tensor(case.inputs["honest"]), case.params.get("f", 3), **params)
    assert torch.equal(rows, rows[:1].expand_as(rows))
    return {"v": rows[0]}


def _sign_flip(case: Case, mode: Mode) -> dict[str, Any]:
    if "own" not in case.inputs:
        return _sent("sf", case, mode)
    given = mode.tensor(case.inputs["own"])
    own = given.reshape(-1, given.shape[-1])
    view = View(n=2 * len(own) + 1, f=len(own), own=own)
    sent = robustfl.attack("sf", mode="own").forge(view, generator=stream(0, "golden"))
    return {"v": sent.reshape(given.shape)}


def _inner_product(case: Case, mode: Mode) -> dict[str, Any]:
    if "tau" in case.params:
        return _sent("ipm", case, mode, tau=case.params["tau"])
    return _sent("foe", case, mode, eta=case.params["eta"])  # as in ``(1-η)ḡ``


def _alie(case: Case, mode: Mode) -> dict[str, Any]:
    if "honest" in case.inputs:
        params = {key: case.params[key] for key in ("z", "ddof", "sign") if key in case.params}
        return _sent("alie", case, mode, **params)
    given = case.inputs | case.params
    n, f = given["n"], given["f"]
    s = robustfl.attacks.supporters(n, f)
    return {"s": s, "cdf": (n - f - s) / (n - f), "z_max": robustfl.attacks.z_max(n, f)}


def _searched(case: Case, mode: Mode) -> dict[str, Any]:
    found = re.search(r"(foe|alie)_(.+)", case.name)
    if found is None:
        return undriven(case)
    given = dict(case.params)
    f = given.pop("f")
    defense = robustfl.defense(rule_name(found[2]))
    honest = mode.tensor(case.inputs["honest"])
    attack = robustfl.attack(f"opt-{found[1]}", **given)
    view = View(n=len(honest) + f, f=f, honest=honest, aggregate=lambda rows: defense(rows, f))
    best = attack.search(view)  # type: ignore[attr-defined]
    rows = robustfl.forge(attack, honest, f, defense=defense)
    assert torch.equal(rows, best.vector.expand(f, -1))
    return {"eta": best.eta, "distance": best.distance, "v": best.vector}


def _mimic(case: Case, mode: Mode) -> dict[str, Any]:
    name = need("attack", "mimic")
    if set(case.inputs) != {"honest"}:
        return undriven(case)
    return _sent(name, case, mode, **case.params)


def _min_max(case: Case, mode: Mode) -> dict[str, Any]:
    name = need("attack", "min-sum" if "sum" in case.name else "min-max")
    return _sent(name, case, mode, **case.params)


def _labels(case: Case, mode: Mode) -> dict[str, Any]:
    y = torch.tensor(case.inputs["y"], device=mode.device)
    classes = case.inputs.get("num_classes", case.params.get("num_classes"))
    attack = robustfl.attack("label-flip")
    _, flipped = attack.poison(y[:, None].to(mode.dtype), y, classes=classes, generator=stream(0, "golden"))
    return {"y_flipped": flipped}


def _stats(case: Case, mode: Mode) -> dict[str, Any]:
    """Statistics rows ``[means, variances]``; the attack is the one the case's name ends with."""
    means, variances = mode.tensor(case.inputs["means"]), mode.tensor(case.inputs["vars"])
    h, channels = means.shape
    found = re.search(r"(opt_foe|opt_alie|sf|foe|ipm|alie)", case.name)
    if found is None:
        return undriven(case)
    params = {key: case.params[key] for key in ("eta", "tau", "z", "ddof", "sign", "mode") if key in case.params}
    f = case.params.get("f", 3)
    view = View(
        n=h + f,
        f=f,
        channel="statistics",
        honest=torch.cat([means, variances], dim=1),
        variance=torch.arange(2 * channels, device=mode.device) >= channels,
    )
    attack = robustfl.attack(found[1].replace("_", "-"), **params)
    target = case.params.get("target", "mean")
    rows = robustfl.attacks.forge_statistics(attack, view, target=target, generator=stream(0, "golden"))
    assert torch.equal(rows, rows[:1].expand_as(rows))
    return {"mean": rows[0, :channels], "var": rows[0, channels:]}
