"""Normalization: layers that keep clients apart, what clients report, how the server merges reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal

from torch import Tensor, nn

from robustfl.contracts.method import Method


class Tag(Enum):
    """The kind of an entry of a model's state, told by the type of its module and never by its name."""

    WEIGHT = "weight"
    AFFINE = "affine"
    MEAN = "mean"
    VARIANCE = "variance"
    COUNTER = "counter"
    PRIVATE = "private"


class NormLayer(nn.Module):
    """A normalization layer that several clients can use at once.

    Between ``begin`` and the end of the round a training forward takes the samples of all clients one after another
    and keeps them apart; ``sizes`` are the samples each client contributes (``None``: one client, all samples). With a
    row in the table of layer kinds (``robustfl.layer_kinds``) all clients of a round can share one forward.
    """

    tags: ClassVar[Mapping[str, Tag]] = {"weight": Tag.AFFINE, "bias": Tag.AFFINE}
    centralised: ClassVar[bool] = False

    sizes: tuple[int, ...] | None = None
    frozen: bool = False

    def begin(self, sizes: tuple[int, ...] | None, *, frozen: bool = False) -> None:
        """Start a round: whose samples the next training forwards hold; ``frozen`` as in ``Norm.frozen``."""
        self.sizes, self.frozen = sizes, frozen


class StatisticsLayer(NormLayer, ABC):
    """A normalization layer with the server's statistics in ``running_mean`` and ``running_var``, both ``[C]``.

    No forward writes these buffers; evaluation normalises with them. What the clients saw since ``begin`` is kept
    apart from them until ``report``. While ``as_client`` is set, evaluation normalises with what the one client of the
    round has made of them so far; while ``unseen`` is set, training forwards leave no trace in the report;
    while ``collects`` is set, those of a ``StatisticsPass`` do, which is for a test and not for the round while
    ``refreshes`` is set.
    """

    as_client: bool = False
    unseen: bool = False
    collects: bool = False
    refreshes: bool = False

    tags: ClassVar[Mapping[str, Tag]] = {
        "weight": Tag.AFFINE,
        "bias": Tag.AFFINE,
        "running_mean": Tag.MEAN,
        "running_var": Tag.VARIANCE,
    }

    running_mean: Tensor
    running_var: Tensor

    @abstractmethod
    def report(self) -> tuple[Tensor, Tensor, Tensor]:
        """The statistics since ``begin``: mean ``[n C]``, variance ``[n C]``, values per channel ``[n]``.

        They are what clients send, unless ``Norm.messages`` makes something else of them. The variance is that about
        the mean, and never E[x²]: it goes to ``running_var``. The values per channel are on the CPU.
        """

    def start(self, mean: Tensor, variance: Tensor) -> None:
        """Take the clients' own statistics, both ``[n C]``, in the place of the server's, until the pass is over.

        Clients with statistics of their own train one after another where a layer leaves this as it is.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class StatisticsSlices:
    """Where one layer's mean and variance lie in a statistics row, both ``[C]``; ``branch`` of a branched layer."""

    name: str
    mean: slice
    variance: slice
    branch: str = ""


Layers = Sequence[StatisticsSlices]


@dataclass(frozen=True)
class Reports:
    """Statistics of ``n`` clients' round: ``rows [n s]`` and the number of values per channel ``counts [n L]``.

    Counts, known without looking at values, are on the CPU; so is everything the server has to do with statistics.
    """

    rows: Tensor
    counts: Tensor


class StatisticsAggregation(ABC):
    """The server's defense as a norm's merge sees it.

    ``round`` counts from 0; ``begins`` is the first with anybody honest, and ``first`` says if it is this one;
    ``refresh``: the merge is for evaluation only and nothing is carried over.
    """

    begins: int = 0

    @property
    def round(self) -> int:
        return 0

    @property
    def first(self) -> bool:
        return self.round == self.begins

    @property
    def refresh(self) -> bool:
        return False

    @property
    def by_columns(self) -> bool:
        """True if the rule treats every column alike, so that it may as well see those of all layers at once."""
        return False

    @abstractmethod
    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """Fix the pre-aggregation on ``basis [n k]``; the result aggregates any ``[n j]`` rows with that mixing.

        ``weights [n]`` take the place of the round's sample weights, for rules that weigh clients at all.
        """

    def each(
        self, bases: Sequence[Tensor], *, weights: Sequence[Tensor] | None = None
    ) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """As ``mixed`` of every basis in turn; the result aggregates rows of each, with its mixing."""
        own = [None] * len(bases) if weights is None else weights
        made = [self.mixed(basis, weights=given) for basis, given in zip(bases, own, strict=True)]
        return lambda stacks: [aggregate(rows) for aggregate, rows in zip(made, stacks, strict=True)]


Reducer = Callable[[str, Tensor], Tensor]


class LockstepLayer(StatisticsLayer):
    """A normalization layer whose clients, while ``reducer`` is set, exchange quantities in every forward and backward.

    ``reducer(kind, rows)`` makes of the clients' rows ``[n C]`` what all of them receive, ``[C]``; kinds are those of
    ``LockstepNorm.lockstep_kinds``.
    """

    reducer: Reducer | None = None


@dataclass(frozen=True)
class StatisticsPass:
    """A pass to collect statistics without training: on how many samples (None: all), in which mode.

    ``repeats``: a pass follows with what the server made of the last one, as often as there are layers, so that every
    layer's statistics are those of inputs normalised with the statistics below it; or until no mean and no standard
    deviation moves by more than ``tolerance`` standard deviations. ``refreshes``: whose statistics are collected anew,
    with the current model, for every evaluation.
    """

    samples: int | None = None
    training: bool = False
    repeats: bool = False
    tolerance: float = 0.0
    refreshes: Literal["none", "participants", "all"] = "none"


class BranchedLayer(NormLayer):
    """A normalization layer with named sets of statistics; every forward goes through the chosen ``branch``.

    ``frozen_branch``: training forwards normalise with the branch's statistics and collect nothing.
    """

    branches: ClassVar[tuple[str, ...]] = ("clean", "adversarial")

    branch: str = "clean"
    frozen_branch: bool = False


def mixes_examples(module: nn.Module) -> bool:
    """True if the module normalises examples with statistics of their batch, or reports these."""
    mixing = (StatisticsLayer, BranchedLayer, nn.modules.batchnorm._BatchNorm)
    return any(isinstance(m, mixing) for m in module.modules())


CLEAN, ADVERSARIAL = BranchedLayer.branches


def branched(model: nn.Module) -> bool:
    """True if the model has layers with branches."""
    return any(isinstance(m, BranchedLayer) for m in model.modules())


@contextmanager
def through(model: nn.Module, branch: str, *, frozen: bool = False) -> Iterator[None]:
    """Within, forwards take ``branch``; ``frozen``: with its statistics also in training, which then see nothing."""
    layers = [m for m in model.modules() if isinstance(m, BranchedLayer)]
    before = [(m.branch, m.frozen_branch) for m in layers]
    try:
        for layer in layers:
            layer.branch, layer.frozen_branch = branch, frozen
        yield
    finally:
        for layer, (old, was_frozen) in zip(layers, before, strict=True):
            layer.branch, layer.frozen_branch = old, was_frozen


class Norm(Method):
    """A normalization scheme: its layer, what a client reports, how the server merges reports.

    Clients send the server the statistics of their layers if the scheme overrides ``merge``, two numbers per channel:
    a location in ``running_mean`` and a squared scale in ``running_var``. What is in ``private``
    never leaves a client, and clients that have private parts are evaluated with models of their own. Schemes whose
    layers do more than keep clients apart derive from ``LockstepNorm``, ``BranchedNorm`` or ``OneMachineNorm``.
    """

    kind: ClassVar[str] = "norm"

    @classmethod
    def _fault(cls) -> str:
        private = vars(cls).get("private")
        tags = isinstance(private, (set, frozenset)) and all(isinstance(tag, Tag) for tag in private)
        right = private is None or hasattr(private, "__get__") or tags
        return "" if right else "private must be a set of robustfl.contracts.Tag, such as frozenset({Tag.AFFINE})"

    @property
    def private(self) -> frozenset[Tag]:
        """The tags of the entries each client keeps for itself."""
        return frozenset()

    @property
    def sends_statistics(self) -> bool:
        """True if the server receives statistics rows and merges them."""
        return type(self).merge is not Norm.merge and not self.private & {Tag.MEAN, Tag.VARIANCE}

    @abstractmethod
    def layer(self, channels: int) -> nn.Module:
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""

    def adapt(self, network: nn.Module) -> None:
        """Change a freshly built network in place, for schemes that are not a matter of one layer."""

    def frozen(self, round: int, rounds: int) -> bool:
        """True if layers normalise with the server's statistics in training and report nothing."""
        return False

    @property
    def statistics_pass(self) -> StatisticsPass | None:
        """A pass over the clients' data before they train, whose reports take the place of those of training."""
        return None

    def messages(self, reports: Reports, previous: Tensor, layers: Layers) -> Tensor:
        """The statistics rows ``[n s]`` honest clients send: by default means and variances as layers report them."""
        return reports.rows

    def merge(
        self, messages: Tensor, counts: Tensor, previous: Tensor, layers: Layers, defense: StatisticsAggregation
    ) -> Tensor:
        """The server's new statistics ``[s]`` from the received rows ``[n s]``; without it nobody sends any.

        ``counts [n L]`` are the clients' values per channel, ``previous [s]`` the server's last statistics,
        ``layers`` says where each layer's mean and variance lie in a row, and ``defense`` is the server's rule:
        ``defense.mixed(rows)(rows)`` aggregates rows ``[n k]`` to ``[k]``. A merge that does not ask it is undefended.
        """
        return previous


class LockstepNorm(Norm):
    """A scheme whose clients take the first local step of a round together, unless their statistics are ``frozen``.

    Its layers are ``LockstepLayer``s, and exchange ``lockstep_kinds``.
    """

    lockstep_kinds: ClassVar[tuple[str, ...]] = ()


class BranchedNorm(Norm):
    """A scheme whose layers are ``BranchedLayer``s."""


class OneMachineNorm(Norm):
    """A scheme with all clients' samples on one machine, whose layers are ``centralised``."""
