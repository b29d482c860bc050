"""The contracts between rooms: read this page first.

Letters: ``n`` clients of a round, ``h`` honest, ``f`` Byzantine, ``m`` kept rows, ``d`` trainable entries,
``s`` statistics entries, ``L`` normalization layers, ``b`` batch, ``C`` channels, ``c`` classes.

A method is a frozen dataclass whose fields are its hyper-parameters (declared with ``parameters.param``), plus one
method. Facts about it are class variables, stated once and printed by ``robustfl list`` and ``robustfl show``; in
``paper``, ``@key`` stands for a paper in ``papers.toml``, and any other text for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

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
    cost: ClassVar[str] = ""
    exempt: ClassVar[Mapping[str, str]] = {}  # laws of robustfl.testing that do not hold on purpose, with the reason

    def __post_init__(self) -> None:
        parameters.check(self)


# --- attacks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """What Byzantine clients see of one channel in one round. Fields beyond the declared knowledge are ``None``.

    ``honest [h d]`` rows of the honest clients (omniscient, defense); ``own [f d]`` the rows the attackers would have
    sent honestly (blind, partial, and attacks with ``needs_own``); ``aggregate``, a ``Rehearsal``, maps a full stack
    ``[n d]``, attackers' rows last, to the server's result ``[d]`` (knowledge ``defense`` only); ``variance [d]`` marks
    the entries of the statistics channel that are variances. ``previous [d]`` is the channel's last aggregate, which
    every client can tell from what the server sent (``None`` in the first round); ``state`` is what the attack handed
    back last (``Forged``).
    """

    n: int
    f: int
    channel: Channel = "update"
    honest: Tensor | None = None
    own: Tensor | None = None
    aggregate: Callable[[Tensor], Tensor] | None = None
    variance: Tensor | None = None
    round: int = 0
    previous: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)

    def redacted(self, attack: Attack) -> View:
        """The view as ``attack`` gets it, from the engine, inside another attack or in a test: what it declares."""
        return replace(
            self,
            honest=self.honest if attack.knowledge in ("omniscient", "defense") else None,
            own=self.own if attack.sees_own else None,
            aggregate=self.aggregate if attack.knowledge == "defense" else None,
        )

    @property
    def origin(self) -> Tensor | None:
        """The rehearsal's ``origin [d]``; ``None`` where that is the mean of the honest rows."""
        return self.aggregate.origin if isinstance(self.aggregate, Rehearsal) else None


@dataclass(frozen=True)
class Rehearsal:
    """The server's rule as attackers who know it try it out: a full stack ``[n d]`` to the result ``[d]``.

    It draws what the server is about to draw, and nothing comes of it. On the statistics channel it is the norm's own
    merge, from messages ``[n s]`` to the server's new statistics ``[s]``; of what users propagate to each other, the
    mean of what the receivers get.

    ``isometric``: the result is a sum of the rows whose weights depend on their inner products only, so the stack may
    as well be one of another width with the same inner products. ``origin [d]``: the result from the honest rows alone
    without a defense, from which searches measure how far they move it; ``None``: the mean of these rows.
    """

    aggregate: Callable[[Tensor], Tensor]
    isometric: bool = False
    origin: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        return self.aggregate(rows)


@dataclass(frozen=True)
class Forged:
    """The rows ``[f d]`` the attackers send, with what the attack wants to be handed next round on this channel."""

    rows: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, made: Tensor | Forged) -> Forged:
        """What ``Attack.forge`` returned, in one form."""
        return made if isinstance(made, Forged) else cls(made)


class Attack(Method):
    """A training-time (Byzantine) attack on messages.

    ``forges``: attackers replace their messages; False for data poisoners and for no attack at all, whose clients
    send what they honestly compute. ``poisons_data``: attackers train on ``poison``-ed batches. ``triggers``: a
    backdoor, whose success is the share of ``trigger``-ed test images taken for the class ``target``. ``strength``
    names the parameter that says how hard it attacks (for ``opt``); ``inner`` is the attack that a wrapper wraps.
    ``columnwise``: every entry it sends depends on the same entries of what it sees, and on no draw.
    """

    kind: ClassVar[str] = "attack"
    knowledge: ClassVar[Knowledge] = "omniscient"
    needs_own: ClassVar[bool] = False
    poisons_data: ClassVar[bool] = False
    forges: ClassVar[bool] = True
    triggers: ClassVar[bool] = False
    columnwise: ClassVar[bool] = False
    strength: ClassVar[str] = ""

    @property
    def inner(self) -> Attack | None:
        return None

    @property
    def sees_own(self) -> bool:
        """Whether the attackers see what they would have sent honestly: all who see nobody else's rows do."""
        return self.needs_own or self.knowledge in ("blind", "partial")

    @property
    def target(self) -> int | None:
        return None

    @abstractmethod
    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        """The rows the ``f`` attackers send, ``[f d]``, in the dtype and on the device of the rows in the view."""

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        """Numbers worth keeping beside a result, known before training; none unless a leaf has some.

        An entry named like ``strength`` says what the attack takes for it; 0 there means that it sends the honest mean.
        """
        del n, f
        return {}

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The training batch of one attacker after data poisoning; unchanged unless ``poisons_data``.

        ``attacker`` is its place among all Byzantine clients, the same in every round.
        """
        del classes, generator, attacker, round
        return x, y

    def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
        """The gradient ``[d]`` an attacker who trains on poisoned data follows, from that of its loss.

        ``moved [d]`` is how far its local steps have moved it from the model it received.
        """
        return gradient if self.inner is None else self.inner.constrain(gradient, moved, round=round)

    def trigger(self, x: Tensor) -> Tensor:
        """Test images with the whole trigger on them; unchanged unless ``triggers``."""
        return x


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
    """What a defense may use besides the stack: randomness, the round, sample weights ``[n]`` and its own state.

    ``clients [n]`` says whose rows these are (integers; ``None``: row ``i`` is client ``i``), for rules that remember
    clients; ``reference [d]`` is the server's own update, for rules with ``needs_reference``; ``slack [n n]`` tells a
    step that is ``centred`` how far every squared distance between rows may be off by rounding.
    """

    generator: torch.Generator | None = None
    round: int = 0
    weights: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    clients: Tensor | None = None
    reference: Tensor | None = None
    slack: Tensor | None = None


@dataclass(frozen=True)
class Aggregated:
    """An aggregate ``[d]`` with the state to hand back next round and facts worth reporting."""

    vector: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Step(Method):
    """A pre-aggregation step: a linear map of the rows whose coefficients depend on inner products only.

    A step that only asks how far rows are from each other says ``centred = True`` and gets the inner products about
    one of the rows instead of the origin: the distances are the same, without loss of digits for close rows. One that
    only asks how long rows are says ``lengths_only = True`` and gets a diagonal matrix, which is cheaper.

    ``unfit_for_statistics`` says why it makes no sense on normalization statistics, where it does not: it changes
    rows on which all clients agree.
    """

    kind: ClassVar[str] = "defense"
    centred: ClassVar[bool] = False
    lengths_only: ClassVar[bool] = False
    unfit_for_statistics: ClassVar[str] = ""

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

    def refuses(self, n: int, f: int) -> str | None:
        """Why ``n`` clients are refused although they are enough, or ``None``."""
        del n, f
        return None


class Aggregator(Method):
    """A rule ``[n d] -> [d]``; ``needs_reference``: it compares rows with the server's own update.

    ``unfit_for_statistics`` says why it makes no sense on normalization statistics, where it does not: rows that
    everybody agrees on are not what it returns, or it needs what that channel lacks (memory, a reference).
    """

    kind: ClassVar[str] = "defense"
    needs_reference: ClassVar[bool] = False
    unfit_for_statistics: ClassVar[str] = ""

    @abstractmethod
    def aggregate(self, X: Tensor, *, f: int, context: Context) -> Tensor | Aggregated:
        """The aggregate of the finite rows of ``X``, which must not be written to."""

    @abstractmethod
    def min_clients(self, f: int) -> int:
        """The least ``n`` for which the rule is defined with ``f`` Byzantine clients."""

    def refuses(self, n: int, f: int) -> str | None:
        """Why ``n`` clients are refused although they are enough, as for rules of exponential cost, or ``None``."""
        del n, f
        return None


class Propagation(Method):
    """How robustness travels between users through batch-norm statistics.

    It says how much each source counts for a target; the sources' adversarial-branch statistics are then aggregated
    with these weights by a pipeline, the weighted mean unless the scenario names another.
    """

    kind: ClassVar[str] = "defense"

    @abstractmethod
    def weights(self, sources: Tensor, target: Tensor, layers: Sequence[StatisticsSlices]) -> Tensor:
        """Weights ``[A]``, summing to one, from clean-branch statistics: ``sources [A s]`` and ``target [s]``."""

    @property
    def every_round(self) -> bool:
        """Whether statistics are propagated at the start of every round, or only before testing."""
        return True


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
        """What the clients saw since ``begin``: mean ``[n C]``, second moment ``[n C]``, values per channel ``[n]``."""


@dataclass(frozen=True)
class StatisticsSlices:
    """Where one layer's mean and variance lie in a statistics row, both ``[C]``; ``branch`` of a branched layer."""

    name: str
    mean: slice
    variance: slice
    branch: str = ""


@dataclass(frozen=True)
class Reports:
    """What ``n`` clients collected in a round: ``rows [n s]`` and the number of values per channel ``counts [n L]``."""

    rows: Tensor
    counts: Tensor


class StatisticsAggregation(ABC):
    """The server's defense as a norm's merge sees it.

    ``round`` counts from 0; ``refresh``: the merge is for evaluation only and nothing is carried over.
    """

    @property
    def round(self) -> int:
        return 0

    @property
    def refresh(self) -> bool:
        return False

    @abstractmethod
    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """Fix the pre-aggregation on ``basis [n k]``; the result aggregates any ``[n j]`` rows with that mixing.

        ``weights [n]`` take the place of the round's sample weights, for rules that weigh clients at all.
        """


Reducer = Callable[[str, Tensor], Tensor]


class LockstepLayer(StatisticsLayer):
    """A normalization layer whose clients, while ``reducer`` is set, exchange quantities in every forward and backward.

    ``reducer(kind, rows)`` makes of the clients' rows ``[n C]`` what all of them receive, ``[C]``; kinds are those of
    ``Norm.lockstep_kinds``.
    """

    reducer: Reducer | None = None


@dataclass(frozen=True)
class StatisticsPass:
    """How clients collect statistics without training: on how many samples (None: all), in which mode.

    ``repeats``: a pass follows with what the server made of the last one, as often as there are layers, so that every
    layer's statistics are those of inputs normalised with the statistics below it; or until no mean and no standard
    deviation moves by more than ``tolerance`` standard deviations.
    """

    samples: int | None = None
    training: bool = False
    repeats: bool = False
    tolerance: float = 0.0


class BranchedLayer(NormLayer):
    """A normalization layer with named sets of statistics; every forward goes through the chosen ``branch``.

    ``frozen_branch``: training forwards normalise with the branch's statistics and collect nothing.
    """

    branches: ClassVar[tuple[str, ...]] = ("clean", "adversarial")

    branch: str = "clean"
    frozen_branch: bool = False


class Norm(Method):
    """A normalization scheme: its layer, what a client reports, how the server merges reports.

    ``shares_statistics``: clients send statistics to the server. What is in ``private`` never leaves a client, and
    clients that have private parts are evaluated with models of their own.
    """

    kind: ClassVar[str] = "norm"
    shares_statistics: ClassVar[bool] = False
    centralised: ClassVar[bool] = False
    branched: ClassVar[bool] = False
    lockstep_kinds: ClassVar[tuple[str, ...]] = ()

    @property
    def private(self) -> frozenset[Tag]:
        """The tags of the entries each client keeps for itself."""
        return frozenset()

    @property
    def sends_statistics(self) -> bool:
        """Whether the server receives statistics rows and merges them."""
        return self.shares_statistics and not self.private & {Tag.MEAN, Tag.VARIANCE}

    @abstractmethod
    def layer(self, channels: int) -> nn.Module:
        """A layer for inputs ``[b C]`` or ``[b C H W]``."""

    def adapt(self, network: nn.Module) -> None:
        """Change a freshly built network in place, for schemes that are not a matter of one layer."""

    def frozen(self, round: int, rounds: int) -> bool:
        """Whether layers normalise with the server's statistics in training and report nothing."""
        del round, rounds
        return False

    def lockstep(self, round: int, rounds: int) -> bool:
        """Whether all clients take the first local step of the round together, exchanging ``lockstep_kinds``."""
        del round, rounds
        return False

    @property
    def statistics_pass(self) -> StatisticsPass | None:
        """A pass over the clients' data before they train, whose reports take the place of those of training."""
        return None

    @property
    def refreshes(self) -> Literal["none", "participants", "all"]:
        """Whose statistics are collected anew, with the current model, for every evaluation."""
        return "none"

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
class Contrast:
    """What a local step adds to the objective: a term of the representations of its batch by several models.

    ``models`` are rows ``[n d]`` each, whose representations are computed in evaluation mode; ``term(own, *theirs)``
    makes one number per sample ``[b]`` of representations ``[b k]``, of the current models and of those.
    """

    models: tuple[Tensor, ...]
    term: Callable[..., Tensor]


class Gradients(Protocol):
    """The gradients of the clients' next batches."""

    def __call__(self, at: Tensor, contrast: Contrast | None = None, /) -> Tensor:
        """The gradients ``[n d]`` of the mean losses at the models ``at [n d]``; the caller may write to them."""


@dataclass(frozen=True)
class LocalWork:
    """The round of ``n`` clients as an algorithm sees it, with a row for each; the engine supplies the callables.

    ``theta [n d]`` are the models they start from, which must not be written to. ``gradient(at)`` draws everybody's
    next batch; ``again(at)`` gives the gradients of the same batches once more, unseen by normalization statistics.
    ``memory [n d]`` holds what the clients kept of their last round (``Algorithm.remembers``), zeros the first time;
    ``server`` what the server sends beside the model (``Algorithm.server_state``); ``shared [d]`` is False for entries
    the clients keep for themselves (None: all are shared). All take ``steps`` batches.
    """

    theta: Tensor
    lr: float
    steps: int
    gradient: Gradients
    memory: Tensor | None = None
    server: Mapping[str, Tensor] = field(default_factory=dict)
    again: Callable[[Tensor], Tensor] | None = None
    shared: Tensor | None = None


class Algorithm(Method):
    """What a client does with its data between two messages, and the server's step.

    ``one_batch``: the message is made of one gradient at the common model. ``repeats``: it takes a second gradient of
    every batch (``LocalWork.again``). ``aggregates_twice``: ``second_messages`` makes further rows to aggregate.
    """

    kind: ClassVar[str] = "algorithm"
    one_batch: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    aggregates_twice: ClassVar[bool] = False

    @property
    def weighted(self) -> bool:
        """Whether the mean weighs clients by their number of samples."""
        return False

    @property
    def resamples(self) -> bool:
        """Whether every batch is drawn from all of the client's samples, with replacement."""
        return False

    @abstractmethod
    def steps(self, samples: int, batch: int) -> int:
        """The number of local batches of a client with ``samples`` training samples."""

    @abstractmethod
    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        """The clients' messages ``[n d]`` and the memories ``[n d]`` they keep."""

    @property
    def remembers(self) -> bool:
        """Whether clients keep a vector ``[d]`` between rounds, such as a momentum."""
        return False

    @abstractmethod
    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        """The new model ``[d]`` from the aggregated message ``[d]``; also what a client makes of its private parts."""

    def server_state(self, theta: Tensor) -> dict[str, Tensor]:
        """What the server carries from round to round besides the model, at the start; each like ``theta``."""
        del theta
        return {}

    def broadcast(self, theta: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """The model clients receive."""
        del state
        return theta

    def server_step(
        self, theta: Tensor, aggregate: Tensor, lr: float, state: Mapping[str, Tensor], second: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The new model and server state; ``second [d]`` is the aggregate of what ``second_messages`` made."""
        del second
        return self.server(theta, aggregate, lr), dict(state)

    def second_messages(
        self, messages: Tensor, steps: Sequence[int], lr: float, state: Mapping[str, Tensor], clients: int
    ) -> Tensor | None:
        """Further rows ``[n d]`` that the server derives from the received ones and aggregates alike, or None.

        ``steps [n]`` are the clients' local steps, ``clients`` the size of the federation.
        """
        del messages, steps, lr, state, clients
        return None

    @property
    def contrasts(self) -> bool:
        """Whether its steps add to the loss (``Contrast``)."""
        return False

    @property
    def caution(self) -> str:
        """A warning about parameters that make no good sense together, or nothing."""
        return ""


@dataclass(frozen=True)
class Task:
    """What an objective knows beside a batch: the client's role, its training labels, the training attack.

    ``adversarial``: an AT (adversarial training) user. ``prior [c]``: shares of the classes in its training split.
    ``evasion`` crafts the training examples of AT users from ``generator``. ``notes`` last as long as the client's
    round, for what an objective carries from batch to batch.
    """

    round: int
    adversarial: bool
    prior: Tensor
    evasion: Evasion
    generator: torch.Generator
    notes: dict[str, Tensor] = field(default_factory=dict)


class Objective(Method):
    """What a client's gradient of a batch is the gradient of.

    ``replays``: local steps taken on every batch. ``needs_adversaries``, ``needs_branches``: it makes no
    sense without AT users, without a norm with branches.
    ``plain``: it is ``per_sample`` of the model's output, for every client alike but for its ``prior``.
    """

    kind: ClassVar[str] = "objective"
    plain: ClassVar[bool] = False
    needs_adversaries: ClassVar[bool] = False
    needs_branches: ClassVar[bool] = False

    @property
    def replays(self) -> int:
        return 1

    def per_sample(self, logits: Tensor, y: Tensor, prior: Tensor) -> Tensor:
        """The loss of each sample ``[b]``; ``prior [c]`` or ``[b c]``. For objectives that are ``plain``."""
        del prior
        return nn.functional.cross_entropy(logits, y, reduction="none")

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Task) -> Tensor:
        """Add the gradient of the batch's mean loss to the parameters' ``.grad`` and return the loss (detached)."""
        loss = self.per_sample(model(x), y, task.prior).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


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
