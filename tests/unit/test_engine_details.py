"""What reaches attackers and testers of a round, entry by entry, where a wrong one would hardly show in accuracies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robustfl.contracts import View
from robustfl.defenses import Propagate
from robustfl.distributed import ALONE
from robustfl.engine import RoundRecord, propagate_statistics, propagation, statistics_aggregation, train, training
from robustfl.engine.client_sharding import ClientSharding, MessageStack
from robustfl.engine.clients import Clients
from robustfl.engine.statistics import begin
from robustfl.errors import Diverged
from robustfl.layout import read_statistics, write_statistics
from robustfl.registry import create
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell


def cell(**more: object) -> Cell:
    torch.set_num_threads(1)
    base = {"dataset": "digits(limit=300, test_limit=40)", "model": "mlp", "norm": "fbn", "clients": 6, "rounds": 3,
            "batch": 8, "dtype": "float64", "evasions": [], "algorithm": "fedavg(local_steps=2)"}  # fmt: skip
    return Cell.of({**base, **more})


def test_attackers_of_statistics_know_what_the_server_sent_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor | None] = []
    ages: list[int] = []
    original = statistics_aggregation.forged_statistics

    def noted(attack: Any, view: View, **more: Any) -> Any:
        seen.append(None if view.previous is None else view.previous.clone())
        ages.append(int(view.state.get("age", 0)))
        return original(attack, view, **more)

    monkeypatch.setattr(statistics_aggregation, "forged_statistics", noted)
    after = [r.state.statistics.clone() for r in train(build(cell(f=1, attack="lazy")).experiment)]
    assert ages == [0, 1, 2]  # and what they kept
    assert seen[0] is None
    assert all(torch.equal(had, sent) for had, sent in zip(seen[1:], after, strict=False) if had is not None)
    assert len(seen) == 3
    assert seen[2] is not None


def test_attackers_of_updates_know_the_round_the_last_aggregate_and_what_they_kept(monkeypatch):
    seen: list[tuple[int, Tensor | None, int]] = []
    attack = type(create("attack", "lazy"))
    original = attack.forge

    def noted(self: Any, view: View, **more: Any) -> Any:
        last = None if view.previous is None else view.previous.clone()
        seen.append((view.round, last, int(view.state.get("age", 0))))
        return original(self, view, **more)

    monkeypatch.setattr(attack, "forge", noted)
    e = build(cell(f=1, attack="lazy", norm="gn")).experiment
    models = [e.flat.clone(), *(record.state.theta.clone() for record in train(e))]
    assert [(round, age) for round, _, age in seen] == [(0, 0), (1, 1), (2, 2)]
    assert seen[0][1] is None
    for (_, last, _), before, after in zip(seen[1:], models, models[1:], strict=False):
        torch.testing.assert_close(before + last, after, rtol=0, atol=1e-12)


def test_shift_of_the_statistics_weighs_clients_by_their_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    original = statistics_aggregation.attack_shift

    def noted(rows: Tensor, h: int, weights: Any) -> float:
        seen.append(weights)
        return original(rows, h, weights)

    monkeypatch.setattr(statistics_aggregation, "attack_shift", noted)
    e = build(cell(f=1, attack="sf", partition="dirichlet(alpha=0.3, min_size=10)")).experiment
    next(train(e, measure=lambda round: True))
    order = sorted(range(6), key=lambda k: (k in e.settings.byzantine(), k))
    sizes = torch.tensor([len(e.parts[k]) for k in order], dtype=torch.float64)
    torch.testing.assert_close(seen, [sizes / sizes.sum()])


def test_smallest_variance_is_the_clients_where_they_keep_their_own() -> None:
    e = build(cell(norm="silobn", f=0)).experiment
    smallest = 1.0
    for record in train(e):
        smallest = min(smallest, float(record.state.personal.statistics[:, e.layout.variance_mask()].min()))
        assert record.facts["smallest_variance"] == pytest.approx(smallest, rel=1e-12)
    assert smallest < 1


def test_after_repeated_passes_the_model_holds_the_servers_statistics_again() -> None:
    e = build(cell(norm="hbn(stats_mode=eval)", model="mlp(hidden=(8, 6))")).experiment
    loop, state = training._Loop(e, lambda message: None), training.initial_state(e)
    write_statistics(e.model, e.layout, state.statistics)
    loop.channel.passes(state, list(range(6)), 6, 0, state.theta)
    assert torch.equal(read_statistics(e.model, e.layout, e.flat), state.statistics)


def test_rules_that_remember_clients_are_told_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    e = build(cell(participation=0.5, f=2, attack="sf", defense="foolsgold", norm="gn")).experiment
    rule = type(e.defense.aggregator)
    original = rule.reduce

    def noted(self: Any, *rows: Any, f: int, context: Any) -> Any:
        seen.append(context.clients.tolist())
        return original(self, *rows, f=f, context=context)

    monkeypatch.setattr(rule, "reduce", noted)
    for _ in train(e):
        pass
    bad = e.settings.byzantine()
    assert seen == [sorted(e.settings.sample(t), key=lambda k: (k in bad, k)) for t in range(3)]
    assert seen[0] != list(range(3))


def test_shifts_are_of_weighted_means_without_broken_rows() -> None:
    """Two honest clients, (6, 0) of weight 0.1 and (2, 16/3) of 0.3: their mean (3, 4) has length 5."""
    broken = float("nan")
    rows = torch.tensor([[6.0, 0.0], [2.0, 16 / 3], [8.0, 4.0], [broken, 0.0]], dtype=torch.float64)
    weights = torch.tensor([0.1, 0.3, 0.4, 0.2], dtype=torch.float64)
    stack = MessageStack(rows, 2, 2, ClientSharding(ALONE, range(4), lambda message: None))
    # The one attacker that counts is 5 away and has 0.4 of 0.8.
    assert stack.attack_shift(weights) == pytest.approx(0.5, abs=1e-12)
    assert stack.defense_shift(rows.new_tensor([3.0, 14.0]), weights, 2) == pytest.approx(2.0, abs=1e-12)
    # Equal weights: a mean of (4, 8/3), and one attacker of three who count.
    away, length = torch.tensor([4.0, 4 / 3]).norm(), torch.tensor([4.0, 8 / 3]).norm()
    assert stack.attack_shift(None) == pytest.approx(float(away / 3 / length), abs=1e-6)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_model_that_overflows_diverged_in_its_round_also_in_the_last(rounds: int) -> None:
    """A finite aggregate times the rate is beyond single precision."""
    settings = {"norm": "none", "algorithm": "dsgd(momentum=0)", "attack": "foe(eta=1e30)", "f": 1, "dtype": "float32"}
    with pytest.raises(Diverged, match="the model") as caught:
        last_of(cell(**settings, schedule={"lr": 1e18}, rounds=rounds))
    assert caught.value.round == 1


def test_a_client_that_overflows_diverged_in_its_round() -> None:
    with pytest.raises(Diverged, match="an honest message") as caught:
        last_of(cell(norm="none", algorithm="fedavg(local_steps=4)", dtype="float32", schedule={"lr": 1e18}))
    assert caught.value.round == 1


def test_loss_of_a_round_is_that_of_the_honest_clients() -> None:
    """Flippers of labels compute a loss of their own, flippers of signs none."""
    losses = []
    for attack in ("label-flip", "sf"):
        e = build(cell(norm="gn", f=2, attack=attack, scope="update")).experiment
        losses.append(next(train(e)).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_the_pass_before_training_looks_at_the_model_that_clients_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedACG's server sends one that is ahead of its own."""
    seen: list[Tensor] = []
    original = Clients.statistics

    def noted(self: Clients, ids: Any, round: int, thetas: Tensor, *, refresh: bool = False) -> Any:
        if round == 1 and not refresh:
            seen.append(thetas[0].clone())
        return original(self, ids, round, thetas, refresh=refresh)

    monkeypatch.setattr(Clients, "statistics", noted)
    e = build(cell(norm="hbn", algorithm="fedacg(local_steps=2)")).experiment
    records = train(e)
    state = next(records).state
    received = e.algorithm.broadcast(state.theta, state.server).clone()
    assert not torch.equal(received, state.theta)
    next(records)
    shared = slice(None) if e.privacy.mask is None else e.privacy.mask
    assert all(torch.equal(theta[shared], received[shared]) for theta in seen)
    assert seen


def test_the_server_keeps_a_momentum_of_its_own_beside_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    settings = {"defense": "fltrust", "server_samples": 40, "norm": "gn", "algorithm": "dsgd(momentum=0.9)"}
    e = build(cell(**settings, rounds=2)).experiment
    rule = type(e.defense.aggregator)
    original = rule.reduce if hasattr(rule, "reduce") else rule.aggregate

    def noted(self: Any, *rows: Any, f: int, context: Any) -> Any:
        seen.append(context.reference.clone())
        return original(self, *rows, f=f, context=context)

    monkeypatch.setattr(rule, original.__name__, noted)
    *_, last = train(e)
    assert len(seen) == 2
    assert torch.equal(last.state.root[0], seen[1])  # what DSGD sends is its momentum
    new = (seen[1] - 0.9 * seen[0]) / 0.1
    assert 0.1 < float(new.norm() / seen[0].norm()) * 0.1 < 10  # a gradient, as large as the first


def test_poisoners_know_their_place_and_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, int]] = set()
    attack = type(create("attack", "dba"))
    original = attack.poison

    def noted(self: Any, x: Tensor, y: Tensor, **more: Any) -> Any:
        seen.add((more["attacker"], more["round"]))
        return original(self, x, y, **more)

    monkeypatch.setattr(attack, "poison", noted)
    for _ in train(build(cell(f=2, attack="dba")).experiment):
        pass
    assert seen == {(place, round) for place in range(2) for round in range(3)}


def last_of(chosen: Cell) -> tuple[Any, RoundRecord]:
    e = build(chosen).experiment
    *_, last = train(e)
    return e, last


@pytest.mark.parametrize("who", ["subset", "all"])
@pytest.mark.parametrize("attack", ["none", "sf"])
def test_hbn_is_tested_with_the_union_of_those_who_just_trained(who: str, attack: str) -> None:
    """``subset``: the participants of the last round; an attack on the update alone leaves it honest."""
    settings = {
        "norm": f"hbn(eval_stats={who}, stats_mode=eval)",
        "participation": 0.5,
        "f": 1,
        "attack": attack,
        "scope": "update",
    }
    e, last = last_of(cell(**settings, partition="dirichlet(alpha=0.5, min_size=10)"))
    present = e.settings.sample(2) if who == "subset" else range(6)
    pixels = e.train.pixels(torch.cat([e.parts[k] for k in present]), dtype=torch.float64)
    z = e.model[1][1](e.model[0](pixels).flatten(1)).detach()
    torch.testing.assert_close(last.tested.statistics, torch.cat([z.mean(0), z.var(0)]), rtol=1e-10, atol=1e-10)


USERS = {
    "norm": "dual-bn(local=true)", "objective": "pnc(warmup=0)", "propagation": "fedrbn", "at": "users(ids=(0, 1, 2))",
    "train_evasion": "pgd(steps=1)", "byzantine": "at", "rounds": 2,
}  # fmt: skip


def test_propagation_is_told_the_declared_number_of_attackers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = Propagate.__call__

    def noted(self: Propagate, *rows: Tensor, f: int, **more: Any) -> Tensor:
        seen.append(f)
        return original(self, *rows, f=f, **more)

    monkeypatch.setattr(Propagate, "__call__", noted)
    last_of(cell(**USERS, f=1, f_declared=2, attack="foe"))
    assert seen == [2, 2]


def test_attackers_of_what_is_propagated_know_what_receivers_got_last_and_remember(monkeypatch):
    """Before a test as well, of which nothing is kept: the next round does not know of it."""
    views: list[View] = []
    got: list[Tensor] = []
    original, handed_on = propagation.forged_statistics, Propagate.__call__

    def noted(attack: Any, view: View, **more: Any) -> Any:
        views.append(view)
        return original(attack, view, **more)

    def received(self: Propagate, *rows: Tensor, **more: Any) -> Tensor:
        got.append(handed_on(self, *rows, **more))
        return got[-1]

    monkeypatch.setattr(propagation, "forged_statistics", noted)
    monkeypatch.setattr(Propagate, "__call__", received)
    e = build(cell(**{**USERS, "rounds": 3}, f=1, attack="lazy", scope="statistics")).experiment
    for record in train(e):
        state = record.state
        propagate_statistics(e, state.personal.statistics.clone(), record.round, state.attack, tested=True)
    assert [view.round for view in views] == [0, 0, 1, 1, 2, 2]
    assert [int(view.state.get("age", 0)) for view in views] == [0, 1, 1, 2, 2, 3]
    assert views[0].previous is None
    last = [None, 0, 0, 2, 2, 4]  # of the propagations, those in training
    for view, place in zip(views[1:], last[1:], strict=True):
        assert place is not None
        assert view.previous is not None
        torch.testing.assert_close(view.previous, got[place].mean(0), rtol=0, atol=0)


@pytest.mark.parametrize("when", ["round", "test"])
def test_how_far_attackers_move_what_is_propagated_is_told(when: str) -> None:
    shifts = {}
    told = {**USERS, "propagation": f"fedrbn(when={when})", "evaluate_every": 1, "scope": "statistics", "f": 1}
    for attack in ("foe(eta=20)", "zero"):
        certificates = run_cell(cell(**told, attack=attack), fingerprint="x").certificates
        shifts[attack] = certificates["statistics_shift"]
        assert certificates["attack_shift"] == 0
    assert shifts["foe(eta=20)"] > shifts["zero"] > 0.01
    honest = run_cell(cell(**{**told, "f": 0}), fingerprint="x").certificates
    assert "statistics_shift" not in honest


@pytest.mark.parametrize("target", ["mean", "var", "both"])
def test_what_is_forged_of_propagated_statistics_is_the_target(target: str) -> None:
    """Other entries are the mean of the honest sources, and so is what a plain mean over sources hands on of them."""
    told = {**USERS, "rounds": 1, "propagation": "fedrbn(similarity=uniform)", "f": 1, "scope": "statistics"}
    e, last = last_of(cell(**told, attack="foe(eta=20)", target=target))
    before = last.state.personal.statistics
    handed_on = before.clone()
    propagate_statistics(e, handed_on, 1, last.state.attack, tested=True)
    (layer,) = [layer for layer in e.layout.layers if layer.branch == "adversarial"]
    honest = before[sorted(e.adversarial - e.byzantine)].mean(0)
    assert len(e.adversarial - e.byzantine) == 2
    for part, spared in ((layer.mean, "var"), (layer.variance, "mean")):
        assert torch.allclose(handed_on[3:, part], honest[part].expand(3, -1), atol=1e-9) is (target == spared)


def test_an_attacker_who_is_no_source_forges_nothing_that_is_propagated() -> None:
    e, last = last_of(cell(**{**USERS, "byzantine": "st", "rounds": 1}, f=1, attack="foe(eta=20)", scope="statistics"))
    assert not e.byzantine & e.adversarial
    into, handed_on = e.layout.branch_mask("adversarial"), last.state.personal.statistics.clone()
    propagate_statistics(e, handed_on, 1, last.state.attack, tested=True)
    sources = last.state.personal.statistics[:3, into]
    targets = handed_on[3:, into]
    assert bool((targets >= sources.min(0).values - 1e-9).all())
    assert bool((targets <= sources.max(0).values + 1e-9).all())


@pytest.mark.parametrize(("f", "expected"), [(3, 2), (2, 1), (4, 2)])
def test_quota_is_the_share_of_attackers_rounded_halves_upwards(f: int, expected: int) -> None:
    """f·n/N of 5 participants among 10 clients: 1.5, 1 and 2."""
    settings = build(cell(clients=10, participation=0.5, f=f, f_declared=1, quota=True)).experiment.settings
    assert {len(settings.byzantine() & set(settings.sample(t))) for t in range(9)} == {expected}


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_draws_of_batches_and_objectives_are_each_clients_each_rounds_each_steps_own(engine, monkeypatch):
    drawn: dict[str, list[tuple[int, int, int]]] = {}
    original = Clients._stream

    def noted(self: Clients, name: str, *at: int) -> torch.Generator:
        drawn.setdefault(name, []).append(at)
        return original(self, name, *at)

    monkeypatch.setattr(Clients, "_stream", noted)
    last_of(cell(flip=True, clients=3, rounds=2, f=1, attack="dba", engine=engine))
    assert sorted(drawn["augment"]) == [(k, t, step) for k in range(3) for t in range(2) for step in range(2)]
    assert len(drawn["poison"]) == len(set(drawn["poison"])) == 4
    if engine == "reference":  # side by side, nobody draws for an objective that needs no draws
        assert sorted(drawn["objective"]) == [(k, t, 0) for k in range(3) for t in range(2)]


def test_second_sum_of_scaffold_knows_nothing_of_what_the_rule_remembers_of_the_first() -> None:
    """Centred clipping starts each round's variates from zero, not from the last round's update."""
    seen: list[bool] = []
    e = build(cell(algorithm="scaffold(local_steps=2)", norm="gn", defense="centered-clipping")).experiment
    rule = type(e.defense.aggregator)
    original = rule.reduce if hasattr(rule, "reduce") else rule.aggregate

    def noted(self: Any, *rows: Any, f: int, context: Any) -> Any:
        seen.append(bool(context.state))
        return original(self, *rows, f=f, context=context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, original.__name__, noted)
        for _ in train(e):
            pass
    assert seen == [False, False, True, False, True, False]  # update, variates; update, variates; …


def test_private_entries_move_by_the_clients_own_step() -> None:
    """With everything private, one batch a round is SGD at the scenario's rate."""
    e, last = last_of(cell(norm="singlenet", algorithm="dsgd(momentum=0)", clients=2, rounds=1))
    start = build(cell(norm="singlenet", clients=2)).experiment
    index = Clients(e, lambda message: None)._batches.indices(0, 0)
    begin(start.model.train(), None)
    loss = torch.nn.functional.cross_entropy(start.model(start.train.pixels(index, dtype=torch.float64)),
                                             start.train.y[index])  # fmt: skip
    step = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(start.model.parameters()))])
    torch.testing.assert_close(last.state.personal.parameters[0], start.flat - 0.1 * step, rtol=0, atol=1e-12)
