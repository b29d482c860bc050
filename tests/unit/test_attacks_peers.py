"""Where definitions agree, another project's attacks give the same vectors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import robustfl
from robustfl.contracts import View
from robustfl.randomness import stream
from robustfl.registry import create, entries, split_outside

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
        ("alie(z=1.5, sign=1)", lambda: byzfl.ALittleIsEnough()),
        ("inf", lambda: byzfl.Inf()),
        ("mimic", lambda: byzfl.Mimic()),
        ("mimic(epsilon=5)", lambda: byzfl.Mimic(epsilon=5)),
    ],
)
def test_agrees_with_the_peer(spec, peer):
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
