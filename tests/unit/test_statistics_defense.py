"""The server's rule on statistics where it is not that of the updates: keys, refusals, and what it defends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robustfl.contracts import Aggregator, StatisticsSlices, Step
from robustfl.defenses import parse_pipeline
from robustfl.defenses.propagation import parse_propagation
from robustfl.engine import train, training
from robustfl.errors import UsageError
from robustfl.norms.lockstep import KINDS
from robustfl.randomness import stream
from robustfl.registry import entries
from robustfl.reports.frame import frame
from robustfl.reports.ranking import rank_board
from robustfl.scenarios import RunOptions, Scenario, run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.dry_run import estimate
from robustfl.scenarios.expand import expand, key_of, labels, resolve
from robustfl.scenarios.refusals import refusal

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=300, test_limit=40)", "model": "mlp", "norm": "fbn", "clients": 7, "f": 2, "rounds": 2,
    "batch": 8, "dtype": "float64", "evasions": [], "attack": "sf", "scope": "statistics",
}  # fmt: skip


def cell(**more: Any) -> Cell:
    torch.set_num_threads(1)
    return Cell.of({**SMALL, **more})


# --- what it is called -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["same", " same ", "nnm+median", "nnm + median"])
def test_the_rule_of_updates_spelled_out_is_the_default(written: str) -> None:
    assert cell(defense="nnm+median", statistics_defense=written) == cell(defense="nnm+median")


def test_every_part_of_another_rule_is_in_the_key_with_its_version() -> None:
    own = cell(defense="mean", statistics_defense="nnm+krum(variant=nf)")
    resolved = resolve(own, "x")
    assert resolved["cell"]["statistics_defense"] == "nnm+krum(variant=nf)"
    assert [m["name"] for m in resolved["methods"]["statistics_defense"]] == ["nnm", "krum"]
    assert all(m["version"] >= 1 for m in resolved["methods"]["statistics_defense"])
    keys = {key_of(resolve(cell(defense="mean", statistics_defense=s), "x")) for s in ("same", "median", "nnm+median")}
    assert len(keys) == 3
    assert Cell.of(resolved["cell"]) == own


def test_an_axis_of_rules_holds_no_cell_twice() -> None:
    axes = {"defense": ["mean", "median"], "statistics_defense": ["same", "mean", {"name": "median"}]}
    cells = expand(Scenario.of({"name": "x", "cell": axes}))
    assert [(c.defense, c.statistics_defense) for c in cells] == [
        ("mean", "same"), ("mean", "median"), ("median", "same"), ("median", "mean"),
    ]  # fmt: skip
    left = expand(Scenario.of({"name": "x", "cell": axes, "exclude": [{"statistics_defense": "mean"}]}))
    assert [(c.defense, c.statistics_defense) for c in left] == [("mean", "median"), ("median", "same")]


# --- what is refused -------------------------------------------------------------------------------------------------

AGREED = torch.tensor([40.0, -300.0, 0.01, 900.0, 5.0], dtype=torch.float64).expand(11, -1)


DISAGREEING = {"alignins", "clipped-clustering", "deepsight", "flanders", "fldetector", "lasa", "rlr"}
"""Rules that are unfit for what they do where rows do not agree, or for a state that nobody keeps."""


def _rules() -> list[tuple[str, str]]:
    found = []
    for entry in entries("defense"):
        if issubclass(entry.cls, Aggregator) and not entry.cls.needs_reference:
            found.append((entry.name, entry.cls.unfit_for_statistics))
        elif issubclass(entry.cls, Step):
            found.append((f"{entry.name}+mean", entry.cls.unfit_for_statistics))
    return found


@pytest.mark.parametrize(("spec", "unfit"), _rules())
def test_rules_are_fit_for_statistics_if_they_leave_what_all_agree_on(spec: str, unfit: str) -> None:
    """As the merge calls them: mixing fixed on a basis, nothing remembered."""
    from robustfl.contracts import Context

    context = Context(generator=stream(0, "defense"))
    made = parse_pipeline(spec).mixed(AGREED, f=2, context=context)(AGREED)
    # FLAME adds noise of a thousandth of the rows' length.
    left = torch.allclose(made, AGREED[0], rtol=1e-9, atol=5.0)
    assert left == (not unfit or spec in DISAGREEING)


@pytest.mark.parametrize("rule", ["sign-majority", "clipping+mean", "centered-clipping", "foolsgold"])
def test_unfit_rules_are_refused_with_the_reason(rule: str) -> None:
    name = rule.split("+")[0]
    for chosen in (cell(defense=rule), cell(defense="mean", statistics_defense=rule)):
        reason = refusal(chosen)
        assert f"{name}: " in reason
        assert parse_pipeline(rule).parts[0].unfit_for_statistics in reason
    assert "statistics_defense='median'" in str(refusal(cell(defense=rule)))
    assert refusal(cell(defense=rule, statistics_defense="median")) is None
    assert refusal(cell(defense=rule, norm="gn", scope="update")) is None


def test_what_users_hand_on_is_defended_by_the_rule_of_its_propagation() -> None:
    users = {"norm": "dual-bn(local=true)", "at": "users(ids=(0, 1, 2))", "objective": "pnc", "f": 0, "attack": "none",
             "algorithm": "fedavg"}  # fmt: skip
    assert "name a rule in 'propagation'" in str(
        refusal(cell(**users, propagation="fedrbn", statistics_defense="median"))
    )
    assert refusal(cell(**users, propagation="fedrbn")) is None
    assert "every variance would be one" in str(refusal(cell(**users, propagation="fedrbn+sign-majority")))


def test_a_rule_with_a_reference_goes_with_statistics_under_another_rule() -> None:
    alone = cell(defense="fltrust", server_samples=40)
    assert "sends more; give statistics a rule of their own, such as statistics_defense='median'" in str(refusal(alone))
    # No statistics are sent, which a rule of their own could take.
    scaffold = {"norm": "gn", "algorithm": "scaffold", "scope": "update"}
    assert str(refusal(cell(defense="fltrust", server_samples=40, **scaffold))).endswith("sends more")
    record = run_cell(cell(defense="fltrust", server_samples=40, statistics_defense="median"), fingerprint="x")
    assert (record.status, record.reason) == ("done", None)


def test_dry_run_tells_apart_what_differs_in_the_rule_on_statistics(tmp_path: Any) -> None:
    axes = {**SMALL, "seed": 0, "defense": "mean", "statistics_defense": ["same", "median", "sign-majority"]}
    found = estimate(Scenario.of({"name": "x", "cell": axes}), out=tmp_path, options=RunOptions(jobs=1))
    assert "statistics_defense" in found.axes
    assert [c.state for c in found.cells] == ["to run", "to run", "refused"]


# --- what it does ----------------------------------------------------------------------------------------------------


def test_updates_and_statistics_each_go_through_their_own_rule() -> None:
    """After one round θ hangs on the rule of updates alone, the statistics on their own alone."""

    def after(**more: str) -> tuple[torch.Tensor, torch.Tensor]:
        (record,) = train(build(cell(rounds=1, scope="both", **more)).experiment)
        return record.state.theta.clone(), record.state.statistics

    both, neither = after(defense="trimmed-mean"), after(defense="mean")
    mixed = after(defense="mean", statistics_defense="trimmed-mean")
    swapped = after(defense="trimmed-mean", statistics_defense="mean")
    assert torch.equal(mixed[0], neither[0])
    assert torch.equal(mixed[1], both[1])
    assert torch.equal(swapped[0], both[0])
    assert torch.equal(swapped[1], neither[1])
    assert not torch.equal(both[0], neither[0])
    assert not torch.equal(both[1], neither[1])


def test_exchanges_in_lockstep_go_through_the_rule_on_statistics() -> None:
    e = build(cell(norm="fedtan", algorithm="fedavg", defense="mean", statistics_defense="median", f=0)).experiment
    reduce = training._Loop(e, lambda message: None).channel.reducer(list(range(7)), 7, 0, training.initial_state(e))
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [50.0], [60.0], [70.0]], dtype=torch.float64)
    assert [float(reduce(kind, rows)) for kind in KINDS] == [3.0] * 4


def test_a_rule_on_statistics_alone_drops_no_honest_class() -> None:
    """γ = 0: three of ten clients are Byzantine in name and lie about statistics only; each class is one client's."""
    torch.set_num_threads(1)
    base = {"partition": "gamma(gamma=0)", "norm": "fbn", "clients": 10, "f": 3, "attack": "foe(eta=10)", "batch": 25,
            "scope": "statistics", "rounds": 40, "algorithm": "dsgd(momentum=0.9)", "evasions": []}  # fmt: skip

    def accuracy(defense: str, statistics_defense: str) -> float:
        chosen = Cell.of({**base, "defense": defense, "statistics_defense": statistics_defense})
        metrics = run_cell(chosen, fingerprint="x").metrics
        return 0.0 if metrics is None else metrics.sa

    rule = "nnm+trimmed-mean"
    assert accuracy("mean", rule) > 0.85
    assert 0.5 < accuracy(rule, "same") < 0.78
    assert accuracy("mean", "same") < 0.4


def test_boards_name_the_rule_on_statistics_where_it_varies() -> None:
    records = [
        run_cell(cell(defense="mean", statistics_defense=rule, attack=attack), fingerprint="x")
        for rule in ("same", "median")
        for attack in ("none", "sf")
    ]
    board = rank_board(frame(records))
    at = board.label_names.index("statistics_defense")
    assert {row.labels[at] for row in board.sections[0].rows} == {"same", "median"}
    assert labels(cell())["statistics_defense"] == "same"


def test_a_source_that_is_not_finite_is_missing_and_no_variance_is_negative() -> None:
    """Layers of one mean and one variance, clean ones first."""
    branches = [
        [StatisticsSlices("bn", slice(at, at + 1), slice(at + 1, at + 2), branch)]
        for branch, at in (("clean", 0), ("adversarial", 2))
    ]
    own = torch.tensor([[0.0, 1.0, v, 1.0 + v] for v in (0.0, 1.0, 5.0, 7.0)], dtype=torch.float64)
    liar = torch.tensor([[0.0, 1.0, float("nan"), 9.0]], dtype=torch.float64)
    propagate = parse_propagation("fedrbn(similarity=uniform)+trimmed-mean")
    told = {"clean": branches[0], "adversarial": branches[1]}
    found = propagate(torch.cat([liar, own]), own[:1], f=1, **told)
    assert found.tolist() == [[3.25, 4.25]]  # the mean of the four, of whom nobody is left to trim
    assert torch.equal(found, propagate(own, own[:1], f=0, **told))
    assert propagate(own, own[:1], f=1, **told).tolist() == [[3.0, 4.0]]
    below = torch.tensor([[0.0, 1.0, -3.0, -5.0], [0.0, 1.0, 1.0, 2.0]], dtype=torch.float64)
    plain = parse_propagation("fedrbn(similarity=uniform)")
    assert plain(below, own[:1], **told).tolist() == [[-1.0, 0.0]]  # a mean may be negative, a variance ends at 0
    with pytest.raises(UsageError, match="no AT user has finite statistics"):
        propagate(liar, own[:1], f=1, **told)
