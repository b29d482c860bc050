"""The server's rule as attackers who know it try it out: without consequences, and with the draws it will make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from robustfl.contracts import Context, Rehearsal


def rehearsal_of(
    run: Callable[[Tensor, Context], Tensor],
    context: Context,
    *,
    isometric: bool = False,
    origin: Tensor | None = None,
) -> Rehearsal:
    """A rehearsal of ``run(rows, context)``, which the server will call with ``context`` as it is now.

    Every call gets a generator in the state that the server's has now, and leaves that one alone.
    """
    generator = context.generator
    draws = None if generator is None else generator.get_state()

    def aggregate(rows: Tensor) -> Tensor:
        if generator is None or draws is None:
            return run(rows, context)
        again = torch.Generator(device=generator.device)
        again.set_state(draws)
        return run(rows, replace(context, generator=again))

    return Rehearsal(aggregate, isometric, origin)
