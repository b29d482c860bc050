"""Robustness propagated between users: AT users' statistics, forged by Byzantine ones, reach ST users."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from robustfl.attacks.byzantine.forged_statistics import forged_statistics
from robustfl.branches import ADVERSARIAL, CLEAN
from robustfl.contracts import Context, Rehearsal, View
from robustfl.errors import RobustflError
from robustfl.federation.experiment import Experiment
from robustfl.randomness import stream

Memory = dict[str, Mapping[str, Tensor]]


def propagate_statistics(
    experiment: Experiment, statistics: Tensor, round: int, *, memory: Memory | None = None
) -> None:
    """Overwrite the adversarial statistics of the ST users in ``statistics [N s]`` with what is propagated to them.

    ``memory`` holds what the attack keeps by channel; its ``"propagation"`` is read and replaced. Without it the model
    is tested before ``round``: the attack remembers nothing, and acts as in the round before.
    """
    e = experiment
    assert e.propagate is not None
    byzantine = e.settings.byzantine()
    sources = sorted(e.adversarial, key=lambda k: (k in byzantine, k))
    targets = [k for k in range(e.settings.clients) if k not in e.adversarial]
    if not targets:
        return
    rows, theirs = statistics[sources], statistics[targets]
    f = len(byzantine & e.adversarial)
    context = Context(generator=stream(e.settings.seed, "propagation", round, device=e.device), round=round)
    if f and e.attacks_statistics:
        rows = torch.cat([rows[:-f], _forged(e, rows, theirs, f, context, memory)])
    received = _received(e, rows, theirs, context)
    into = e.layout.branch_mask(ADVERSARIAL).nonzero().flatten().to(statistics.device)
    statistics[torch.tensor(targets, device=statistics.device)[:, None], into[None, :]] = received


def _received(e: Experiment, sources: Tensor, targets: Tensor, context: Context) -> Tensor:
    """The adversarial statistics ``[T a]`` that the targets get."""
    assert e.propagate is not None
    return e.propagate(
        sources,
        targets,
        clean=[layer for layer in e.layout.layers if layer.branch == CLEAN],
        adversarial=[layer for layer in e.layout.layers if layer.branch == ADVERSARIAL],
        f=min(e.settings.f_declared, len(sources)),
        context=context,
    )


def _forged(e: Experiment, rows: Tensor, targets: Tensor, f: int, context: Context, memory: Memory | None) -> Tensor:
    """Messages of the last ``f`` sources: their own clean statistics, by which they are judged, and forged others."""
    attack, propagate, round = e.attack, e.propagate, context.round
    assert propagate is not None
    columns = e.layout.branch_mask(ADVERSARIAL).to(rows.device)
    honest, own = rows[:-f, columns], rows[-f:, columns]
    if not len(honest):
        raise RobustflError("every AT user is Byzantine: there is nothing honest to propagate")

    def mean_received(stack: Tensor, context: Context) -> Tensor:
        sent = rows.clone()
        sent[:, columns] = stack
        return _received(e, sent, targets, context).mean(0)

    clean = [layer for layer in e.layout.layers if layer.branch == CLEAN]
    shares = torch.stack([propagate.propagation.weights(rows[:-f], target, clean) for target in targets])
    view = View(
        n=len(rows),
        f=f,
        channel="statistics",
        honest=honest,
        own=own,
        aggregate=Rehearsal.of(mean_received, context, origin=shares.mean(0) @ honest),
        variance=e.layout.variance_mask().to(rows.device)[columns],
        round=max(0, round - 1) if memory is None else round,
        state={} if memory is None else memory.get("propagation", {}),
    ).redacted(attack)
    generator = stream(e.settings.seed, "attack-statistics", round, device=e.device)
    forged = forged_statistics(attack, view, target=e.settings.target, generator=generator)
    if memory is not None:
        memory["propagation"] = forged.state
    sent = rows[-f:].clone()
    sent[:, columns] = forged.rows
    return sent
