"""Golden cases of §6: which client gets which samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden_cases import Arithmetic, Case

from robustfl.data.dirichlet import dirichlet_counts
from robustfl.data.gamma import gamma_similarity
from robustfl.data.k_classes import class_fractions


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
    ("6.1", "gamma_similarity"): _gamma,
    ("6.2", "dirichlet"): _dirichlet,
    ("6.3", "fedtan"): _k_classes,
}
