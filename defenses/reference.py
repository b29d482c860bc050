"""Phrases of the references: what papers say in a word, of plain rows, in any precision and blind to ties."""

from __future__ import annotations

import torch
from torch import Tensor

from robustfl.contracts import Context


def lengths(X: Tensor) -> Tensor:
    """``‖x_i‖`` ``[n]``."""
    made: Tensor = torch.linalg.vector_norm(X, dim=1)
    return made


def squared_distances(X: Tensor) -> Tensor:
    """``‖x_i - x_j‖²`` ``[n n]``."""
    return (X[:, None] - X[None]).square().sum(-1)


def middle(X: Tensor) -> Tensor:
    """The median of every column ``[d]``, of an even number of rows the mean of the middle two."""
    return X.quantile(0.5, dim=0)


def trimmed_mean(X: Tensor, f: int) -> Tensor:
    """The mean of every column ``[d]`` without its ``f`` lowest and highest values."""
    return X.sort(dim=0).values[f : len(X) - f].mean(0)


def weights_of(X: Tensor, context: Context) -> Tensor:
    """The samples of the rows' clients ``[n]``, ones where nobody knows them."""
    return torch.ones(len(X)).to(X) if context.weights is None else context.weights.to(X)


def least(scores: Tensor, k: int) -> Tensor:
    """The rows of the ``k`` least scores."""
    return scores.argsort(dim=0, stable=True)[:k]


def clipped(X: Tensor, radius: Tensor | float) -> Tensor:
    """The rows, those longer than ``radius`` shortened to it."""
    return X * (radius / lengths(X)).clamp(max=1)[:, None]


def krum_scores(X: Tensor, neighbors: int) -> Tensor:
    """The sum of squared distances ``[n]`` to the nearest other rows."""
    return squared_distances(X).sort(dim=1).values[:, 1 : 1 + neighbors].sum(1)
