"""Every client's batch-norm statistics in two principal components (the picture of Hong et al., AAAI 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustfl.contracts.norm import ADVERSARIAL
from robustfl.engine import LocalModels, State, propagate_statistics

from .build import Built
from .cell import Cell


def bn_statistics(cell: Cell, built: Built, state: State, local: LocalModels | None) -> dict[str, Any] | None:
    """Where the clients' means and variances of the last round lie, as a few numbers a record can carry.

    The rows are the clients' own statistics where these are private, else what honest participants report. With
    branches every client has a row per branch; an ST user has an adversarial one only if it is propagated to. Keys:
    ``points`` (two coordinates per row), ``shares`` (of the variance, per coordinate), ``clients``, ``branches`` and
    ``groups`` (domain and ``AT`` or ``ST``) per row, ``entries`` per row. ``None`` if fewer than three clients have
    finite statistics, or all have the same.
    """
    found = _statistics(built, state, local)
    if found is None:
        return None
    clients, statistics = found
    told: list[tuple[int, str, str]] = []
    rows = []
    branches = list(dict.fromkeys(layer.branch for layer in built.experiment.layout.layers))
    for branch in branches:
        columns = built.experiment.layout.branch_mask(branch).to(statistics.device)
        for k, row in zip(clients, statistics, strict=True):
            if branch == ADVERSARIAL and not _adversarial(built, k):
                continue
            told.append((k, branch, _group(cell, built, k)))
            rows.append(row[columns])
    if len(clients) < 3 or len({len(r) for r in rows}) != 1:
        return None
    return picture(torch.stack(rows), told)


def picture(rows: Tensor, told: Sequence[tuple[int, str, str]]) -> dict[str, Any] | None:
    """``rows [r s]`` in two principal components, with client, branch and group of each, or None (``components``)."""
    placed = components(rows)
    if placed is None:
        return None
    points, shares = placed
    return {
        "points": [[short(v) for v in p] for p in points.tolist()],
        "shares": [short(v) for v in shares.tolist()],
        "clients": [k for k, _, _ in told],
        "branches": [b for _, b, _ in told],
        "groups": [g for _, _, g in told],
        "entries": rows.shape[1],
    }


def _statistics(built: Built, state: State, local: LocalModels | None) -> tuple[list[int], Tensor] | None:
    e = built.experiment
    if not e.layout.s:
        return None
    if state.personal is not None and e.privacy.statistics:
        own = state.personal.statistics.clone()
        if e.propagate is not None:
            propagate_statistics(e, own, state.round, state.attack, tested=True)
        return list(range(len(own))), own
    last = e.settings.end - 1
    if local is None or not e.norm.sends_statistics or e.norm.frozen(last, e.settings.rounds):
        return None
    return list(local.clients), local.statistics


def _adversarial(built: Built, client: int) -> bool:
    """True if the client has an adversarial branch of its own making, or one that is propagated to it."""
    e = built.experiment
    return not e.adversarial or client in e.adversarial or e.propagate is not None


def _group(cell: Cell, built: Built, client: int) -> str:
    e = built.experiment
    domain = [str(cell.domains[built.domain_of[client]])] if built.domain_of else []
    role = [("AT" if client in e.adversarial else "ST")] if e.adversarial else []
    byzantine = ["Byzantine"] if client in e.settings.byzantine() else []
    return " · ".join([*domain, *role, *byzantine])


def components(rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """The first two principal components ``[r 2]`` of ``rows [r s]`` and their shares ``[2]`` of the variance.

    The sign of a component is free; here its largest coordinate by magnitude is positive. ``None`` if a row is not
    finite or all are the same.

    >>> points, shares = components(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]))
    >>> points[:, 0].abs().round(decimals=6).tolist(), shares.abs().round(decimals=6).tolist()
    ([2.0, 0.0, 2.0], [1.0, 0.0])
    """
    centred = rows.detach().to("cpu", torch.float64)
    centred = centred - centred.mean(dim=0)
    total = float((centred**2).sum())
    if not 1e-24 * centred.numel() < total < math.inf:
        return None
    squares, directions = torch.linalg.eigh(centred @ centred.T)
    squares = squares.flip(0)[:2].clamp(min=0.0)
    points = directions.flip(1)[:, :2] * squares.sqrt()
    largest = points.abs().argmax(dim=0)
    signs = torch.where(points[largest, torch.arange(2)] < 0, -1.0, 1.0)
    return points * signs + 0.0, squares / total


def short(value: float) -> float:
    """Six digits: more would only make records longer."""
    return float(f"{value:.6g}")
