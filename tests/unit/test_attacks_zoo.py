"""What the papers promise of their attacks, and examples worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.attacks.byzantine.poisonedfl import successes
from robustfl.contracts import Forged, View
from robustfl.randomness import stream


def rows(h: int = 7, d: int = 12, seed: int = 0, mean: float = 0.7) -> Tensor:
    return torch.randn(h, d, generator=stream(seed, "zoo"), dtype=torch.float64) + mean


def sent(spec: str, view: View, seed: int = 0) -> Tensor:
    return Forged.of(robustfl.attack(spec).forge(view, generator=stream(seed))).rows


def against(honest: Tensor, f: int = 3, **more: object) -> View:
    return View(n=len(honest) + f, f=f, honest=honest, **more)


# --- min-max and min-sum ---------------------------------------------------------------------------------------------


def farthest(row: Tensor, honest: Tensor) -> float:
    return float((row - honest).norm(dim=1).max())


def total(row: Tensor, honest: Tensor) -> float:
    return float((row - honest).square().sum())


# what is bounded, and its value among the honest rows themselves
BOUNDED = {
    "min-max": (farthest, lambda honest: max(farthest(x, honest) for x in honest)),
    "min-sum": (total, lambda honest: max(total(x, honest) for x in honest)),
}
CASES = list(itertools.product(BOUNDED, ("std", "unit_vec", "sign"), (2, 7, 20), (0.0, 0.7)))


@pytest.mark.parametrize(("name", "deviation", "h", "mean"), CASES)
def test_the_bound_is_met_with_equality_and_never_passed(name: str, deviation: str, h: int, mean: float) -> None:
    honest = rows(h, mean=mean)
    measure, limit = BOUNDED[name]
    (gamma, vector) = robustfl.attack(name, deviation=deviation).solve(against(honest))
    assert gamma > 0
    assert measure(vector, honest) == pytest.approx(limit(honest), rel=1e-9)


def test_min_sum_is_bounded_by_the_greatest_or_the_least_of_the_honest_sums() -> None:
    honest = rows()
    sums = [total(x, honest) for x in honest]
    for bound, limit in (("max", max(sums)), ("min", min(sums))):
        _, vector = robustfl.attack("min-sum", bound=bound).solve(against(honest))
        assert total(vector, honest) == pytest.approx(limit, rel=1e-9)
    assert robustfl.attack("min-sum").bound == "max"  # the paper's


@pytest.mark.parametrize("name", BOUNDED)
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
    forged = sent(f"fang(against={rule})", against(honest))
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
    forged = sent("fang(against=krum)", against(honest, f))
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
    row = sent("clipped-clustering-adaptive", against(honest))[0]
    units = honest / honest.norm(dim=1, keepdim=True)
    assert float((units @ row / row.norm()).mean()) == pytest.approx(float((units @ units.T).min()), rel=1e-9)
    assert float(row.norm()) == pytest.approx(float(honest.norm(dim=1).median()))
    # It leaves the mean direction the way ALIE goes: along what of -s is orthogonal to that direction.
    ahead = units.mean(0) / units.mean(0).norm()
    aside, back = (v - (v @ ahead) * ahead for v in (row, -honest.std(0)))
    assert float(aside @ back) == pytest.approx(float(aside.norm() * back.norm()), rel=1e-9)


def test_honest_rows_that_oppose_each_other_let_the_attackers_turn_around() -> None:
    honest = torch.tensor([[3.0, 0.0], [3.0, 0.0], [-1.0, 0.0]])
    assert sent("clipped-clustering-adaptive", against(honest))[0].tolist() == pytest.approx([-3.0, 0.0])


@pytest.mark.parametrize("order", ["opposite", "random"])
def test_the_row_against_signguard_keeps_signs_and_norm(order: str) -> None:
    honest = rows(9, 50, mean=0.1)
    honest[:, :10] = 0.0
    row, mean = sent(f"signguard-adaptive(order={order})", against(honest))[0], honest.mean(0)
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
        step = sent(spec, view)[0] - start
        assert float(step @ ahead) == pytest.approx(0, abs=1e-9)
        assert float(step.norm()) == pytest.approx((3 if "z=3" in spec else 1) * float(mean.norm()))
        assert float(step.sum()) > 0  # towards the all-ones vector


@pytest.mark.parametrize(("angle", "cosine"), [(0, 1), (60, 0.5), (180, -1), (270, 0)])
def test_the_angle_of_the_step(angle: int, cosine: float) -> None:
    honest, last = rows(), rows(1, seed=5)[0]
    step = sent(f"rop(reference=1, angle={angle})", against(honest, previous=last))[0] - last
    assert float(step @ last / (step.norm() * last.norm())) == pytest.approx(cosine, abs=1e-9)


@pytest.mark.filterwarnings("ignore:forge. rop")  # it says so: it attacks nothing
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 7, 10])
def test_rop_takes_no_step_aside_where_rounding_alone_would_make_one(d: int, dtype: torch.dtype) -> None:
    """Nothing of the all-ones vector is orthogonal to itself."""
    honest = torch.full((3, d), 0.1, dtype=dtype)
    torch.testing.assert_close(robustfl.forge("rop", honest, f=1), honest[:1])


# --- without sight ---------------------------------------------------------------------------------------------------

OWN = torch.tensor([[3.0, 4.0], [6.0, 8.0]], dtype=torch.float64)


def blind(**more: object) -> View:
    return View(n=6, f=2, own=OWN, **more)


def test_random_directions_have_the_norms_of_the_own_rows() -> None:
    forged = sent("random(scale=3)", blind())
    assert forged.norm(dim=1).tolist() == pytest.approx([15.0, 30.0])
    assert not torch.equal(forged, sent("random(scale=3)", blind(), seed=1))


def test_zeros() -> None:
    assert sent("zero", blind()).tolist() == [[0.0, 0.0], [0.0, 0.0]]


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
    row = sent("clipped-clustering-adaptive", against(honest))[0]
    assert row.abs().tolist() == pytest.approx([math.sqrt(2)] * 2)
    assert float(row.sum()) == pytest.approx(0.0, abs=1e-6)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "later"), dtype=torch.float64)


def forged(spec: str, view: View, seed: int = 0) -> Forged:
    return Forged.of(robustfl.attack(spec).forge(view, generator=stream(seed, "attack")))


# --- HIDRA -----------------------------------------------------------------------------------------------------------


def _spread(honest: np.ndarray, row: np.ndarray, f: int) -> float:
    """The greatest eigenvalue of the covariance of honest rows and ``f`` times the same row."""
    rows = np.vstack([honest, *[row] * f])
    return float(np.linalg.eigvalsh(np.cov(rows.T, bias=True).reshape(rows.shape[1], -1))[-1])


@pytest.mark.parametrize(("h", "f", "d", "kappa"), [(8, 3, 5, 1.0), (8, 3, 30, 1.0), (4, 4, 6, 2.5), (12, 1, 40, 1.2)])
def test_hidra_goes_as_far_back_as_the_spectrum_lets(h, f, d, kappa):
    honest = normal(h, d, seed=h) + 0.3
    row = forged(f"hidra(kappa={kappa})", View(n=h + f, f=f, honest=honest)).rows
    assert row.shape == (f, d)
    assert torch.equal(row, row[:1].expand(f, -1))
    X, mean = honest.numpy(), honest.mean(0).numpy()
    bound = kappa * float(np.linalg.eigvalsh(np.cov(X.T, bias=True))[-1])
    back = mean - row[0].numpy()
    assert float(back @ mean) == pytest.approx(np.linalg.norm(back) * np.linalg.norm(mean), rel=1e-9)  # straight back
    assert _spread(X, mean - back, f) == pytest.approx(bound, rel=1e-9)
    assert _spread(X, mean - 1.01 * back, f) > bound * 1.0001


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
