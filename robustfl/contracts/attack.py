"""Attacks: on messages in training (Byzantine), and on inputs at test time (evasion)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from robustfl.contracts.defense import Context
from robustfl.contracts.method import Method
from robustfl.errors import closest

Channel = Literal["update", "statistics"]
Knowledge = Literal["blind", "partial", "omniscient", "defense"]


@dataclass(frozen=True)
class View:
    """The Byzantine clients' view of one channel in one round. Fields beyond the declared knowledge are ``None``.

    ``honest [h d]`` rows of the honest clients (omniscient, defense); ``own [f d]`` the rows the attackers would have
    sent honestly (blind, partial, and attacks with ``needs_own``); ``aggregate``, a ``Rehearsal``, maps a full stack
    ``[n d]``, attackers' rows last, to the server's result ``[d]`` (knowledge ``defense`` only); ``variance [d]`` marks
    the entries of the statistics channel that are variances. ``previous [d]`` is the channel's last aggregate, which
    every client can tell from what the server sent (``None`` in the first round); ``state`` is what the attack handed
    back last (``Forged``). ``tensors`` are the names and shapes of the model's tensors that lie in an update one after
    the other (empty where they are unknown, and for statistics).
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
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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

    @classmethod
    def of(
        cls,
        run: Callable[[Tensor, Context], Tensor],
        context: Context,
        *,
        isometric: bool = False,
        origin: Tensor | None = None,
    ) -> Rehearsal:
        """A rehearsal of ``run(rows, context)``, which the server will call with ``context`` as it is now.

        Every call gets a generator in the state that the server's has now, and leaves that one alone.
        """
        generator = context.generator
        if generator is None:
            return cls(lambda rows: run(rows, context), isometric, origin)
        draws, device = generator.get_state(), generator.device

        def aggregate(rows: Tensor) -> Tensor:
            again = torch.Generator(device=device)
            again.set_state(draws)
            return run(rows, replace(context, generator=again))

        return cls(aggregate, isometric, origin)


@dataclass(frozen=True)
class Forged:
    """The rows ``[f d]`` the attackers send, with what the attack wants to be handed next round on this channel."""

    rows: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, made: Tensor | Forged) -> Forged:
        """The result of ``Attack.forge`` in one form."""
        return made if isinstance(made, Forged) else cls(made)


class Attack(Method):
    """A training-time (Byzantine) attack on messages.

    ``forges``: attackers replace their messages; False for data poisoners and for no attack at all, whose clients
    send what they honestly compute. ``poisons_data``: attackers train on ``poison``-ed batches. ``triggers``: a
    backdoor, whose success is the share of ``trigger``-ed test images taken for the class ``target``. ``strength``
    names the parameter that says how hard it attacks (for ``opt``); ``inner`` is the attack that a wrapper wraps.
    ``leaves_statistics``: it forges updates alone, and sends the statistics that it honestly computed.
    ``adapts``: what it does to images depends on the models that attackers receive (``adapt``).
    """

    kind: ClassVar[str] = "attack"
    knowledge: ClassVar[Knowledge] = "omniscient"
    needs_own: ClassVar[bool] = False
    poisons_data: ClassVar[bool] = False
    forges: ClassVar[bool] = True
    triggers: ClassVar[bool] = False
    leaves_statistics: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    strength: ClassVar[str] = ""

    @classmethod
    def _fault(cls) -> str:
        known = get_args(Knowledge)
        return "" if cls.knowledge in known else f"knowledge={cls.knowledge!r}; {closest(str(cls.knowledge), known)}"

    @property
    def inner(self) -> Attack | None:
        return None

    def on(self, round: int) -> bool:
        """True if the attackers attack in this round; False where they send what they honestly compute."""
        return self.inner is None or self.inner.on(round)

    def in_step(self, step: int, previous: Tensor | None) -> Attack:
        """The attack as it poisons data and constrains gradients in a local ``step`` of a round, from 0.

        ``previous [d]`` is how the server moved the model last (``None``: nobody knows). Itself unless steps differ.
        """
        return self

    def adapt(self, model: nn.Module, x: Tensor, y: Tensor, *, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Fit a trigger, or what else the attack needs, to the received ``model`` before a round.

        ``x [b C H W]`` and ``y [b]`` are a batch of each attacker; ``model`` is in evaluation mode and maps pixels to
        logits; ``state`` is what was returned last, empty the first time. Only for attacks with ``adapts``.
        """
        return state if self.inner is None else self.inner.adapt(model, x, y, state=state)

    def adapted(self, state: Mapping[str, Tensor]) -> Attack:
        """The attack with what ``adapt`` returned, as it poisons and tests images; itself unless it ``adapts``."""
        return self

    @property
    def trains(self) -> bool:
        """True if attackers follow the gradient of a ``loss`` of their own in the place of the objective's."""
        return self.inner is not None and self.inner.trains

    def loss(self, z: Tensor, head: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """The attackers' own loss of a batch, a number, of representations ``z [b k]`` and labels ``y [b]``.

        ``head`` is the model's last layer, which makes logits ``[b c]`` of representations. Only if it ``trains``.
        """
        if self.inner is None:
            raise NotImplementedError
        return self.inner.loss(z, head, y)

    @property
    def sees_own(self) -> bool:
        """True if the attackers see what they would have sent honestly: all who see nobody else's rows do."""
        return self.needs_own or self.knowledge in ("blind", "partial")

    @property
    def target(self) -> int | None:
        return None

    @abstractmethod
    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        """The rows the ``f`` attackers send, ``[f d]``, in the dtype and on the device of the rows in the view."""

    def reference_row(self, view: View) -> Tensor | None:
        """The row ``[d]`` that all attackers send, as the paper writes it, to which tests hold ``forge``.

        ``None`` if ``forge`` reads so.
        """
        return None

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        """Numbers worth keeping beside a result, known before training; none unless a leaf has some.

        An entry named like ``strength`` says what the attack takes for it; 0 there means that it sends the honest mean.
        """
        return {}

    def poison(
        self, x: Tensor, y: Tensor, *, classes: int, generator: torch.Generator, attacker: int = 0, round: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The training batch of one attacker after data poisoning; unchanged unless ``poisons_data``.

        ``attacker`` is its place among all Byzantine clients, the same in every round.
        """
        return x, y

    def constrain(self, gradient: Tensor, moved: Tensor, *, round: int = 0) -> Tensor:
        """The gradient ``[d]`` an attacker who trains on poisoned data follows, from that of its loss.

        ``moved [d]`` is how far its local steps have moved it from the model it received.
        """
        return gradient if self.inner is None else self.inner.constrain(gradient, moved, round=round)

    def trigger(self, x: Tensor) -> Tensor:
        """Test images with the whole trigger on them; unchanged unless ``triggers``."""
        return x


class ColumnAttack(Attack):
    """An attack whose every entry depends on the same entries of what it sees, and on no draw.

    Processes that share the columns of messages forge their own; for other attacks one process gathers the messages.
    """

    @abstractmethod
    def columns(self, view: View) -> Tensor:
        """The rows ``[f k]`` that the attackers send, in the ``k`` columns that the view shows."""

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        """All columns of the rows the ``f`` attackers send."""
        return self.columns(view)


class Evasion(Method):
    """A test-time attack on inputs in pixel space [0, 1].

    Attacks that go image by image derive from ``robustfl.attacks.evasion.points.PixelAttack``. ``adversarial`` is False
    for what looks at no model, such as noise.
    """

    kind: ClassVar[str] = "evasion"
    adversarial: ClassVar[bool] = True

    @abstractmethod
    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Adversarial inputs ``x_adv``, same shape as ``x [b C H W]``; ``model`` maps pixels to logits.

        Every module's mode, ``requires_grad`` flags and gradients are as before afterwards, also after an exception:
        ``with robustfl.attacks.evasion.whitebox.frozen(model)`` sees to it. Without a generator draws come from a
        stream of the attack's own, ``robustfl.randomness.stream(0, name)``, so that two calls agree.
        """
