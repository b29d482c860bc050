"""Where definitions agree (SPEC §10), another project's rules give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import robustfl

pytestmark = pytest.mark.peers
# A peer's warnings are not ours to fix.
byzfl = pytest.importorskip("byzfl", reason="needs the extra [peers]", exc_type=ImportError)


@pytest.mark.parametrize("f", [1, 2, 3])
@pytest.mark.parametrize(
    ("spec", "peer"),
    [
        ("mean", lambda _: byzfl.Average()),
        ("median", lambda _: byzfl.Median()),
        ("trimmed-mean", lambda f: byzfl.TrMean(f=f)),
        ("krum(variant=nf)", lambda f: byzfl.Krum(f=f)),
        ("multi-krum(variant=nf)", lambda f: byzfl.MultiKrum(f=f)),
        ("geometric-median(nu=0.1, max_steps=3, tol=0, init=zero)", lambda _: byzfl.GeometricMedian(nu=0.1, T=3)),
        ("centered-clipping(tau=2)", lambda _: byzfl.CenteredClipping(L=1, tau=2.0)),
        ("nnm+median", lambda f: lambda X: byzfl.Median()(byzfl.NNM(f)(X))),
        ("nnm+trimmed-mean", lambda f: lambda X: byzfl.TrMean(f=f)(byzfl.NNM(f)(X))),
    ],
)
def test_agrees_with_the_peer(spec, peer, f):
    X = np.random.default_rng(f).normal(size=(10, 6))
    ours = robustfl.defense(spec)(torch.tensor(X), f=f)
    np.testing.assert_allclose(ours.numpy(), peer(f)(X), rtol=1e-12, atol=1e-12)
