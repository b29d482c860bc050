"""Drives the cases of §6: partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Case, Mode, need, undriven

from robustfl.data.partitions import class_fractions, dirichlet_counts, gamma_similarity


def run(case: Case, mode: Mode) -> dict[str, Any]:
    given = case.inputs | case.params
    number = case.section[1]
    if number == 1:
        labels, permutation = np.array(given["labels"]), np.array(given["permutation"])
        parts = gamma_similarity(labels, given["n"], given["gamma"], permutation)
        return {"clients": [part.tolist() for part in parts]}
    if number == 2 and "proportions_class_by_client" in given:
        counts = dirichlet_counts(given["proportions_class_by_client"], given["class_counts"])
        return {"counts_class_by_client": counts, "client_sizes": counts.sum(0)}
    if number == 3:
        return {"fraction_of_client_data": class_fractions(given["clients"], given["classes"], given["k"])}
    need("partition", {4: "feature-shift", 5: "at-users"}.get(number, f"of §6.{number}"))
    return undriven(case)
