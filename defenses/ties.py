"""Choosing rows by score so that the last bit decides nothing.

Scores come with a *slack*, how far each may be off by rounding: ``Mixed.slack`` has it for distances. Two scores are
tied if they differ by no more than both slacks. Ties are looked for around the one score that bounds the choice, never
from neighbor to neighbor: a chain of scores, each tied with the next, would join ends that differ for good. Whatever
is better than the bound beyond rounding is chosen, whatever is worse is not, and of those tied with it the lowest
indices are. A slack belongs to its own score, so that a huge row of an attacker blurs no comparison but its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A score on a bound is within it, on whichever side its last bit lies.
_LAST_BITS = 1e-9


def smallest(scores: Tensor, k: int, slack: Tensor) -> Tensor:
    """Which ``k`` scores are smallest along the last dimension: indices ``[… k]``, rising; ties to the lowest index.

    >>> smallest(torch.tensor([2.0, 1.0, 1.0 - 1e-9, 3.0]), 1, torch.full((4,), 1e-6))
    tensor([1])
    """
    if k == 0:
        return scores.new_empty((*scores.shape[:-1], 0), dtype=torch.int64)
    last = scores.argsort(dim=-1, stable=True)[..., k - 1 : k]
    bound, blur = scores.gather(-1, last), slack + slack.gather(-1, last)
    tied = (scores >= bound - blur) & (scores <= bound + blur)
    return torch.where(tied, bound, scores).argsort(dim=-1, stable=True)[..., :k].sort(dim=-1).values


def largest(scores: Tensor, k: int, slack: Tensor) -> Tensor:
    """Which ``k`` scores are largest along the last dimension: indices ``[… k]``, rising; ties to the lowest index."""
    return smallest(-scores, k, slack)


def snapped(values: Tensor, slack: Tensor) -> Tensor:
    """The values with those tied made equal, for code of others that compares them; here chains cannot be avoided.

    >>> snapped(torch.tensor([3.0, 1.0, 1.0 + 1e-7]), torch.full((3,), 1e-6))
    tensor([3., 1., 1.])
    """
    ordered, order = values.flatten().sort(stable=True)
    blur = slack.expand(values.shape).flatten()[order]
    starts = torch.ones(len(ordered), dtype=torch.bool)
    starts[1:] = ordered[1:] - ordered[:-1] > blur[1:] + blur[:-1]
    group = starts.cumsum(0) - 1
    made = torch.empty_like(ordered)
    made[order] = ordered[starts][group]
    return made.view(values.shape)


def usual(values: Tensor, bound: float) -> Tensor:
    """Which values ``[n]`` are within ``bound`` standard deviations of their median; all of them if they are equal.

    >>> usual(torch.tensor([1.0, 2.0, 3.0, 9.0]), 1.0)
    tensor([ True,  True,  True, False])
    """
    away = (values - values.quantile(0.5)).abs()
    deviation = values.std(correction=0)
    return away <= (bound + _LAST_BITS) * deviation + 1e-6 * values.abs().max()
