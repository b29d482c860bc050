"""PoisonedFL and HIDRA against independent versions of their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import robustfl
from robustfl.attacks.byzantine.poisonedfl import successes
from robustfl.contracts import Forged, View
from robustfl.errors import UsageError
from robustfl.randomness import stream


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


def test_poisonedfl_sends_zeros_first_and_after_a_round_in_which_nothing_moved():
    view = View(n=4, f=1, own=normal(1, 5))
    first = forged("poisonedfl", view)
    assert first.rows.tolist() == [[0.0] * 5]
    still = forged("poisonedfl", View(n=4, f=1, own=view.own, previous=torch.zeros(5).double(), state=first.state))
    assert still.rows.tolist() == [[0.0] * 5]
    with pytest.raises(UsageError, match="poisonedfl"):
        forged("poisonedfl", View(n=4, f=1))


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
