"""Rows as rules see them: a stack ``X [n d]`` in memory, and on top of it the linear mixing of the steps before.

Nothing of size ``n × d`` is made while steps and rule work: coordinate-wise rules mix one block of columns at a time,
rules on distances work on inner products, and the result is one weighted sum of the rows of ``X``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from robustfl import kernels
from robustfl.contracts import Aggregated, Aggregator, Context, Step
from robustfl.kernels.blocks import ColumnRule, blocks, over_columns, width


class Stack:
    """The received rows ``X [n d]`` with their inner products, made when first asked for and then kept."""

    def __init__(self, X: Tensor) -> None:
        self.shape = X.shape
        self._X = X

    @property
    def X(self) -> Tensor:  # noqa: N802 - the paper's name
        """The rows themselves."""
        return self._X

    @cached_property
    def gram(self) -> kernels.CentredGram:
        """Inner products of the rows and the origin about one of the rows."""
        return kernels.centred_gram(self.X)


@dataclass(frozen=True)
class Mixed:
    """The rows ``coefficients [m n] @ X``; ``None`` stands for ``X`` itself. Coefficients are float64 on the CPU."""

    stack: Stack
    coefficients: Tensor | None = None

    @property
    def count(self) -> int:
        """The number of rows ``m``."""
        return self.stack.shape[0] if self.coefficients is None else self.coefficients.shape[0]

    def after(self, step: Step, *, f: int, context: Context) -> Mixed:
        """The rows after one more step."""
        if step.lengths_only:
            inner = torch.diag(self.norms().square())
        elif step.centred:
            inner = self.products()[:-1, :-1]
        else:
            inner = self.inner()
        new = step.mix(inner, f=f, context=context).to(device="cpu", dtype=torch.float64)
        return Mixed(self.stack, new if self.coefficients is None else new @ self.coefficients)

    def products(self, *points: Tensor) -> Tensor:
        """Inner products about a common centre of the ``m`` rows, the origin, and further ``points [d]``.

        Only differences mean something: weights that sum to one over the ``m + 1 + k`` points name a vector.
        """
        gram = self.stack.gram
        lift = self._lift()
        if not points:
            return lift @ gram.products @ lift.T
        (point,) = points
        bordered = kernels.products_with(self.stack.X, gram.centre, point)
        size = lift.shape[0]
        products = torch.empty((size + 1, size + 1), dtype=torch.float64)
        products[:size, :size] = lift @ gram.products @ lift.T
        products[size, :size] = products[:size, size] = lift @ bordered[:-1]
        products[size, size] = bordered[-1]
        return products

    def inner(self, *points: Tensor) -> Tensor:
        """Inner products (about the origin) of the ``m`` rows and further ``points [d]``."""
        products = _about(self.products(*points), self.count)
        keep = [i for i in range(len(products)) if i != self.count]
        return products[keep][:, keep]

    def norms(self) -> Tensor:
        """Lengths ``[m]`` of the rows (float64, CPU); 0 for a row of zeros."""
        return self.distances_to(None)

    def distances_to(self, point: Tensor | None) -> Tensor:
        """Distances ``[m]`` of the rows from ``point [d]``, or from the origin (float64, CPU)."""
        if self.coefficients is None:
            return _lengths(self.stack.X, about=point)
        products = self.products() if point is None else self.products(point)
        along = products[-1, : self.count]
        square = products.diagonal()[: self.count] - 2 * along + products[-1, -1]
        return square.clamp(min=0).sqrt()

    def squared_distances(self) -> Tensor:
        """Squared distances ``[m m]`` between the rows (float64, CPU)."""
        return kernels.squared_distances(self.products()[:-1, :-1])

    def distances_from(self, row: int) -> Tensor:
        """Distances ``[m]`` of the rows from one of them (float64, CPU)."""
        if self.coefficients is not None:
            return self.squared_distances()[row].sqrt()
        return _lengths(self.stack.X, about=self.stack.X[row])

    def combine(self, weights: Tensor) -> Tensor:
        """``weights [m] @ rows``; a single weight of one returns that row exactly."""
        X = self.stack.X
        over = weights if self.coefficients is None else weights @ self.coefficients
        chosen = over.nonzero().flatten().tolist()
        if len(chosen) == 1 and float(over[chosen[0]]) == 1.0:
            return X[chosen[0]].clone()
        return kernels.weighted_sum(X, over)

    def median(self) -> Tensor:
        """The coordinate-wise median ``[d]``."""
        return kernels.median(self.stack.X, mixing=self.coefficients)

    def trimmed_mean(self, f: int) -> Tensor:
        """The coordinate-wise mean without the ``f`` lowest and ``f`` highest ``[d]``."""
        return kernels.trimmed_mean(self.stack.X, f, mixing=self.coefficients)

    def columns(self, rule: ColumnRule) -> Tensor:
        """``rule`` on every column ``[d]``, one block of columns at a time."""
        return over_columns(self.stack.X, rule, mixing=self.coefficients)

    def chosen(self, rows: Tensor) -> Mixed:
        """The rows with the indices ``rows [k]`` alone."""
        if self.coefficients is not None:
            return Mixed(self.stack, self.coefficients[rows])
        return Mixed(self.stack, torch.eye(self.count, dtype=torch.float64)[rows])

    def at(self, columns: Tensor) -> Mixed:
        """The same rows with the columns ``[k]`` alone."""
        X = self.stack.X
        return Mixed(Stack(X.index_select(1, columns.to(X.device))), self.coefficients)

    def here(self, vector: Tensor) -> Tensor:
        """Of a vector ``[d]`` the columns that these rows have: all, unless several processes share them."""
        return vector

    def materialise(self) -> Tensor:
        """The rows as one tensor ``[m d]``, for rules that know nothing of mixing."""
        X = self.stack.X
        return X if self.coefficients is None else self.coefficients.to(dtype=X.dtype, device=X.device) @ X

    def _lift(self) -> Tensor:
        """``[m+1 n+1]``: rows and origin as weights, each summing to one, over the received rows and the origin."""
        n = self.stack.shape[0]
        if self.coefficients is None:
            return torch.eye(n + 1, dtype=torch.float64)
        lift = torch.zeros((self.count + 1, n + 1), dtype=torch.float64)
        lift[:-1, :-1] = self.coefficients
        lift[:, -1] = 1 - lift.sum(dim=1)
        return lift


def _about(products: Tensor, point: int) -> Tensor:
    """Inner products about the point number ``point`` from products about another centre."""
    along = products[point]
    return products - along[:, None] - along[None, :] + along[point]


def _lengths(X: Tensor, *, about: Tensor | None = None) -> Tensor:
    """Lengths ``[n]`` of the rows ``X [n d]``, or of their differences from ``about [d]``: one read."""
    n, d = X.shape
    total = torch.zeros(n, dtype=torch.float64, device=X.device)
    step = width(n, d, X)
    buffer = X.new_empty((n, step if about is not None else 0))
    for block in blocks(d, step):
        rows = X[:, block]
        if about is not None:
            rows = torch.sub(rows, about[block], out=buffer[:, : rows.shape[1]])
        # Squares of float32 entries are summed over a block only, and blocks in float64: errors stay near 1e-7.
        total += torch.linalg.vector_norm(rows, dim=1).double().square_()
    if not bool(torch.isfinite(total).all()):
        # A float32 entry of 1e20 is finite, its square is not.
        rows = X.double()
        total = torch.linalg.vector_norm(rows if about is None else rows - about, dim=1).square_()
    return total.sqrt_().cpu()


class MixedRule(Aggregator):
    """A rule that works on mixed rows without making them; ``aggregate`` is the same rule on plain rows."""

    @abstractmethod
    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        """The aggregate of the rows."""

    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Aggregated:
        """The aggregate of the finite rows of ``X``."""
        return self.reduce(Mixed(Stack(X)), f=f, context=context)
