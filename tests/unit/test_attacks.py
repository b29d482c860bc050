"""Byzantine attacks by hand, on data and on statistics, and what their papers promise."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks import forge_statistics, linear_search, supporters
from robustfl.attacks.byzantine.history import successes
from robustfl.attacks.byzantine.search import Scales, scales
from robustfl.attacks.byzantine.sight import forged_statistics
from robustfl.contracts import Forged, Rehearsal, View
from robustfl.errors import UsageError
from robustfl.randomness import stream

HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]], dtype=torch.float64)  # mean (3, 2), std (2, √12)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_forging_looks_at_honest_rows_by_their_sum_and_closely_only_if_need_be(monkeypatch) -> None:
    looked: list[tuple[int, ...]] = []
    close = torch.isfinite

    def noting(rows: torch.Tensor) -> torch.Tensor:
        looked.append(tuple(rows.shape))
        return close(rows)

    monkeypatch.setattr(torch, "isfinite", noting)
    sent = robustfl.forge("sf", torch.ones(4, 50), f=3)
    assert looked == []  # nothing of the size of the stack is made ...
    assert sent.stride()[0] == 0  # ... and one row stands for all
    huge = torch.full((4, 50), 3e38)  # finite, though its sum is not
    assert bool(close(robustfl.forge("ipm(tau=0)", huge[:1], f=1)).all())
    for value in (math.nan, math.inf, -math.inf):
        broken = HONEST.clone()
        broken[1, 1] = value
        with pytest.raises(UsageError, match="must be finite"):
            robustfl.forge("sf", broken, f=1)
    both = HONEST.clone()
    both[0, 0], both[1, 0] = math.inf, -math.inf
    with pytest.raises(UsageError, match="must be finite"):
        robustfl.forge("sf", both, f=1)


def test_sign_flipping_of_the_own_vectors_needs_no_sight_of_the_others() -> None:
    own = torch.tensor([[1.0, -2.0], [0.0, 4.0]])
    attack = robustfl.attack("sf", mode="own")
    assert (attack.knowledge, attack.needs_own) == ("blind", True)
    assert attack.forge(View(n=5, f=2, own=own), generator=stream(0)).tolist() == [[-1.0, 2.0], [0.0, -4.0]]
    assert robustfl.attack("sf").knowledge == "omniscient"


@pytest.mark.parametrize(("n", "f", "q"), [(10, 3, 3), (10, 0, 6), (11, 2, 4), (50, 24, 2), (10, 9, 1)])
def test_supporters(n: int, f: int, q: int) -> None:
    assert supporters(n, f) == q


def test_a_negative_largest_shift_counts_as_zero_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    told = pytest.warns(UserWarning, match=r"alie leaves the honest mean where it is \(9 honest rows, f = 1\)")
    with caplog.at_level(logging.INFO, logger="robustfl"), told:
        sent = robustfl.forge("alie", column(*range(9)), f=1)
    assert sent.item() == 4.0
    assert "z_max(n=10, f=1)" in caplog.text


def tried(distance, **settings) -> tuple[list[float], tuple[float, float]]:
    proposals: list[float] = []

    def recording(eta: float) -> float:
        proposals.append(eta)
        return distance(eta)

    return proposals, linear_search(recording, **settings)


def test_the_search_doubles_until_it_fails_and_then_shrinks_to_the_right_of_the_best() -> None:
    proposals, (eta, distance) = tried(lambda eta: -abs(eta - 25), evals=7)
    # 10 and 30 are better: steps 10, 20, 40. 70 is not: from 30 by 32, 25.6, 20.48.
    assert proposals == pytest.approx([0, 10, 30, 70, 62, 55.6, 50.48])
    assert (eta, distance) == (30, -5)


def test_a_later_success_moves_the_best_but_never_doubles_the_step_again() -> None:
    proposals, (eta, _) = tried(lambda eta: -abs(eta - 27), evals=8)
    assert proposals == pytest.approx([0, 10, 30, 70, 62, 55.6, 50.48, 46.384])
    assert eta == 30
    proposals, (eta, _) = tried(lambda eta: -abs(eta - 9), start=0.0, delta=16.0, evals=5)
    # 16 is nearer than 0. 48 is not: from 16 by 25.6, 20.48, ...
    assert proposals == pytest.approx([0, 16, 48, 41.6, 36.48])
    proposals, (eta, _) = tried(lambda eta: -abs(eta - 9), delta=20.0, ratio=0.5, evals=5)
    # 20 is farther than 0: 10 is a success, from there by 5 and 2.5.
    assert proposals == pytest.approx([0, 20, 10, 15, 12.5])
    assert eta == 10


def test_the_search_stops_at_its_bound() -> None:
    proposals, found = tried(lambda eta: eta, eta_max=1000)
    assert proposals == [0, 10, 30, 70, 150, 310, 630, 1000]
    assert found == (1000, 1000)
    assert tried(lambda eta: eta, start=50, eta_max=5)[0] == [5]


def test_the_edge_is_the_largest_or_smallest_honest_value_of_each_coordinate() -> None:
    X = torch.tensor([[0.0, 5.0], [2.0, 1.0], [1.0, 3.0]])
    assert robustfl.forge("edge", X, f=2).tolist() == [[2.0, 5.0]] * 2
    assert robustfl.forge("edge", X, f=1, side=-1).tolist() == [[0.0, 1.0]]
    assert robustfl.forge("edge", X, f=1, share=2).tolist() == [[3.0, 7.0]]


@pytest.mark.parametrize("rule", ["trimmed-mean", "multi-krum", "nnm+median", "geometric-median"])
@pytest.mark.parametrize("side", ["up", "down", "signs"])
def test_a_drift_goes_as_far_to_its_side_as_the_rule_lets_a_row_of_its_three_shapes(rule: str, side: str) -> None:
    """Held against a fine grid of strengths of each shape."""
    X, f, server = torch.randn(8, 12, generator=stream(3), dtype=torch.float64), 2, robustfl.defense(rule)
    view = View(n=10, f=f, honest=X, aggregate=lambda stack: server(stack, f=f))
    sent = robustfl.attack("opt-drift", side=side).forge(view, generator=stream(1))
    signs = sent.state.get("signs", torch.full((12,), -1.0 if side == "down" else 1.0, dtype=torch.float64))
    assert set(signs.tolist()) == ({-1.0, 1.0} if side == "signs" else {signs[0].item()})

    def moved(row: torch.Tensor) -> float:
        return float((server(torch.cat([X, row.expand(f, -1)]), f=f) - X.mean(0)) @ signs)

    ends = X.max(0).values.where(signs > 0, X.min(0).values)
    steps = (signs, signs * X.std(0), ends - X.mean(0))
    best = max(moved(X.mean(0) + i / 10 * step) for step in steps for i in range(60))
    assert moved(sent.rows[0]) >= 0.9 * best > 0
    # The next rounds climb from there, whatever is drawn in them; with every=1 they search again.
    view = replace(view, state=sent.state, round=1)
    later = robustfl.attack("opt-drift", side=side).forge(view, generator=stream(2))
    assert moved(later.rows[0]) >= moved(sent.rows[0]) * (1 - 1e-9)
    again = robustfl.attack("opt-drift", side=side, every=1).forge(view, generator=stream(2))
    assert torch.equal(again.rows, sent.rows)


def test_a_drift_follows_the_honest_spread_from_round_to_round() -> None:
    """A server that drops rows farther than three spreads: the attackers stay near that edge, by 6 evaluations."""
    X, state, counted = torch.randn(8, 3, generator=stream(3), dtype=torch.float64), {}, []
    for t in range(9):
        rows = X * 0.8**t - X.mean(0)
        edge = 3 * float((rows - rows.mean(0)).norm()) / math.sqrt(8)

        def server(stack: torch.Tensor, edge: float = edge) -> torch.Tensor:
            counted[-1] += 1
            return stack[(stack - stack[:8].mean(0)).norm(dim=1) <= edge].mean(0)

        counted.append(0)
        view = View(n=9, f=1, honest=rows, aggregate=server, state=state, round=t)
        made = robustfl.attack("opt-drift(every=4)").forge(view, generator=stream(1))
        state = made.state
        assert 0.9 <= float((made.rows[0] - rows.mean(0)).norm()) / edge <= 1
    assert [n > 6 for n in counted] == [t % 4 == 0 for t in range(9)]


def test_a_drift_goes_on_among_rows_too_long_for_a_scale() -> None:
    """Messages of a run that is about to diverge: the length of a step is no float, and no row is a number of steps."""
    X = torch.tensor([[1e30, 2e200], [3e30, 2e200], [2e30, 1e200]], dtype=torch.float64)
    view = View(n=4, f=1, honest=X, aggregate=lambda stack: stack.mean(0))
    assert scales(X, X.mean(0), torch.tensor([1.0, math.inf], dtype=torch.float64)) == Scales(1.0, 1.0)
    assert robustfl.attack("opt-drift").forge(view, generator=stream(1)).rows.shape == (1, 2)


@pytest.mark.parametrize("rule", ["mean", "trimmed-mean", "multi-krum"])
def test_a_drift_to_the_loss_goes_as_far_against_the_honest_mean_as_the_rule_lets_it(rule: str) -> None:
    X, f, server = torch.randn(8, 6, generator=stream(5), dtype=torch.float64) + 0.3, 2, robustfl.defense(rule)
    view = View(n=10, f=f, honest=X, aggregate=lambda stack: server(stack, f=f))
    sent = robustfl.attack("opt-drift", side="loss", eta_max=6).forge(view, generator=stream(1)).rows[0]
    mean, signs = X.mean(0), -X.mean(0).sign()
    ends = X.max(0).values.where(signs > 0, X.min(0).values)

    def loss(row: torch.Tensor) -> float:
        return -float((server(torch.cat([X, row.expand(f, -1)]), f=f) - mean) @ mean)

    steps = (signs, signs * X.std(0), ends - mean, -mean)
    assert loss(sent) >= 0.9 * max(loss(mean + i / 50 * step) for step in steps for i in range(301)) > 0


@pytest.mark.parametrize(
    ("layers", "signs"),
    [
        ("all", "++++++++"), ("hidden", "++++0000"), ("weights", "++000000"), ("last", "0000++++"),
        ("opposed", "+++-----"), ("weights-opposed", "++00----"),
    ],
)  # fmt: skip
def test_a_drift_of_some_layers_leaves_the_others_honest(layers: str, signs: str) -> None:
    """The last weight matrix and what follows it is the last layer; a vector named weight is a norm's scale."""
    X, tensors = (
        torch.randn(5, 8, generator=stream(4)),
        {"0.weight": (1, 2), "0.bias": (1,), "1.weight": (1,), "2.weight": (3, 1), "2.bias": (1,)},
    )
    view = View(n=6, f=1, honest=X, aggregate=lambda stack: stack.mean(0), tensors=tensors)
    moved = robustfl.attack("opt-drift", layers=layers).forge(view, generator=stream(1)).rows[0] - X.mean(0)
    assert "".join("0" if abs(m) < 1e-3 else "+" if m > 0 else "-" for m in moved.tolist()) == signs
    if layers != "all":
        with pytest.raises(UsageError, match="needs the model's tensors"):
            robustfl.attack("opt-drift", layers=layers).forge(replace(view, tensors={}), generator=stream(1))


def test_gaussian_noise_has_its_mean_and_deviation_and_differs_between_attackers() -> None:
    sent = robustfl.forge("gaussian", torch.zeros(3, 20_000), f=2, mu=5, sigma=2)
    assert float(sent.mean()) == pytest.approx(5, abs=0.05)
    assert float(sent.std()) == pytest.approx(2, abs=0.05)
    assert abs(float(torch.corrcoef(sent)[0, 1])) < 0.05


# One channel: a mean and a variance. Averages (3, 2).
HONEST_STATISTICS = torch.tensor([[1.0, 1.0], [5.0, 3.0]], dtype=torch.float64)
VIEW = View(n=4, f=2, channel="statistics", honest=HONEST_STATISTICS, variance=torch.tensor([False, True]))


def sent(spec: str, view: View = VIEW, **target: str) -> list[list[float]]:
    return forge_statistics(robustfl.attack(spec), view, generator=stream(0), **target).tolist()


def test_a_blind_attack_leaves_its_own_values_elsewhere() -> None:
    own = torch.tensor([[7.0, 0.5], [8.0, 0.25]], dtype=torch.float64)
    view = replace(VIEW, honest=None, own=own)
    assert sent("sf(mode=own)", view) == [[-7.0, 0.5], [-8.0, 0.25]]
    assert sent("gaussian(mu=-1, sigma=0)", view, target="both") == [[-1.0, 0.0]] * 2


@pytest.mark.parametrize(("name", "value"), [("inf", math.inf), ("nan", math.nan)])
def test_values_that_are_not_finite_are_sent_as_they_are(name: str, value: float) -> None:
    view = replace(VIEW, honest=None, own=HONEST_STATISTICS)
    assert sent(name, view, target="both") == [pytest.approx([value, value], nan_ok=True)] * 2


def test_a_searched_attack_is_judged_by_rows_that_obey_the_same_rules() -> None:
    seen: list[torch.Tensor] = []

    def server(stack: torch.Tensor) -> torch.Tensor:
        seen.append(stack.clone())
        return stack.mean(0)

    (row, _) = sent("opt-foe(evals=4, search=linear)", replace(VIEW, aggregate=server))
    assert row == [3 - 70 * 3, 2]
    assert all(torch.equal(stack[:2], HONEST_STATISTICS) for stack in seen)
    assert [stack[2:, 1].tolist() for stack in seen] == [[2.0, 2.0]] * 4
    assert [float(stack[2, 0]) for stack in seen] == [3, 3 - 10 * 3, 3 - 30 * 3, 3 - 70 * 3]


def test_unknown_targets_and_unmarked_variances_are_refused() -> None:
    with pytest.raises(UsageError, match="target='variance'"):
        sent("sf", target="variance")
    with pytest.raises(UsageError, match="mark its variances"):
        sent("sf", replace(VIEW, variance=None))
    with pytest.raises(UsageError, match="attackers' own rows"):
        sent("gaussian", replace(VIEW, honest=None))


def test_what_an_attack_remembers_is_handed_back_beside_valid_rows() -> None:
    view = replace(VIEW, honest=None, own=HONEST_STATISTICS)
    first = forged_statistics(robustfl.attack("lazy"), view, target="both", generator=stream(0))
    later = replace(view, own=HONEST_STATISTICS + 1, state=first.state, round=1)
    again = forged_statistics(robustfl.attack("lazy"), later, target="both", generator=stream(0))
    assert torch.equal(again.rows, HONEST_STATISTICS)
    assert int(again.state["age"]) == 2


@pytest.mark.parametrize("attack", ["opt-foe(evals=4)", "opt(foe, evals=4)"])
def test_a_search_measures_from_what_the_server_makes_of_honest_rows(attack: str) -> None:
    """A merge that adds 1000 to the mean: seen from the honest mean every lie would look like a step back."""

    def server(stack: torch.Tensor) -> torch.Tensor:
        return stack[2] + torch.tensor([1000.0, 0.0], dtype=torch.float64)

    told = replace(VIEW, aggregate=Rehearsal(server, origin=torch.tensor([1003.0, 2.0], dtype=torch.float64)))
    assert sent(attack, told)[0][0] < -100


X = torch.linspace(0, 0.5, 10 * 3 * 8 * 8).reshape(10, 3, 8, 8)
Y = torch.arange(10)


def poison(spec: str, **more: int) -> tuple[torch.Tensor, torch.Tensor]:
    return robustfl.attack(spec).poison(X, Y, classes=10, generator=stream(0), **more)


def test_labels_of_one_class_become_another() -> None:
    assert poison("label-flip(source=3, target=7)")[1].tolist() == [0, 1, 2, 7, 4, 5, 6, 7, 8, 9]
    assert poison("label-flip(target=7)")[1].tolist() == [7] * 10
    assert poison("label-flip")[1].tolist() == list(range(9, -1, -1))


def test_random_labels_are_uniform_over_all_classes() -> None:
    y = torch.zeros(20_000, dtype=torch.int64)
    _, drawn = robustfl.attack("dirty-labels").poison(y, y, classes=4, generator=stream(0))
    assert (torch.bincount(drawn, minlength=4) / 5000).tolist() == pytest.approx([1.0] * 4, abs=0.05)
    _, some = robustfl.attack("dirty-labels(fraction=0.4)").poison(y, y, classes=4, generator=stream(0))
    assert float((some != 0).double().mean()) == pytest.approx(0.4 * 3 / 4, abs=0.02)


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 5), (0.3, 3), (0.31, 4), (1.0, 10), (0.01, 1)])
def test_a_share_of_the_batch_is_stamped_and_labelled(fraction: float, count: int) -> None:
    x, y = poison(f"badnets(target=4, fraction={fraction}, size=2, margin=1)")
    changed = (x != X).flatten(1).any(1)
    assert int(changed.sum()) == count
    assert y[changed].tolist() == [4] * count
    assert torch.equal(y[~changed], Y[~changed])
    square = torch.zeros(8, 8, dtype=torch.bool)
    square[5:7, 5:7] = True
    assert torch.equal((x != X)[changed].all(0).all(0), square)
    assert bool((x[changed][:, :, square] == 1).all())


def test_attackers_stamp_different_bars_that_together_are_the_trigger() -> None:
    attack = robustfl.attack("dba(fraction=1, target=1)")
    bars = [attack.poison(X, Y, classes=10, generator=stream(0), attacker=i)[0] != X for i in range(5)]
    assert torch.equal(bars[0], bars[4])
    assert [int(bar[0, 0].sum()) for bar in bars] == [3] * 5
    assert torch.equal(sum(bar.int() for bar in bars[:4]), (attack.trigger(X) != X).int())


def test_the_bars_stand_where_the_parameters_say() -> None:
    drawn = robustfl.attack("dba(length=2, gap=1)").trigger(torch.zeros(1, 1, 4, 6))[0, 0]
    assert drawn.tolist() == [[1, 1, 0, 1, 1, 0], [0] * 6, [1, 1, 0, 1, 1, 0], [0] * 6]


OWN = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.5, 0.0]])


def data_sent(spec: str, **view: object) -> list[list[float]]:
    return robustfl.attack(spec).forge(View(n=6, f=2, own=OWN, **view), generator=stream(0)).tolist()


def test_a_norm_bound_shortens_only_rows_that_are_longer() -> None:
    assert data_sent("model-replacement(scale=2, bound=5)") == [[3, 4, 0], [0, 1, 0]]


def test_neurotoxin_leaves_out_what_the_server_moved_most() -> None:
    last = torch.tensor([0.1, -5.0, 3.0])
    assert data_sent("neurotoxin(ratio=0.3)", previous=last) == [[3, 0, 0], [0, 0, 0]]
    assert data_sent("neurotoxin(ratio=0.6, scale=2)", previous=last) == [[6, 0, 0], [0, 0, 0]]
    assert data_sent("neurotoxin(scale=2)") == [[6, 8, 0], [0, 1, 0]]  # the first round


@pytest.mark.parametrize("name", ["model-replacement", "neurotoxin"])
def test_backdoors_leave_statistics_as_they_are(name: str) -> None:
    assert data_sent(name, channel="statistics", previous=torch.ones(3)) == OWN.tolist()


def test_constrain_and_scale_mixes_the_gradient_with_the_way_from_the_received_model() -> None:
    gradient, moved = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 8.0])
    assert robustfl.attack("model-replacement").constrain(gradient, moved).tolist() == [4, 0]
    constrained = robustfl.attack("model-replacement", alpha=0.25)
    assert constrained.constrain(gradient, moved).tolist() == [1, 6]
    assert robustfl.attack("timed", attack="model-replacement(alpha=0.25)", start=3).constrain(
        gradient, moved, round=2
    ).tolist() == [4, 0]
    assert robustfl.attack("timed", attack="model-replacement(alpha=0.25)", start=3).constrain(
        gradient, moved, round=3
    ).tolist() == [1, 6]


ONE_HOT = torch.eye(10)[Y]


@pytest.mark.parametrize("spec", ["badnets", "blended", "dba", "edge-case", "edge-case(look=turned)"])
@pytest.mark.parametrize(
    ("images", "words"),
    [
        ((X * 255).to(torch.uint8), r"floats in \[0, 1\], not of uint8"),
        (X * 255, r"these reach from .*: normalize inside the model"),
        (X - 0.5, "these reach from -0.5"),
        (X.flatten(1), r"images \[b C H W\], not inputs of shape"),
    ],
)
def test_images_that_are_not_floats_between_0_and_1_get_no_trigger(spec: str, images: torch.Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        robustfl.attack(spec).trigger(images)
    with pytest.raises(UsageError, match=words):
        robustfl.attack(spec).poison(images.flip(0), Y, classes=10, generator=stream(1))


@pytest.mark.parametrize("spec", ["label-flip", "label-flip(target=7)", "dirty-labels", "badnets", "timed(label-flip)"])
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (ONE_HOT, r"not float32 of shape \(10, 10\); of one-hot rows take y.argmax"),
        (ONE_HOT.long(), "not int64 of shape"),
        (Y.double(), r"integer labels \[b\], not float64"),
        (Y + 3, "label 12; with classes=10 labels are 0 to 9"),
        (Y - 1, "label -1; with classes=10"),
    ],
)
def test_labels_that_are_not_numbers_of_classes_are_not_poisoned(spec: str, labels: torch.Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        robustfl.attack(spec).poison(X, labels, classes=10, generator=stream(0))


def rows(h: int = 7, d: int = 12, seed: int = 0, mean: float = 0.7) -> Tensor:
    return torch.randn(h, d, generator=stream(seed, "zoo"), dtype=torch.float64) + mean


def rows_sent(spec: str, view: View, seed: int = 0) -> Tensor:
    return Forged.of(robustfl.attack(spec).forge(view, generator=stream(seed))).rows


def against(honest: Tensor, f: int = 3, **more: object) -> View:
    return View(n=len(honest) + f, f=f, honest=honest, **more)


# --- min-max and min-sum ---------------------------------------------------------------------------------------------


def total(row: Tensor, honest: Tensor) -> float:
    return float((row - honest).square().sum())


def test_min_sum_is_bounded_by_the_greatest_or_the_least_of_the_honest_sums() -> None:
    honest = rows()
    sums = [total(x, honest) for x in honest]
    for bound, limit in (("max", max(sums)), ("min", min(sums))):
        _, vector = robustfl.attack("min-sum", bound=bound).solve(against(honest))
        assert total(vector, honest) == pytest.approx(limit, rel=1e-9)
    assert robustfl.attack("min-sum").bound == "max"  # the paper's


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
@pytest.mark.parametrize("deviation", ["std", "unit_vec", "sign"])
def test_without_a_direction_the_mean_is_sent(name: str, deviation: str) -> None:
    honest = torch.zeros(3, 4)
    assert robustfl.forge(name, honest, f=1, deviation=deviation).tolist() == [[0.0] * 4]


# --- mimic -----------------------------------------------------------------------------------------------------------

LINE = torch.tensor([[0.0, 0.1], [-2.0, -0.1], [5.0, 0.0]], dtype=torch.float64)  # client 2 is farthest along the line


def follow(rounds: list[Tensor], z: Tensor, warm_up: int) -> list[int]:
    """Which client is copied in each round."""
    attack, state, copied = robustfl.attack("mimic", variant="variance", warm_up=warm_up), {"z": z}, []
    for honest in rounds:
        made = Forged.of(attack.forge(against(honest, state=state), generator=stream(0)))
        state = dict(made.state)
        copied.append(int((honest == made.rows[0]).all(1).nonzero()[0]))
    return copied


def test_mimic_freezes_its_target_after_the_warm_up() -> None:
    swapped = LINE[[2, 0, 1]]
    assert follow([LINE, swapped, swapped], torch.tensor([1.0, 0.0]).double(), warm_up=1) == [2, 2, 2]
    assert follow([LINE, swapped, swapped, LINE], torch.tensor([1.0, 0.0]).double(), warm_up=3) == [2, 0, 0, 0]


def test_a_frozen_target_that_is_absent_is_chosen_anew() -> None:
    assert follow([LINE, LINE[:2]], torch.tensor([1.0, 0.0]).double(), warm_up=1) == [2, 0]


def test_the_direction_is_a_running_average_of_power_steps() -> None:
    attack, z = robustfl.attack("mimic(variant=variance)"), torch.tensor([1.0, 1.0]).double()
    first = attack.forge(against(LINE, state={"z": z}), generator=stream(0)).state
    second = attack.forge(against(3 * LINE, state=first), generator=stream(0)).state
    mean = (LINE.mean(0) + 3 * LINE.mean(0)) / 2
    torch.testing.assert_close(second["mean"], mean)
    centred = 3 * LINE - mean
    step = centred.T @ (centred @ first["z"])
    average = (first["z"] + step / step.norm()) / 2
    torch.testing.assert_close(second["z"], average / average.norm())
    third = attack.forge(against(LINE, state=second), generator=stream(0)).state
    centred = LINE - third["mean"]
    step = centred.T @ (centred @ second["z"])
    average = (2 * second["z"] + step / step.norm()) / 3
    torch.testing.assert_close(third["z"], average / average.norm())
    assert int(third["seen"]) == 3


# --- directed deviation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("rule", ["trimmed-mean", "median"])
def test_fang_stays_in_its_interval_beyond_the_honest_range(rule: str, mean: float) -> None:
    honest = rows(7, 200, mean=mean)
    forged = rows_sent(f"fang(against={rule})", against(honest))
    low, high, sign = honest.amin(0), honest.amax(0), honest.mean(0).sign()
    for j in range(200):
        if sign[j] > 0:
            interval = (low[j] / 2, low[j]) if low[j] > 0 else (2 * low[j], low[j])
        else:
            interval = (high[j], 2 * high[j]) if high[j] > 0 else (high[j], high[j] / 2)
        assert bool((forged[:, j] >= interval[0]).all())
        assert bool((forged[:, j] <= interval[1]).all())
    assert len(set(forged[:, 0].tolist())) == 3  # every attacker draws its own
    edge = torch.where(sign > 0, low, high)
    far = torch.where((edge > 0) == (sign < 0), 2 * edge, edge / 2)
    # Evenly over the interval: 600 draws are off by less than eight standard deviations.
    assert float(((forged - edge) / (far - edge)).mean()) == pytest.approx(0.5, abs=0.1)
    result = robustfl.defense(rule)(torch.cat([honest, forged]), f=3)
    assert bool(((result - honest.mean(0)) * sign < 0).double().mean() > 0.95)


@pytest.mark.parametrize("seed", range(4))
def test_krum_selects_the_row_of_fang_and_would_not_select_one_twice_as_far(seed: int) -> None:
    honest, f = rows(8, 30, seed), 3
    forged = rows_sent("fang(against=krum)", against(honest, f))
    krum = robustfl.defense("krum")
    assert torch.equal(krum(torch.cat([honest, forged]), f=f), forged[0])
    assert not torch.equal(krum(torch.cat([honest, 2 * forged]), f=f), 2 * forged[0])
    assert torch.equal(forged[0].sign(), -honest.mean(0).sign())


def test_the_search_of_fang_starts_at_the_bound_of_the_paper() -> None:
    honest = torch.tensor([[1.0], [2.0], [4.0], [8.0]], dtype=torch.float64)
    # The two nearest of 2 are at 1 and 2; n - 2f - 1 = 2; the longest row is 8: 3/2 + 8, halved once.
    assert robustfl.attack("fang(against=krum, threshold=0.9)").factor(honest, 1) == pytest.approx(9.5 / 2)


def test_fang_gives_up_at_its_threshold() -> None:
    # One attacker among clients that agree perfectly: Krum never prefers another row.
    honest = torch.ones(6, 4, dtype=torch.float64)
    bound = 1.0  # no distances among honest rows; norm 2 over √4
    factor = robustfl.attack("fang(against=krum, threshold=0.1)").factor(honest, 1)
    assert factor == bound / 16


# --- made for one defense --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.1, 2.0])
def test_the_row_against_clipped_clustering_is_as_far_as_honest_rows_are_from_each_other(mean: float) -> None:
    honest = rows(9, 40, mean=mean)
    row = rows_sent("clipped-clustering-adaptive", against(honest))[0]
    units = honest / honest.norm(dim=1, keepdim=True)
    assert float((units @ row / row.norm()).mean()) == pytest.approx(float((units @ units.T).min()), rel=1e-9)
    assert float(row.norm()) == pytest.approx(float(honest.norm(dim=1).median()))
    # It leaves the mean direction the way ALIE goes: along what of -s is orthogonal to that direction.
    ahead = units.mean(0) / units.mean(0).norm()
    aside, back = (v - (v @ ahead) * ahead for v in (row, -honest.std(0)))
    assert float(aside @ back) == pytest.approx(float(aside.norm() * back.norm()), rel=1e-9)


def test_honest_rows_that_oppose_each_other_let_the_attackers_turn_around() -> None:
    honest = torch.tensor([[3.0, 0.0], [3.0, 0.0], [-1.0, 0.0]])
    assert rows_sent("clipped-clustering-adaptive", against(honest))[0].tolist() == pytest.approx([-3.0, 0.0])


@pytest.mark.parametrize("order", ["opposite", "random"])
def test_the_row_against_signguard_keeps_signs_and_norm(order: str) -> None:
    honest = rows(9, 50, mean=0.1)
    honest[:, :10] = 0.0
    row, mean = rows_sent(f"signguard-adaptive(order={order})", against(honest))[0], honest.mean(0)
    assert torch.equal(row.sign().sort().values, mean.sign().sort().values)
    assert float(row.norm()) == pytest.approx(float(honest.norm(dim=1).median()))
    assert not torch.equal(row.sign(), mean.sign())


def test_the_orthogonal_perturbation_is_orthogonal_long_and_where_it_shall_be() -> None:
    honest, last = rows(), rows(1, seed=5)[0]
    view = against(honest, previous=last)
    mean = honest.mean(0)
    for spec, start, ahead in (
        ("rop", last, 0.9 * last + 0.1 * mean),
        ("rop(location=0)", mean, 0.9 * last + 0.1 * mean),
        ("rop(location=0.5, reference=0, z=3)", (last + mean) / 2, mean),
    ):
        step = rows_sent(spec, view)[0] - start
        assert float(step @ ahead) == pytest.approx(0, abs=1e-9)
        assert float(step.norm()) == pytest.approx((3 if "z=3" in spec else 1) * float(mean.norm()))
        assert float(step.sum()) > 0  # towards the all-ones vector


@pytest.mark.parametrize(("angle", "cosine"), [(0, 1), (60, 0.5), (180, -1), (270, 0)])
def test_the_angle_of_the_step(angle: int, cosine: float) -> None:
    honest, last = rows(), rows(1, seed=5)[0]
    step = rows_sent(f"rop(reference=1, angle={angle})", against(honest, previous=last))[0] - last
    assert float(step @ last / (step.norm() * last.norm())) == pytest.approx(cosine, abs=1e-9)


@pytest.mark.filterwarnings("ignore:forge. rop")  # it says so: it attacks nothing
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 7, 10])
def test_rop_takes_no_step_aside_where_rounding_alone_would_make_one(d: int, dtype: torch.dtype) -> None:
    """Nothing of the all-ones vector is orthogonal to itself."""
    honest = torch.full((3, d), 0.1, dtype=dtype)
    torch.testing.assert_close(robustfl.forge("rop", honest, f=1), honest[:1])


# --- without sight ---------------------------------------------------------------------------------------------------

OWN_ROWS = torch.tensor([[3.0, 4.0], [6.0, 8.0]], dtype=torch.float64)


def blind(**more: object) -> View:
    return View(n=6, f=2, own=OWN_ROWS, **more)


def test_random_directions_have_the_norms_of_the_own_rows() -> None:
    forged = rows_sent("random(scale=3)", blind())
    assert forged.norm(dim=1).tolist() == pytest.approx([15.0, 30.0])
    assert not torch.equal(forged, rows_sent("random(scale=3)", blind(), seed=1))


def test_zeros() -> None:
    assert rows_sent("zero", blind()).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def replayed(spec: str, rounds: int, sizes: list[int] | None = None) -> list[list[float]]:
    """What lazy attackers send whose honest work in round ``t`` is ``10 t + attacker``."""
    state: dict[str, Tensor] = {}
    out = []
    for t in range(rounds):
        f = 2 if sizes is None else sizes[t]
        own = 10.0 * t + torch.arange(f, dtype=torch.float64)[:, None]
        view = View(n=6, f=f, own=own, round=t, state=state, previous=torch.tensor([-t]).double() if t else None)
        made = Forged.of(robustfl.attack(spec).forge(view, generator=stream(0)))
        state = dict(made.state)
        out.append(made.rows.flatten().tolist())
    return out


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("lazy", [[0, 1], [0, 1], [0, 1], [0, 1]]),
        ("lazy(period=2)", [[0, 1], [0, 1], [20, 21], [20, 21]]),
        ("lazy(period=1)", [[0, 1], [10, 11], [20, 21], [30, 31]]),
        ("lazy(source=aggregate)", [[0, 1], [-1, -1], [-2, -2], [-3, -3]]),
    ],
)
def test_lazy_attackers_replay(spec: str, expected: list[list[float]]) -> None:
    assert replayed(spec, 4) == expected


def test_lazy_attackers_of_another_number_share_what_is_kept() -> None:
    assert replayed("lazy", 3, [2, 3, 1]) == [[0, 1], [0, 1, 0], [0]]


def test_a_deviation_along_the_mean_leaves_another_way_to_turn() -> None:
    honest = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # s is along the mean
    row = rows_sent("clipped-clustering-adaptive", against(honest))[0]
    assert row.abs().tolist() == pytest.approx([math.sqrt(2)] * 2)
    assert float(row.sum()) == pytest.approx(0.0, abs=1e-6)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "later"), dtype=torch.float64)


def forged(spec: str, view: View, seed: int = 0) -> Forged:
    return Forged.of(robustfl.attack(spec).forge(view, generator=stream(seed, "attack")))


# --- HIDRA -----------------------------------------------------------------------------------------------------------


def test_hidra_takes_a_step_in_every_chunk():
    honest = normal(7, 10) + 0.5
    view = View(n=9, f=2, honest=honest)
    alone = [
        forged("hidra", View(n=9, f=2, honest=honest[:, part])).rows
        for part in (slice(0, 4), slice(4, 8), slice(8, 10))
    ]
    torch.testing.assert_close(forged("hidra(chunk=4)", view).rows, torch.cat(alone, dim=1))
    assert torch.equal(forged("hidra(chunk=99)", view).rows, forged("hidra", view).rows)
    # In many dimensions the steps add up to more than one.
    wide = View(n=9, f=2, honest=normal(7, 350) + 0.5)
    mean = wide.honest.mean(0)
    reach = [float((forged(spec, wide).rows[0] - mean).norm()) for spec in ("hidra", "hidra(chunk=7)")]
    assert reach[1] > 1.1 * reach[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_honest_rows_do_not_spread_or_point_nowhere_hidra_sends_their_mean(dtype):
    row = torch.tensor([3.0, -0.1, 7.7], dtype=dtype)
    for honest in (row[None], row.expand(5, -1), torch.zeros(4, 3, dtype=dtype)):
        sent = forged("hidra", View(n=len(honest) + 2, f=2, honest=honest)).rows
        torch.testing.assert_close(sent, honest[:1].expand(2, -1))
    opposite = torch.stack([row, -row])
    assert forged("hidra", View(n=3, f=1, honest=opposite)).rows.tolist() == [[0.0, 0.0, 0.0]]


# --- PoisonedFL ------------------------------------------------------------------------------------------------------


def test_the_authors_tables_of_the_binomial_are_met():
    """Numbers of entries that their code holds for its four networks, at 95 and 99 percent."""
    table = {1204682: (603244, 603618), 139960: (70288, 70415), 717924: (359659, 359948), 145212: (72919, 73049)}
    assert {d: (successes(d, 0.95), successes(d, 0.99)) for d in table} == table


class _Literal:
    """The attack as the paper goes, with vectors of NumPy and a list of all that the server did."""

    def __init__(self, signs: np.ndarray, scale: float, decay: float, period: int, least: float, d: int) -> None:
        self.s, self.c, self.decay, self.period, self.least = signs, scale, decay, period, least
        self.sent, self.moves = np.zeros(d), list[np.ndarray]()

    def send(self, g: np.ndarray | None) -> np.ndarray:
        if g is not None:
            self.moves.append(g)
            if len(self.moves) % self.period == 0:
                total = np.sum(self.moves[-self.period :], axis=0)
                chance = len(g) / 2 + 2.3263478740408408 * np.sqrt(len(g)) / 2
                if np.sum(total * self.s > 0) < round(chance) and self.c * self.decay >= self.least:
                    self.c *= self.decay
            length = np.linalg.norm(self.sent)
            k = np.abs(g - (np.linalg.norm(g) / length * self.sent if length else 0))
            self.sent = self.c * np.linalg.norm(g) * k / np.linalg.norm(k) * self.s
        return self.sent


@pytest.mark.parametrize("server", ["follows", "resists", "opposes", "turns"])
def test_poisonedfl_pushes_every_round_to_the_same_side(server):
    d, view = 60, View(n=8, f=2, own=normal(2, 60))
    literal, state, scales = None, {}, []
    for t in range(13):
        last = None
        if literal is not None:
            # What was won in earlier periods counts no more in later ones.
            share = {"follows": 0.5, "resists": 0.0, "opposes": -0.2, "turns": 0.5 if t < 7 else -0.1}[server]
            last = normal(d, seed=t) * 0.1 + share * torch.from_numpy(literal.sent)
        made = forged(
            "poisonedfl(period=3, scale=2, least=0.9)",
            View(**{**vars(view), "previous": last, "state": state, "round": t}),
            seed=t,
        )
        if literal is None:
            literal = _Literal(made.state["signs"].numpy(), 2.0, 0.7, 3, 0.9, d)
        expected = literal.send(None if last is None else last.numpy())
        torch.testing.assert_close(made.rows, torch.from_numpy(expected).expand(2, -1), rtol=1e-9, atol=1e-12)
        # What a server follows is nearly what was sent, and their difference loses digits: each round starts anew.
        literal.sent = made.rows[0].numpy()
        state = made.state
        scales.append(2.0 * float(state["share"]))
        if t:
            assert bool((made.rows[0] * state["signs"] >= 0).all())
    # After failure 2 → 1.4 → 0.98, and no further: 0.686 is below 0.9.
    assert scales[-1] == pytest.approx(2.0 if server == "follows" else 0.98)
    assert set(state["signs"].tolist()) == {-1.0, 1.0}


def test_on_statistics_poisonedfl_goes_on_from_the_last_ones_by_how_they_moved():
    own, state, sent = normal(1, 4), {}, []
    served = [None, torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.tensor([1.0, 2.0, 6.0, 0.0]).double()]
    for previous in served:
        made = forged(
            "poisonedfl(scale=2)", View(n=4, f=1, own=own, channel="statistics", previous=previous, state=state)
        )
        state = made.state
        sent.append(made.rows[0])
    assert sent[0].tolist() == [0.0] * 4
    assert torch.equal(sent[1], served[1])
    # They moved by (0, 0, 3, -4), of length 5: twice that, to the attackers' side.
    step = torch.tensor([0.0, 0.0, 6.0, 8.0]) * state["signs"]
    torch.testing.assert_close(sent[2], served[2] + step, rtol=1e-12, atol=1e-12)
    assert math.isclose(float(step.norm()), 10.0)
