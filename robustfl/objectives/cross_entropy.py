"""Cross-entropy, plain and with class weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robustfl.contracts import Objective
from robustfl.errors import UsageError
from robustfl.registry import register


@register("ce", version=1)
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """The mean cross-entropy of the batch, ``mean(logsumexp(z) - z_y)``, for every client.

    On heterogeneous data it pushes down the logits of classes a client does not have.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    arXiv:1602.05629.

    >>> import torch
    >>> CrossEntropy().per_sample(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.5, 0.5]))
    tensor([0.6931])
    """

    paper: ClassVar[str] = "@mcmahan2017communication"
    recordable: ClassVar[bool] = True


def wsm_loss(logits: Tensor, y: Tensor, prior: Tensor) -> Tensor:
    """The loss per sample ``[b]`` for logits ``[b c]``, labels ``[b]`` and class shares ``[c]`` or ``[b c]``.

    Raises ``UsageError`` for shares that are negative, not finite or all zero; on a GPU, which would have to be waited
    for, nobody looks.
    """
    if prior.device.type == "cpu" and _unfit(prior):
        raise UsageError("wsm: class shares must be finite, not negative and not all zero")
    return torch.logsumexp(logits + prior.to(logits.dtype).log(), dim=1) - logits.gather(1, y[:, None])[:, 0]


def _unfit(prior: Tensor) -> bool:
    return not bool(torch.isfinite(prior).all()) or bool((prior < 0).any()) or bool((prior.sum(-1) <= 0).any())


@register("wsm", version=1)
@dataclass(frozen=True)
class WSM(Objective):
    """``ℓ = logsumexp_c(z_c + log α_c) - z_y`` with ``α`` the shares of the classes in the client's training split.

    Classes the client does not have get no gradient, so local training does not forget them; a client with a single
    class learns nothing at all. The value may be negative; with uniform α it is ``CE - log C``.

    Reference: Legate, Caccia, Belilovsky, Re-Weighted Softmax Cross-Entropy to Control Forgetting in Federated
    Learning, CoLLAs 2023, arXiv:2304.05260. The mean over the batch instead of the sum.

    >>> WSM().per_sample(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1.0, 0.0]))
    tensor([0.])
    """

    paper: ClassVar[str] = "@legate2023weighted"
    recordable: ClassVar[bool] = True

    def per_sample(self, logits: Tensor, y: Tensor, prior: Tensor) -> Tensor:
        return wsm_loss(logits, y, prior)
