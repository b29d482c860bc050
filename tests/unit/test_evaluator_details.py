"""Numbers of an evaluation recomputed from the models and images they are said to be of."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from robustfl.branches import ADVERSARIAL, CLEAN, through
from robustfl.evaluation import Accuracy
from robustfl.federation import lent, train
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import Built, build
from robustfl.scenarios.evaluate import Evaluator, _deviation, _worst
from robustfl.scenarios.spec import Cell
from robustfl.vectors import write_statistics

USERS = {
    "norm": "dual-bn(local=true)", "objective": "at", "at": "users(ids=(0, 1, 2))", "train_evasion": "pgd(steps=1)",
}  # fmt: skip


def cell(**more: object) -> Cell:
    torch.set_num_threads(1)
    base = {"dataset": "digits(limit=300, test_limit=60)", "model": "mlp", "norm": "gn", "clients": 5, "rounds": 2,
            "batch": 8, "dtype": "float64", "evasions": [], "algorithm": "fedavg(local_steps=4)"}  # fmt: skip
    return Cell.of({**base, **more})


def metrics(**more: object) -> Any:
    record = run_cell(cell(**more), fingerprint="x")
    assert (record.status, record.reason) == ("done", None)
    return record.metrics


def accuracy(built: Built, index: Tensor, *, test: bool) -> float:
    data = built.test if test else built.experiment.train
    with torch.no_grad():
        logits = built.experiment.model.eval()(data.pixels(index, dtype=torch.float64))
    return float((logits.argmax(1) == data.y[index]).double().mean())


def test_worst_case_is_of_the_inputs_that_resist_every_attack_user_by_user() -> None:
    def user(*hits: int) -> Accuracy:
        return Accuracy(torch.tensor(hits, dtype=torch.bool), torch.zeros(len(hits), dtype=torch.int64), 0.0)

    one, other = [user(1, 1, 0, 0), user(1, 1)], [user(1, 0, 1, 0), user(1, 0)]
    assert _worst([one, other]) == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert _worst([]) is None


def test_spread_is_the_unbiased_deviation_over_users() -> None:
    assert _deviation([0.2, 0.4, 0.9]) == pytest.approx(math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2))
    assert _deviation([0.3]) == 0


def test_clean_branch_beside_the_adversarial_one_and_the_lower_of_both() -> None:
    both, *each = (metrics(**USERS, evasions=["fgsm"], branch=b) for b in ("both", "clean", "adversarial"))
    clean, adversarial = each
    assert clean.sa != adversarial.sa
    assert (both.sa, both.ra) == (adversarial.sa, adversarial.ra)
    assert both.groups["branch clean"] == {"sa": clean.sa, "fgsm": clean.ra["fgsm"]}
    assert both.groups["branch min"]["sa"] == min(clean.sa, adversarial.sa)


@pytest.mark.parametrize("branch", [CLEAN, ADVERSARIAL])
def test_every_user_is_tested_with_its_own_model_through_the_branch(branch: str) -> None:
    chosen = cell(**USERS, branch=branch, validation=0.3)
    built = build(chosen)
    e = built.experiment
    *_, last = train(e)
    found = Evaluator(chosen, built).metrics(last.state)
    personal, everything = last.state.personal, torch.arange(len(built.test))
    for k in range(5):
        write_statistics(e.model, e.layout, personal.statistics[k])
        with lent(last.state.theta, personal.model_of(k, e.privacy, last.state.theta)), through(e.model, branch):
            assert found.per_user["sa"][k] == pytest.approx(accuracy(built, everything, test=True))
            assert found.per_client["sa"][k] == pytest.approx(accuracy(built, built.validation[k], test=False))


def test_tail_and_best_are_of_the_rounds_they_name() -> None:
    record = run_cell(cell(rounds=6, tail=3, evaluate_every=1, schedule={"lr": 1.5}), fingerprint="x")
    curve = [point.sa for point in record.curve]
    assert [point.round for point in record.curve] == [1, 2, 3, 4, 5, 6]
    assert len(set(curve)) > 2
    assert record.metrics is not None
    assert record.metrics.groups["tail"]["sa"] == pytest.approx(sum(curve[3:]) / 3)
    assert record.metrics.groups["best"]["sa"] == max(curve)


def test_smallest_variance_is_that_of_all_rounds_so_far() -> None:
    smallest = 1.0
    e = build(cell(norm="naive-bn(momentum=1)", rounds=5, schedule={"lr": 0.5})).experiment
    rising = False
    for record in train(e):
        now = float(record.state.statistics[e.layout.variance_mask()].min())
        rising |= now > smallest
        smallest = min(smallest, now)
        assert record.facts["smallest_variance"] == smallest
    assert rising


@pytest.mark.parametrize("norm", ["gn", "naive-bn"])
def test_forgetting_is_of_the_received_and_the_local_models(norm: str) -> None:
    chosen = cell(norm=norm, validation=0.3, forgetting=True, partition="classes(k=4)")
    built = build(chosen)
    e = built.experiment
    *_, last = train(e, local=lambda round: round == 2)
    local = last.local
    assert local is not None
    found = Evaluator(chosen, built).forgetting(last.state, local)
    for m in range(5):
        write_statistics(e.model, e.layout, local.statistics[m] if norm == "naive-bn" else local.before)
        with lent(last.state.theta, local.received + local.updates[m]):
            after = [accuracy(built, built.validation[d], test=False) for d in range(5)]
        assert found["after"][m] == pytest.approx(after)
    write_statistics(e.model, e.layout, local.before)
    with lent(last.state.theta, local.received):
        before = [accuracy(built, built.validation[d], test=False) for d in range(5)]
    assert found["matrix"][0] == pytest.approx([b - a for b, a in zip(before, found["after"][0], strict=True)])


def test_limit_of_robust_accuracy_limits_nothing_else() -> None:
    limited, whole = (metrics(evasions=["fgsm(eps=0)"], ra_limit=limit) for limit in (7, None))
    assert limited.sa == whole.sa
    assert limited.ra["fgsm(eps=0)"] != whole.ra["fgsm(eps=0)"]
    assert whole.ra["fgsm(eps=0)"] == whole.sa
