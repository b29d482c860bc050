"""What reaches attackers and testers of a round, entry by entry, where a wrong one would hardly show in accuracies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robustfl.contracts import View
from robustfl.defenses import Propagate
from robustfl.federation import RoundRecord, engine, propagate_statistics, train
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
    reduce = loop._reducer([0, 1, 2, 3, 4, 5], 5, 1, engine.initial_state(e))
    rows = torch.rand(6, 4, dtype=torch.float64) + 1
    forged = {kind for kind in KINDS if not torch.allclose(reduce(kind, rows), rows.mean(0))}
    means, variances = set(KINDS[0::2]), set(KINDS[1::2])
    assert forged == {"mean": means, "var": variances, "both": means | variances}[target]


def test_attackers_of_statistics_know_what_the_server_sent_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor | None] = []
    original = engine.forged_statistics

    def noted(attack: Any, view: View, **more: Any) -> Any:
        seen.append(None if view.previous is None else view.previous.clone())
        return original(attack, view, **more)

    monkeypatch.setattr(engine, "forged_statistics", noted)
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
    settings = {"norm": f"hbn(eval_stats={who})", "participation": 0.5, "f": 1, "attack": attack, "scope": "update"}
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
