"""What reaches attackers and testers of a round, entry by entry, where a wrong one would hardly show in accuracies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robustfl.contracts import View
from robustfl.defenses import Propagate
from robustfl.federation import RoundRecord, channel, engine, propagate_statistics, train
from robustfl.federation.clients import Clients
from robustfl.federation.statistics import begin
from robustfl.norms.lockstep import KINDS
from robustfl.registry import create
from robustfl.scenarios.build import build
from robustfl.scenarios.spec import Cell


def cell(**more: object) -> Cell:
    torch.set_num_threads(1)
    base = {"dataset": "digits(limit=300, test_limit=40)", "model": "mlp", "norm": "fbn", "clients": 6, "rounds": 3,
            "batch": 8, "dtype": "float64", "evasions": [], "algorithm": "fedavg(local_steps=2)"}  # fmt: skip
    return Cell.of({**base, **more})


@pytest.mark.parametrize("target", ["mean", "var", "both"])
def test_exchanges_of_the_target_are_forged_forward_and_backward(target: str) -> None:
    e = build(cell(norm="fedtan", f=1, attack="foe(eta=5)", target=target, scope="statistics")).experiment
    loop = engine._Loop(e, lambda message: None)
    reduce = loop.channel.reducer([0, 1, 2, 3, 4, 5], 5, 1, engine.initial_state(e))
    rows = torch.rand(6, 4, dtype=torch.float64) + 1
    forged = {kind for kind in KINDS if not torch.allclose(reduce(kind, rows), rows.mean(0))}
    means, variances = set(KINDS[0::2]), set(KINDS[1::2])
    assert forged == {"mean": means, "var": variances, "both": means | variances}[target]


def test_attackers_of_statistics_know_what_the_server_sent_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor | None] = []
    original = channel.forged_statistics

    def noted(attack: Any, view: View, **more: Any) -> Any:
        seen.append(None if view.previous is None else view.previous.clone())
        return original(attack, view, **more)

    monkeypatch.setattr(channel, "forged_statistics", noted)
    after = [r.state.statistics.clone() for r in train(build(cell(f=1, attack="sf")).experiment)]
    assert seen[0] is None
    assert all(torch.equal(had, sent) for had, sent in zip(seen[1:], after, strict=False) if had is not None)
    assert len(seen) == 3
    assert seen[2] is not None


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
    assert last.tested is not None
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


def test_attack_on_updates_alone_leaves_what_is_propagated_honest() -> None:
    """In the first round nothing but propagation could differ between clients who are honest."""
    seen = []
    for attack in ("none", "foe(eta=20)"):
        e, last = last_of(cell(**{**USERS, "rounds": 1}, f=1, attack=attack, scope="update"))
        propagate_statistics(e, last.state.personal.statistics, 1)
        seen.append(last.state.personal.statistics[3:].clone())
    assert torch.equal(*seen)


@pytest.mark.parametrize(("f", "expected"), [(3, 2), (2, 1), (4, 2)])
def test_quota_is_the_share_of_attackers_rounded_halves_upwards(f: int, expected: int) -> None:
    """f·n/N of 5 participants among 10 clients: 1.5, 1 and 2."""
    settings = build(cell(clients=10, participation=0.5, f=f, f_declared=1, quota=True)).experiment.settings
    assert {len(settings.byzantine() & set(settings.sample(t))) for t in range(9)} == {expected}


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_draws_of_batches_and_objectives_are_each_clients_each_rounds_each_steps_own(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
