"""Byzantine attacks against ByzFL's."""

from __future__ import annotations

import pytest
import torch

import robustfl

HONEST = torch.randn(7, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")  # the other project's own
@pytest.mark.parametrize(
    ("spec", "peer", "settings"),
    [
        ("sf", "SignFlipping", {}),
        ("ipm(tau=2)", "InnerProductManipulation", {"tau": 2.0}),
        ("foe", "InnerProductManipulation", {"tau": 2.0}),
        ("alie(z=1.5, sign=1)", "ALittleIsEnough", {"tau": 1.5}),
    ],
)
def test_the_same_vector_as_the_peer(spec: str, peer: str, settings: dict[str, float]) -> None:
    attacks = pytest.importorskip("byzfl.attacks.attacks")
    theirs = torch.as_tensor(getattr(attacks, peer)(**settings)(HONEST.numpy()))
    torch.testing.assert_close(robustfl.forge(spec, HONEST, f=3)[0], theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")  # the other project's own
def test_the_same_searched_factor_as_the_peer() -> None:
    """Their τ is η - 1: against a bounded rule both searches find the same vector."""
    attacks = pytest.importorskip("byzfl.attacks.attacks")
    aggregators = pytest.importorskip("byzfl.aggregators.aggregators")
    rule = robustfl.defense("trimmed-mean")
    theirs = attacks.Optimal_InnerProductManipulation(agg=aggregators.TrMean(f=3), pre_agg_list=[], f=3)
    ours = robustfl.forge("opt-foe", HONEST, f=3, defense=rule)
    stack = [torch.cat([HONEST, row.expand(3, -1)]) for row in (ours[0], torch.as_tensor(theirs(HONEST.numpy())))]
    damage = [float((rule(rows, f=3) - HONEST.mean(0)).norm()) for rows in stack]
    assert damage[0] == pytest.approx(damage[1], rel=1e-9)
