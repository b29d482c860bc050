"""Drives the cases of §1: algorithms, losses and schedules."""

from __future__ import annotations

from typing import Any, cast

import torch
from cases import Case, Mode, need, undriven
from drivers_aggregators import weighted_mean

import robustfl
from robustfl.algorithms.schedules import geometric, step
from robustfl.contracts import Algorithm, LocalWork
from robustfl.registry import create

LATER = {
    3: "fedprox",
    4: "scaffold",
    5: "fedavgm",
    6: "fedadam",
    7: "moon",
    8: "fedsam",
    9: "fedacg",
    10: "wsm",
    11: "forgetting",
}


def run(case: Case, mode: Mode) -> dict[str, Any]:
    number = case.section[1]
    if number == 1 and "grads" in case.inputs:
        return _momentum(case, mode)
    if number == 2:
        return weighted_mean(case, mode) if "X" in case.inputs else _fedavg(case, mode)
    if number == 12:
        return _schedule(case)
    need("any", LATER.get(number, f"of §1.{number}"))
    return undriven(case)


def _algorithm(name: str, **params: Any) -> Algorithm:
    return cast(Algorithm, create("algorithm", name, **params))


def _momentum(case: Case, mode: Mode) -> dict[str, Any]:
    gradients = mode.tensor(case.inputs["grads"])
    algorithm = _algorithm("dsgd", momentum=case.params["beta"])
    momentum: torch.Tensor | None = None
    sent, stacked, rows = [], [], None
    for gradient in gradients:

        def of_batch(theta: torch.Tensor, g: torch.Tensor = gradient) -> torch.Tensor:
            return g.clone()

        work = LocalWork(torch.zeros_like(gradient), lr=0.1, steps=1, gradient=of_batch, momentum=momentum)
        message, momentum = algorithm.local(work)
        rows = algorithm.stacked(gradient[None], rows, out=torch.empty_like(gradient[None]))
        sent.append(message.tolist())
        stacked.append(rows[0].tolist())
    torch.testing.assert_close(torch.tensor(stacked), torch.tensor(sent))
    return {"momenta": sent}


def _fedavg(case: Case, mode: Mode) -> dict[str, Any]:
    theta, local = mode.tensor(case.inputs["theta"]), mode.tensor(case.inputs["local"])
    weights = torch.tensor(case.inputs["n"], dtype=torch.float64)
    aggregate = robustfl.defense("mean")(local - theta, weights=weights)
    return {"theta": _algorithm("fedavg").server(theta, aggregate, 0.1)}


def _schedule(case: Case) -> dict[str, Any]:
    """The FBN paper's steps over ``t``, or HBN's geometric decay of ``lr0`` over ``round``."""
    if "lr0" in case.inputs:
        lr = geometric(case.inputs["lr0"], case.params.get("factor", 0.998))
        return {"lr": [lr(t) for t in case.inputs["round"]]}
    lr = step([0.1, 0.05, 0.033], [1000, 2000])
    return {"lr": [lr(t) for t in case.inputs["t"]]}
