"""Where definitions agree (SPEC §10), another project's attacks give the same vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import robustfl

pytestmark = pytest.mark.peers
# A peer's warnings are not ours to fix.
byzfl = pytest.importorskip("byzfl", reason="needs the extra [peers]", exc_type=ImportError)


@pytest.mark.parametrize(
    ("spec", "peer"),
    [
        ("sf", lambda: byzfl.SignFlipping()),
        ("ipm(tau=3)", lambda: byzfl.InnerProductManipulation(tau=3.0)),
        ("foe(eta=4)", lambda: byzfl.InnerProductManipulation(tau=3.0)),
        ("alie(z=1.5, sign=1)", lambda: byzfl.ALittleIsEnough(tau=1.5)),
        ("inf", lambda: byzfl.Inf()),
    ],
)
def test_agrees_with_the_peer(spec, peer):
    honest = np.random.default_rng(0).normal(size=(7, 5))
    ours = robustfl.forge(spec, torch.tensor(honest), f=1)[0]
    np.testing.assert_allclose(ours.numpy(), peer()(honest), rtol=1e-12, atol=1e-12)
