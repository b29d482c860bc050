"""Training: what clients do between two messages, and what their gradients are gradients of."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from robustfl.contracts.attack import Evasion
from robustfl.contracts.method import Method


@dataclass(frozen=True)
class Contrast:
    """A term that a local step adds to the objective: a term of the representations of its batch by several models.

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
    the clients keep for themselves (None: all are shared). All take ``steps`` batches. ``private(at, C, σ)`` draws the
    next batches too, and gives means of the gradients of their examples, each shortened to the norm ``C``, with
    Gaussian noise of the standard deviation ``σ C / b`` on every entry, for batches of ``b`` examples.
    """

    theta: Tensor
    lr: float
    steps: int
    gradient: Gradients
    memory: Tensor | None = None
    server: Mapping[str, Tensor] = field(default_factory=dict)
    again: Callable[[Tensor], Tensor] | None = None
    shared: Tensor | None = None
    private: Callable[[Tensor, float, float], Tensor] | None = None


@dataclass(frozen=True)
class ServerWork:
    """The server's step as an algorithm sees it; the engine supplies the callable.

    ``theta [d]`` is the model, ``aggregate [d]`` the aggregated message, ``state`` what the server carries
    (``Algorithm.server_state``). ``again(make)`` aggregates further rows ``make(messages, state)``, ``[n d]`` like the
    received messages, by the same rule, to a vector ``[d]``; ``make`` sees those columns of both that are here. ``steps
    [n]`` are the clients' local steps, ``weights [n]`` their shares of the samples where the mean weighs them (on the
    CPU; None: all alike), ``clients`` the size of the federation. ``generator`` is for servers that draw, ``last`` says
    that nobody honest takes part in any later round. ``shared [d]`` is False for entries that clients keep for
    themselves and the server knows nothing of (None: all are shared).
    """

    theta: Tensor
    aggregate: Tensor
    lr: float
    state: Mapping[str, Tensor] = field(default_factory=dict)
    again: Callable[[Callable[[Tensor, Mapping[str, Tensor]], Tensor]], Tensor] | None = None
    steps: Sequence[int] = ()
    clients: int = 0
    generator: torch.Generator | None = None
    last: bool = False
    shared: Tensor | None = None
    weights: Tensor | None = None


Asked = Literal["one_batch", "again", "contrast", "aggregates", "replacement", "draws", "examples"]


class Algorithm(Method):
    """The work of clients between two messages, and the server's step."""

    kind: ClassVar[str] = "algorithm"

    @classmethod
    def _fault(cls) -> str:
        if cls.server_state is Algorithm.server_state or cls.server_step is not Algorithm.server_step:
            return ""
        return "it has a server_state and no server_step(work), which alone can use and change it"

    @property
    def asks(self) -> frozenset[Asked]:
        """The requests beyond gradients of the next batches and one aggregate.

        ``one_batch``: one full batch of every client, at the common model. ``again``: a second gradient of every batch
        (``LocalWork.again``). ``contrast``: terms added to the loss (``Contrast``). ``aggregates``: a second aggregate
        (``ServerWork.again``). ``replacement``: every batch drawn from all of the client's samples, with replacement.
        ``draws``: random numbers of the server (``ServerWork.generator``). ``examples``: gradients of single examples,
        clipped and covered with noise (``LocalWork.private``).
        """
        return frozenset()

    @property
    def weighted(self) -> bool:
        """True if the mean weighs clients by their number of samples."""
        return False

    @property
    def remembers(self) -> bool:
        """True if clients keep a vector ``[d]`` between rounds, such as a momentum."""
        return False

    @abstractmethod
    def steps(self, samples: int, batch: int) -> int:
        """The number of local batches of a client with ``samples`` training samples."""

    def caution(self, steps: int) -> str:
        """A warning about parameters that make no good sense where no client has more than ``steps`` batches."""
        return ""

    @abstractmethod
    def local(self, work: LocalWork) -> tuple[Tensor, Tensor | None]:
        """The clients' messages ``[n d]`` and the memories ``[n d]`` they keep."""

    @abstractmethod
    def server(self, theta: Tensor, aggregate: Tensor, lr: float) -> Tensor:
        """The new model ``[d]`` from the aggregated message ``[d]``; also what a client makes of its private parts."""

    def server_state(self, theta: Tensor) -> dict[str, Tensor]:
        """The state that the server carries besides the model, at the start; each like ``theta``."""
        return {}

    def broadcast(self, theta: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """The model clients receive."""
        return theta

    def server_step(self, work: ServerWork) -> tuple[Tensor, dict[str, Tensor]]:
        """The new model and server state, for algorithms whose server carries something."""
        return self.server(work.theta, work.aggregate, work.lr), dict(work.state)


@dataclass(frozen=True)
class Task:
    """The task of an objective beside a batch: the client's role, its training labels, the training attack.

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
    """A loss: the function whose gradient a client's gradient of a batch is.

    ``replays``: local steps taken on every batch. ``needs_adversaries``, ``needs_branches``: it makes no
    sense without AT users, without a norm with branches. ``asks_evasion``: AT users' examples come from
    ``Task.evasion``. ``trains_clean``: of a norm with branches AT users train the clean one, too. One that
    leaves ``backward`` as it is is ``plain``: ``per_sample`` of the model's output, for every client alike
    but for its ``prior``; such clients compute together. ``recordable``: what it does is the same for all batches of a
    shape, so that a GPU may record and replay it.
    """

    kind: ClassVar[str] = "objective"
    needs_adversaries: ClassVar[bool] = False
    needs_branches: ClassVar[bool] = False
    asks_evasion: ClassVar[bool] = True
    trains_clean: ClassVar[bool] = True
    recordable: ClassVar[bool] = False

    @property
    def plain(self) -> bool:
        return type(self).backward is Objective.backward

    @property
    def replays(self) -> int:
        return 1

    def per_sample(self, logits: Tensor, y: Tensor, prior: Tensor) -> Tensor:
        """The loss of each sample ``[b]``; ``prior [c]`` or ``[b c]``. For objectives that are ``plain``."""
        return nn.functional.cross_entropy(logits, y, reduction="none")

    def backward(self, model: nn.Module, x: Tensor, y: Tensor, task: Task) -> Tensor:
        """Add the gradient of the batch's mean loss to the parameters' ``.grad`` and return the loss (detached)."""
        loss = self.per_sample(model(x), y, task.prior).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
