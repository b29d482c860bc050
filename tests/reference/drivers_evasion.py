"""Golden cases of §5: attacks on inputs, through a linear model, and the metrics over users."""

from __future__ import annotations

from typing import Any

import torch
from golden_cases import Arithmetic, Case

import robustfl
from robustfl.attacks.evasion import checkpoints, dlr, p_at, relative_checkpoints, targeted_dlr
from robustfl.attacks.evasion.pgd import ascend
from robustfl.attacks.evasion.whitebox import frozen
from robustfl.evaluation import mean_over_users


def _linear(case: Case, on: Arithmetic) -> torch.nn.Module:
    weight, bias = on.tensor(case.inputs["W"]).T, on.tensor(case.inputs["b"])
    model = torch.nn.Linear(*reversed(weight.shape)).to(on.device, on.dtype)
    model.load_state_dict({"weight": weight, "bias": bias})
    return model


def _perturbed(case: Case, on: Arithmetic, name: str, **params: Any) -> torch.Tensor:
    attack = robustfl.evasion(name, eps=case.params["eps"], **params)
    return attack.perturb(_linear(case, on), on.tensor(case.inputs["X"]), on.integers(case.inputs["y"]))


def _fgsm(case: Case, on: Arithmetic) -> dict[str, Any]:
    return {"X_adv": _perturbed(case, on, "fgsm")}


def _pgd(case: Case, on: Arithmetic) -> dict[str, Any]:
    step = case.params.get("step")
    params = {"steps": case.params["n"], **({"step_rule": "released"} if step is None else {"step": step})}
    attack = robustfl.evasion("pgd", eps=case.params["eps"], random_start=False, **params)
    if "delta0" not in case.inputs:
        return {"X_adv": _perturbed(case, on, "pgd", random_start=False, **params), "step": attack.step_size}
    x, y, model = on.tensor(case.inputs["X"]), on.integers(case.inputs["y"]), _linear(case, on)
    start = x + on.tensor(case.inputs["delta0"])
    with frozen(model):
        found = ascend(model, x, y, eps=attack.eps, step=attack.step_size, steps=attack.steps, start=start)
    return {"X_adv": found, "step": attack.step_size}


def _mia(case: Case, on: Arithmetic) -> dict[str, Any]:
    params = {"steps": case.params["n"], "step": case.params.get("step"), "decay": case.params.get("decay", 1.0)}
    return {"X_adv": _perturbed(case, on, "mia", **params), "step": robustfl.evasion("mia", **_aimed(case)).step_size}


def _aimed(case: Case) -> dict[str, Any]:
    return {"eps": case.params["eps"], "steps": case.params["n"], "step": case.params.get("step")}


def _dlr(case: Case, on: Arithmetic) -> dict[str, Any]:
    logits, y = on.tensor(case.inputs["logits"]), on.integers(case.inputs["y"])
    found = {"dlr": dlr(logits, y)}
    if "target" in case.inputs:
        found["dlr_targeted"] = targeted_dlr(logits, y, on.integers(case.inputs["target"]))
    return found


def _checkpoints(case: Case, on: Arithmetic) -> dict[str, Any]:
    return {"relative": relative_checkpoints(), "absolute": checkpoints(case.inputs["n_iter"])}


def _square_shares(case: Case, on: Arithmetic) -> dict[str, Any]:
    schedule = {"p_init": case.params.get("p_init", 0.8), "queries": case.params.get("n_queries", 5000)}
    rescale = bool(case.params.get("rescale", False))
    return {"p": [p_at(query, **schedule, rescale=rescale) for query in case.inputs["iters"]]}


def _user_metrics(case: Case, on: Arithmetic) -> dict[str, Any]:
    return {"SA": mean_over_users(case.inputs["sa"]), "RA": mean_over_users(case.inputs["ra"])}


DRIVERS = {
    ("5.1", "pgd"): _pgd,
    ("5.2", "fgsm"): _fgsm,
    ("5.3", "mia"): _mia,
    ("5.5", "apgd"): _checkpoints,
    ("5.5", "dlr"): _dlr,
    ("5.6", "square"): _square_shares,
    ("5.8", "user_mean"): _user_metrics,
}
