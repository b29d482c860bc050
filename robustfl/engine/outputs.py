"""Predictions of the clients' models on random images, for defenses that look at them."""

from __future__ import annotations

import torch
from torch import Tensor

from robustfl.engine.experiment import Experiment
from robustfl.engine.personal import lent
from robustfl.engine.state import State
from robustfl.gradients import NEAR, channels_last, evaluating


def noise_outputs(e: Experiment, state: State, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Class probabilities ``[n + 1 b c]`` on ``count`` images of uniform noise: ``Context.noise_outputs``.

    A row ``[d]`` leads to the model of its client; the last is the one that all received.
    """
    height, width, channels = e.train.x.shape[1:]
    # Drawn in float32 whatever the model is, so that precision does not change the draw.
    noise = torch.rand((count, channels, height, width), generator=generator, device=generator.device).to(state.theta)
    parts = [channels_last(images) for images in torch.split(noise, NEAR)]
    theta, lr = e.algorithm.broadcast(state.theta, state.server).clone(), e.lr(state.round)
    models = [e.algorithm.server(theta, e.privacy.whole(row, e.layout.d), lr) for row in rows]
    made = []
    for model in (*models, theta):
        with evaluating(e.model), lent(state.theta, model), torch.no_grad():
            made.append(torch.cat([e.model(images) for images in parts]).softmax(1))
    return torch.stack(made)
