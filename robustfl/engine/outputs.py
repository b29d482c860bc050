"""Outputs of the clients' models on random images and on the server's own, for defenses that look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from robustfl.engine.experiment import Experiment
from robustfl.engine.personal import lent
from robustfl.engine.state import State
from robustfl.gradients import NEAR, channels_last, evaluating
from robustfl.models.network import representing


def noise_outputs(e: Experiment, state: State, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Class probabilities ``[n + 1 b c]`` on ``count`` images of uniform noise: ``Context.noise_outputs``.

    A row ``[d]`` leads to the model of its client; the last is the one that all received.
    """
    height, width, channels = e.train.x.shape[1:]
    # Drawn in float32 whatever the model is, so that precision does not change the draw.
    noise = torch.rand((count, channels, height, width), generator=generator, device=generator.device).to(state.theta)
    parts = [channels_last(images) for images in torch.split(noise, NEAR)]
    theta = e.algorithm.broadcast(state.theta, state.server).clone()
    made = []
    for model in (*_models(e, state, theta, rows), theta):
        with _evaluated(e, state, model):
            made.append(torch.cat([e.model(images) for images in parts]).softmax(1))
    return torch.stack(made)


def representations(e: Experiment, state: State, rows: Tensor) -> Tensor:
    """Inputs ``[n b k]`` of the last layers for the server's own images: ``Context.representations``."""
    assert e.root is not None
    dtype = next(e.model.parameters()).dtype
    parts = [channels_last(e.train.pixels(part.to(e.device), dtype=dtype)) for part in torch.split(e.root, NEAR)]
    theta = e.algorithm.broadcast(state.theta, state.server).clone()
    made = []
    for model in _models(e, state, theta, rows):
        with _evaluated(e, state, model), representing(e.model) as seen:
            for images in parts:
                e.model(images)
        made.append(torch.cat(seen))
    return torch.stack(made)


def _models(e: Experiment, state: State, theta: Tensor, rows: Tensor) -> list[Tensor]:
    """The models ``[d]`` that rows lead to from the model ``theta`` that all received."""
    return [e.algorithm.server(theta, e.privacy.whole(row, e.layout.d), e.lr(state.round)) for row in rows]


@contextmanager
def _evaluated(e: Experiment, state: State, model: Tensor) -> Iterator[None]:
    """Within, the network has the entries of ``model [d]`` and is in evaluation mode."""
    with evaluating(e.model), lent(state.theta, model), torch.no_grad():
        yield
