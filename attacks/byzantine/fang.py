"""The edge of the honest range, and directed deviation just beyond it against a known rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, ColumnAttack, Knowledge, View
from robustfl.errors import UsageError
from robustfl.kernels import centred_gram, squared_distances
from robustfl.parameters import only_where, param
from robustfl.registry import register

from .sight import alike, centre, honest_rows


def edge(honest: Tensor, side: Tensor) -> Tensor:
    """Every coordinate's largest honest value ``[d]`` where ``side`` is positive, the smallest elsewhere."""
    return honest.amax(0).where(side > 0, honest.amin(0))


@register("edge", version=1)
@dataclass(frozen=True)
class Edge(ColumnAttack):
    """The attackers send every coordinate's largest honest value, so that no coordinate by itself is an outlier.

    ``ḡ + λ (e - ḡ)`` with ``e_j = max_i x_ij`` on side 1 and ``min_i x_ij`` on side -1. Rules that look at one
    coordinate at a time can tell such values from honest ones by no distance; the same side in every round adds up.

    Args:
        side: 1 (default), upwards in all coordinates, or -1.
        share: λ ≥ 0 of the way from the mean to the edge; 1.

    Reference: the simplest of attacks within the honest range, which that of Fang, Cao, Jia, Gong, Local Model
    Poisoning Attacks to Byzantine-Robust Federated Learning, USENIX Security 2020, arXiv:1911.11815, just leaves, and
    against the sign of the honest mean, not to one side. The name is ours.

    >>> import robustfl, torch
    >>> robustfl.forge("edge", torch.tensor([[0.0, 5.0], [2.0, 1.0]]), f=1)
    tensor([[2., 5.]])
    """

    paper: ClassVar[str] = "after @fang2020local"
    cost: ClassVar[str] = "2hd: mean and extremes"
    knowledge: ClassVar[Knowledge] = "omniscient"
    strength: ClassVar[str] = "share"

    side: int = param(1, ge=-1, le=1, doc="1: the largest honest values, -1: the smallest")
    share: float = param(1.0, ge=0.0, lt=math.inf, doc="share of the way from the honest mean to the edge")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side == 0:
            raise UsageError("Edge: side=0 must be -1 or 1")

    def columns(self, view: View) -> Tensor:
        honest = honest_rows(view, self.name)
        return alike(
            centre(honest).lerp(edge(honest, torch.tensor(self.side, device=honest.device)), self.share), view.f
        )


@register("fang", version=1)
@dataclass(frozen=True)
class Fang(Attack):
    """The attackers push every coordinate against the sign ``s = sign ḡ`` of the honest mean, as far as a rule lets.

    Against ``krum`` all send ``-λs`` with ``λ`` halved from the upper bound
    ``λ ≤ min_i Σ_{l nearest n-f-2} ‖x_l - x_i‖ / ((n-2f-1)‖s‖) + max_i ‖x_i‖/‖s‖`` until Krum selects it; ``‖s‖`` is
    the paper's ``√d`` unless entries of the honest mean are 0. Against
    ``trimmed-mean`` and ``median`` every attacker draws each coordinate uniformly just beyond the honest range, on
    the side against ``s``: with ``m = min_i x_ij`` for ``s_j > 0``, from ``[m/b, m]`` if ``m > 0``, else ``[bm, m]``;
    the mirror image above the maximum for ``s_j < 0``.

    Tied to one rule: rules that judge whole rows see an outlier in the second, and averaging shrugs off the first.

    Args:
        against: ``trimmed-mean`` (default), ``median`` (the same attack) or ``krum``.
        b: factor > 1 of the interval; 2 as in the paper.
        threshold: halving gives up below this share of the upper bound, in (0, 1); 1e-5.

    Reference: Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, USENIX Security 2020,
    arXiv:1911.11815 (Sections 4.2 and 4.3, full knowledge). Deviations: messages are updates, so the model received is
    the origin; ``threshold`` is relative; all attackers send the same row against Krum (its ε is 0).

    >>> import robustfl
    >>> sent = robustfl.forge("fang", torch.tensor([[1.0, -1.0], [3.0, -2.0]]), f=1)
    >>> bool(((sent >= torch.tensor([0.5, -1.0])) & (sent <= torch.tensor([1.0, -0.5]))).all())
    True
    """

    paper: ClassVar[str] = "@fang2020local"
    cost: ClassVar[str] = "hd for the mean and the range; against Krum h²d and a Krum on h + f rows per halving of λ"
    knowledge: ClassVar[Knowledge] = "omniscient"

    against: str = param("trimmed-mean", choices=("trimmed-mean", "median", "krum"), doc="the rule it is made for")
    b: float = param(2.0, gt=1.0, lt=math.inf, doc="how far beyond the honest range, as a factor")
    threshold: float = param(1e-5, gt=0.0, lt=1.0, doc="share of the bound on λ where halving gives up")

    def __post_init__(self) -> None:
        super().__post_init__()
        only_where(self, self.against == "krum", "against=krum", "threshold")
        only_where(self, self.against != "krum", "against is trimmed-mean or median", "b")

    def reference_row(self, view: View) -> Tensor | None:
        if self.against != "krum":
            return None
        honest, h = honest_rows(view, self.name), view.n - view.f
        against, apart = honest.mean(0).sign(), torch.cdist(honest, honest)
        near = apart.sort(dim=1).values[:, 1 : max(h - 1, 1)].sum(1).min() / max(h - view.f - 1, 1)
        bound = (near + torch.linalg.vector_norm(honest, dim=1).max()) / against.count_nonzero().sqrt()
        factor: Tensor = bound
        while factor > self.threshold * bound:
            rows = torch.cat([(-factor * against).expand(view.f, -1), honest])
            scores = torch.cdist(rows, rows).square().sort(dim=1).values[:, 1 : max(h - 2, 1) + 1].sum(1)
            if int(scores.argmin()) < view.f:
                break
            factor = factor / 2
        return -factor * against

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        honest = honest_rows(view, self.name)
        against = torch.sign(centre(honest))
        if self.against == "krum":
            return alike(against.mul(-self.factor(honest, view.f)), view.f)
        low, high = honest.amin(0), honest.amax(0)
        edge = torch.where(against > 0, low, high)
        grows = (edge > 0) == (against < 0)  # whether away from the honest rows is away from 0
        far = torch.where(grows, edge * self.b, edge / self.b)
        # float32 draws whatever the rows are: the same shares in every precision
        share = torch.rand((view.f, honest.shape[1]), generator=generator, device=generator.device).to(honest)
        return torch.where(against == 0, torch.zeros_like(edge), torch.lerp(edge.expand_as(share), far, share))

    def factor(self, honest: Tensor, f: int) -> float:
        """The ``λ`` of the attack against Krum, the bound halved until Krum selects the forged row."""
        h = honest.shape[0]
        direction = torch.sign(centre(honest)).double()
        length = float(direction.count_nonzero())
        if length == 0.0:
            return 0.0
        distances = squared_distances(centred_gram(honest).products)  # the last point is the origin
        pairs, square = distances[:h, :h], distances[:h, h]
        along = torch.stack([row.double() @ direction for row in honest]).cpu()
        closest = pairs.sqrt().sort(1).values[:, 1:][:, : max(h - 2, 0)].sum(1).min()
        bound = float(closest / max(h - f - 1, 1) + square.sqrt().max()) / math.sqrt(length)
        factor = bound
        while factor > self.threshold * bound:
            if _selected(pairs, square + 2 * factor * along + factor**2 * length, f):
                break
            factor /= 2
        return factor


def _selected(pairs: Tensor, away: Tensor, f: int) -> bool:
    """True if Krum takes the row that ``f`` attackers send; ``pairs [h h]``, ``away [h]`` are squared distances."""
    h = pairs.shape[0]
    neighbours = max(h - 2, 1)
    forged = torch.cat([away.new_zeros(f - 1), away]).sort().values[:neighbours].sum()
    others = torch.cat([pairs, away[:, None].expand(-1, f)], dim=1)
    honest = others.sort(1).values[:, 1 : neighbours + 1].sum(1).min()  # the first is the row itself
    return bool(forged < honest)
