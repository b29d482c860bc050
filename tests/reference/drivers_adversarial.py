"""Drives the cases of §5: evasion attacks on a linear model, and metrics."""

from __future__ import annotations

from typing import Any

import torch
from cases import Case, Mode, need, undriven
from torch import nn

import robustfl
from robustfl.evaluation import mean_over_users


def run(case: Case, mode: Mode) -> dict[str, Any]:
    number = case.section[1]
    if number == 8:
        return {key.upper(): mean_over_users(case.inputs[key]) for key in ("sa", "ra") if key in case.inputs}
    if number == 1:
        return _pgd(case, mode)
    if number == 2:
        return {"X_adv": robustfl.evasion("fgsm", eps=case.params["eps"]).perturb(*_attacked(case, mode))}
    names = {3: ("mia",), 4: ("lsa",), 5: ("autoattack", "apgd"), 6: ("square",)}
    need("any", *names.get(number, (f"of §5.{number}",)))
    return undriven(case)


def _attacked(case: Case, mode: Mode) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model ``x W + b``, the inputs and their labels."""
    W = mode.tensor(case.inputs["W"])
    model = nn.Linear(*W.shape, dtype=mode.dtype, device=mode.device)
    with torch.no_grad():
        model.weight.copy_(W.T)
        model.bias.copy_(mode.tensor(case.inputs["b"]))
    return model, mode.tensor(case.inputs["X"]), torch.tensor(case.inputs["y"], device=mode.device)


def _pgd(case: Case, mode: Mode) -> dict[str, Any]:
    from robustfl.attacks.evasion.pgd import ascend
    from robustfl.attacks.evasion.whitebox import frozen

    model, x, y = _attacked(case, mode)
    eps, steps = case.params["eps"], case.params["n"]
    attack = robustfl.evasion("pgd", eps=eps, steps=steps, step=case.params.get("step"), random_start=False)
    step = attack.step_size  # type: ignore[attr-defined]
    if "delta0" not in case.inputs:
        return {"X_adv": attack.perturb(model, x, y), "step": step}
    with frozen(model):
        start = x + mode.tensor(case.inputs["delta0"])
        return {"X_adv": ascend(model, x, y, eps=eps, step=step, steps=steps, start=start), "step": step}
