"""Robustness propagated between users: AT users' statistics, forged by Byzantine ones, reach ST users."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from robustfl.attacks.byzantine.sight import forged_statistics
from robustfl.contracts import Context, Rehearsal, View
from robustfl.contracts.norm import ADVERSARIAL, CLEAN
from robustfl.engine.client_sharding import attack_shift
from robustfl.engine.experiment import Experiment
from robustfl.errors import RobustflError
from robustfl.randomness import stream
from robustfl.results import received

Memory = dict[str, Mapping[str, Tensor]]


def propagate_statistics(
    experiment: Experiment, statistics: Tensor, round: int, memory: Memory, *, tested: bool = False
) -> float | None:
    """Overwrite the adversarial statistics of the ST users in ``statistics [N s]`` with what is propagated to them.

    ``memory`` holds what the attack keeps of ``"propagation"`` and what its receivers got ``"propagated"`` last. Both
    are replaced, unless the model is only ``tested`` before ``round``: then attackers act as in the round before.
    Returns how far they moved the mean of the sources, relative to its length; ``None`` where nobody forges.
    """
    e = experiment
    assert e.propagate is not None
    byzantine = e.settings.byzantine()
    sources = sorted(e.adversarial, key=lambda k: (k in byzantine, k))
    targets = [k for k in range(e.settings.clients) if k not in e.adversarial]
    if not targets:
        return None
    rows, theirs, moved, known = statistics[sources], statistics[targets], None, None
    f = len(byzantine & e.adversarial)
    context = Context(generator=stream(e.settings.seed, "propagation", round, device=e.device), round=round)
    if f and e.attacks_statistics:
        sent, known, moved = _forged(e, rows, theirs, f, context, memory, max(0, round - 1) if tested else round)
        rows = torch.cat([rows[:-f], sent])
    received = _received(e, rows, theirs, context)
    if known is not None and not tested:
        memory |= {"propagation": known, "propagated": {"mean": received.mean(0)}}
    into = e.layout.branch_mask(ADVERSARIAL).nonzero().flatten().to(statistics.device)
    statistics[torch.tensor(targets, device=statistics.device)[:, None], into[None, :]] = received
    return moved


def _received(e: Experiment, sources: Tensor, targets: Tensor, context: Context) -> Tensor:
    """The adversarial statistics ``[T a]`` that the targets get."""
    assert e.propagate is not None
    return e.propagate(
        sources, targets,
        clean=[layer for layer in e.layout.layers if layer.branch == CLEAN],
        adversarial=[layer for layer in e.layout.layers if layer.branch == ADVERSARIAL],
        f=min(e.settings.f_declared, len(sources)), context=context,
    )  # fmt: skip


def _forged(
    e: Experiment, rows: Tensor, targets: Tensor, f: int, context: Context, memory: Memory, round: int
) -> tuple[Tensor, Mapping[str, Tensor], float]:
    """Messages of the last ``f`` sources: their own clean statistics, by which they are judged, and forged others.

    And what the attack wants to remember, and how far it moved the mean. It acts as in ``round``.
    """
    attack, propagate = e.attack, e.propagate
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
    rule = propagate.propagation
    shares = [received(rule.weights(rows[:-f], t, clean), rows[:-f, 0], rule, "weights()") for t in targets]
    view = View(
        n=len(rows), f=f, channel="statistics", honest=honest, own=own,
        aggregate=Rehearsal.of(mean_received, context, origin=torch.stack(shares).mean(0) @ honest),
        variance=e.layout.variance_mask().to(rows.device)[columns],
        round=round, previous=memory.get("propagated", {}).get("mean"), state=memory.get("propagation", {}),
    ).redacted(attack)  # fmt: skip
    generator = stream(e.settings.seed, "attack-statistics", context.round, device=e.device)
    forged = forged_statistics(attack, view, target=e.settings.target, generator=generator)
    sent = rows[-f:].clone()
    sent[:, columns] = received(forged.rows, own, attack, "forge()", honest)
    moved = attack_shift(torch.cat([honest, sent[:, columns]]), len(honest), None) if attack.on(round) else 0.0
    return sent, forged.state, moved
