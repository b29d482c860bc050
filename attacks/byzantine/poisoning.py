"""The common part of attackers that poison their own data and send what they learn from them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Attack, Knowledge, View
from robustfl.errors import UsageError

from .sight import own_rows

_ROUNDING = 1e-5


def check_labels(y: Tensor, classes: int, attack: Attack) -> None:
    """Raise ``UsageError`` unless ``y [b]`` are integer labels in ``[0, classes)``."""
    own = f"attack {attack.name!r}"
    if y.ndim != 1 or y.dtype.is_floating_point or y.dtype == torch.bool:
        what = f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}"
        raise UsageError(f"{own} poisons integer labels [b], not {what}; of one-hot rows take y.argmax(1)")
    if len(y) and _looks_at(y, attack):
        low, high = (int(bound) for bound in y.aminmax())
        if low < 0 or high >= classes:
            raise UsageError(
                f"{own}: label {low if low < 0 else high}; with classes={classes} labels are 0 to {classes - 1}"
            )


def check_images(x: Tensor, attack: Attack) -> tuple[int, int]:
    """Height and width of images ``[b C H W]``; raise ``UsageError`` unless they are floats in [0, 1]."""
    own = f"attack {attack.name!r}"
    if x.ndim != 4:
        raise UsageError(f"{own} stamps images [b C H W], not inputs of shape {tuple(x.shape)}")
    if not x.dtype.is_floating_point:
        raise UsageError(f"{own} stamps images of floats in [0, 1], not of {str(x.dtype).removeprefix('torch.')}")
    if x.numel() and _looks_at(x, attack):
        low, high = (float(bound) for bound in x.aminmax())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise UsageError(
                f"{own} stamps images in [0, 1]; these reach from {low:.3g} to {high:.3g}: normalize inside the model, "
                "after the attack"
            )
    return x.shape[2], x.shape[3]


def _looks_at(values: Tensor, attack: Attack) -> bool:
    """True on the CPU, and on a GPU for the first batch of an attack: looking at values makes the GPU wait."""
    if values.device.type == "cpu":
        return True
    if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return False
    seen = vars(attack).setdefault("_seen_on_gpu", set())
    first = values.dtype not in seen
    seen.add(values.dtype)
    return first


class Poisoning(Attack):
    """Attackers that train honestly on changed batches (``poison``): messages are what comes of it."""

    knowledge: ClassVar[Knowledge] = "blind"
    needs_own: ClassVar[bool] = True
    forges: ClassVar[bool] = False
    poisons_data: ClassVar[bool] = True

    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        del generator
        return own_rows(view, self.name).clone()
