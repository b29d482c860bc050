"""Probes of a model before it is evaluated: random outputs, dependence on the batch, inputs of another scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.gradients import evaluating, right

PROBED = 16
_NOISE, _ROUNDING = 1e-4, 1e-2
_SCALED = 256
_TRACKED = 20  # batches after which the initial running statistics are forgotten
_ENOUGH = 32  # images whose variance is compared
_FACTOR = 3.0


class Evaluated(nn.Module):
    """A model whose outputs depend on more than one image and its weights, as it is evaluated.

    ``draws`` > 1 gives log-probabilities, the mean of so many forwards of a randomised model: gradients and predictions
    are those of the mean (expectation over transformation, EOT: Athalye, Engstrom, Ilyas, Kwok, Synthesizing Robust
    Adversarial Examples, ICML 2018, arXiv:1707.07397). ``fill [b C H W]`` makes every forward one of ``b`` images, for
    a model whose outputs depend on the whole batch: larger batches are split, smaller ones filled up with its images.
    """

    def __init__(self, model: nn.Module, *, draws: int = 1, fill: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.draws, self.fill = model, draws, fill

    def forward(self, x: Tensor) -> Tensor:
        fill = self.fill
        if fill is None:
            return self._mean(x)
        parts = torch.split(x, len(fill))
        return torch.cat([self._mean(torch.cat([p, fill[: len(fill) - len(p)]]))[: len(p)] for p in parts])

    def _mean(self, x: Tensor) -> Tensor:
        if self.draws == 1:
            return self.model(x.clone())  # type: ignore[no-any-return]
        each = torch.stack([F.log_softmax(self.model(x.clone()), dim=1) for _ in range(self.draws)])
        return each.logsumexp(0) - math.log(self.draws)


def traits(model: nn.Module, x: Tensor) -> tuple[bool, bool]:
    """True if two forwards of the images ``x`` differ, as with noise at test time, and if the rest of a batch counts.

    It does if the logits of a batch differ from those of its halves, as with batch norm by the batch's statistics. Of a
    randomised model, whose logits differ anyway, layers of batch norm without running statistics say so.

    >>> traits(nn.Identity(), torch.rand(4, 2)), traits(nn.BatchNorm1d(2, track_running_stats=False), torch.rand(4, 2))
    ((False, False), (False, True))
    """
    layers = (m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    untracked = any(layer.running_mean is None for layer in layers)
    logits = _logits(model, x)
    if _differ(logits, _logits(model, x), _NOISE):
        return True, untracked
    if untracked or len(x) < 4:
        return False, untracked
    return False, _differ(logits, torch.cat([_logits(model, half) for half in x.chunk(2)]), _ROUNDING)


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    with evaluating(model), torch.no_grad():
        return model(x.clone())  # type: ignore[no-any-return]


def _differ(a: Tensor, b: Tensor, share: float) -> bool:
    """True if two outputs differ by more than ``share`` of the largest, or by more than their dtype can tell."""
    tolerance = max(share, 8 * torch.finfo(a.dtype).eps) * float(a.abs().max())
    return float((a - b).abs().max()) > tolerance


# --- the scale of inputs ---------------------------------------------------------------------------------------------


def scale_doubts(evaluated: nn.Module, model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """Reasons to doubt that ``model`` was trained on inputs of the scale on which it is ``evaluated``."""
    found = [_other_scale(evaluated, model, x[:_SCALED], y[:_SCALED]), _other_statistics(evaluated, model, x[:_SCALED])]
    return [words for words in found if words]


def _other_scale(evaluated: nn.Module, model: nn.Module, x: Tensor, y: Tensor) -> str:
    """A warning if the model is far more accurate on differently scaled images; "" otherwise."""
    if x.dim() != 4 or len(x) < 2:
        return ""
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True).clamp_min(1e-3)
    shown = f"mean={_listed(mean)}, std={_listed(std)}"
    scaled = {
        shown: (x - mean) / std,
        "mean=0.5, std=0.5": 2 * x - 1,
        "mean=0, std=1/255": 255 * x,
        "no mean and std": x,
    }
    accuracy = {given: float(right(_logits(model, images), y).double().mean()) for given, images in scaled.items()}
    now, best = float(right(_logits(evaluated, x), y).double().mean()), max(accuracy, key=accuracy.__getitem__)
    if accuracy[best] <= now + 0.1 + 2 / math.sqrt(len(x)):
        return ""
    return (
        f"of the first {len(x)} images {now:.1%} are classified right, and {accuracy[best]:.1%} with {best}: the model "
        "was trained on inputs of that scale; give mean= and std= as in its training"
    ).replace("%", " %")


def _listed(values: Tensor) -> list[float]:
    return [round(value, 2) for value in values.flatten().tolist()]


def _other_statistics(evaluated: nn.Module, model: nn.Module, x: Tensor) -> str:
    """A warning if the input of the first batch norm varies far less or more than in training; "" otherwise."""
    named = ((name, m) for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    name, layer = next(named, ("", None))
    if layer is None or layer.running_var is None or layer.num_batches_tracked is None:
        return ""
    if int(layer.num_batches_tracked) < _TRACKED or len(x) < _ENOUGH:
        return ""
    in_training = layer.running_var + layer.eps
    ratios: list[Tensor] = []

    def compare(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del module
        ratios.append(inputs[0].transpose(0, 1).flatten(1).var(1) / in_training)

    hook = layer.register_forward_pre_hook(compare)
    try:
        _logits(evaluated, x)
    finally:
        hook.remove()
    ratio = float(ratios[0].median()) if ratios else 1.0
    if 1 / _FACTOR <= ratio <= _FACTOR:
        return ""
    return (
        f"the input of {name}, the first batch norm, has {ratio:.2g} times the variance that it had in training: the "
        "model was trained on inputs of another scale; give mean= and std= as in its training"
    )
