"""Where definitions agree, ByzFL's rules and attacks give the same numbers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import robustfl
from robustfl.contracts import Context, View
from robustfl.defenses import Mixed, Stack
from robustfl.defenses.preaggregators import grouped
from robustfl.randomness import stream
from robustfl.registry import create, entries
from robustfl.specs import split_outside

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
        ("meamed", lambda f: byzfl.Meamed(f=f)),
        ("mda", lambda f: byzfl.MDA(f=f)),
        ("monna(pivot=4)", lambda f: byzfl.MoNNA(f=f, idx=4)),
        ("clipping(c=2)+mean", lambda _: lambda X: byzfl.Average()(byzfl.Clipping(c=2.0)(X.copy()))),
        ("clipping(c=1.5)+median", lambda _: lambda X: byzfl.Median()(byzfl.Clipping(c=1.5)(X.copy()))),
        ("arc+mean", lambda f: lambda X: byzfl.Average()(byzfl.ARC(f=f)(X.copy()))),
        ("arc+trimmed-mean", lambda f: lambda X: byzfl.TrMean(f=f)(byzfl.ARC(f=f)(X.copy()))),
        ("nnm+median", lambda f: lambda X: byzfl.Median()(byzfl.NNM(f)(X))),
        ("nnm+trimmed-mean", lambda f: lambda X: byzfl.TrMean(f=f)(byzfl.NNM(f)(X))),
    ],
)
def test_a_rule_agrees_with_the_peer(spec, peer, f):
    X = np.random.default_rng(f).normal(size=(10, 6))
    ours = robustfl.defense(spec)(torch.tensor(X), f=f)
    np.testing.assert_allclose(ours.numpy(), peer(f)(X), rtol=1e-12, atol=1e-12)


def test_buckets_agree_for_the_same_order():
    X = np.random.default_rng(0).normal(size=(10, 6))
    # The peer draws from numpy's global generator.
    before = np.random.get_state()
    np.random.seed(3)
    theirs = byzfl.Bucketing(s=3)(X)
    np.random.seed(3)
    order = torch.from_numpy(np.random.permutation(10))
    np.random.set_state(before)
    ours = Mixed(Stack(torch.tensor(X)), grouped(order, 3)).materialise()
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12, atol=1e-12)


def test_arc_counts_in_whole_numbers_where_the_peer_rounds_floats():
    # 2f (n-f) / n is exactly 57 here; in floating point the peer gets 56.
    n, f = 242, 33
    X = np.diag(np.arange(1.0, n + 1))
    ours = Mixed(Stack(torch.tensor(X))).after(create("defense", "arc"), f=f, context=Context()).materialise()
    shortened = [int((np.diag(Y) < np.diag(X)).sum()) for Y in (ours.numpy(), byzfl.ARC(f=f)(X.copy()))]
    assert shortened == [57, 56]


def flipped(n: int, f: int, d: int, seed: int) -> np.ndarray:
    """Honest rows, two of them of all but the same length, and sign flipping."""
    draw = np.random.default_rng(seed)
    honest = draw.normal(size=(n - f, d)) * draw.uniform(0.5, 2, size=(n - f, 1)) + 0.2
    honest[1] = honest[0][::-1] * (1 + 1e-7)
    return np.concatenate([honest, np.repeat(-honest.mean(0)[None], f, 0)])


@pytest.mark.parametrize(("n", "f"), [(10, 3), (10, 4), (17, 4), (25, 5)])
def test_arc_nnm_and_the_peers_geometric_median_agree_step_by_step_in_float64(n, f):
    # In a lock-step with the peer's own loop, in float32, this pipeline parts under sign flipping: ARC makes lengths,
    # and so distances, alike; torch.cdist in float32, off by 1e-5 at 80,000 entries, then picks other neighbors for the
    # forged rows, all f of them at once. It is neither the steps, nor their order, nor the number clipped, nor ν.
    for seed in range(5):
        X = flipped(n, f, 300, seed)
        spec, theirs = "", X.copy()
        for step, peer in (("arc", byzfl.ARC(f=f)), ("nnm", byzfl.NNM(f))):
            spec, theirs = f"{spec}+{step}".lstrip("+"), peer(theirs)
            rows = Mixed(Stack(torch.tensor(X)))
            for name in spec.split("+"):
                rows = rows.after(create("defense", name), f=f, context=Context())
            np.testing.assert_allclose(rows.materialise().numpy(), theirs, rtol=1e-9, atol=1e-12)
        ours = robustfl.defense(f"{spec}+geometric-median(nu=0.1, max_steps=3, tol=0, init=zero)")(torch.tensor(X), f=f)
        np.testing.assert_allclose(ours.numpy(), byzfl.GeometricMedian(nu=0.1, T=3)(theirs), rtol=1e-9, atol=1e-12)


def test_meamed_around_the_lower_median_is_that_of_torch():
    X = torch.from_numpy(np.random.default_rng(2).normal(size=(10, 6)))
    for center, median in (("middle", X.quantile(0.5, dim=0)), ("lower", X.median(dim=0).values)):
        near = (X - median).abs().sort(dim=0, stable=True).indices[:6]
        ours = robustfl.defense(f"meamed(center={center})")(X, f=4)
        np.testing.assert_allclose(ours.numpy(), X.gather(0, near).mean(0).numpy(), rtol=1e-12)
    np.testing.assert_allclose(robustfl.defense("meamed")(X, f=4).numpy(), byzfl.Meamed(f=4)(X.numpy()), rtol=1e-12)


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "peer"),
    [
        ("sf", lambda: byzfl.SignFlipping()),
        ("ipm(tau=3)", lambda: byzfl.InnerProductManipulation(tau=3.0)),
        ("foe(eta=4)", lambda: byzfl.InnerProductManipulation(tau=3.0)),
        ("alie(z=1.5, sign=1)", lambda: byzfl.ALittleIsEnough(tau=1.5)),
        ("alie(z=1.5, sign=1)", lambda: byzfl.ALittleIsEnough()),
        ("inf", lambda: byzfl.Inf()),
        ("mimic", lambda: byzfl.Mimic()),
        ("mimic(epsilon=5)", lambda: byzfl.Mimic(epsilon=5)),
    ],
)
def test_an_attack_agrees_with_the_peer(spec, peer):
    honest = np.random.default_rng(0).normal(size=(7, 5))
    ours = robustfl.forge(spec, torch.tensor(honest), f=1)[0]
    np.testing.assert_allclose(ours.numpy(), peer()(honest), rtol=1e-12, atol=1e-12)


def honest_rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(7, 5)) + 0.4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["trimmed-mean", "median"])
@pytest.mark.parametrize(
    ("spec", "peer"),
    [
        # Their direction is +s, ours is an option; their origin is 0, as is that of ipm; their η has no bound.
        ("opt(alie(sign=1), search=linear, eta_max=inf)", "Optimal_ALittleIsEnough"),
        ("opt(ipm, search=linear, eta_max=inf)", "Optimal_InnerProductManipulation"),
    ],
)
def test_the_search_agrees_with_the_peer_once_sign_and_origin_do(spec: str, peer: str, rule: str, seed: int) -> None:
    honest, f = honest_rows(seed), 2
    theirs_rule = byzfl.TrMean(f=f) if rule == "trimmed-mean" else byzfl.Median()
    theirs = getattr(byzfl, peer)(agg=theirs_rule, pre_agg_list=[], f=f)(honest)
    pipeline, stack = robustfl.defense(rule), torch.tensor(honest)
    view = View(n=9, f=f, honest=stack, aggregate=lambda rows: pipeline(rows, f=f))
    found, forged = robustfl.attack(spec).find(view, generator=stream(0))
    moved = pipeline(torch.cat([stack, torch.tensor(theirs).expand(f, -1)]), f=f) - stack.mean(0)
    if np.isnan(found.eta):  # known difference: ours also tries the attack as given
        assert found.distance > float(moved.norm())
        return
    # The rule's result stops moving at some strength; what the last digits make of that differs.
    assert found.distance == pytest.approx(float(moved.norm()), rel=1e-9)
    settled = pipeline(torch.cat([stack, 2 * forged.rows]), f=f)
    if not torch.allclose(settled - stack.mean(0), moved):
        np.testing.assert_allclose(forged.rows[0].numpy(), theirs, rtol=1e-9, atol=1e-9)


def test_known_difference_defaults_of_factors() -> None:
    """Ours are the papers': a small τ, z_max with a minus, σ = 200 of the Krum paper."""
    honest = honest_rows(0)
    rows = torch.tensor(honest)
    theirs = byzfl.InnerProductManipulation()(honest)
    np.testing.assert_allclose(theirs, 20 * robustfl.forge("ipm", rows, f=1)[0].numpy())
    mean = honest.mean(0)
    ahead = byzfl.ALittleIsEnough()(honest) - mean
    behind = robustfl.forge("alie(z=1.5)", rows, f=1)[0].numpy() - mean
    np.testing.assert_allclose(ahead, -behind)
    assert robustfl.attack("gaussian").sigma == 200 * byzfl.Gaussian().sigma


def test_known_difference_label_flipping() -> None:
    """Theirs averages the rows it is given; ours sends each attacker's own."""
    own = torch.tensor(honest_rows(0)[:2])
    sent = robustfl.attack("label-flip").forge(View(n=9, f=2, own=own), generator=stream(0))
    np.testing.assert_allclose(byzfl.LabelFlipping()(own.numpy()), sent.mean(0).numpy())
    assert not torch.equal(sent[0], sent[1])


def test_every_name_of_the_page_is_one_here_and_there() -> None:
    page = (Path(__file__).parents[2] / "docs/byzfl.md").read_text(encoding="utf-8")
    lines = [line for line in page.split("## Names and defaults")[1].split("##")[0].splitlines() if line[:3] == "| `"]
    theirs = {name for line in lines for name in re.findall(r"[A-Z]\w+(?=[(`])", line.split("|")[1])}
    attacks = {n for n in dir(byzfl) if inspect.isclass(c := getattr(byzfl, n)) and ".attacks." in c.__module__}
    rules = {n for n in dir(byzfl) if inspect.isclass(c := getattr(byzfl, n)) and "aggregators." in c.__module__}
    assert theirs == attacks | rules
    known = {entry.name for entry in entries("attack")}
    for line in lines:
        for spec in re.findall(r"`([^`]+)`", line.split("|")[2]):
            for step in split_outside(spec.removesuffix("+RULE"), "+"):
                kind = "attack" if step.partition("(")[0] in known else "defense"
                create(kind, re.sub(r"=(s|idx|epsilon)\)", "=1)", step))
