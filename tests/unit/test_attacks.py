"""Byzantine attacks on examples worked by hand, on data and on statistics, and what they refuse."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
import torch

import robustfl
from robustfl.attacks import forge_statistics, linear_search, supporters
from robustfl.attacks.byzantine.sight import forged_statistics
from robustfl.contracts import Rehearsal, View
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


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_distance_that_is_not_finite_is_no_success(value: float) -> None:
    assert linear_search(lambda eta: value if eta > 20 else eta) == pytest.approx((19.8, 19.8), abs=0.5)


@pytest.mark.parametrize("name", ["opt-foe", "opt-alie"])
def test_a_searched_attack_asks_the_server_with_its_declared_f_and_the_honest_rows_untouched(name: str) -> None:
    asked: list[torch.Tensor] = []

    def server(stack: torch.Tensor) -> torch.Tensor:
        asked.append(stack.clone())
        return stack.mean(0)

    robustfl.attack(name, evals=5).forge(View(n=5, f=2, honest=HONEST, aggregate=server), generator=stream(0))
    assert len(asked) == 5
    assert all(torch.equal(stack[:3], HONEST) and torch.equal(stack[3], stack[4]) for stack in asked)

    # Declared f = 0 is the mean, which runs to the bound; the median with f = 2 does not.
    rule = robustfl.defense("trimmed-mean")
    far, near = (robustfl.forge(name, HONEST, f=2, defense=rule, f_declared=k) for k in (0, 2))
    assert float(far.norm()) > 10 * float(near.norm())


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


@pytest.mark.parametrize("spec", ["badnets", "dba", "edge-case", "edge-case(look=turned)"])
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
