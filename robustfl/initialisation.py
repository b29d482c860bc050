"""Initial parameters drawn from one generator, with torch's default distributions."""

from __future__ import annotations

import math

import torch
from torch import nn


def torch_default(network: nn.Module, generator: torch.Generator) -> None:
    """Kaiming-uniform (a = √5) weights and U(±1/√fan_in) biases for convolutions and linear layers, in place.

    Attention has Xavier-uniform projections and zero biases, embeddings have N(0, 1). These are the distributions torch
    itself uses; only the source of randomness differs. Other layers keep what their constructor set (ones and zeros for
    normalization).
    """
    for module in network.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
            if module.bias is not None:
                fan_in = module.weight[0].numel()
                nn.init.uniform_(module.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), generator=generator)
    for module in network.modules():  # after the linear layers within attention
        if isinstance(module, nn.MultiheadAttention):
            _attention(module, generator)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, generator=generator)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight.data[module.padding_idx])


def _attention(layer: nn.MultiheadAttention, generator: torch.Generator) -> None:
    for weight in (layer.in_proj_weight, layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight):
        if weight is not None:
            nn.init.xavier_uniform_(weight, generator=generator)
    for bias in (layer.in_proj_bias, layer.out_proj.bias):
        if bias is not None:
            nn.init.zeros_(bias)
    for added in (layer.bias_k, layer.bias_v):
        if added is not None:
            nn.init.xavier_normal_(added, generator=generator)


def kaiming_normal(network: nn.Module, generator: torch.Generator) -> None:
    """Kaiming-normal weights and zero biases for convolutions and linear layers, in place (ResNet-20)."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
