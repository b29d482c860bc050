"""The contracts between rooms: read this page first.

Letters: ``n`` clients of a round, ``h`` honest, ``f`` Byzantine, ``m`` kept rows, ``d`` trainable entries,
``s`` statistics entries, ``L`` normalization layers, ``b`` batch, ``C`` channels, ``c`` classes.

A method is a frozen dataclass whose fields are its hyper-parameters (declared with ``parameters.param``), plus one
method. Facts about it are class variables, stated once and printed by ``robustfl list`` and ``robustfl show``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from robustfl import parameters

Channel = Literal["update", "statistics"]
Knowledge = Literal["blind", "partial", "omniscient", "defense"]


class Method(ABC):  # noqa: B024 - what is abstract differs by kind
    """A registered method. Sub-classes are ``@dataclass(frozen=True)`` leaves; ``@register`` sets name and version."""

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    version: ClassVar[int] = 0
    paper: ClassVar[str] = ""
    spec: ClassVar[str] = ""

    def __post_init__(self) -> None:
        parameters.check(self)


# --- attacks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """What Byzantine clients see of one channel in one round. Fields beyond the declared knowledge are ``None``.

    ``honest [h d]`` rows of the honest clients (omniscient, defense); ``own [f d]`` the rows the attackers would have
    sent honestly (only for attacks with ``needs_own``, or knowledge ``partial``); ``aggregate`` maps a full stack
    ``[n d]`` to the server's result ``[d]`` (knowledge ``defense`` only); ``variance [d]`` marks the entries of the
    statistics channel that are variances.
    """

    n: int
    f: int
    channel: Channel = "update"
    honest: Tensor | None = None
    own: Tensor | None = None
    aggregate: Callable[[Tensor], Tensor] | None = None
    variance: Tensor | None = None
    round: int = 0


class Attack(Method):
    """A training-time (Byzantine) attack on messages.

    ``forges``: attackers replace their messages; False for data poisoners and for no attack at all, whose clients
    send what they honestly compute. ``poisons_data``: attackers train on ``poison``-ed batches.
    """

    kind: ClassVar[str] = "attack"
    knowledge: ClassVar[Knowledge] = "omniscient"
    needs_own: ClassVar[bool] = False
    poisons_data: ClassVar[bool] = False
    forges: ClassVar[bool] = True

    @abstractmethod
    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        """The rows the ``f`` attackers send, ``[f d]``, in the dtype and on the device of the rows in the view."""

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        """Numbers worth keeping beside a result, known before training; none unless a leaf has some."""
        del n, f
        return {}

    def poison(self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The attackers' training batch after data poisoning; unchanged unless ``poisons_data``."""
        del classes, generator
        return x, y


class Evasion(Method):
    """A test-time attack on inputs in pixel space [0, 1]."""

    kind: ClassVar[str] = "evasion"

    @abstractmethod
    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Adversarial inputs ``x_adv``, same shape as ``x [b C H W]``; ``model`` maps pixels to logits.

        The model's mode, ``requires_grad`` flags and gradients are as before afterwards, also after an exception.
        """


# --- defenses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """What a defense may use besides the stack: randomness, the round, sample weights ``[n]`` and its own state."""

    generator: torch.Generator | None = None
    round: int = 0
    weights: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Aggregated:
    """An aggregate ``[d]`` with the state to hand back next round and facts worth reporting."""

    vector: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Step(Method):
    """A pre-aggregation step: a linear map of the rows whose coefficients depend on inner products only.

    A step that only asks how far rows are from each other says ``centred = True`` and gets the inner products about
    one of the rows instead of the origin: the distances are the same, without loss of digits for close rows.
    """

    kind: ClassVar[str] = "defense"
    centred: ClassVar[bool] = False

    @abstractmethod
    def mix(self, gram: Tensor, *, f: int, context: Context) -> Tensor:
        """The coefficients ``[m n]`` such that the new rows are ``coefficients @ X``; ``gram [n n]`` is ``X Xᵀ``."""

    @abstractmethod
    def min_clients(self, f: int) -> int:
        """The least ``n`` for which the step is defined with ``f`` Byzantine clients."""

    def rows_after(self, n: int, f: int) -> int:
        """How many rows ``m`` the step makes of ``n``."""
        del f
        return n


class Aggregator(Method):
    """A rule ``[n d] -> [d]``."""

    kind: ClassVar[str] = "defense"

    @abstractmethod
    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor | Aggregated:
        """The aggregate of the finite rows of ``X``, which must not be written to."""

    @abstractmethod
    def min_clients(self, f: int) -> int:
        """The least ``n`` for which the rule is defined with ``f`` Byzantine clients."""


# --- normalization ---------------------------------------------------------------------------------------------------


class Tag(Enum):
    """What an entry of a model's state is, told by the type of its module and never by its name."""

    WEIGHT = "weight"
    AFFINE = "affine"
    MEAN = "mean"
    VARIANCE = "variance"
    COUNTER = "counter"
    PRIVATE = "private"


class NormLayer(nn.Module):
    """A normalization layer that several clients can use at once (ARCHITECTURE §7).

    Between ``begin`` and the end of the round a training forward takes the samples of all clients one after another
    and keeps them apart; ``sizes`` are the samples each client contributes (``None``: one client, all samples). While
    ``gradients`` is set, to two tensors ``[n C]``, backward adds every client's gradient of ``weight`` and ``bias``
    there instead of accumulating their sum in ``.grad``.
    """

    tags: ClassVar[Mapping[str, Tag]] = {"weight": Tag.AFFINE, "bias": Tag.AFFINE}
    centralised: ClassVar[bool] = False

    sizes: tuple[int, ...] | None = None
    frozen: bool = False
    gradients: tuple[Tensor, Tensor] | None = None

    def begin(self, sizes: tuple[int, ...] | None, *, frozen: bool = False) -> None:
        """Start a round: whose samples the next training forwards hold; ``frozen`` as in ``Norm.frozen``."""
        self.sizes, self.frozen = sizes, frozen


class StatisticsLayer(NormLayer, ABC):
    """A normalization layer with the server's statistics in ``running_mean`` and ``running_var``, both ``[C]``.

    No forward writes these buffers; evaluation normalises with them. What the clients saw since ``begin`` is kept
    apart from them until ``report``.
    """

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
        """What the clients saw since ``begin``: mean ``[n C]``, second moment ``[n C]``, values per channel ``[n]``."""


@dataclass(frozen=True)
class StatisticsSlices:
    """Where one layer's mean and variance lie in a statistics row, both ``[C]``."""

    name: str
    mean: slice
    variance: slice


@dataclass(frozen=True)
class Reports:
    """What ``n`` clients collected in a round: ``rows [n s]`` and the number of values per channel ``counts [n L]``."""

    rows: Tensor
    counts: Tensor


class StatisticsAggregation(ABC):
    """The server's defense as a norm's merge sees it (SPEC §4.17)."""

    @abstractmethod
    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """Fix the pre-aggregation on ``basis [n k]``; the result aggregates any ``[n j]`` rows with that mixing.

        ``weights [n]`` take the place of the round's sample weights, for rules that weigh clients at all.
        """


class Norm(Method):
    """A normalization scheme: its layer, what a client reports, how the server merges reports."""

    kind: ClassVar[str] = "norm"
    shares_statistics: ClassVar[bool] = False
    centralised: ClassVar[bool] = False

    @abstractmethod
    def layer(self, channels: int) -> nn.Module:
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""

    def frozen(self, round: int, rounds: int) -> bool:
        """Whether layers normalise with the server's statistics in training and report nothing."""
        del round, rounds
        return False

    def messages(self, reports: Reports, previous: Tensor, layers: Sequence[StatisticsSlices]) -> Tensor:
        """The statistics rows ``[n s]`` honest clients send."""
        del previous, layers
        return reports.rows

    def merge(
        self,
        messages: Tensor,
        counts: Tensor,
        previous: Tensor,
        layers: Sequence[StatisticsSlices],
        defense: StatisticsAggregation,
    ) -> Tensor:
        """The server's new statistics ``[s]`` from the received rows ``[n s]``."""
        del messages, counts, layers, defense
        return previous


# --- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalWork:
    """One client's round as an algorithm sees it; the engine supplies the callables.

    ``gradient(theta)`` draws the next batch and returns the gradient ``[d]`` of its mean loss at ``theta [d]``.
    """

    theta: Tensor
    lr: float
    steps: int
    gradient: Callable[[Tensor], Tensor]
    momentum: Tensor | None


class Algorithm(Method):
    """What a client does with its data between two messages, and the server's step."""

    kind: ClassVar[str] = "algorithm"
    one_batch: ClassVar[bool] = False

    @property
    def weighted(self) -> bool:
        """Whether the mean weighs clients by their number of samples."""
        return False

    @abstractmethod
    def steps(self, samples: int, batch: int) -> int:
        """The number of local batches of a client with ``samples`` training samples."""

    @abstractmethod
    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        """The client's message ``[d]`` and the momentum it keeps."""

    def stacked(self, gradients: Tensor, momentum: Tensor | None, *, out: Tensor) -> Tensor:
        """``local`` for all clients at once, for algorithms with ``one_batch``: messages ``[n d]`` from the gradients
        at the common model, written to ``out``, which may be either input; they are the clients' new momenta."""
        raise NotImplementedError(f"{type(self).__name__} takes several local batches")

    @property
    def keeps_momentum(self) -> bool:
        """Whether clients keep a momentum between rounds."""
        return False

    @abstractmethod
    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        """The new model ``[d]`` from the aggregated message ``[d]``."""


# --- data and models -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrays:
    """A data set in memory or mapped: images ``[N H W C]`` uint8 (or float32 in [0, 1]), labels int64 ``[N]``."""

    train_x: np.ndarray[Any, Any]
    train_y: np.ndarray[Any, Any]
    test_x: np.ndarray[Any, Any]
    test_y: np.ndarray[Any, Any]
    classes: int
    fingerprint: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)`` of one image."""
        height, width, channels = self.train_x.shape[1:]
        return channels, height, width


class Dataset(Method):
    """A data set by name; ``load`` decodes it once into a cache under ``root`` and memory-maps it."""

    kind: ClassVar[str] = "dataset"

    @abstractmethod
    def load(self, root: Path, *, download: bool = True) -> Arrays:
        """The arrays. Raises ``DataMissing`` with the folder and the command if they cannot be had."""

    @abstractmethod
    def fingerprint(self, root: Path, *, download: bool = True) -> str:
        """A digest of the content, without decoding again if the cache is there."""


class Partition(Method):
    """How training samples are spread over clients."""

    kind: ClassVar[str] = "partition"

    @abstractmethod
    def split(
        self, labels: np.ndarray[Any, Any], *, clients: int, classes: int, generator: np.random.Generator
    ) -> list[np.ndarray[Any, Any]]:
        """Disjoint index arrays, one per client. A client may be left empty; the engine refuses such a cell."""


class Model(Method):
    """A network architecture, built with any norm."""

    kind: ClassVar[str] = "model"

    @abstractmethod
    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A network from normalised inputs ``[b C H W]`` to logits ``[b c]``. Raises ``Refused`` for a wrong shape."""

    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        """Draw the initial parameters in place, from ``generator`` alone (torch's default distributions)."""
        from robustfl.initialisation import torch_default

        torch_default(network, generator)
