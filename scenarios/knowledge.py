"""Knowledge that a defense needs of the attack, tried rather than declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import torch

from robustfl.contracts import Context
from robustfl.defenses import Pipeline, parse_pipeline

_ROUNDS = 4
_ROWS, _COLUMNS = 15, 12


@cache
def knowledge(defense: str) -> str:
    """The knowledge of a defense: some of ``f declared``, ``an honest client``, ``clean server data``, or ``none``.

    Whether it uses f is tried: on some of the same rows, a defense that does returns something else for another f. So
    is whether it trusts one client, by the place of its row: a cell's honest rows come first.
    """
    pipeline = parse_pipeline(defense)
    told = ["f declared"] if uses_f(pipeline) else []
    told += ["an honest client"] if _trusts_one(pipeline) else []
    told += ["clean server data"] if pipeline.aggregator.needs_reference else []
    return ", ".join(told) or "none"


def _trusts_one(pipeline: Pipeline) -> bool:
    """True if, trial after trial, it follows a row far from the others in some of the places only."""
    follows, ignores = set(range(_ROWS)), set(range(_ROWS))
    for trial in range(12):
        followed = {place for place in follows | ignores if _follows(pipeline, place, trial)}
        follows, ignores = follows & followed, ignores - followed
        if not follows or not ignores:
            return False
    return True


def _follows(pipeline: Pipeline, place: int, trial: int) -> bool:
    rows = torch.randn((_ROWS, _COLUMNS), generator=torch.Generator().manual_seed(trial), dtype=torch.float64)
    reference, far = rows.mean(0), 1e2
    rows[place] += far
    context = Context(generator=torch.Generator().manual_seed(trial), reference=reference)
    return float((pipeline.run(rows, f=1, context=context).vector - reference).norm()) > far / _ROWS


@cache
def uses_f(pipeline: Pipeline) -> bool:
    """True if, on some of the same rows, the defense returns something else where it is told another f.

    Two apart: votes of an odd number of rows are never even.
    """
    if any(pipeline.refusal(_ROWS, f) is not None for f in (1, 3)):
        return False
    return any(not torch.equal(*made) for made in zip(*(_tried(pipeline, f) for f in (1, 3)), strict=True))


def _tried(pipeline: Pipeline, f: int) -> Iterator[torch.Tensor]:
    """The results of many trials, of a few rounds on end where a rule remembers: it may ask for f only later on."""
    state: Mapping[str, torch.Tensor] = {}
    for trial in range(60):
        rows = torch.randn((_ROWS, _COLUMNS), generator=torch.Generator().manual_seed(trial), dtype=torch.float64)
        context = Context(generator=torch.Generator().manual_seed(1), state=state, reference=rows.mean(0))
        made = pipeline.run(rows, f=f, context=context)
        state = made.state if (trial + 1) % _ROUNDS else {}
        yield made.vector
