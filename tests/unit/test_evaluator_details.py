"""Numbers of an evaluation recomputed from the models and images they are said to be of."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robustfl import registry
from robustfl.contracts import Evasion, Model
from robustfl.contracts.norm import ADVERSARIAL, CLEAN, through
from robustfl.engine import initial_state, lent, train
from robustfl.errors import UsageError
from robustfl.evaluation import Accuracy
from robustfl.layout import write_statistics
from robustfl.randomness import stream
from robustfl.scenarios import evaluate, run_cell
from robustfl.scenarios.build import Built, build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.evaluate import Evaluator, _deviation, _worst, represented
from robustfl.scenarios.expand import expand, resolve
from robustfl.scenarios.measuring import Selection
from robustfl.scenarios.refusals import refusal
from robustfl.scenarios.spec import Scenario

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


@pytest.mark.parametrize("objective", ["free-at", "fedrob"])
def test_a_clean_branch_that_at_users_do_not_train_stands_nowhere(objective: str) -> None:
    found = metrics(**{**USERS, "objective": objective, "propagation": "none"}, evasions=["fgsm"], branch="both")
    assert not {"branch clean", "branch min"} & set(found.groups)
    assert "AT users" in found.groups


# --- the round chosen on validation data -----------------------------------------------------------------------------

SELECTED = {
    "validation": 0.4, "select": "validation", "evaluate_every": 1, "evasions": ["fgsm(eps=0.05)"], "rounds": 6,
    "schedule": {"kind": "step", "values": [0.2, 30.0], "milestones": [4]},
}  # fmt: skip


def test_of_the_selected_round_attackers_remember_what_they_did_then() -> None:
    told = {**SELECTED, **USERS, "f": 1, "byzantine": "at", "attack": "poisonedfl(scale=3)", "scope": "statistics",
            "target": "both", "propagation": "fedrbn(temperature=1)", "validation": 0.4}  # fmt: skip
    record = run_cell(cell(**told), fingerprint="x")
    chosen = record.certificates["selection"]["round"]
    assert 1 < chosen < 6
    ended = run_cell(cell(**{**told, "rounds": chosen, "select": "last"}), fingerprint="x")
    assert record.metrics.groups["selected"]["sa"] == ended.metrics.sa
    assert record.metrics.groups["selected"]["ra_worst"] == ended.metrics.ra_worst


def test_every_at_user_is_attacked_from_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = cell(**{**USERS, "train_evasion": "pgd(steps=1)"}, validation=0.4)
    built = build(chosen)
    *_, last = train(built.experiment)
    asked: list[Tensor] = []

    def noted(*given: object, generator: torch.Generator, **more: object) -> Accuracy:
        asked.append(generator.get_state())
        return Accuracy(torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64), 0.0)

    monkeypatch.setattr(evaluate, "robust_accuracy", noted)
    Evaluator(chosen, built).on_validation(last.state)
    expected = [stream(chosen.seed, "selection", k).get_state() for k in (0, 1, 2)]
    assert [torch.equal(*pair) for pair in zip(asked, expected, strict=True)] == [True] * 3


def test_of_equal_rounds_the_earliest_is_selected_and_its_model_is_a_copy() -> None:
    built = build(cell(norm="fedbn"))
    selection = Selection(built.experiment, limit=1 << 30)
    states = [record.state for record in train(built.experiment)]
    now = states[-1]
    for round, value in ((1, 0.5), (2, 0.7), (3, 0.7), (4, 0.6)):
        now.theta.fill_(round)
        now.personal.parameters.fill_(round)
        selection.see(replace(now, round=round, statistics=torch.full_like(now.statistics, round)), value)
    assert (selection.round, selection.value) == (2, 0.7)
    with selection.lent(now) as chosen:
        assert chosen.round == 2
        assert all(bool((t == 2).all()) for t in (chosen.theta, chosen.statistics, chosen.personal.parameters))
        assert bool((next(built.experiment.model.parameters()) == 2).all())
    assert bool((now.theta == 4).all())


def test_selection_needs_validation_data_and_evaluations() -> None:
    for lacking in ({"validation": 0.0}, {"evaluate_every": 0}):
        reason = refusal(cell(**{**SELECTED, **lacking}))
        assert "validation > 0 and evaluate_every > 0" in reason
    tiny = run_cell(
        cell(**{**SELECTED, "dataset": "digits(limit=20, test_limit=60)", "validation": 0.01}), fingerprint="x"
    )
    assert tiny.status == "refused"
    assert "keeps a sample for validation" in str(tiny.reason)


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


def test_forgetting_of_listed_rounds_is_that_of_runs_that_end_there_and_disturbs_nothing() -> None:
    settings = {"norm": "naive-bn", "validation": 0.3, "partition": "classes(k=4)", "rounds": 4}
    listed = run_cell(cell(**settings, forgetting=[3, 1]), fingerprint="x")
    assert list(listed.certificates["forgetting"]) == ["1", "3"]
    for rounds in (1, 3):
        ended = run_cell(cell(**{**settings, "rounds": rounds}, forgetting=True), fingerprint="x")
        assert listed.certificates["forgetting"][str(rounds)] == ended.certificates["forgetting"]
    without = run_cell(cell(**settings), fingerprint="x")
    assert listed.metrics == without.metrics
    assert listed.curve == without.curve


def test_forgetting_has_one_key_for_one_meaning_and_its_old_ones() -> None:
    settings = {"validation": 0.3, "rounds": 4}
    assert cell(**settings, forgetting=[4]).forgetting is True
    assert cell(**settings, forgetting=[3, 1, 3]) == cell(**settings, forgetting=[1, 3])
    assert resolve(cell(**settings, forgetting=[1, 3]), "x")["cell"]["forgetting"] == [1, 3]
    assert [resolve(cell(**settings, forgetting=b), "x")["cell"]["forgetting"] for b in (True, False)] == [True, False]
    for wrong in ([], [0], [5], [1.5], [True], "yes", 1):
        with pytest.raises(UsageError, match="list of rounds from 1 to 4"):
            cell(**settings, forgetting=wrong)
    scenario = {"name": "s", "cell": {"rounds": 9, "forgetting": [True, [1, 2]]}}
    assert [c.forgetting for c in expand(Scenario.of(scenario))] == [True, (1, 2)]
    one = expand(Scenario.of({"name": "s", "cell": {"rounds": 9, "forgetting": [1, 2]}}))
    assert [c.forgetting for c in one] == [(1, 2)]
    left = {**scenario, "exclude": [{"forgetting": [[1, 2]]}]}
    assert [c.forgetting for c in expand(Scenario.of(left))] == [True]


def test_limit_of_robust_accuracy_limits_nothing_else() -> None:
    limited, whole = (metrics(evasions=["fgsm(eps=0)"], ra_limit=limit) for limit in (7, None))
    assert limited.sa == whole.sa
    assert limited.ra["fgsm(eps=0)"] != whole.ra["fgsm(eps=0)"]
    assert whole.ra["fgsm(eps=0)"] == whole.sa


# --- users' models on other domains -----------------------------------------------------------------------------------

STYLES = [f"digits-domain(style={style}, limit=120, test_limit=40)" for style in ("clean", "textured")]
CROSSED = {
    "domains": STYLES, "dataset": STYLES[0], "partition": "iid", "clients": 4, "model": "domains-cnn", "norm": "fedbn",
    "algorithm": "fedavg", "evasions": ["fgsm"], "attack": "none", "f": 0,
}  # fmt: skip


BRANCHED = {
    "norm": "dual-bn(local=true)", "objective": "pnc", "at": "ratio(rho=0.5)", "propagation": "fedrbn",
    "train_evasion": "fgsm",
}  # fmt: skip


@contextmanager
def owned(built: Built, state: Any, user: int, branch: str) -> Iterator[torch.nn.Module]:
    """The network as a user has it, seen through a branch."""
    e = built.experiment
    write_statistics(e.model, e.layout, state.personal.statistics[user])
    with lent(state.theta, state.personal.models_of([user], e.privacy, state.theta)[0]), through(e.model, branch):
        yield e.model.eval()


@pytest.mark.parametrize("branch", ["", CLEAN, ADVERSARIAL])
def test_models_of_every_domain_are_tested_on_every_domain(branch: str) -> None:
    chosen = cell(**CROSSED | ({**BRANCHED, "branch": branch} if branch else {}), across=True)
    built = build(chosen)
    *_, last = train(built.experiment)
    evaluator = Evaluator(chosen, built)
    groups = evaluator.metrics(last.state).groups
    tests = [torch.cat(built.tests[:2]), torch.cat(built.tests[2:])]
    with evaluator.as_tested(last.state) as at:
        for d, users in enumerate(((0, 1), (2, 3))):
            means = []
            for t, test in enumerate(tests):
                found = []
                for k in users:
                    with owned(built, at, k, branch):
                        found.append(accuracy(built, test, test=True))
                means.append(sum(found) / 2)
                on = groups[f"models of {chosen.domains[d]} on {chosen.domains[t]}"]
                assert on["sa"] == pytest.approx(means[-1])
                assert on["fgsm"] <= on["sa"]
            assert groups[f"models of {chosen.domains[d]}"]["sa"] == pytest.approx(sum(means) / 2)


def test_representations_are_principal_components_of_what_every_branch_sees() -> None:
    chosen = cell(**CROSSED | BRANCHED, representations=6)
    built = build(chosen)
    *_, last = train(built.experiment)
    evaluator = Evaluator(chosen, built)
    found = evaluator.representations(last.state)
    attack, rows, told = built.evasions[0][1], [], []
    with evaluator.as_tested(last.state) as at:
        for user in (0, 2):  # the first of each domain
            index = built.tests[user][:6]
            x, y = built.test.pixels(index, dtype=torch.float64), built.test.y[index]
            for branch in (CLEAN, ADVERSARIAL):
                with owned(built, at, user, branch) as model:
                    rows += [represented(model, x), represented(model, attack.perturb(model, x, y, generator=None))]
                told += [(user, branch)] * 12
    centred = torch.cat(rows) - torch.cat(rows).mean(0)
    *_, directions = torch.linalg.svd(centred)
    expected, points = centred @ directions[:2].T, torch.tensor(found["points"], dtype=torch.float64)
    assert list(zip(found["clients"], found["branches"], strict=True)) == told
    for axis in range(2):
        sign = float(torch.sign(expected[:, axis] @ points[:, axis]))
        torch.testing.assert_close(points[:, axis], sign * expected[:, axis], rtol=1e-3, atol=1e-4)


def test_representations_are_of_images_attacked_in_evaluation_mode() -> None:
    """Whatever the evasion does about it; training left the model in training mode."""
    chosen = cell(**CROSSED | BRANCHED, representations=6)
    built, modes = build(chosen), []

    class Spy(Evasion):
        def perturb(self, model: torch.nn.Module, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            modes.extend(m.training for m in model.modules())
            return x

    *_, last = train(built.experiment)
    evaluator = Evaluator(chosen, replace(built, evasions=[("spy", Spy())]))
    built.experiment.model.train()
    evaluator.representations(last.state)
    assert modes
    assert not any(modes)


def test_an_evasion_is_named_once() -> None:
    with pytest.raises(UsageError, match=r"evasions names pgd\(eps=0.1\) twice"):
        Cell.of({"evasions": ["pgd(eps=0.1)", "fgsm", "pgd( eps = 0.1 )"]})
    assert len(Cell.of({"evasions": ["pgd(eps=0.1)", "pgd(eps=0.2)"]}).evasions) == 2


def test_common_models_are_tested_everywhere_anyway() -> None:
    reason = refusal(cell(**{**CROSSED, "norm": "gn"}, across=True))
    assert "none of their own" in reason
    with pytest.raises(UsageError, match="across=True belongs to domains"):
        cell(across=True)


class _Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (_Noise(), "the model is randomised: two forwards of the same test images differ; ra_worst is not given"),
        (nn.BatchNorm1d(64, track_running_stats=False), "outputs depend on the other images of a batch"),
    ],
    ids=["noise", "batch statistics"],
)
def test_a_model_that_depends_on_more_than_the_image_is_told(layer: nn.Module, words: str) -> None:
    @registry.register("more-than-the-image")
    @dataclass(frozen=True)
    class MoreThanTheImage(Model):
        def build(self, norm: Any, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), copy.deepcopy(layer), nn.Linear(64, classes))

    resolved = cell(model="more-than-the-image", norm="none", evasions=["fgsm", "mia(steps=1)"])
    built = build(resolved)
    evaluator, state = Evaluator(resolved, built), initial_state(built.experiment)
    before = torch.get_rng_state()
    assert words in " ".join(evaluator.doubts)
    assert torch.equal(torch.get_rng_state(), before), "probes move no generator on"
    found = evaluator.metrics(state)
    assert (found.ra_worst is None) == isinstance(layer, _Noise)
    assert len(found.ra) == 2
