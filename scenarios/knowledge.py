"""Knowledge that a defense needs of the attack, tried rather than declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import torch

from robustfl.contracts import Context
from robustfl.defenses import Pipeline, parse_pipeline

_ROUNDS = 4
_ROWS = 15
_SHAPES = ((_ROWS, 12), (10, 200), (21, 40))
"""Numbers of rows and columns: all rules are tried on the first, with nothing beside the rows. Those from elsewhere
are tried on the others as well, with what is beside rows in a cell: a rule may know how it is tried."""


@cache
def knowledge(defense: str) -> str:
    """The knowledge of a defense: some of ``f declared``, ``an honest client``, ``clean server data``, or ``none``.

    Whether it uses f is tried: on some of the same rows, a defense that does returns something else for another f. So
    is whether it trusts one client, by the place of its row: a cell's honest rows come first.
    """
    pipeline = parse_pipeline(defense)
    told = ["f declared"] if uses_f(pipeline) else []
    trusts = any(_trusts_one(pipeline, in_order) for in_order in ((True, False) if pipeline.foreign else (True,)))
    told += ["an honest client"] if trusts else []
    told += ["clean server data"] if pipeline.aggregator.needs_reference else []
    return ", ".join(told) or "none"


def _trusts_one(pipeline: Pipeline, in_order: bool) -> bool:
    """True if, trial after trial, it follows a row far from the others in some of the places only.

    Rules from elsewhere see rows in an order drawn for the round; who undoes that knows the places all the same.
    """
    follows, ignores = set(range(_ROWS)), set(range(_ROWS))
    for trial in range(12):
        followed = {place for place in follows | ignores if _follows(pipeline, place, trial, in_order)}
        follows, ignores = follows & followed, ignores - followed
        if not follows or not ignores:
            return False
    return True


def _follows(pipeline: Pipeline, place: int, trial: int, in_order: bool) -> bool:
    rows = torch.randn((_ROWS, 12), generator=torch.Generator().manual_seed(trial), dtype=torch.float64)
    reference, far = rows.mean(0), 1e2
    rows[place] += far
    context = Context(generator=torch.Generator().manual_seed(trial), reference=reference)
    return float((pipeline.run(rows, f=1, context=context, in_order=in_order).vector - reference).norm()) > far / _ROWS


@cache
def uses_f(pipeline: Pipeline) -> bool:
    """True if, on some of the same rows, the defense returns something else where it is told another f.

    Two apart: votes of an odd number of rows are never even.
    """
    return any(
        not torch.equal(one, two)
        for n, width in (_SHAPES if pipeline.foreign else _SHAPES[:1])
        if pipeline.refusal(n, 1) is None and pipeline.refusal(n, 3) is None
        for one, two in zip(*(_tried(pipeline, f, n, width) for f in (1, 3)), strict=True)
    )


def _tried(pipeline: Pipeline, f: int, n: int, width: int) -> Iterator[torch.Tensor]:
    """The results of many trials, of a few rounds on end where a rule remembers: it may ask for f only later on."""
    state: Mapping[str, torch.Tensor] = {}
    for trial in range(60):
        rows = torch.randn((n, width), generator=torch.Generator().manual_seed(trial), dtype=torch.float64)
        context = Context(generator=torch.Generator().manual_seed(1), state=state, reference=rows.mean(0))
        if n != _ROWS:
            context = replace(
                context, round=trial, clients=torch.arange(n), weights=torch.full((n,), 1 / n, dtype=torch.float64),
                shapes=((width // 2, 2),), model=torch.zeros(width, dtype=torch.float64),
            )  # fmt: skip
        made = pipeline.run(rows, f=f, context=context)
        state = made.state if (trial + 1) % _ROUNDS else {}
        yield made.vector
