"""A tier of the benchmark that runs in seconds: two members of AutoByz, two configurations, tiny cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robustfl import autobyz
from robustfl.autobyz import Ensemble, Member
from robustfl.scenarios import RunOptions, Scenario
from robustfl.scenarios.bench import Benchmark, bench
from robustfl.scenarios.expand import asked
from robustfl.scenarios.grid import run_grid
from robustfl.scenarios.protocol import Tier, protocol

COUNTED = asked(protocol().tier("d").scenario())
assert COUNTED is not None
VERSION = COUNTED.version
"""The version of AutoByz that the protocol counts."""
RULES = replace(protocol(), budget=2, rates=(0.1, 0.2), coarse=(0.1,))
TUNING = {"attack": ["sf", "foe(eta=10)"], "seed": 1000}
SMALL = ("f=2", "partition=iid", "evasions=[]", 'model="mlp(hidden=(8,))"', "batch=8", "seed=[0, 1]")
MEMBERS = ("sf", "foe(eta=10)")


def shrink(patch: pytest.MonkeyPatch, members: Sequence[str] = MEMBERS) -> Tier:
    """Tier d of a protocol with two configurations and these members; it holds as long as ``patch``."""
    ensemble = Ensemble(VERSION, tuple(map(Member, members)))
    tier = replace(RULES.tier("d"), tuning=TUNING)
    rules = replace(RULES, tiers={"d": tier})
    patch.setattr(autobyz, "ensembles", lambda: {VERSION: ensemble})
    patch.setattr("robustfl.scenarios.protocol._protocols", lambda: {rules.version: rules})
    return tier


def run_bench(
    tier: Tier,
    out: Path,
    *wanted: str,
    rounds: int = 3,
    computed: list[int] | None = None,
    stop_after: int | None = None,
) -> Benchmark:
    """Tune and measure contestants of the tier; ``computed`` takes how many cells each part ran.

    After ``stop_after`` cells somebody interrupts it.
    """
    done = 0

    def counted(finished: object) -> None:
        nonlocal done
        done += 1
        if done == stop_after:
            raise KeyboardInterrupt

    def run(scenario: Scenario, **more: Any) -> Any:
        found = run_grid(scenario, RunOptions(jobs=0), out=out, on_cell=counted, **more)
        (computed if computed is not None else []).append(found.computed)
        return found

    return bench(tier, run, wanted=wanted, settings=[f"rounds={rounds}", *SMALL], out=out)
