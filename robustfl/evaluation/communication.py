"""The traffic of a scheme: numbers per round and message, and exchanges per round (FedTAN's Tables 3-5)."""

from __future__ import annotations

from dataclasses import dataclass

from robustfl.contracts import LockstepNorm, Norm, Tag
from robustfl.layout import Layout


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
