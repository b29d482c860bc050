"""The costs of a scheme: its traffic (FedTAN's Tables 3-5), and multiply-accumulates of local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from robustfl.contracts import LockstepNorm, Norm, Tag, Task
from robustfl.engine.experiment import Experiment
from robustfl.engine.statistics import begin
from robustfl.layout import Layout
from robustfl.models.network import ClientDropout
from robustfl.randomness import stream


@dataclass(frozen=True)
class Traffic:
    """One round of one client: ``parameters`` and ``statistics`` go up and down once, ``exchanged`` layer by layer.

    ``exchanges`` counts how often clients and server talk in a round: once, and three times more per layer in
    lock-step (mean, variance, and both gradients together). It is the model's and the norm's traffic: what an algorithm
    (as SCAFFOLD its control variates), a propagation or repeated passes over statistics add is not in it.
    """

    parameters: int
    statistics: int
    exchanged: int
    exchanges: int

    @property
    def each_way(self) -> int:
        """Numbers one client sends, and receives, in the round."""
        return self.parameters + self.statistics + self.exchanged

    def mebibytes(self, clients: int, *, bytes_per_number: int = 4) -> float:
        """Traffic of a round of ``clients`` uploads and one broadcast, the FedTAN paper's convention."""
        return (clients + 1) * self.each_way * bytes_per_number / 2**20


def traffic(norm: Norm, layout: Layout, *, round: int = 0, rounds: int = 1) -> Traffic:
    """The traffic of one client in ``round`` of ``rounds`` with the model of ``layout``.

    Entries a norm keeps private are not sent. Statistics a scheme freezes still count as part of the model, as in the
    FedTAN paper's tables.
    """
    kept = norm.private | {Tag.PRIVATE}
    private = sum(slot.stop - slot.start for slot in layout.update if slot.tag in kept)
    statistics = layout.s if norm.sends_statistics else 0
    exchanged, exchanges = 0, 1
    if isinstance(norm, LockstepNorm) and not norm.frozen(round, rounds):
        forward_only = len(norm.lockstep_kinds) == 2
        exchanged = layout.s if forward_only else 2 * layout.s
        exchanges += (2 if forward_only else 3) * len(layout.layers)
    return Traffic(layout.d - private, statistics, exchanged, exchanges)


class ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, ``macs`` counts the multiply-accumulates of convolutions and matrix products by torch's own formulas.

    torch's own counter counts per module, which cannot go with ``torch.autograd.grad``, and imports a compiler.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # imports triton, which most commands do without

        super().__init__()  # type: ignore[no-untyped-call]
        self.macs, self._formulas = 0.0, flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # or torch imports its compiler to leave this class alone: seconds
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self._formulas.get(func.overloadpacket)
        if formula is not None:
            self.macs += formula(*args, **(kwargs or {}), out_val=out) / 2  # a product and a sum are two operations
        return out


def macs_per_epoch(experiment: Experiment) -> dict[str, float]:
    """Multiply-accumulates of a local epoch, means over the ``AT`` users, the ``ST`` users and all (``mean``).

    Crafting adversarial examples and replaying batches count. Taken after any warm-up, from one batch of one user of
    each role; nothing of the experiment changes.
    """
    e = experiment
    roles = {"AT": sorted(e.adversarial), "ST": [k for k in range(e.settings.clients) if k not in e.adversarial]}
    work = {
        role: _per_sample(e, users[0]) * sum(len(e.parts[k]) for k in users) for role, users in roles.items() if users
    }
    found = {role: total / len(roles[role]) for role, total in work.items()}
    return {**found, "mean": sum(work.values()) / e.settings.clients}


def _per_sample(e: Experiment, user: int) -> float:
    index = e.parts[user][: e.settings.batch]
    dtype = next(e.model.parameters()).dtype
    x, y = e.train.pixels(index, dtype=dtype), e.train.labels(index)
    dropout = any(isinstance(m, ClientDropout) and m.p > 0 for m in e.model.modules())
    generators = (stream(0, "cost", device=e.device),) if dropout else ()
    task = Task(
        round=e.settings.rounds,
        adversarial=user in e.adversarial,
        prior=e.priors[user],
        evasion=e.evasion,
        generator=stream(0, "cost-objective", device=e.device),
    )
    training = e.model.training
    e.model.train()
    begin(e.model, None, generators=generators)
    counter = ProductCounter()
    with torch.enable_grad(), counter:
        e.objective.backward(e.model, x, y, task)
    begin(e.model, None)
    e.model.zero_grad(set_to_none=True)
    e.model.train(training)
    replays = e.objective.replays if user in e.adversarial else 1
    return counter.macs / len(index) * replays
