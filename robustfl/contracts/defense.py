"""Defenses: steps before a rule, the rule, and what users propagate to each other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from robustfl.contracts.method import Method
from robustfl.contracts.norm import Layers


@dataclass(frozen=True)
class Context:
    """The context a defense may use besides the stack: randomness, the round, sample weights ``[n]`` and its own state.

    ``clients [n]`` says whose rows these are (integers; ``None``: row ``i`` is client ``i``), for rules that remember
    clients; ``reference [d]`` is the server's own update, for rules with ``needs_reference``; ``slack [n n]`` tells a
    step that is ``centred`` how far every squared distance between rows may be off by rounding; ``shapes`` are those of
    the model's tensors that lie in a row one after the other, for rules that go by layers (empty: nobody knows).
    ``model [d]`` is the server's model, entry by entry as in a row (``None``: nobody knows; not to be written to).
    ``noise_outputs``, for rules with ``sees_outputs``, maps rows ``[n d]``, a number ``b`` and a generator
    to class probabilities ``[n + 1 b c]`` on ``b`` random images: of the model each row leads to, the server's last.
    ``representations``, for rules with ``sees_representations``, maps rows ``[n d]`` to what the last layers of the
    models they lead to receive of the server's own ``b`` training images, ``[n b k]``.
    """

    generator: torch.Generator | None = None
    round: int = 0
    weights: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    clients: Tensor | None = None
    reference: Tensor | None = None
    slack: Tensor | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    model: Tensor | None = None
    noise_outputs: Callable[[Tensor, int, torch.Generator], Tensor] | None = None
    representations: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Aggregated:
    """An aggregate ``[d]`` with the state to hand back next round and facts worth reporting.

    Facts may be small tensors: they become numbers and lists when somebody reads them.
    """

    vector: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Step(Method):
    """A pre-aggregation step: a linear map of the rows whose coefficients depend on inner products only.

    A step that only asks how far rows are from each other says ``centred = True`` and gets the inner products about
    one of the rows instead of the origin: the distances are the same, without loss of digits for close rows. One that
    only asks how long rows are says ``lengths_only = True`` and gets a diagonal matrix, which is cheaper.

    ``unfit_for_statistics`` says why it makes no sense on normalization statistics, where it does not: it changes
    rows on which all clients agree. ``on_host`` is that of ``Aggregator``.
    """

    kind: ClassVar[str] = "defense"
    centred: ClassVar[bool] = False
    lengths_only: ClassVar[bool] = False
    unfit_for_statistics: ClassVar[str] = ""
    on_host: ClassVar[str] = ""

    @property
    def uses_f(self) -> bool:
        """False for a step that makes the same of its rows whatever ``f`` it is told."""
        return True

    @abstractmethod
    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        """The coefficients ``[m n]`` such that the new rows are ``coefficients @ X``; ``gram [n n]`` is ``X Xᵀ``."""

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor | None:
        """The new rows ``[m d]`` as the paper writes them, to which tests hold ``mix``; ``None`` if that reads so."""
        return None

    @abstractmethod
    def min_clients(self, f: int) -> int:
        """The least ``n`` for which the step is defined with ``f`` Byzantine clients."""

    def rows_after(self, n: int, f: int) -> int:
        """The number of rows ``m`` that the step makes of ``n``."""
        return n

    def refuses(self, n: int, f: int) -> str | None:
        """Why ``n`` clients are refused although they are enough, or ``None``."""
        return None


class Aggregator(Method):
    """A rule ``[n d] -> [d]``; ``needs_reference``: it compares rows with the server's own update.

    ``trusts_client``: it is told the row of one client that is honest.

    ``sees_outputs``, ``sees_representations``: it asks what the models of rows make of random images, or of the
    server's own (``Context.noise_outputs``, ``Context.representations``); others are not given that.

    ``unfit_for_statistics`` says why it makes no sense on normalization statistics, where it does not: rows that
    everybody agrees on are not what it returns, or it needs what that channel lacks (memory, a reference).

    Rules on inner products or single columns derive from ``robustfl.defenses.MixedRule`` and never make the mixed rows.
    ``on_host`` says what makes it decide or draw on the host, where something does: an accelerator then waits for it,
    and ``torch.compile`` cannot take it as one graph.
    """

    kind: ClassVar[str] = "defense"
    needs_reference: ClassVar[bool] = False
    trusts_client: ClassVar[bool] = False
    sees_outputs: ClassVar[bool] = False
    sees_representations: ClassVar[bool] = False
    unfit_for_statistics: ClassVar[str] = ""
    on_host: ClassVar[str] = ""

    @property
    def uses_f(self) -> bool:
        """False for a rule that returns the same whatever ``f`` it is told."""
        return True

    @property
    def weighted(self) -> bool:
        """True if rows weigh by their clients' samples because a parameter asks for it."""
        return False

    @property
    def weighs(self) -> bool:
        """True if rows weigh by ``Context.weights`` where there are any."""
        return self.weighted

    @abstractmethod
    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor | Aggregated:
        """The aggregate of the finite rows of ``X``, which must not be written to."""

    def reference(self, X: Tensor, *, f: int, context: Context) -> Tensor | None:
        """The aggregate as the paper writes it, to which tests hold ``aggregate``; ``None`` if that reads so.

        It may be slow, and need not care about ties, rounding and broken rows.
        """
        return None

    @abstractmethod
    def min_clients(self, f: int) -> int:
        """The least ``n`` for which the rule is defined with ``f`` Byzantine clients."""

    def refuses(self, n: int, f: int) -> str | None:
        """Why ``n`` clients are refused although they are enough, as for rules of exponential cost, or ``None``."""
        return None


class Propagation(Method):
    """A way for robustness to travel between users through batch-norm statistics.

    It says how much each source counts for a target; the sources' adversarial-branch statistics are then aggregated
    with these weights by a pipeline, the weighted mean unless the scenario names another.
    """

    kind: ClassVar[str] = "defense"

    @abstractmethod
    def weights(self, sources: Tensor, target: Tensor, layers: Layers) -> Tensor:
        """Weights ``[A]``, summing to one, from clean-branch statistics: ``sources [A s]`` and ``target [s]``."""

    @property
    def compares(self) -> bool:
        """True if the weights depend on clean-branch statistics."""
        return True

    @property
    def every_round(self) -> bool:
        """True if statistics are propagated at the start of every round, or only before testing."""
        return True
