"""A defense as the server runs it: steps, then one aggregator, with the non-finite policy at the door."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Aggregator, Context, Propagation, Step
from robustfl.errors import Refused, RowsLost, UsageError
from robustfl.registry import create, describe, entries
from robustfl.specs import split_outside
from robustfl.torch_settings import float32_default

from .rows import BrokenRows, Mixed, MixedRule, Stack
from .stack import Rows, as_clients, as_stack, as_weights, check_f, check_generator, finite_rows

_LARGEST_SEARCH = 100_000
# Rows broken on purpose are broken all along: so many columns tell whether to hope that all rows are good.
_HEAD = 64
_HERE = "these rows are"
_BY_POSITION = "rows by position"

Array = np.ndarray[Any, Any]
Row = TypeVar("Row")


class _Options(TypedDict, total=False):
    """The keywords of a call."""

    weights: Rows | None
    generator: torch.Generator | None
    state: Mapping[str, Tensor] | None
    reference: Any


@dataclass(frozen=True)
class Pipeline:
    """``steps`` in order, then ``aggregator``.

    ``on_nonfinite="drop"`` removes rows with NaN, infinite or absurdly long (over 1e150) entries and lowers ``f`` by
    as many; ``"raise"`` refuses them.

    >>> from robustfl.defenses import parse_pipeline
    >>> parse_pipeline("nnm+trimmed-mean")(torch.tensor([[0.0], [1.0], [2.0], [float("nan")]]), f=1)
    tensor([1.])
    """

    steps: tuple[Step, ...]
    aggregator: Aggregator
    on_nonfinite: Literal["drop", "raise"] = "drop"

    def __post_init__(self) -> None:
        if self.on_nonfinite not in ("drop", "raise"):
            raise UsageError(f"on_nonfinite={self.on_nonfinite!r} must be 'drop' or 'raise'")

    @overload
    def __call__(self, X: Tensor, f: int, **options: Unpack[_Options]) -> Tensor: ...

    @overload
    def __call__(self, X: Array, f: int, **options: Unpack[_Options]) -> Array: ...

    @overload
    def __call__(self, X: Sequence[Row], f: int, **options: Unpack[_Options]) -> Row: ...

    def __call__(
        self,
        X: Rows,
        f: int,
        *,
        weights: Rows | None = None,
        generator: torch.Generator | None = None,
        state: Mapping[str, Tensor] | None = None,
        reference: Any = None,
    ) -> Any:
        """The aggregate of the rows ``X [n …]`` of which ``f`` may be Byzantine, as one more row of the same kind.

        ``X`` is a tensor, an array, or a list with one row per client; a row is a tensor, an array, a list of numbers,
        or a list of tensors or arrays (the layers of a model). Shapes, dtypes and the device are kept. ``weights [n]``
        are the clients' numbers of samples, for rules that weigh; ``generator`` is for rules that draw; ``reference``
        is the server's own row, for rules that compare the others with it. ``state`` is read and not handed back: see
        ``stateful``. Raises ``UsageError`` for malformed input and ``Refused`` for too few clients; both are
        ``RobustflError`` and ``ValueError``.
        """
        return self.stateful(X, f, weights=weights, generator=generator, state=state, reference=reference)[0]

    @float32_default()
    def stateful(
        self,
        X: Rows,
        f: int,
        *,
        state: Mapping[str, Tensor] | None = None,
        clients: Sequence[int] | Tensor | None = None,
        weights: Rows | None = None,
        generator: torch.Generator | None = None,
        reference: Any = None,
    ) -> tuple[Any, Mapping[str, Tensor]]:
        """The aggregate, as from a call, with the state to hand in with the next round's rows.

        For rules that remember; ``None``, as before the first round, is no memory. ``clients [n]`` are the numbers of
        the clients whose rows these are; without them row ``i`` is client ``i``, and all rounds need equally many rows.

        >>> from robustfl.defenses import parse_pipeline
        >>> rule, state = parse_pipeline("centered-clipping(tau=1)"), None
        >>> for _ in range(3):
        ...     aggregate, state = rule.stateful([[5.0], [5.0], [5.0]], f=1, state=state)
        >>> aggregate
        [3.0]
        """
        stack, form = as_stack(X, self.describe())
        f = self._checked_f(f, len(stack))
        if weights is not None and not self.aggregator.weighs:
            name, asks = self.aggregator.name, "weighted" in getattr(self.aggregator, "__dataclass_fields__", ())
            how = f"write {name}(weighted=true), or leave" if asks else "take a rule that weighs, such as rfa, or leave"
            raise UsageError(f"{self.describe()}: weights change nothing: {name} weighs rows alike; {how} them out")
        context = Context(
            generator=check_generator(generator, self.describe(), "defense"),
            weights=as_weights(weights, len(stack), self.describe()),
            state=_own_state(state, len(stack), clients is None, self.describe()),
            clients=as_clients(clients, len(stack), self.describe()),
            reference=None if reference is None else as_stack([reference], f"{self.describe()}: reference")[0][0],
            shapes=() if form.layers is None else tuple(tuple(part.shape) for part in form.parts),
        )
        result = self.run(stack, f=f, context=context)
        if state and not set(state) & set(result.state):
            raise UsageError(
                f"{self.describe()}: the state of another rule, with {', '.join(sorted(map(str, state)))}; it must be "
                "what this rule's last call handed back, or None"
            )
        if (dropped := int(result.facts["dropped"])) > f:
            told = f"{dropped} of {len(stack)} rows are not finite and were left out, more than f={f} may be Byzantine"
            warnings.warn(f"{self.describe()}: {told}", RuntimeWarning, stacklevel=3)
        by_position = (
            {_BY_POSITION: torch.tensor([len(stack)])} if clients is None and "clients" in result.state else {}
        )
        return form.row(result.vector), {**result.state, **by_position}

    def run(self, X: Tensor, *, f: int, context: Context) -> Aggregated:
        """The aggregate of ``X [n d]`` (float32 or float64) with state and facts: ``dropped`` rows and ``f`` used."""
        self._refuse(X, f, context)
        draws = None if context.generator is None else context.generator.get_state()
        # Elsewhere than on the CPU even a short look stops everything: there all rows are hoped to be good.
        if X.device.type != "cpu" or math.isfinite(float(X.detach()[:, :_HEAD].sum())):
            try:
                return self._through(Mixed(Stack(X.detach(), seen=False)), f, context, dropped=0)
            except BrokenRows:
                if context.generator is not None and draws is not None:
                    context.generator.set_state(draws)
        keep, f, context = self._admit(X, f, context)
        return self._through(Mixed(Stack(X.detach()[keep.to(X.device)])), f, context, dropped=int((~keep).sum()))

    def _through(self, rows: Mixed, f: int, context: Context, *, dropped: int) -> Aggregated:
        for step in self.steps:
            rows = rows.after(step, f=f, context=context)
        result = self._reduce(rows, f, context)
        rows.stack.look()
        return replace(result, facts={"dropped": dropped, "f": f, **told(result.facts)})

    def mixed(self, basis: Tensor, *, f: int, context: Context) -> Callable[[Tensor], Tensor]:
        """Fix the steps' coefficients on ``basis [n k]``; the result aggregates any ``[n j]`` rows with that mixing.

        Rows dropped from the basis are dropped everywhere. No state is read or kept.
        """
        context = replace(context, state={})
        return self._fixed(basis, f, context, *self._admit(basis, f, context))

    def _fixed(self, basis: Tensor, f: int, context: Context, keep: Tensor, left: int, kept: Context) -> _Fixed:
        """The steps' coefficients on the rows of ``basis`` that ``_admit`` lets ``keep``."""
        chosen = None if bool(keep.all()) else keep.to(basis.device)
        mixing = Mixed(Stack(basis.detach() if chosen is None else basis.detach()[chosen]))
        for step in self.steps:
            mixing = mixing.after(step, f=left, context=kept)
        return _Fixed(self, basis, f, context, chosen, mixing.coefficients, left, kept)

    def mixed_columns(
        self, bases: Sequence[Tensor], *, f: int, context: Context
    ) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """As ``mixed`` of every basis in turn, where the ``rule_by_columns`` sees the columns of all at once.

        Rows are looked at all together; only where one is broken is every stack gone through by itself.
        """
        context = replace(context, state={})
        admitted = self._admit(torch.cat(tuple(bases), dim=1), f, context)
        sound = bool(admitted[0].all())
        each = [self._fixed(b, f, context, *(admitted if sound else self._admit(b, f, context))) for b in bases]

        def aggregate(stacks: Sequence[Tensor]) -> list[Tensor]:
            whole = torch.cat(tuple(stacks), dim=1).detach()
            if not sound or whole.shape[1] == 0 or not bool(finite_rows(whole).all()):
                return [fixed(rows) for fixed, rows in zip(each, stacks, strict=True)]
            if self.steps:
                made = [fixed.mixed(rows).materialise() for fixed, rows in zip(each, stacks, strict=True)]
                whole = torch.cat(made, dim=1)
            kept = context if len(whole) == len(stacks[0]) else replace(context, weights=None, clients=None)
            vector = self._reduce(Mixed(Stack(whole)), f, kept).vector
            return list(torch.split(vector, [rows.shape[1] for rows in stacks]))

        return aggregate

    @property
    def parts(self) -> tuple[Step | Aggregator, ...]:
        return (*self.steps, self.aggregator)

    @property
    def knowledge(self) -> str:
        """Some of ``f declared``, ``an honest client``, ``clean server data``; or ``none``.

        Steps mix rows, so that behind one no row is that of a single client.
        """
        told = ["f declared"] if any(part.uses_f for part in self.parts) else []
        told += ["an honest client"] if self.aggregator.trusts_client and not self.steps else []
        told += ["clean server data"] if self.aggregator.needs_reference else []
        return ", ".join(told) or "none"

    @property
    def by_columns(self) -> bool:
        """True if every entry of the result depends on that column of the rows alone."""
        return not self.steps and isinstance(self.aggregator, MixedRule) and self.aggregator.by_columns

    @property
    def rule_by_columns(self) -> bool:
        """True if, whatever steps mix, the rule after them treats every column alike."""
        return isinstance(self.aggregator, MixedRule) and self.aggregator.by_columns

    @property
    def isometric(self) -> bool:
        """True if the result turns with the rows; steps look at inner products only and never stand in the way."""
        return isinstance(self.aggregator, MixedRule) and self.aggregator.isometric

    def min_clients(self, f: int) -> int:
        """The least ``n`` that every part accepts with ``f`` declared Byzantine clients."""
        start = max(1, *(part.min_clients(f) for part in self.parts))
        for n in count(start):
            if self.refusal(n, f) is None:
                return n
            if n > start + _LARGEST_SEARCH:
                break
        raise Refused(f"{self.describe()}: no number of clients is enough for f={f}")

    def refusal(self, n: int, f: int, *, here: str = "this cell has") -> str | None:
        """Why ``n`` clients with ``f`` declared Byzantine are refused, or ``None``.

        ``here`` are the words before ``n`` in the answer.
        """
        f = check_f(f, self.describe())
        rows = n
        for part in self.parts:
            need = part.min_clients(f)
            if rows < max(1, need):
                left = "" if rows == n else f", and the steps before it leave {rows} of them"
                return f"{part.name}: f={f} needs at least {need} clients{_formula(part, f)}; {here} {n}{left}."
            reason = part.refuses(rows, f)
            if reason is not None:
                return f"{part.name}: {reason}"
            if isinstance(part, Step):
                rows = part.rows_after(rows, f)
        if self.aggregator.weighted and rows != n:
            return f"{self.aggregator.name}: weighted=True changes nothing: {rows} rows made of {n} weigh alike"
        return None

    def statistics_refusal(self, n: int, f: int) -> str | None:
        """Why ``n`` clients' normalization statistics cannot be defended like this, or ``None``."""
        for part in self.parts:
            if part.unfit_for_statistics:
                return f"{part.name}: {part.unfit_for_statistics}"
        if self.aggregator.needs_reference:
            return f"{self.aggregator.name}: the server has no statistics of its own to compare with"
        return self.refusal(n, f)

    def describe(self) -> str:
        """The spec that builds this pipeline again: ``"nnm+krum(variant=nf)"``."""
        return self._spec

    @cached_property
    def _spec(self) -> str:
        return "+".join(describe(part) for part in self.parts)

    def _checked_f(self, f: Any, n: int) -> int:
        whole = check_f(f, self.describe())
        if whole >= n and self.refusal(n, whole) is None:  # rules that ask for no number, such as the mean
            raise Refused(f"{self.describe()}: f={whole} must be less than the number of rows; {_HERE} {n}.")
        return whole

    def _refuse(self, X: Tensor, f: int, context: Context) -> None:
        n = len(X)
        reason = self.refusal(n, f, here=_HERE)
        if reason is not None:
            raise Refused(reason)
        if context.weights is not None and len(context.weights) != n:
            raise UsageError(f"{self.describe()}: {len(context.weights)} weights for {n} rows")
        if context.clients is not None and context.clients.shape != (n,):
            raise UsageError(f"{self.describe()}: {len(context.clients)} client numbers for {n} rows")

    def _admit(self, X: Tensor, f: int, context: Context) -> tuple[Tensor, int, Context]:
        """Refuse or drop: which rows stay ``[n]``, the ``f`` that is left, and the context of the rows that stay."""
        self._refuse(X, f, context)
        n = len(X)
        keep = finite_rows(X.detach())
        if bool(keep.all()):
            return keep, f, context
        broken = (~keep).nonzero().flatten().tolist()
        if self.on_nonfinite == "raise":
            raise Refused(f"{self.describe()}: rows {broken} are not finite, and on_nonfinite='raise'")
        left, f_left = n - len(broken), max(0, f - len(broken))
        if left == 0:
            raise RowsLost(f"{self.describe()}: none of the {n} rows has a finite length")
        reason = self.refusal(left, f_left, here=_HERE)
        if reason is not None:
            raise RowsLost(f"{reason} ({len(broken)} of {n} rows were dropped because their length is not finite)")
        weights = None if context.weights is None else context.weights[keep.to(context.weights.device)]
        clients = torch.arange(n) if context.clients is None else context.clients.cpu()
        return keep, f_left, replace(context, weights=weights, clients=clients[keep])

    def _reduce(self, rows: Mixed, f: int, context: Context) -> Aggregated:
        if rows.count != rows.stack.shape[0]:
            # Weights belong to clients; rows that are no longer one per client count alike.
            context = replace(context, weights=None, clients=None)
        if rows.stack.shape[1] == 0:
            return Aggregated(rows.stack.X.new_empty(0), state=context.state)
        if isinstance(self.aggregator, MixedRule):
            return self.aggregator.reduce(rows, f=f, context=context)
        result = self.aggregator.aggregate(rows.materialise(), f=f, context=context)
        return result if isinstance(result, Aggregated) else Aggregated(result)


@dataclass(frozen=True)
class _Fixed:
    """A pipeline whose steps' ``coefficients`` are fixed: what ``Pipeline.mixed`` hands out.

    ``keep [n]`` are the rows of ``basis`` that stayed (``None``: all), ``left`` the ``f`` and ``kept`` the context of
    those.
    """

    pipeline: Pipeline
    basis: Tensor
    f: int
    context: Context
    keep: Tensor | None
    coefficients: Tensor | None
    left: int
    kept: Context

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[1] == 0:
            return rows.new_empty(0)
        good = finite_rows(rows.detach()).to(rows.device)
        if not bool((good if self.keep is None else good[self.keep]).all()):
            # A finite entry may still overflow when squared: that row leaves the basis too.
            without = self.basis.detach().clone()
            without[~good] = torch.nan
            return self.pipeline.mixed(without, f=self.f, context=self.context)(rows)
        return self.pipeline._reduce(self.mixed(rows), self.left, self.kept).vector

    def mixed(self, rows: Tensor) -> Mixed:
        return Mixed(Stack(rows.detach() if self.keep is None else rows.detach()[self.keep]), self.coefficients)


def _own_state(state: Mapping[str, Tensor] | None, n: int, by_position: bool, owner: str) -> dict[str, Tensor]:
    """The state of the rule itself. Raises ``UsageError`` if it is malformed, or unclear whose rows it remembers."""
    if state is None:
        return {}
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"{owner}: state={state!r:.60} must be what the last call handed back, or None")
    own = {key: value for key, value in state.items() if key != _BY_POSITION}
    if "clients" not in own:
        return own
    rows, known = state.get(_BY_POSITION), own["clients"].tolist()
    if not by_position and rows is not None:
        raise UsageError(f"{owner}: earlier rounds gave no clients=, so it is unknown whose rows it remembers")
    if by_position and (known != list(range(n)) if rows is None else int(rows) != n):
        before = f"clients {known}" if rows is None else f"{int(rows)} rows"
        raise UsageError(
            f"{owner}: it remembers {before}, now come {n}; give clients=, whose rows these are, in all rounds"
        )
    return own


def told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with numbers and lists in the place of tensors."""
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in facts.items()}


def _formula(part: Step | Aggregator, f: int) -> str:
    """`` (2f + 3)`` if the need of ``part`` is linear in ``f``, else nothing."""
    at = [part.min_clients(f + k) for k in range(3)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope:
        return ""
    rest = at[0] - slope * f
    return f" ({'' if slope == 1 else slope}f" + (f" {'+' if rest > 0 else '-'} {abs(rest)})" if rest else ")")


def parse_pipeline(spec: str, *, on_nonfinite: Literal["drop", "raise"] = "drop", **params: Any) -> Pipeline:
    """The pipeline ``"step(a=1)+...+aggregator"``; ``params`` go to its last part.

    >>> parse_pipeline("nnm+multi-krum", m=3).describe()
    'nnm+multi-krum(m=3)'
    """
    parts = split_spec(spec)
    built = [create("defense", part, **(params if i == len(parts) - 1 else {})) for i, part in enumerate(parts)]
    *steps, last = built
    for part in built:
        if isinstance(part, Propagation):
            raise UsageError(
                f"{part.name!r} propagates statistics between users; it belongs in the setting 'propagation'"
            )
    if not isinstance(last, Aggregator):
        rules = [e.name for e in entries("defense") if issubclass(e.cls, Aggregator)]
        raise UsageError(f"{last.name!r} is a step; end the pipeline with an aggregator such as {', '.join(rules)}")
    for part in steps:
        if not isinstance(part, Step):
            raise UsageError(f"{part.name!r} is an aggregator and can only come last in {spec!r}")
    return Pipeline(tuple(steps), last, on_nonfinite)


def split_spec(spec: str) -> list[str]:
    """Split at every ``+`` outside brackets."""
    if not isinstance(spec, str):
        raise UsageError(f"a defense is written as a text such as 'nnm+trimmed-mean', not as {type(spec).__name__}")
    parts = [part.strip() for part in split_outside(spec, "+")]
    if not all(parts):
        raise UsageError(f"{spec!r}: a part between '+' signs is empty; write step+...+aggregator")
    return parts
