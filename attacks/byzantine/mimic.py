"""Copies of one honest row or of an aggregate: Mimic and lazy clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.errors import UsageError
from robustfl.parameters import only_where, param
from robustfl.registry import register

from .sight import alike, centre, honest_rows, own_rows, unit


@register("mimic", version=1)
@dataclass(frozen=True)
class Mimic(Attack):
    """The attackers all send what one honest client sends, so that it counts ``f + 1`` times.

    ``index``: honest client ``epsilon``. ``variance``: the client farthest along the direction ``z`` in which honest
    clients differ most, found during a warm-up of ``T`` rounds by a power step on running averages,

    ``μ ← (tμ + ḡ)/(t+1),  z ← normalise((t z + normalise(Σ_i ((x_i-μ)·z)(x_i-μ)))/(t+1)),  target = argmax_i x_i·z``,

    and fixed afterwards. No row is an outlier, so no filter helps; without heterogeneity it does nothing.

    Args:
        variant: ``index`` (default) or ``variance``.
        epsilon: which honest client ``index`` copies, in [0, h).
        warm_up: rounds ``T ≥ 1`` in which ``variance`` learns; meanwhile it copies the target found so far.

    Reference: Karimireddy, He, Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
    arXiv:2006.09365 (Section 3.2 and its appendix). Deviations: a target counts the honest rows of a round, so under
    partial participation it is not always the same client; one that a smaller round lacks is chosen anew for that
    round.

    >>> import robustfl
    >>> robustfl.forge("mimic", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), f=2, epsilon=1)
    tensor([[3., 4.],
            [3., 4.]])
    """

    paper: ClassVar[str] = "@karimireddy2022byzantine"
    cost: ClassVar[str] = "fd; the telling variant hd per round and remembers two vectors [d]"
    knowledge: ClassVar[Knowledge] = "omniscient"

    variant: str = param("index", choices=("index", "variance"), doc="copy a given client or the most telling one")
    epsilon: int = param(0, ge=0, doc="the honest client that 'index' copies")
    warm_up: int = param(10, ge=1, doc="rounds in which 'variance' learns its target")

    def __post_init__(self) -> None:
        super().__post_init__()
        only_where(self, self.variant == "index", "variant=index", "epsilon")
        only_where(self, self.variant == "variance", "variant=variance", "warm_up")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        honest = honest_rows(view, self.name)
        if self.variant == "variance":
            return self._most_telling(honest, view, generator)
        if self.epsilon >= honest.shape[0]:
            raise UsageError(f"attack 'mimic': epsilon={self.epsilon} must be < {honest.shape[0]}, the honest clients")
        return alike(honest[self.epsilon].clone(), view.f)

    def _most_telling(self, honest: Tensor, view: View, generator: torch.Generator) -> Forged:
        state = dict(view.state)
        seen = int(state.get("seen", 0))
        if seen < self.warm_up:
            z = state.get("z")
            if z is None:  # float32 draws whatever the rows are: the same direction in every precision
                z = torch.randn(honest.shape[1], generator=generator, device=generator.device).to(honest)
            mean = centre(honest)
            if "mean" in state:
                mean = (seen * state["mean"] + mean) / (seen + 1)
            z = unit((seen * z + _pull(honest, mean, z)) / (seen + 1))
            target = (honest @ z).argmax()
            state = {"z": z, "mean": mean, "seen": torch.tensor(seen + 1), "target": target}
        row = int(state["target"])
        if row >= honest.shape[0]:
            row = int((honest @ state["z"]).argmax())
        return Forged(alike(honest[row].clone(), view.f), state)


def _pull(honest: Tensor, mean: Tensor, z: Tensor) -> Tensor:
    """One power step from ``z`` on the scatter of the rows about ``mean``; rows that do not scatter leave ``z``."""
    centred = honest - mean
    step = (centred @ z) @ centred
    return unit(step) if bool(step.any()) else unit(z)


@register("lazy", version=1)
@dataclass(frozen=True)
class Lazy(Attack):
    """The attackers do not work but send an old message again: their own, ``x_i^t = x_i^s``, or the last aggregate.

    ``own``: what a client honestly computed in the latest round ``s ≤ t`` of which ``period`` is a divisor (counted
    from the first round seen). ``aggregate``: what the server made of the last round, ``x_i^t = F^{t-1}``; no filter
    finds it, and it acts as server momentum. Stale messages hurt little once the model hardly moves.

    Args:
        source: ``own`` (default) or ``aggregate``.
        period: rounds ≥ 1 between two honest messages with ``own``; None (default): the first is sent for ever.

    Reference: Lin, Du, Liu, Free-riders in Federated Learning: Attacks and Defenses, 2019, arXiv:1911.12560 (its
    delta-weights attack is ``aggregate``). Deviations: messages are updates instead of models and no noise hides them;
    under partial participation attackers share what they keep, row by row.

    >>> from robustfl.contracts import View
    >>> now, then = torch.tensor([[2.0]]), {"kept": torch.tensor([[7.0]]), "age": torch.tensor(3)}
    >>> Lazy().forge(View(n=4, f=1, own=now, state=then), generator=torch.Generator()).rows
    tensor([[7.]])
    """

    paper: ClassVar[str] = "@lin2019free"
    cost: ClassVar[str] = "fd; remembers the rows it repeats"
    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True

    source: str = param("own", choices=("own", "aggregate"), doc="which old message is sent again")
    period: int | None = param(None, ge=1, doc="rounds between two honest own messages; None: only the first")

    def __post_init__(self) -> None:
        super().__post_init__()
        only_where(self, self.source == "own", "source=own", "period")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        own = own_rows(view, self.name)
        if self.source == "aggregate":
            return own.clone() if view.previous is None else view.previous.clone().expand(view.f, -1)
        age = int(view.state.get("age", 0))
        if "kept" not in view.state or (self.period is not None and age % self.period == 0):
            kept = own.clone()
        else:
            kept = view.state["kept"]
        rows = kept[torch.arange(view.f, device=kept.device) % kept.shape[0]]
        return Forged(rows, {"kept": kept, "age": torch.tensor(age + 1)})
