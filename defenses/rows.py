"""Rows as rules see them: a stack ``X [n d]`` in memory, and on top of it the linear mixing of the steps before.

Nothing of size ``n × d`` is made while steps and rule work: coordinate-wise rules mix one block of columns at a time,
rules on distances work on inner products, and the result is one weighted sum of the rows of ``X``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import kernels
from robustfl.contracts import Aggregated, Aggregator, Context, Step
from robustfl.errors import UsageError
from robustfl.kernels.blocks import ColumnRule, blocks, over_columns, width

from .stack import LONGEST, finite_rows

# Squares of float32 entries that are smaller on average lose digits.
_LEAST_SQUARE = 1e-32
# What products with coefficients, in float64, add to the error of inner products.
_MIXING = 16 * torch.finfo(torch.float64).eps


class BrokenRows(Exception):
    """A row of a stack that nobody had looked at is not finite, or too long."""


class Stack:
    """The received rows ``X [n d]`` with their inner products, made when first asked for and then kept.

    With ``seen=False`` the rows may still be broken. Whoever touches them first looks at them, on the way where that
    costs no pass of its own, and ``BrokenRows`` is raised before anybody sees a result.
    """

    def __init__(self, X: Tensor, *, seen: bool = True) -> None:
        self.shape = X.shape
        self._X = X
        self._seen = seen
        self._gram: kernels.CentredGram | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self._X.dtype

    @property
    def device(self) -> torch.device:
        return self._X.device

    @property
    def place(self) -> torch.device:
        """Where small matrices and weights of rows are (``kernels.at_hand``)."""
        return kernels.at_hand(self._X)

    @property
    def last_bits(self) -> float:
        """The error of a row by the last bits of its entries, relative to its length."""
        return kernels.last_bits(self._X.dtype)

    @property
    def X(self) -> Tensor:  # noqa: N802 - the paper's name
        self.look()
        return self._X

    @property
    def gram(self) -> kernels.CentredGram:
        """Inner products of the rows and the origin about one of the rows."""
        if self._gram is None:
            self._gram = self._products()
        return self._gram

    def products_with(self, point: Tensor) -> Tensor:
        """Inner products ``[n+2]`` of ``point [d]`` with the rows, the origin and itself, about the centre of ``gram``.

        Where there is no ``gram`` yet, both come from one pass over the rows.
        """
        if self._gram is not None:
            return kernels.products_with(self.X, self._gram.centre, point)
        made = self._looked_at(kernels.centred_gram(self._X, point))
        self._gram = made.first(self.shape[0] + 1)
        return made.products[-1]

    def _products(self) -> kernels.CentredGram:
        return self._looked_at(kernels.centred_gram(self._X))

    def _looked_at(self, made: kernels.CentredGram) -> kernels.CentredGram:
        """``made`` of these rows, unless it shows that one is broken."""
        if not self._seen:
            n = self.shape[0]
            square = products_about(made.products, n).diagonal()[: n + 1]
            # Where rounding could decide, the slow look does.
            if bool((square < 0.1 * LONGEST**2).all()):
                self._seen = True
            self.look()
        return made

    def ranks(self, rule: kernels.RankMean) -> Tensor:
        """``rule`` on every column ``[d]``."""
        if not self._seen:
            made = kernels.tame_rank_mean(self._X, rule)
            if made is not None:
                self._seen = True
                return made
        return self.columns(rule)

    def columns(self, rule: ColumnRule, *, mixing: Tensor | None = None) -> Tensor:
        """``rule`` on every column ``[d]`` of the rows, or of ``mixing [m n] @ X``, one block of columns at a time."""
        self.look()
        return over_columns(self._X, rule, mixing=mixing)

    def combine(self, weights: Tensor) -> Tensor:
        """``weights [n] @ X``; a single weight of one returns that row exactly."""
        if not torch.compiler.is_compiling():
            chosen = [(i, weight) for i, weight in enumerate(weights.tolist()) if weight]
            if len(chosen) == 1 and chosen[0][1] == 1.0:
                self.look()
                return self._X[chosen[0][0]].clone()
        made = weights.to(dtype=self._X.dtype, device=self._X.device) @ self._X
        # Nothing that is not finite gets lost in a sum in which every row counts; float32 rows are never too long.
        if not self._seen and self._X.dtype == torch.float32 and all(weights.tolist()):
            self._seen = math.isfinite(float(made.sum()))
        self.look()
        return made

    def lengths(self, about: Tensor | int | None = None) -> Tensor:
        """Lengths ``[n]`` of the rows, or of their differences from ``about``: a point ``[d]`` or one of the rows."""
        made = _lengths(self._X, about=self._X[about] if isinstance(about, int) else about)
        if not self._seen and (about is None or self._X.dtype == torch.float32):
            self._seen = bool((made <= LONGEST).all())
        self.look()
        return made

    def exact_lengths(self) -> tuple[Tensor, Tensor]:
        """Lengths ``[n]`` of the rows, summed in float64, and their largest magnitudes ``[n]``."""
        X = self.X
        found = (torch.linalg.vector_norm(X, p, dim=1, dtype=torch.float64) for p in (2, torch.inf))
        norms, peaks = (made.to(self.place) for made in found)
        return norms, peaks

    def along(self, point: Tensor) -> Tensor:
        """Inner products ``[n + 1]`` of the rows, and of the point itself, with ``point [d]``: one read."""
        made = _along(self._X, point)
        self.look()
        return made

    def at(self, columns: Tensor) -> Stack:
        """The same rows with the columns ``[k]`` alone."""
        return Stack(self.X.index_select(1, columns.to(self.device)))

    def here(self, vector: Tensor) -> Tensor:
        """Of a vector ``[d]`` the columns that these rows have: all, unless several processes share them."""
        return vector

    def look(self) -> None:
        """Raise ``BrokenRows`` if a row is broken; nothing happens to rows that were looked at before."""
        if not self._seen and not bool(finite_rows(self._X).all()):
            raise BrokenRows
        self._seen = True


@dataclass(frozen=True)
class Mixed:
    """The rows ``coefficients [m n] @ X``; ``None`` stands for ``X`` itself.

    Coefficients, and all inner products and lengths, are float64 and at the stack's ``place``, which is the CPU unless
    ``torch.compile`` looks on.
    """

    stack: Stack
    coefficients: Tensor | None = None

    @property
    def count(self) -> int:
        return self.stack.shape[0] if self.coefficients is None else self.coefficients.shape[0]

    def even(self) -> Tensor:
        """Weights ``[m]`` that count all rows alike: their mean."""
        return torch.full((self.count,), 1 / self.count, dtype=torch.float64, device=self.stack.place)

    def mean_of(self, rows: Tensor) -> Tensor:
        """Weights ``[m]`` that make the mean of the rows with the indices ``rows [k]``."""
        return self.even().zero_().index_fill_(0, rows, 1 / rows.shape[0])

    def after(self, step: Step, *, f: int, context: Context) -> Mixed:
        """The rows after one more step."""
        if step.lengths_only:
            inner = torch.diag(self.norms().square())
        elif step.centred:
            inner = self.products()[:-1, :-1]
        else:
            inner = self.inner()
        if step.centred:
            context = replace(context, slack=self.slack())
        new = step.mix(inner, f=f, context=context).to(device=self.stack.place, dtype=torch.float64)
        return type(self)(self.stack, new if self.coefficients is None else new @ self.coefficients)

    def products(self, point: Tensor | None = None) -> Tensor:
        """Inner products about a common centre of the ``m`` rows, the origin, and a further ``point [d]``, if given.

        Only differences mean something: weights that sum to one over these points name a vector.
        """
        if point is None:
            return self._lifted()
        bordered, size = self.stack.products_with(point), self.count + 1
        products = bordered.new_empty((size + 1, size + 1))
        products[:size, :size] = self._lifted()
        products[size, :size] = products[:size, size] = self._lift() @ bordered[:-1]
        products[size, size] = bordered[-1]
        return products

    def _lifted(self) -> Tensor:
        """Inner products of the rows and the origin about the centre of the received ones."""
        products = self.stack.gram.products
        if self.coefficients is None:
            return products.clone()
        lift = self._lift()
        return lift @ products @ lift.T

    def inner(self, point: Tensor | None = None) -> Tensor:
        """Inner products (about the origin) of the ``m`` rows and a further ``point [d]``, if given."""
        products = products_about(self.products(point), self.count)
        keep = [i for i in range(len(products)) if i != self.count]
        return products[keep][:, keep]

    def along(self, point: Tensor) -> Tensor:
        """Inner products ``[m + 1]`` of the rows, and of the point itself, with ``point [d]``.

        Each row's are its own: those of short rows do not lose digits to long ones, as they do in ``inner``.
        """
        made = self.stack.along(point)
        if self.coefficients is None:
            return made
        return torch.cat([self.coefficients.to(made) @ made[:-1], made[-1:]])

    def norms(self) -> Tensor:
        """Lengths ``[m]`` of the rows; 0 for a row of zeros."""
        return self.distances_to(None)

    def reach(self) -> Tensor:
        """Lengths ``[m]`` of the rows about the centre of ``products``."""
        return self._lifted().diagonal()[:-1].clamp(min=0).sqrt()

    def distances_to(self, point: Tensor | None) -> Tensor:
        """Distances ``[m]`` of the rows from ``point [d]``, or from the origin."""
        if self.coefficients is None:
            return self.stack.lengths(point)
        products = self.products(point)
        along = products[-1, : self.count]
        square = products.diagonal()[: self.count] - 2 * along + products[-1, -1]
        return square.clamp(min=0).sqrt()

    def squared_distances(self) -> Tensor:
        """Squared distances ``[m m]`` between the rows."""
        return self._squares()[:-1, :-1]

    def _squares(self) -> Tensor:
        """Squared distances ``[m+1 m+1]`` between the rows and the origin, which comes last."""
        if self.coefficients is None:
            return self.stack.gram.squares.clone()
        return kernels.squared_distances(self._lifted())

    def distances_from(self, row: int) -> Tensor:
        """Distances ``[m]`` of the rows from one of them."""
        if self.coefficients is not None:
            return self.squared_distances()[row].sqrt()
        return self.stack.lengths(row)

    def slack(self) -> Tensor:
        """The rounding error of each of ``squared_distances``, ``[m m]`` (float64)."""
        return self._slack()[:-1, :-1]

    def exact_norms(self) -> tuple[Tensor, Tensor]:
        """As ``norms``, for comparing rows of nearly equal lengths, with the error of each by last bits.

        Last bits of many entries cancel: together they move a length by about those of the largest entry.
        """
        if self.coefficients is not None:
            norms = self.norms()
            return norms, self.slack_of_norms(norms)
        norms, peaks = self.stack.exact_lengths()
        return norms, self.stack.last_bits * peaks

    def slack_of_norms(self, norms: Tensor) -> Tensor:
        """The rounding error of each of the ``norms [m]``."""
        if self.coefficients is None:
            return 2 * self.stack.last_bits * norms
        return slack_of_root(norms, self._slack()[-1, :-1])

    def slack_from(self, row: int, distances: Tensor) -> Tensor:
        """The rounding error of each of the ``distances [m]`` from one of the rows."""
        if self.coefficients is not None:
            return slack_of_root(distances, self.slack()[row])
        norms, bits = self.norms(), self.stack.last_bits
        equal = bits * (norms + norms[row])
        return torch.where(distances <= equal, equal, 2 * bits * distances)

    def _slack(self) -> Tensor:
        """Of all squared distances between the rows and the origin, which comes last, ``[m+1 m+1]``.

        With the weights ``w`` of a difference over received rows ``x_i``: its inner products err by
        ``rounding (Σ |w_i| ‖x_i - x_c‖)²``, and the last bits of the centred rows move it by
        ``u = last_bits Σ |w_i| ‖x_i - x_c‖``, which changes the square of its length ``D`` by ``2 D u + u²``. The
        rows' own lengths, 1e5 times their distances in whole models, count only where ``D`` is no more than their last
        bits: such rows are equal.
        """
        gram = self.stack.gram
        about, length = gram.products.diagonal().clamp(min=0).sqrt_(), gram.squares[-1].sqrt()
        distance, bits, apart = self._squares().sqrt_(), self.stack.last_bits, self._weighed(about)
        equal = self._weighed(length).mul_(bits)
        u = torch.where(distance <= equal, equal, apart * bits)
        slack = apart.square_().mul_(gram.rounding)
        if self.coefficients is not None:  # mixing costs rounding of its own, which does not cancel
            whole = self._lift().abs() @ about
            slack += _MIXING * (whole[:, None] + whole[None, :]).square()
        return slack + distance.mul_(2).add_(u).mul_(u)

    def _weighed(self, size: Tensor) -> Tensor:
        """``Σ_i |lift_pi - lift_qi| size_i`` for all pairs of points ``p, q``."""
        if self.coefficients is None:
            return (size[:, None] + size).fill_diagonal_(0)
        over = self._lift() * size
        return torch.cdist(over, over, p=1.0)

    def combine(self, weights: Tensor) -> Tensor:
        """``weights [m] @ rows``; a single weight of one returns that row exactly."""
        return self.stack.combine(weights if self.coefficients is None else weights @ self.coefficients)

    def median(self) -> Tensor:
        """The coordinate-wise median ``[d]``."""
        return self._ranks(kernels.median_rule(self.count))

    def trimmed_mean(self, f: int) -> Tensor:
        """The coordinate-wise mean without the ``f`` lowest and ``f`` highest ``[d]``."""
        return self._ranks(kernels.trimmed_mean_rule(self.count, f))

    def columns(self, rule: ColumnRule) -> Tensor:
        """``rule`` on every column ``[d]``, one block of columns at a time."""
        return self.stack.columns(rule, mixing=self.coefficients)

    def chosen(self, rows: Tensor) -> Mixed:
        """The rows with the indices ``rows [k]`` alone."""
        alone = torch.eye(self.count, dtype=torch.float64, device=self.stack.place)
        return replace(self, coefficients=(alone if self.coefficients is None else self.coefficients)[rows])

    def at(self, columns: Tensor) -> Mixed:
        """The same rows with the columns ``[k]`` alone."""
        return replace(self, stack=self.stack.at(columns))

    def here(self, vector: Tensor) -> Tensor:
        """Of a vector ``[d]`` the columns that these rows have."""
        return self.stack.here(vector)

    def materialise(self) -> Tensor:
        """The rows as one tensor ``[m d]``, for rules that know nothing of mixing."""
        X = self.stack.X
        return X if self.coefficients is None else self.coefficients.to(dtype=X.dtype, device=X.device) @ X

    def magnitudes(self) -> Tensor:
        """Magnitudes of the numbers of which the entries ``[m d]`` of mixed rows are sums; 0 for rows as received."""
        X = self.stack.X
        if self.coefficients is None:
            return X.new_zeros(())
        return self.coefficients.abs().to(dtype=X.dtype, device=X.device) @ X.abs()

    def _ranks(self, rule: kernels.RankMean) -> Tensor:
        return self.stack.ranks(rule) if self.coefficients is None else self.columns(rule)

    def _lift(self) -> Tensor:
        """``[m+1 n+1]``: rows and origin as weights, each summing to one, over the received rows and the origin."""
        n = self.stack.shape[0]
        if self.coefficients is None:
            return torch.eye(n + 1, dtype=torch.float64, device=self.stack.place)
        lift = self.coefficients.new_zeros((self.count + 1, n + 1))
        lift[:-1, :-1] = self.coefficients
        lift[:, -1] = 1 - lift.sum(dim=1)
        return lift


def shares(rows: Mixed, context: Context, owner: str) -> Tensor:
    """The rows' sample weights ``[m]``, equal ones where there are none, as shares of their sum.

    Raises ``UsageError`` if they are all zero, as those of the rows that are left may be.
    """
    if context.weights is None:
        return rows.even()
    weights = context.weights.to(device=rows.stack.place, dtype=torch.float64)
    if not torch.compiler.is_compiling() and not bool(weights.sum() > 0):
        raise UsageError(f"{owner}: weights={weights.tolist()} of the remaining rows must not all be zero")
    return weights / weights.sum()


def shortened(kept: Tensor, length: Tensor, radius: Tensor | float) -> Tensor:
    """Weights ``[n]`` of the mean of the rows ``kept [n]``, those longer than ``radius`` shortened to it."""
    return torch.where(kept, (radius / length.clamp(min=1e-300)).clamp(max=1), 0.0) / kept.sum()


def direct_distances(stacks: Tensor) -> tuple[Tensor, Tensor]:
    """As ``Mixed``'s ``squared_distances`` and ``slack``, ``[m n n]``, of many small ``stacks [m n k]`` in one go.

    Every difference is made, so no centre is needed, and what rounding there is lies in the rows' last bits.
    """
    length = torch.linalg.vector_norm(stacks, dim=2, dtype=torch.float64)
    rows = stacks.double()
    distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    bits = kernels.last_bits(stacks.dtype)
    equal = bits * (length[:, :, None] + length[:, None, :])
    u = torch.where(distance <= equal, equal, 2 * bits * distance)
    slack = (2 * distance + u) * u
    slack.diagonal(dim1=1, dim2=2).zero_()
    return distance.square(), slack


def slack_of_root(root: Tensor, slack: Tensor) -> Tensor:
    """The error of a square root whose square may be off by ``slack``."""
    return torch.minimum(slack.sqrt(), slack / root.clamp(min=1e-300))


def products_about(products: Tensor, point: int | Tensor) -> Tensor:
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
    total = total.to(kernels.at_hand(X))
    if not torch.compiler.is_compiling():
        # Float32 entries of 1e20 and 1e-25 are finite and not zero, their squares are not.
        lost = ~torch.isfinite(total) | (total < d * _LEAST_SQUARE)
        if bool(lost.any()):
            rows = X[lost.to(X.device)].double()
            total[lost] = torch.linalg.vector_norm(rows if about is None else rows - about, dim=1).square_().to(total)
    return total.sqrt_()


def _along(X: Tensor, point: Tensor) -> Tensor:
    """Inner products ``[n + 1]`` of the rows ``X [n d]``, and of ``point [d]``, with ``point``, in float64."""
    total = torch.zeros(len(X) + 1, dtype=torch.float64, device=X.device)
    for block in blocks(X.shape[1], width(len(X), X.shape[1], X, itemsize=8)):
        part = point[block].to(X.device, torch.float64)
        total += torch.cat([X[:, block].double() @ part, (part @ part)[None]])
    return total.to(kernels.at_hand(X))


class MixedRule(Aggregator):
    """A rule that works on mixed rows without making them; ``aggregate`` is the same rule on plain rows.

    ``by_columns``: each entry of the result depends on that column alone.
    """

    by_columns: ClassVar[bool] = False

    @property
    def isometric(self) -> bool:
        """True if the result turns with the rows: it is a sum of rows whose weights depend on inner products only."""
        return False

    @abstractmethod
    def reduce(self, rows: Mixed, *, f: int, context: Context) -> Aggregated:
        """The aggregate of the rows."""

    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Aggregated:
        """The aggregate of the finite rows of ``X``."""
        return self.reduce(Mixed(Stack(X)), f=f, context=context)


class MajorityRule(MixedRule):
    """A ``MixedRule`` that is defined as long as attackers are a minority."""

    def min_clients(self, f: int) -> int:
        return 2 * f + 1


def nearest_row(squares: Tensor) -> Tensor:
    """The number (0-d) of the row with the least median squared distance to all: a near one, whatever a few send."""
    return squares.median(dim=1).values.argmin()
