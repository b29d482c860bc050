"""Golden cases of §1 and §6: what clients send, the server's step, learning rates, who gets which samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from golden_cases import Arithmetic, Case

import robustfl
from robustfl.algorithms import geometric, step
from robustfl.contracts import LocalWork
from robustfl.data.partitions import class_fractions, dirichlet_counts, gamma_similarity
from robustfl.registry import create


def _fedavg(case: Case, on: Arithmetic) -> dict[str, Any]:
    theta, local = on.tensor(case.inputs["theta"]), on.tensor(case.inputs["local"])
    aggregate = robustfl.defense("mean")(local - theta, f=0, weights=case.inputs["n"])
    return {"theta": create("algorithm", "fedavg").server(theta, aggregate, 1.0)}


def _worker_momentum(case: Case, on: Arithmetic) -> dict[str, Any]:
    gradients = on.tensor(case.inputs["grads"])
    dsgd = create("algorithm", "dsgd", momentum=case.params["beta"])
    momentum, momenta = torch.zeros_like(gradients[:1]), []
    for gradient in gradients:
        theta = torch.zeros_like(gradient)[None]
        work = LocalWork(theta, lr=0.1, steps=1, gradient=lambda _, g=gradient: g[None].clone(), memory=momentum)
        message, momentum = dsgd.local(work)
        momenta.append(message[0].tolist())
    return {"momenta": momenta}


def _lr_fbn(case: Case, on: Arithmetic) -> dict[str, Any]:
    schedule = step([0.1, 0.05, 0.033], [1000, 2000])
    return {"lr": [schedule(t) for t in case.inputs["t"]]}


def _lr_hbn(case: Case, on: Arithmetic) -> dict[str, Any]:
    schedule = geometric(case.inputs["lr0"], 0.998)
    return {"lr": [schedule(t) for t in case.inputs["round"]]}


def _gamma(case: Case, on: Arithmetic) -> dict[str, Any]:
    labels, permutation = np.array(case.inputs["labels"]), np.array(case.inputs["permutation"])
    parts = gamma_similarity(labels, case.inputs["n"], case.params["gamma"], permutation)
    return {"clients": [part.tolist() for part in parts]}


def _dirichlet(case: Case, on: Arithmetic) -> dict[str, Any]:
    counts = dirichlet_counts(case.inputs["proportions_class_by_client"], case.inputs["class_counts"])
    return {"counts_class_by_client": counts, "client_sizes": counts.sum(0)}


def _k_classes(case: Case, on: Arithmetic) -> dict[str, Any]:
    return {"fraction_of_client_data": class_fractions(*(case.inputs[k] for k in ("clients", "classes", "k")))}


DRIVERS = {
    ("1.1", "worker_momentum"): _worker_momentum,
    ("1.2", "fedavg"): _fedavg,
    ("1.12", "lr_fbn"): _lr_fbn,
    ("1.12", "lr_hbn"): _lr_hbn,
    ("6.1", "gamma_similarity"): _gamma,
    ("6.2", "dirichlet"): _dirichlet,
    ("6.3", "fedtan"): _k_classes,
}
