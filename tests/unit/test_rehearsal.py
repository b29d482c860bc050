"""What attackers who know the server try out is what the server then does, on every channel and with its draws."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.contracts import Attack, Context, Knowledge, Reports, View
from robustfl.defenses import Propagate
from robustfl.engine import Experiment, propagate_statistics, statistics_aggregation, train, training
from robustfl.norms.lockstep import KINDS
from robustfl.randomness import stream
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.testing.attacks import view_of

DEEP: dict[str, Any] = {
    "dataset": "digits(limit=400, test_limit=40)", "model": "mlp(hidden=(12, 10, 8))", "norm": "fbn", "clients": 9,
    "f": 2, "rounds": 3, "batch": 8, "dtype": "float64", "evasions": [], "partition": "gamma(gamma=0.3)",
    "target": "both",
}  # fmt: skip


@dataclass(frozen=True)
class Probe(Attack):
    """Sends twice the honest mean, and tells what the server would make of that."""

    seen: ClassVar[list[tuple[View, Tensor]]] = []
    knowledge: ClassVar[Knowledge] = "defense"

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        assert view.aggregate is not None
        sent = 2 * view.honest.mean(0).expand(view.f, -1)
        for rows in (view.honest * 0 + 1, view.honest):  # what was tried before changes nothing
            told = view.aggregate(torch.cat([rows, sent]))
        self.seen.append((view, told))
        return sent.clone()


def probed(**more: Any) -> Experiment:
    torch.set_num_threads(1)
    Probe.seen.clear()
    return dataclasses.replace(build(Cell.of({**DEEP, **more})).experiment, attack=Probe())


def told(channel: str) -> list[Tensor]:
    return [result for view, result in Probe.seen if view.channel == channel]


# --- the server's result, as told before -----------------------------------------------------------------------------

DRAWING = ["bucketing(s=2)+median", "nnm+trimmed-mean", "dnc(b=20)", "mean"]


@pytest.mark.parametrize("rule", [*DRAWING, "centered-clipping(tau=0.1)"])
@pytest.mark.parametrize("clients", [9, 12])
def test_updates_come_out_as_rehearsed(rule: str, clients: int) -> None:
    """Nine clients take part in every round."""
    e = probed(
        defense=rule,
        statistics_defense="median",
        scope="update",
        clients=clients,
        quota=True,
        participation=9 / clients,
    )
    found = [record.state.previous for record in train(e)]
    assert len(told("update")) == 3
    assert all(torch.equal(a, b) for a, b in zip(found, told("update"), strict=True))


@pytest.mark.parametrize("rule", DRAWING)
@pytest.mark.parametrize("norm", ["fbn", "fbn(joint=true)", "naive-bn", "hbn(eval_stats=ema)"])
def test_statistics_come_out_as_rehearsed(rule: str, norm: str) -> None:
    """After a rule on updates that draws from the same generator."""
    algorithm = "dsgd" if norm.startswith("fbn") else "fedavg(local_steps=2)"
    e = probed(defense="bucketing(s=2)+mean", statistics_defense=rule, norm=norm, algorithm=algorithm)
    found = [record.state.statistics.clone() for record in train(e)]
    assert len(told("statistics")) == 3
    assert all(torch.equal(a, b) for a, b in zip(found, told("statistics"), strict=True))


def test_statistics_collected_for_tests_come_out_as_rehearsed() -> None:
    e = probed(defense="bucketing(s=2)+median", norm="hbn", algorithm="fedavg(local_steps=2)", rounds=2)
    *_, last = train(e)
    assert torch.equal(last.tested.statistics, told("statistics")[-1])


@pytest.mark.parametrize("rule", DRAWING)
def test_exchanges_in_lockstep_come_out_as_rehearsed(rule: str) -> None:
    e = probed(norm="fedtan", algorithm="fedavg", defense="mean", statistics_defense=rule, scope="statistics")
    reduce = training._Loop(e, lambda message: None).channel.reducer(list(range(9)), 7, 2, training.initial_state(e))
    rows = torch.rand(9, 4, dtype=torch.float64) + torch.arange(9)[:, None]
    made = [reduce(kind, rows) for kind in KINDS]
    assert len(told("statistics")) == len(KINDS)
    assert all(torch.equal(a, b) for a, b in zip(made, told("statistics"), strict=True))


@pytest.mark.parametrize("rule", ["", "+bucketing(s=2)+median", "+trimmed-mean(weighted=true)"])
def test_what_is_propagated_comes_out_as_rehearsed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of what the receivers get; the defense is told more attackers than there are sources."""
    received: list[tuple[Tensor, int]] = []
    original = Propagate.__call__

    def noted(self: Propagate, *rows: Tensor, f: int, **more: Any) -> Tensor:
        made = original(self, *rows, f=f, **more)
        received.append((made, f))
        return made

    e = probed(
        norm="dual-bn(local=true)", model="mlp(hidden=(6,))", objective="pnc(warmup=0)", at="users(ids=(0,1,2,3,4,5))",
        propagation=f"fedrbn(temperature=1){rule}", algorithm="fedavg(local_steps=2)", train_evasion="pgd(steps=1)",
        byzantine="at", f=1, f_declared=1 if rule else 8, scope="statistics", rounds=1,
    )  # fmt: skip
    *_, last = train(e)
    Probe.seen.clear()
    before = last.state.personal.statistics.clone()  # type: ignore[union-attr]
    monkeypatch.setattr(Propagate, "__call__", noted)
    propagate_statistics(e, last.state.personal.statistics, 1, last.state.attack, tested=True)  # type: ignore[union-attr]
    (rehearsed,) = told("statistics")
    torch.testing.assert_close(received[-1][0].mean(0), rehearsed, rtol=0, atol=0)
    assert {f for _, f in received} == ({1} if rule else {6})
    (view, _) = Probe.seen[0]
    assert (view.n, view.f, view.round) == (6, 1, 0)  # the round that is tested
    _sees_what_is_propagated(e, before, view)


def _sees_what_is_propagated(e: Experiment, statistics: Tensor, view: View) -> None:
    """The attacker's view: adversarial statistics of AT users, and the mean of what ST users get of honest ones."""
    (attacker,), layers = e.byzantine, {layer.branch: layer for layer in e.layout.layers}
    assert len(layers) == 2
    theirs = layers["adversarial"]
    columns = [*range(e.layout.s)[theirs.mean], *range(e.layout.s)[theirs.variance]]
    order = sorted(range(len(columns)), key=columns.__getitem__)
    of_users = statistics[:, sorted(columns)]
    sources = [k for k in range(6) if k != attacker]
    assert torch.equal(view.honest, of_users[sources])
    assert view.own is None  # which this attack does not ask for
    half = len(columns) // 2
    assert view.variance.tolist() == [place >= half for place in order]
    clean = [statistics[:, part] for part in (layers["clean"].mean, layers["clean"].variance)]
    expected = torch.zeros_like(view.honest[0])
    for k in range(6, 9):
        alike = sum(torch.nn.functional.cosine_similarity(part[sources], part[k : k + 1]) for part in clean) / 2
        expected += torch.as_tensor(alike).softmax(0) @ view.honest / 3
    torch.testing.assert_close(view.origin, expected)


# --- by hand ---------------------------------------------------------------------------------------------------------


def _trimmed(values: list[float], f: int) -> float:
    kept = sorted(values)[f : len(values) - f]
    return sum(kept) / len(kept)


def _merged_by_hand(rows: Tensor, counts: list[int], widths: list[int], f: int, beta: float) -> Tensor:
    """FBN's merge under NNM and trimmed mean, entry by entry: layers ``[means, variances]`` one after another."""
    n, new, start = len(rows), [], 0
    for width, total in zip(widths, counts, strict=True):
        part = rows[:, start : start + 2 * width].tolist()
        nearest = []
        for i in range(n):
            far = [(sum((a - b) ** 2 for a, b in zip(part[i], part[j], strict=True)), j) for j in range(n)]
            nearest.append([j for _, j in sorted(far)[: n - f]])

        def rule(values: list[float], nearest: list[list[int]] = nearest) -> float:
            return _trimmed([sum(values[j] for j in near) / len(near) for near in nearest], f)

        means = [rule([part[j][c] for j in range(n)]) for c in range(width)]
        for c in range(width):
            inside = rule([part[j][width + c] for j in range(n)])
            spread = rule([(part[j][c] - means[c]) ** 2 for j in range(n)])
            means.append(inside + total / ((total - 1) * beta) * spread)
        new += means
        start += 2 * width
    return torch.tensor(new, dtype=torch.float64)


def test_rehearsal_is_fbns_merge_layer_by_layer_with_its_deviations() -> None:
    e = probed(defense="mean", statistics_defense="nnm+trimmed-mean", scope="statistics", norm="fbn(momentum=0.2)")
    assert [layer.variance.stop for layer in e.layout.layers] == [24, 44, 60]
    *_, _last = train(e)
    view, _ = Probe.seen[-1]
    assert view.honest is not None
    assert view.aggregate is not None
    honest = view.honest
    away = honest.mean(0) + torch.linspace(-0.5, 0.5, 60, dtype=torch.float64)
    for rows in (2 * honest.mean(0).expand(2, -1), away.expand(2, -1)):
        stack = torch.cat([honest, rows.clamp(min=0) if rows is not away else rows])
        stack[:, view.variance] = stack[:, view.variance].clamp(min=0)
        expected = _merged_by_hand(stack, [72, 72, 72], [12, 10, 8], f=2, beta=0.2)
        torch.testing.assert_close(view.aggregate(stack), expected, rtol=1e-9, atol=1e-12)


def test_distance_is_that_from_the_statistics_of_the_honest_clients_union() -> None:
    """By hand from the rows: the mean of means, and of variances with 7 batches of 8 behind the deviations."""
    e = probed(defense="nnm+trimmed-mean", scope="statistics")
    for _ in train(e):
        pass
    view, _ = Probe.seen[-1]
    for layer in e.layout.layers:
        m, v = view.honest[:, layer.mean], view.honest[:, layer.variance]
        spread = sum((row - m.sum(0) / 7) ** 2 for row in m) / 7
        torch.testing.assert_close(view.origin[layer.mean], m.sum(0) / 7)
        torch.testing.assert_close(view.origin[layer.variance], v.sum(0) / 7 + 56 / 55 / 0.1 * spread)


def test_origin_weighs_clients_as_the_server_does() -> None:
    e = probed(norm="naive-bn", defense="median", algorithm="fedavg", partition="dirichlet(alpha=0.5, min_size=10)")
    for _ in train(e):
        pass
    bad = e.settings.byzantine()
    sizes = torch.tensor([len(e.parts[k]) for k in range(9) if k not in bad], dtype=torch.float64)
    views = [view for view, _ in Probe.seen if view.channel == "statistics"]
    assert len(views) == 3
    for view in views:
        torch.testing.assert_close(view.origin, sizes / sizes.sum() @ view.honest, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(view.origin, view.honest.mean(0))


def test_origin_of_an_exchange_weighs_clients_too() -> None:
    e = probed(norm="fedtan", algorithm="fedavg", partition="dirichlet(alpha=0.5, min_size=10)")
    reduce = training._Loop(e, lambda message: None).channel.reducer(list(range(9)), 7, 2, training.initial_state(e))
    rows = torch.rand(9, 4, dtype=torch.float64) + torch.arange(9)[:, None]
    reduce(KINDS[0], rows)
    ((view, _),) = Probe.seen
    sizes = torch.tensor([len(part) for part in e.parts[:7]], dtype=torch.float64)
    torch.testing.assert_close(view.origin, sizes / sizes.sum() @ rows[:7], rtol=1e-12, atol=1e-14)


def test_origin_is_the_step_of_the_round_and_for_a_test_the_union() -> None:
    """HBN's server takes the first union whole, then moves by λ; what is tested is the union again."""
    e = probed(
        norm="hbn(lam=0.25)", defense="median", algorithm="fedavg(local_steps=2)", partition="iid", clients=8, rounds=2
    )
    for _ in train(e):
        pass
    first, later, tested = (view for view, _ in Probe.seen if view.channel == "statistics")
    means = e.layout.layers[0].mean  # clients have equally many samples
    unions = [view.honest.mean(0)[means] for view in (first, later, tested)]
    torch.testing.assert_close(first.origin[means], unions[0], rtol=1e-9, atol=1e-12)
    moved = 0.75 * later.previous[means] + 0.25 * unions[1]
    torch.testing.assert_close(later.origin[means], moved, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(tested.origin[means], unions[2], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", ["fbn", "fedtan"])
def test_a_rehearsal_trims_as_many_as_the_server_is_told(norm: str) -> None:
    e = probed(defense="trimmed-mean", norm=norm, f=1, f_declared=3, scope="both", algorithm="fedavg(local_steps=1)")
    if norm == "fedtan":
        reduce = training._Loop(e, lambda message: None).channel.reducer(
            list(range(9)), 8, 1, training.initial_state(e)
        )
        rows = torch.rand(9, 4, dtype=torch.float64) + torch.arange(9)[:, None]
        made = reduce(KINDS[0], rows)
        assert torch.equal(made, told("statistics")[0])
        assert torch.allclose(made, torch.cat([rows[:8], 2 * rows[:8].mean(0)[None]]).sort(0).values[3:6].mean(0))
        return
    found = [(record.state.previous, record.state.statistics.clone()) for record in train(e)]
    for (update, statistics), a, b in zip(found, told("update"), told("statistics"), strict=True):
        assert torch.equal(update, a)
        assert torch.equal(statistics, b)


# --- what comes of it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["nnm+trimmed-mean", "nnm+median"])
@pytest.mark.parametrize("attack", ["opt-foe", "opt(foe)"])
def test_search_hides_in_the_layer_where_clients_differ(attack, rule, monkeypatch):
    """Clients agree on the first layer's means, which are long, and differ in the second.

    The server drops liars layer by layer: what gives them away in the first is no reason to spare the second. Judged by
    whole rows nothing but η = 0 would pass.
    """
    settings = {"norm": "naive-bn", "model": "mlp(hidden=(6, 6))", "target": "mean", "scope": "statistics"}
    e = build(Cell.of({**DEEP, **settings, "clients": 10, "f": 3, "attack": attack, "defense": rule})).experiment
    noise = torch.randn(7, 24, generator=stream(0, "reports"), dtype=torch.float64)
    noise -= noise.mean(0)
    first, second = e.layout.layers
    rows = torch.ones(7, 24, dtype=torch.float64)
    rows[:, first.mean] = 1000 + noise[:, first.mean]
    rows[:, second.mean] = 3 + 30 * noise[:, second.mean]
    views: list[View] = []
    original = statistics_aggregation.forged_statistics

    def noted(attack: Attack, view: View, **more: Any) -> Any:
        views.append(view)
        return original(attack, view, **more)

    monkeypatch.setattr(statistics_aggregation, "forged_statistics", noted)
    reports = Reports(rows, torch.full((7, 2), 8))
    merged, _ = training._Loop(e, lambda message: None).channel.merge(
        reports, 7, 3, training.initial_state(e), Context()
    )
    (view,) = views
    assert view.aggregate is not None
    still = view.aggregate(torch.cat([view.honest, view.honest.mean(0).expand(3, -1)]))
    assert float((merged - view.origin).norm()) > 2 * float((still - view.origin).norm())


# --- one view --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blind(Probe):
    """Declares nothing but that it sees nobody."""

    knowledge: ClassVar[Knowledge] = "blind"

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        self.seen.append((view, torch.empty(0)))
        assert view.own is not None
        return torch.zeros_like(view.own)


@dataclass(frozen=True)
class Partly(Blind):
    """Sees its own rows."""

    knowledge: ClassVar[Knowledge] = "partial"


def _fields(view: View) -> set[str]:
    return {name for name in ("honest", "own", "aggregate") if getattr(view, name) is not None}


@pytest.mark.parametrize("target", ["mean", "both"])
@pytest.mark.parametrize("attack", [Blind(), Partly(), Probe()], ids=lambda a: a.knowledge)
def test_attacks_see_in_the_engine_what_the_suite_and_the_public_call_show_them(attack: Attack, target: str) -> None:
    expected = {"blind": {"own"}, "partial": {"own"}, "defense": {"honest", "aggregate"}}[attack.knowledge]
    e = dataclasses.replace(probed(defense="median", target=target, rounds=1), attack=attack)
    for _ in train(e):
        pass
    assert [view.channel for view, _ in Probe.seen] == ["update", "statistics"]
    assert [_fields(view) for view, _ in Probe.seen] == [expected, expected]
    assert _fields(view_of(attack)) == expected
    Probe.seen.clear()
    robustfl.forge(attack, torch.rand(5, 3), f=2, own=torch.rand(2, 3), defense=robustfl.defense("median"))
    assert [_fields(view) for view, _ in Probe.seen] == [expected]
