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
    """Where the clients' means and variances of the last round lie, as a few numbers a record can carry (``picture``).

    The rows are the clients' own statistics where these are private, else what honest participants report. With
    branches every client has a row per branch; an ST user has an adversarial one only if it is propagated to. Groups
    are domain and ``AT`` or ``ST``. ``None`` if fewer than three clients have finite statistics, or all have the same.
    """
    e, last = built.experiment, built.experiment.settings.end - 1
    if not e.layout.s:
        return None
    if state.personal is not None and e.privacy.statistics:
        statistics = state.personal.statistics.clone()
        clients = list(range(len(statistics)))
        if e.propagate is not None:
            propagate_statistics(e, statistics, state.round, state.attack, tested=True)
    elif local is not None and e.norm.sends_statistics and not e.norm.frozen(last, e.settings.rounds):
        clients, statistics = list(local.clients), local.statistics
    else:
        return None
    told, rows = list[tuple[int, str, str]](), list[Tensor]()
    for branch in dict.fromkeys(layer.branch for layer in e.layout.layers):
        columns = e.layout.branch_mask(branch).to(statistics.device)
        for k, row in zip(clients, statistics, strict=True):
            # an adversarial branch is of the client's own making, or propagated to it
            if branch != ADVERSARIAL or not e.adversarial or k in e.adversarial or e.propagate is not None:
                told.append((k, branch, _group(cell, built, k)))
                rows.append(row[columns])
    if len(clients) < 3 or len({len(r) for r in rows}) != 1:
        return None
    return picture(torch.stack(rows), told)


def _group(cell: Cell, built: Built, client: int) -> str:
    e = built.experiment
    domain = [str(cell.domains[built.domain_of[client]])] if built.domain_of else []
    role = [("AT" if client in e.adversarial else "ST")] if e.adversarial else []
    byzantine = ["Byzantine"] if client in e.settings.byzantine() else []
    return " · ".join([*domain, *role, *byzantine])


def picture(rows: Tensor, told: Sequence[tuple[int, str, str]]) -> dict[str, Any] | None:
    """``rows [r s]`` in two principal components, with client, branch and group of each, or None (``components``).

    Keys: ``points`` (two coordinates per row), ``shares`` (of the variance, per coordinate), ``clients``, ``branches``
    and ``groups`` per row, ``entries`` per row. Numbers have six digits: more would only make records longer.
    """
    placed = components(rows)
    if placed is None:
        return None
    x, y, shares = ([float(f"{v:.6g}") for v in numbers.tolist()] for numbers in (*placed[0].T, placed[1]))
    clients, branches, groups = map(list, zip(*told, strict=True))
    return {
        "points": [*map(list, zip(x, y, strict=True))], "shares": shares, "clients": clients, "branches": branches,
        "groups": groups, "entries": rows.shape[1],
    }  # fmt: skip


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
