"""Lazy clients that replay an old message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl import parameters
from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.parameters import param
from robustfl.registry import register

from .sight import own_rows


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
        parameters.check(self)
        parameters.only_where(self, self.source == "own", "source=own", "period")

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        del generator
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
