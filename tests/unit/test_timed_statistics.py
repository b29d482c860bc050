"""Attackers who are off send what they honestly compute, statistics too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import robustfl
from robustfl.attacks.byzantine.forged_statistics import forge_statistics
from robustfl.contracts import View
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=40)", "model": "mlp(hidden=(8,))", "clients": 5, "f": 1, "rounds": 3,
    "batch": 8, "dtype": "float64", "evasions": [], "partition": "dirichlet(alpha=1)", "evaluate_every": 1,
    "algorithm": "fedavg(local_steps=2)",
}  # fmt: skip


def losses(**more: Any) -> list[float]:
    torch.set_num_threads(1)
    record = run_cell(Cell.of({**SMALL, **more}), fingerprint="x")
    assert record.status == "done", record.reason
    return [point.loss for point in record.curve]


@pytest.mark.parametrize("target", ["mean", "var", "both"])
@pytest.mark.parametrize("norm", ["naive-bn", "fbn", "fedtan"])
def test_rounds_without_attack_are_as_if_nobody_attacked(norm: str, target: str) -> None:
    calm, timed = (losses(norm=norm, target=target, attack=a) for a in ("none", "timed(attack=sf, start=2)"))
    assert timed[:2] == pytest.approx(calm[:2], rel=1e-10)
    assert timed[2] != pytest.approx(calm[2], rel=1e-6)


@pytest.mark.parametrize(("start", "rests"), [(3, True), (2, False)])
def test_rounds_in_which_an_attack_rests_move_no_mean(start: int, rests: bool) -> None:
    torch.set_num_threads(1)
    record = run_cell(Cell.of({**SMALL, "norm": "fbn", "attack": f"timed(attack=sf, start={start})"}), fingerprint="x")
    shifts = [record.certificates[name] for name in ("attack_shift", "statistics_shift")]
    assert shifts == [0.0, 0.0] if rests else min(shifts) > 0.01


PROPAGATED: dict[str, Any] = {
    "norm": "dual-bn(local=true)", "objective": "at", "at": "users(ids=[0, 2, 3])", "byzantine": "at", "clients": 6,
    "propagation": "fedrbn(similarity=uniform, when=test)", "train_evasion": "fgsm(eps=0.05)",
}  # fmt: skip


@pytest.mark.parametrize("more", [{"norm": "hbn", "statistics_defense": "mean"}, PROPAGATED], ids=["hbn", "fedrbn"])
def test_tests_meet_the_attackers_of_the_round_that_is_tested(more: dict[str, Any]) -> None:
    def tested(attack: str) -> list[float | None]:
        torch.set_num_threads(1)
        record = run_cell(
            Cell.of({**SMALL, "scope": "statistics", "target": "both", "attack": attack, **more}), fingerprint="x"
        )
        assert record.status == "done", record.reason
        return [point.sa for point in record.curve]

    calm, last, never = (tested(a) for a in ("none", *(f"timed(attack=foe(eta=50), start={t})" for t in (2, 3))))
    assert never == calm
    assert last[:2] == calm[:2]
    assert last[2] != calm[2]


@pytest.mark.parametrize("spec", ["timed(attack=sf, start=1)", "partial(attack='timed(attack=sf, start=1)')"])
def test_entries_outside_the_target_are_the_attackers_own_while_they_are_off(spec: str) -> None:
    honest, own = torch.tensor([[1.0, 4.0], [3.0, 6.0]]), torch.tensor([[7.0, 9.0]])
    sent = []
    for r in (0, 1):
        attack = robustfl.attack(spec)
        view = View(
            n=3, f=1, channel="statistics", honest=honest, own=own, variance=torch.tensor([False, True]), round=r
        ).redacted(attack)  # fmt: skip
        sent.append(forge_statistics(attack, view, target="mean", generator=torch.Generator()))
    assert torch.equal(sent[0], own)
    expected = torch.tensor([[-2.0, 5.0]]) if spec.startswith("timed") else torch.tensor([[-7.0, 9.0]])
    assert torch.equal(sent[1], expected)
