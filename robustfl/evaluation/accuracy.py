"""Accuracy on clean and on adversarial inputs, the success rate of a backdoor, and forgetting.

What runs a model does so in evaluation mode without weight gradients and leaves the model's mode as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.contracts import Attack, Evasion
from robustfl.data.checks import SURELY
from robustfl.errors import UsageError
from robustfl.gradients import NEAR, evaluating, right
from robustfl.results import received, unwritten

Pixels = Callable[[Tensor], Tensor]
# Fixed budgets, not the memory that happens to be free: the batch borders enter the random starts of attacks.
_BUDGET = {"cpu": 64 * 2**20, "cuda": 2 * 2**30}


@dataclass(frozen=True)
class Accuracy:
    """Hits per sample (``bool [N]``), their labels, and the mean cross-entropy."""

    hits: Tensor
    labels: Tensor
    loss: float

    @property
    def value(self) -> float:
        """Accuracy in [0, 1]; NaN without samples."""
        return float(self.hits.double().mean()) if len(self.hits) else math.nan

    def per_class(self, classes: int) -> list[float | None]:
        """Accuracy of each class, None for a class without samples."""
        total = torch.bincount(self.labels, minlength=classes)
        right = torch.bincount(self.labels[self.hits], minlength=classes)
        return [int(r) / int(t) if t else None for r, t in zip(right, total, strict=True)]


def mean_over_users(values: Sequence[float]) -> float:
    """The unweighted mean over users, whatever their numbers of samples.

    >>> mean_over_users([0.9, 0.7])
    0.8
    """
    return fmean(values) if len(values) else math.nan


def limit_doubt(labels: Tensor, taken: int) -> str:
    """A warning if ``taken`` exceeds the test ``labels [N]``, or if the first ``taken`` lack classes; "" otherwise.

    Classes are missed if a random part of the test set would hold them.

    >>> limit_doubt(torch.arange(100).repeat_interleave(10) // 50, 500)[:57]
    'robust accuracy is measured on the first 500 of 1000 test'
    >>> limit_doubt(torch.arange(1000) % 2, 500)
    ''
    """
    if taken > len(labels):
        return f"ra_limit = {taken} changes nothing: there are {len(labels)} test images"
    all_of, some = torch.bincount(labels), torch.bincount(labels[:taken], minlength=int(labels.max()) + 1)
    missing = int(((some == 0) & (all_of * taken >= SURELY * len(labels))).sum())
    if not missing:
        return ""
    return (
        f"robust accuracy is measured on the first {taken} of {len(labels)} test images, which lack {missing} of "
        f"{int((all_of > 0).sum())} classes; they are no random part: shuffle the test images, or leave ra_limit out"
    )


def activations(model: nn.Module, sample: Tensor) -> int:
    """The number of entries that the layers of a model put out for ``sample [b C H W]``, in evaluation mode."""
    numbers = 0

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        del module, inputs
        nonlocal numbers
        numbers += output.numel() if isinstance(output, Tensor) else 0

    leaves = [m for m in model.modules() if not any(True for _ in m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    try:
        with evaluating(model), torch.no_grad():
            model(sample)
    finally:
        for hook in hooks:
            hook.remove()
    return numbers


def evaluation_batch(model: nn.Module, sample: Tensor) -> int:
    """A batch size whose activations fit a fixed budget, from one forward of ``sample [b C H W]``; 16 to 1,024.

    64 for a model compiled by ``torch.jit``, whose activations cannot be counted.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return 64
    budget = _BUDGET.get(sample.device.type, _BUDGET["cpu"])
    size = budget // max(1, activations(model, sample) // len(sample) * sample.element_size())
    return max(16, min(1024, 1 << (max(1, size).bit_length() - 1)))


def standard_accuracy(model: nn.Module, pixels: Pixels, labels: Tensor, *, batch: int) -> Accuracy:
    """Accuracy on clean inputs; ``pixels(index)`` gives the images ``[b C H W]`` in [0, 1] for ``labels[index]``."""
    small = min(batch, NEAR) if labels.device.type == "cpu" else batch
    with evaluating(model):
        return _accuracy(model, pixels, labels, small)


def robust_accuracy(
    model: nn.Module, pixels: Pixels, labels: Tensor, attack: Evasion, *, batch: int, generator: torch.Generator
) -> Accuracy:
    """Accuracy on inputs perturbed by ``attack`` through this very model (white box)."""

    def perturbed(index: Tensor) -> Tensor:
        clean, own = pixels(index), labels[index]
        with unwritten(attack, "perturb()", clean, own):
            made = attack.perturb(model, clean, own, generator=generator)
        return received(made, clean, attack, "perturb()")

    with evaluating(model):
        return _accuracy(model, perturbed, labels, batch)


def attack_success(model: nn.Module, pixels: Pixels, labels: Tensor, attack: Attack, *, batch: int) -> float:
    """The share of images of other classes that the model takes for ``attack.target`` once they carry the trigger.

    ``pixels(index)`` gives the images ``[b C H W]`` in [0, 1] for ``labels[index]``. Images of the target class are
    left out, since they would count as success without any backdoor; NaN if there are no others. Logits with NaN are no
    answer. Evaluation mode; the model's mode is as before afterwards. Raises ``UsageError`` for an attack without a
    trigger.
    """
    if not attack.triggers or attack.target is None:
        raise UsageError(f"attack {attack.name!r} has no trigger, so there is no backdoor to measure")
    others = torch.nonzero(labels != attack.target).flatten()
    fooled = 0
    with evaluating(model), torch.no_grad():
        for index in torch.split(others, batch):
            clean = pixels(index)
            logits = model(received(attack.trigger(clean), clean, attack, "trigger()"))
            fooled += int(right(logits, torch.full((len(index),), attack.target, device=logits.device)).sum())
    return fooled / len(others) if len(others) else math.nan


def _accuracy(model: nn.Module, inputs: Pixels, labels: Tensor, batch: int) -> Accuracy:
    hits = torch.empty(len(labels), dtype=torch.bool, device=labels.device)
    loss = torch.zeros((), dtype=torch.float64, device=labels.device)
    for index in torch.split(torch.arange(len(labels), device=labels.device), batch):
        shown = inputs(index)
        with torch.no_grad():
            logits = model(shown)
            hits[index] = right(logits, labels[index])
            loss += F.cross_entropy(logits, labels[index], reduction="sum").double()
    return Accuracy(hits, labels, float(loss) / max(1, len(labels)))


Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Forgetting:
    """``matrix[m][d] = Acc_d(w) - Acc_d(w^m)``: model ``m`` after local training, validation data of client ``d``.

    ``by_model[m]`` and ``by_dataset[d]`` are means without the diagonal, ``mean`` is that of ``by_model``; all NaN for
    fewer than two clients. ``after[m][d] = Acc_d(w^m)``, and ``own`` is the mean of its diagonal minus the rest's:
    how much better local models are on their own clients' data. A client without validation data has NaN for
    accuracies, which enter no mean.
    """

    matrix: list[list[float]]
    by_model: list[float]
    by_dataset: list[float]
    mean: float
    after: list[list[float]]
    own: float


def forgetting(before: Sequence[float], after: Matrix) -> Forgetting:
    """Forgetting from the received model's accuracies ``[D]`` and those of the local models ``[M][D]``.

    Source: Legate, MSc thesis 2022, equations 11-12, with round t+1 and the average over data sets; ``own`` is the
    preference for the diagonal in the right half of its Figure 2.2.

    >>> found = forgetting([0.9, 0.8], [[0.9, 0.2], [0.5, 0.9]])
    >>> found.by_model, round(found.own, 6)
    ([0.6000000000000001, 0.4], 0.55)
    """
    matrix = [[b - a for b, a in zip(before, row, strict=True)] for row in after]
    n = len(matrix)
    if n < 2:
        nothing = [math.nan] * n
        return Forgetting(matrix, nothing, list(nothing), math.nan, [list(row) for row in after], math.nan)
    by_model = [_mean([matrix[m][d] for d in range(n) if d != m]) for m in range(n)]
    by_dataset = [_mean([matrix[m][d] for m in range(n) if m != d]) for d in range(n)]
    own = _mean([after[m][m] for m in range(n)]) - _mean([after[m][d] for m in range(n) for d in range(n) if m != d])
    return Forgetting(matrix, by_model, by_dataset, _mean(by_model), [list(row) for row in after], own)


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
