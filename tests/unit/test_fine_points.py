"""Small print of methods: ties, bounds, memories of more than two rounds, parameters at their edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import robustfl
from robustfl.contracts import Aggregated, Context, StatisticsSlices, View
from robustfl.defenses.aggregation import DefendedStatistics
from robustfl.norms.normalizer_free import clipped_by_unit
from robustfl.randomness import stream
from robustfl.registry import create

Rows = Sequence[Sequence[float]] | Tensor
UNEVEN = [[0.0, 0], [1, 5], [2, 2], [9, 3]]


def doubles(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def run(spec: str, rows: Rows, f: int, round: int = 0, **more: Any) -> Aggregated:
    context = Context(generator=stream(round, "rule"), round=round, **more)
    return robustfl.defense(spec).run(doubles(rows), f=f, context=context)


# --- defenses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "rows", "suspects"),
    [
        # an energy counts above max(0.01, 1/labels), here a half of three
        ("deepsight", [[3, 1.5, 0.1, 3, 1.5, 0.1]] * 3 + [[3.0] * 6] * 5, [0, 1, 2]),
        ("deepsight(tau=1)", [[3.0, 0, 0, 0, 0, 0]] * 2 + [[3.0] * 6] * 6, [0, 1]),  # a share of exactly τ is condemned
    ],
)
def test_deepsight_at_its_bounds(spec: str, rows: Rows, suspects: list[int]) -> None:
    facts = run(spec, rows, 2, shapes=((3, 1), (3,))).facts
    assert facts["suspects"] == suspects
    assert facts["kept"] == [k for k in range(len(rows)) if k not in suspects]


def test_clipped_clustering_remembers_the_lengths_of_all_rounds() -> None:
    state: Any = {}
    for length in (1.0, 1.0, 9.0):
        found = run("clipped-clustering", [[length, 0], [length, 0.1], [length, 0.2]], 0, state=state)
        state = found.state
    known = [np.hypot(length, side) for length in (1, 1, 9) for side in (0, 0.1, 0.2)]
    assert found.facts["radius"] == pytest.approx(np.median(known))


def test_of_equal_clusters_clipped_clustering_keeps_that_of_the_first_row() -> None:
    assert run("clipped-clustering", [[1, 0], [1, 0.01], [0, 1], [0.01, 1]], 1).facts["kept"] == [0, 1]


def bulyan_by_hand(rows: Tensor, f: int) -> Tensor:
    """Krum's choice again and again; then the mean of those nearest to the median, of ties the first chosen."""
    left, chosen = list(range(len(rows))), []
    for _ in range(len(rows) - 2 * f):
        near = max(1, len(left) - f - 2)
        scores = [sum(sorted(float((rows[i] - rows[j]).square().sum()) for j in left if j != i)[:near]) for i in left]
        chosen.append(left.pop(int(np.argmin(scores))))
    kept = rows[chosen]
    middle = kept.sort(0).values[[(len(kept) - 1) // 2, len(kept) // 2]].mean(0)
    order = (kept - middle).abs().argsort(dim=0, stable=True)[: len(kept) - 2 * f]
    return kept.gather(0, order).mean(0)


def test_of_values_equally_near_bulyan_takes_the_row_chosen_first() -> None:
    for seed in range(60):
        rows = torch.randint(0, 5, (7, 1), generator=torch.Generator().manual_seed(seed)).double()
        torch.testing.assert_close(run("bulyan", rows, 1).vector, bulyan_by_hand(rows, 1), msg=str(seed))


def test_flames_noise_is_measured_in_the_median_length_of_all_rows() -> None:
    rows = doubles([[1, 0], [2, 0.2], [3, -0.3], [-50, 10], [60, -60]])
    found, calm = (run(f"flame(noise={noise})", rows, 1).vector for noise in (0.5, 0))
    other = run("flame(noise=0.5)", rows * 3, 1).vector - 3 * calm
    drawn = torch.randn(2, generator=stream(0, "rule"), dtype=torch.float32).double()
    size = 0.5 * float(rows.norm(dim=1).median())
    torch.testing.assert_close(other, 3 * (found - calm))
    torch.testing.assert_close(found - calm, size * drawn, rtol=1e-5, atol=1e-6)


def test_foolsgolds_kappa_multiplies_the_half_too() -> None:
    """α = (1 - s)/max = 0.2/w…: rows 0 and 1 have similarity 0.8, row 2 is alone."""
    weights = run("foolsgold(kappa=0.5)", [[1, 0, 0], [0.8, 0.6, 0], [0.5, 0.5, 0.7]], 1).facts["weights"]
    assert weights == pytest.approx([0.29904591, 0.29904591, 1.0])
    alpha = 1 / (1 + np.exp(-(weights[0] / 0.5 - 0.5)))  # κ(ln(α/(1-α)) + ½) turned around
    whole = run("foolsgold", [[1, 0, 0], [0.8, 0.6, 0], [0.5, 0.5, 0.7]], 1).facts["weights"][0]
    assert np.clip(np.log(alpha / (1 - alpha)) + 0.5, 0, 1) == pytest.approx(whole)


def test_a_weighted_geometric_median_starts_where_its_docstring_says_and_stops_at_a_heavy_row() -> None:
    weights = doubles([1, 1, 1, 5])
    rows = doubles(UNEVEN)
    share = weights / weights.sum() / (rows - rows.mean(0)).norm(dim=1)
    step = run("geometric-median(init=mean, weighted=true, max_steps=1)", UNEVEN, 1, weights=weights).vector
    torch.testing.assert_close(step, (share / share.sum()) @ rows, rtol=1e-6, atol=1e-6)
    heavy = run("geometric-median(weighted=true)", UNEVEN, 1, weights=doubles([3, 1, 1, 1])).vector
    assert float(heavy.norm()) < 1e-5  # three against three: the first row is the minimum


def test_alignins_takes_a_share_of_the_entries_that_its_last_bit_does_not_shrink() -> None:
    rows = torch.randn(7, 100, generator=torch.Generator().manual_seed(3)).double()
    assert all(
        (29 * share) == pytest.approx(round(29 * share))
        for share in run("alignins(share=0.29)", rows, 1).facts["aligned"]
    )


def test_rules_behind_buckets_number_these_and_not_the_clients() -> None:
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    for rule in ("flanders", "foolsgold"):
        found = run(f"bucketing(s=2)+{rule}", rows, 1, clients=torch.arange(5, 11))
        assert found.state["clients"].tolist() == [0, 1, 2]


def test_flanders_takes_the_aggregate_for_who_was_not_there_or_was_dropped() -> None:
    draws, state, known = torch.Generator().manual_seed(0), {}, []
    for t in range(4):
        ids = [i for i in range(6) if (t + i) % 3]
        rows = torch.randn(len(ids), 3, generator=draws).double()
        found = run("flanders(window=9)", rows, 1, t, state=state, clients=torch.tensor(ids))
        state = dict(found.state)
        kept = {ids[place]: rows[place] for place in found.facts["kept"]}
        known.append([kept.get(client, found.vector) for client in range(6)])
    assert sorted(state["clients"].tolist()) == list(range(6))
    expected = torch.stack([torch.stack([row[k] for k in state["clients"].tolist()]) for row in known])
    torch.testing.assert_close(state["history"], expected)


def test_fldetector_judges_three_clients_and_nobody_who_has_been_away() -> None:
    kept = set()
    for seed in range(20):
        base, state = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).double(), {}
        for t in range(8):
            rows = base * 0.5**t
            rows[2] *= (-1) ** t
            found = run("fldetector(window=2)", rows, 1, t, state=state)
            state = dict(found.state)
            kept.add(tuple(found.facts["kept"]))
    assert (0, 1) in kept
    state, judged = {}, []
    for t in range(8):
        ids = list(range(9)) if t != 5 else list(range(2, 9))
        rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(t)).double()[ids]
        found = run("fldetector(window=2)", rows, 2, t, state=state, clients=torch.tensor(ids))
        state = dict(found.state)
        judged.append(found.facts["judged"])
    assert judged[6] == 7


# --- attacks ---------------------------------------------------------------------------------------------------------


def forged(spec: str, honest: Rows, f: int) -> Tensor:
    return robustfl.forge(spec, doubles(honest), f=f)


def test_the_attack_on_clipped_clustering_falls_back_on_the_row_most_unlike_the_mean() -> None:
    assert forged("clipped-clustering-adaptive", [[1, 3], [3, 1], [2, 2], [2, 2]], 1)[0].tolist() == pytest.approx(
        [2.980564, -0.297282], abs=1e-5
    )


def test_edge_cases_are_turned_and_bars_are_laid_in_reading_order() -> None:
    turned = create("attack", "edge-case(look=turned)").trigger(torch.tensor([[[[0.25, 0.5], [0.75, 1.0]]]]))
    assert turned.tolist() == [[[[0.5, 1.0], [0.25, 0.75]]]]
    x, dba = torch.zeros(1, 1, 4, 4), create("attack", "dba(length=1, gap=0)")
    places = [dba.part(x, k).nonzero()[0, 2:].tolist() for k in range(4)]
    assert places == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_of_strengths_that_reach_equally_far_the_search_takes_the_least() -> None:
    view = View(n=4, f=1, honest=doubles([[1, 0], [1, 1], [1, -1]]), aggregate=lambda stack: stack[:3].mean(0))
    found, sent = create("attack", "opt(ipm(tau=2))").find(view, generator=torch.Generator())
    assert (found.eta, sent.rows.abs().sum().item()) == (0.0, 0.0)


# --- norms and partitions --------------------------------------------------------------------------------------------


def test_joint_fbn_counts_the_values_of_every_layer_of_a_group() -> None:
    layers = [StatisticsSlices("a", slice(0, 1), slice(1, 2)), StatisticsSlices("b", slice(2, 3), slice(3, 4))]
    messages = doubles([[0, 1, 1, 1], [4, 1, 3, 2], [1, 1, 1, 5]])
    counts = torch.tensor([[20, 5], [20, 5], [20, 30]])
    rule = DefendedStatistics(robustfl.defense("nnm+mean"), 1, Context())
    found = create("norm", "fbn(joint=true)").merge(messages, counts, doubles([10, 1, 1, 1]), layers, rule)
    assert float(found[0]) == pytest.approx(0.875)
    assert float(found[3]) == pytest.approx(7.1122, abs=1e-4)


def test_parameters_of_norms_at_their_edges() -> None:
    assert create("norm", "hbn(stats_mode=repo, stats_samples=128)").statistics_pass.samples == 128
    assert [create("norm", "fixbn").frozen(t, 3) for t in range(3)] == [False, True, True]  # ⌊3/2⌋
    assert clipped_by_unit(doubles([[3, 4]]), doubles([[0, 0]]), 0.5)[0].tolist() == pytest.approx([3e-4, 4e-4])
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(1, 1))
    create("norm", "fedwon(clip=0.01)").adapt(network)
    with torch.no_grad():
        network[2].weight.fill_(1.0)
    (network(torch.ones(1, 1, 1, 1)).sum() * 100).backward()
    hidden = network[1](network[0](torch.ones(1, 1, 1, 1))).detach()
    assert float(network[2].weight.grad) == pytest.approx(
        100 * float(hidden), rel=1e-5
    )  # the last layer is not clipped


# --- evasion ---------------------------------------------------------------------------------------------------------


def test_mia_adds_gradients_of_unit_l1_length_in_any_ball() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.rand(6, 1, 2, 2, dtype=torch.float64) / 2 + 0.25, torch.tensor([0, 1, 2, 0, 1, 2])
    made = robustfl.evasion("mia", eps=0.2, steps=5, step=0.01, norm="l2").perturb(model, x, y)
    current, momentum = x, torch.zeros_like(x)
    for _ in range(5):
        moving = current.detach().requires_grad_(True)
        (up,) = torch.autograd.grad(nn.functional.cross_entropy(model(moving), y, reduction="sum"), moving)
        momentum = momentum + up / up.abs().sum((1, 2, 3), keepdim=True)
        current = current + 0.01 * momentum / momentum.flatten(1).norm(dim=1)[:, None, None, None]
    torch.testing.assert_close(made, current, rtol=0, atol=1e-10)


def test_squares_in_the_euclidean_ball_have_odd_sides() -> None:
    """Of p·h·w pixels, rounded to the next odd side, and to the one before where the image ends."""
    square = create("evasion", "square(norm=l2, p=0.25, queries=10000)")
    assert [square.side(0, size, size) for size in (8, 10, 12, 16)] == [5, 5, 7, 9]
    assert create("evasion", "square(norm=l2, p=1, queries=10000)").side(0, 8, 8) == 7
    assert create("evasion", "square(norm=linf, p=0.25, queries=10000)").side(0, 8, 8) == 4


def test_opt_scans_at_the_same_multiples_of_the_rows_spread_whatever_the_bound() -> None:
    tried: dict[float, list[float]] = {}
    for bound in (1.0, 1000.0):
        asked = tried[bound] = []

        def mean(rows: Tensor, asked: list[float] = asked) -> Tensor:
            asked.append(1 - float(rows[-1]) / 10)  # the factor of foe: the row is (1 - eta) times the mean, 10
            return rows.mean(0)

        view = View(n=4, f=1, channel="update", honest=doubles([[9.9], [10], [10.1]]), aggregate=mean)
        create("attack", f"opt(foe, evals=8, eta_max={bound})").find(view, generator=torch.Generator())
    first = [[eta for eta in found[:8] if eta < 0.9] for found in tried.values()]
    assert first[0] == pytest.approx(first[1])
    assert len(first[0]) > 4
