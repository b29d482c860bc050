"""Attacks whose strength is searched against the server's rule: any attack, ALIE and FOE."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Forged, Knowledge, View
from robustfl.errors import UsageError, closest
from robustfl.parameters import param
from robustfl.registry import register

from .alie import z_max
from .search import KINDS, Found, Scales, Search, SearchedAttack, farthest, scales
from .sight import centre, centre_and_spread, honest_rows
from .wrapping import Wrapper

_DEVIATION = "deviation"


@register("opt", version=2)
@dataclass(frozen=True)
class Opt(Wrapper):
    """Any attack, as strong as moves the server's result farthest from the honest mean: each defense's own worst case.

    ``η = argmax ‖F(H ∪ A(η)) - ḡ‖₂``, where ``A(η)`` are the rows of ``attack`` with ``parameter = η``, or
    ``ḡ + η(A - ḡ)`` for attacks without such a number. The attack as given is a candidate too, so the search never
    makes it weaker. A search within a budget: a narrow peak may be missed. Costs ``evals + 1`` aggregations a round.
    Where several η do equally well, the least.

    Args:
        attack: the attack, any but those that search already; ``alie`` by default.
        parameter: one of its numbers, ``deviation``, or None (default) for the number it calls its strength.
        search: ``scan`` (default), ``linear`` (ByzFL's) or ``golden`` (golden section), as in ``opt-foe``.
        evals: evaluations of the server's rule, ≥ 1; None (default) for 40, for the other two searches 20.
        start: least η, ≥ 0; raised to what ``parameter`` allows.
        delta: first step of the linear search, > 0.
        ratio: shrinking of its step after the first failure, in (0, 1).
        eta_max: bound on η, > 0; lowered to what ``parameter`` allows; inf only for the linear search.

    Reference: Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning, NDSS 2021 (no arXiv version; an attack's factor fitted to a known rule, there along directions
    of its own); Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023,
    arXiv:2302.01772 (the same for ALIE and FOE, with a line search, in its experiments); Kiefer, Sequential Minimax
    Search for a Maximum, Proceedings of the American Mathematical Society 1953 (golden section). ``opt(ipm,
    search=linear, eta_max=inf)`` is ByzFL's Optimal-IPM and ``opt(alie(sign=1), search=linear, eta_max=inf)`` its
    Optimal-ALIE. Deviations: any attack; ``scan`` is ours; η is
    bounded. In a cell the rehearsals draw what the server is about to draw, such as the groups of ``bucketing``: a
    stronger attacker than one who knows the rule alone.

    >>> import robustfl
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[0.0], [2.0], [4.0]])
    >>> robustfl.forge("opt", X, f=1, defense=mean, attack="alie", eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = "@shejwalkar2021manipulating"
    cost: ClassVar[str] = "evals + 1 aggregations and forgings per round"
    knowledge: ClassVar[Knowledge] = "defense"

    attack: str = param("alie", doc="the attack whose strength is searched")
    parameter: str | None = param(None, doc="the number that is searched; None: the attack's strength")
    search: str = param("scan", choices=KINDS, doc="scan, ByzFL's linear search, or golden section")
    evals: int | None = param(None, ge=1, doc="evaluations of the server's rule; None: 40 for scan, 20 for the others")
    start: float = param(0.0, ge=0.0, lt=math.inf, doc="least η")
    delta: float = param(10.0, gt=0.0, lt=math.inf, doc="first step of the linear search")
    ratio: float = param(0.8, gt=0.0, lt=1.0, doc="shrinking of its step after the first failure")
    eta_max: float = param(1e3, gt=0.0, doc="bound on η")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.knowledge == "defense":
            raise UsageError(f"Opt: attack={self.attack!r} searches against the server already")
        self._adopt("poisons_data", "triggers", "leaves_statistics", "adapts")
        object.__setattr__(self, "needs_own", self.inner.sees_own)
        self._searched  # noqa: B018 - an unknown parameter is an error now, not in the first round
        low, high = self._interval
        dataclasses.replace(self._search, eta_max=self.eta_max).check("Opt")
        if low > high:
            raise UsageError(f"Opt: start={self.start:g}, eta_max={self.eta_max:g} leave [{low:g}, {high:g}] to search")

    @cached_property
    def _searched(self) -> str:
        """The name of the searched parameter of the wrapped attack, or ``deviation``."""
        name = self.parameter or self.inner.strength or _DEVIATION
        numbers = [f.name for f in dataclasses.fields(self.inner) if "float" in str(f.type)]  # type: ignore[arg-type]
        if name not in [*numbers, _DEVIATION]:
            raise UsageError(f"Opt: parameter={name!r} is no number of {self.attack!r}; " + closest(name, numbers))
        return name

    @cached_property
    def _interval(self) -> tuple[float, float]:
        """Where to search: from ``start`` to ``eta_max``, as far as the wrapped attack accepts."""
        fields = dataclasses.fields(self.inner)  # type: ignore[arg-type]
        bounds: Mapping[str, float] = next((f.metadata["bounds"] for f in fields if f.name == self._searched), {})
        low = max(self.start, bounds.get("ge", 0.0), math.nextafter(bounds.get("gt", -math.inf), math.inf))
        high = min(self.eta_max, bounds.get("le", math.inf), math.nextafter(bounds.get("lt", math.inf), -math.inf))
        return low, high

    def find(self, view: View, *, generator: torch.Generator) -> tuple[Found, Forged]:
        """The best strength with the distance it reaches (``vector``: the server's result), and what is sent.

        ``eta`` is NaN if the attack as given does best.
        """
        honest = honest_rows(view, self.name)
        if view.aggregate is None:
            raise UsageError(f"attack {self.name!r} optimises against the server; its view needs aggregate")
        aggregate, origin = view.aggregate, centre(honest)
        goal = origin if view.origin is None else view.origin
        rows = self._family(view, origin, generator)
        h = honest.shape[0]
        stack = honest.new_empty((h + view.f, honest.shape[1]))
        stack[:h] = honest

        def result(forged: Forged) -> tuple[float, Tensor]:
            stack[h:] = forged.rows
            vector = aggregate(stack)
            reach = float(torch.linalg.vector_norm(vector - goal, dtype=torch.float64))
            return (reach if math.isfinite(reach) else -math.inf), vector

        eta, reach = self._search.run(lambda at: result(rows(at))[0], self._scales(honest, origin, rows))
        as_given, vector = result(rows(None))
        if as_given > reach:
            return Found(math.nan, as_given, vector), rows(None)
        best = rows(eta)
        return Found(eta, reach, result(best)[1]), best

    @property
    def _search(self) -> Search:
        low, high = self._interval
        return Search(self.search, self.evals, low, self.delta, self.ratio, high)

    def _scales(self, honest: Tensor, origin: Tensor, rows: Callable[[float | None], Forged]) -> Scales:
        """The strength that takes a forged row as far as honest rows are, judged by what one unit does."""
        low, high = self._interval
        unit = min(1.0, (high - low) / 2)
        if self.search != "scan" or not unit > 0:
            return Scales()
        found = scales(honest, origin, (rows(low + unit).rows[0] - rows(low).rows[0]).nan_to_num())
        return Scales(found.spread * unit, found.length * unit)

    def _family(self, view: View, origin: Tensor, generator: torch.Generator) -> Callable[[float | None], Forged]:
        """The rows that the attackers send at a strength, or as given for None; always with the same draws."""
        sight, draws = view.redacted(self.inner), generator.get_state()

        def forged(attack: Attack) -> Forged:
            fresh = torch.Generator(device=generator.device)
            fresh.set_state(draws)
            return Forged.of(attack.forge(sight, generator=fresh))

        if self._searched != _DEVIATION:
            return lambda at: forged(self.inner if at is None else self._at(at))
        given = forged(self.inner)
        away = given.rows - origin
        return lambda at: given if at is None else Forged(torch.add(origin, away, alpha=at), given.state)

    def _at(self, strength: float) -> Attack:
        return dataclasses.replace(self.inner, **{self._searched: strength})  # type: ignore[type-var]

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor | Forged:
        if not self.on(view.round):
            return self.inner.forge(view.redacted(self.inner), generator=generator)
        sent = self.find(view, generator=generator)[1]
        return sent if sent.state else sent.rows


@register("opt-alie", version=2)
@dataclass(frozen=True)
class OptALIE(SearchedAttack):
    """The attackers send ``ḡ - ηs`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (ḡ - ηs)) - ḡ‖₂`` by a search within a budget: a narrow peak may be missed. Costs ``evals``
    aggregations a round. Where several η do equally well, the least. The paper's own ``z_max(n, f)`` is
    the factor of ``alie``.

    Args: those of every ``SearchedAttack``: how ``η`` is searched, and within which bounds.

    Reference: Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS
    2019, arXiv:1902.06156 (the direction); Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model
    Poisoning Attacks and Defenses for Federated Learning, NDSS 2021 (the factor fitted to a known rule); Allouah et
    al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv:2302.01772 (this
    attack, with a line search, in its experiments). ByzFL's Optimal-ALIE goes along ``+s``: with ``search=linear`` and
    ``eta_max=inf`` that is ``opt(alie(sign=1))``. Notes: ``s`` has ddof 1; ``scan`` is ours; η is bounded by
    ``eta_max``; a cell's rehearsals draw what the server is about to draw.

    >>> import robustfl, torch
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[0.0], [2.0], [4.0]])
    >>> robustfl.forge("opt-alie", X, f=1, defense=mean, eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = "@baruch2019little"

    def certificate(self, n: int, f: int) -> Mapping[str, float]:
        return {"z_max": z_max(n, f)}

    def found(self, view: View) -> Found:
        mean, std = centre_and_spread(honest_rows(view, self.name), 1)
        return farthest(view, self.name, mean, -std, self.options)


@register("opt-foe", version=2)
@dataclass(frozen=True)
class OptFOE(SearchedAttack):
    """The attackers send ``ḡ - ηḡ`` with the ``η ≥ 0`` that moves the server's result farthest from ``ḡ``.

    ``η = argmax ‖F(H ∪ f × (1-η)ḡ) - ḡ‖₂`` by a search within a budget: a narrow peak may be missed. Costs ``evals``
    aggregations a round. Where several η do equally well, the least.

    Args: those of every ``SearchedAttack``: how ``η`` is searched, and within which bounds.

    Reference: Xie, Koyejo, Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, UAI
    2019, arXiv:1903.03936 (the direction); Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model
    Poisoning Attacks and Defenses for Federated Learning, NDSS 2021 (the factor fitted to a known rule); Allouah et
    al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv:2302.01772 (this
    attack, with a line search, in its experiments). ByzFL calls it Optimal-IPM: that is ``opt(ipm, search=linear,
    eta_max=inf)`` here, whose rows are ``-τḡ``; ours start at ``ḡ``, ``η = τ + 1``. Notes: ``scan`` is ours; η is
    bounded by ``eta_max``; a cell's rehearsals draw what the server is about to draw.

    >>> import robustfl, torch
    >>> mean, X = robustfl.defense("mean"), torch.tensor([[1.0], [3.0]])
    >>> robustfl.forge("opt-foe", X, f=1, defense=mean, eta_max=5)
    tensor([[-8.]])
    """

    paper: ClassVar[str] = "@xie2019fall"

    def found(self, view: View) -> Found:
        mean = centre(honest_rows(view, self.name))
        return farthest(view, self.name, mean, -mean, self.options)
