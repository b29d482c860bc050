"""Local client forgetting: what a client's training costs on the other clients' data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Forgetting:
    """``matrix[m][d] = Acc_d(w) - Acc_d(w^m)``: model ``m`` after local training, validation data of client ``d``.

    ``by_model[m]`` and ``by_dataset[d]`` are means without the diagonal, ``mean`` is that of ``by_model``; all NaN for
    fewer than two clients. ``after[m][d] = Acc_d(w^m)``, and ``own`` is the mean of its diagonal minus the rest's:
    how much better local models are on their own clients' data. A client without validation data has NaN for
    accuracies, which enter no mean.
    """

    matrix: list[list[float]]
    by_model: list[float]
    by_dataset: list[float]
    mean: float
    after: list[list[float]]
    own: float


def forgetting(before: Sequence[float], after: Matrix) -> Forgetting:
    """Forgetting from the received model's accuracies ``[D]`` and those of the local models ``[M][D]``.

    Source: Legate, MSc thesis 2022, equations 11-12, with round t+1 and the average over data sets; ``own`` is the
    preference for the diagonal in the right half of its Figure 2.2.

    >>> found = forgetting([0.9, 0.8], [[0.9, 0.2], [0.5, 0.9]])
    >>> found.by_model, round(found.own, 6)
    ([0.6000000000000001, 0.4], 0.55)
    """
    matrix = [[b - a for b, a in zip(before, row, strict=True)] for row in after]
    n = len(matrix)
    if n < 2:
        nothing = [math.nan] * n
        return Forgetting(matrix, nothing, list(nothing), math.nan, [list(row) for row in after], math.nan)
    by_model = [_mean([matrix[m][d] for d in range(n) if d != m]) for m in range(n)]
    by_dataset = [_mean([matrix[m][d] for m in range(n) if m != d]) for d in range(n)]
    own = _mean([after[m][m] for m in range(n)]) - _mean([after[m][d] for m in range(n) for d in range(n) if m != d])
    return Forgetting(matrix, by_model, by_dataset, _mean(by_model), [list(row) for row in after], own)


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
