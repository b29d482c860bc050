"""Common corruptions against NumPy, SciPy and matplotlib; what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from scipy.ndimage import gaussian_filter
from torch import nn

import robustfl
from robustfl.attacks.evasion import Corruption, masking
from robustfl.attacks.evasion.corruptions import CORRUPTIONS
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.testing import check


def corrupted(type, severity, x, seed=0):
    made = Corruption(type=type, severity=severity)
    return made.perturb(nn.Identity(), x, torch.zeros(len(x), dtype=torch.int64), generator=stream(seed, "c"))


def images(count=4, channels=3, side=9):
    x = torch.rand(count, channels, side, side, generator=stream(0, "x"), dtype=torch.float64)
    x[0, :, :2] = 0.0  # black, which has no hue
    return x


@pytest.mark.parametrize("severity", [1, 5])
def test_blur_and_light_are_those_of_the_released_code(severity):
    x, at = images(), severity - 1
    rows = x.permute(0, 2, 3, 1).numpy()
    sigma = [0.4, 0.6, 0.7, 0.8, 1][at]
    blurred = np.stack([gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4.0) for image in rows])
    hsv = rgb_to_hsv(rows)
    hsv[..., 2] = np.clip(hsv[..., 2] + [0.05, 0.1, 0.15, 0.2, 0.3][at], 0, 1)
    means = rows.mean((1, 2), keepdims=True)
    faded = np.clip((rows - means) * [0.75, 0.5, 0.4, 0.3, 0.15][at] + means, 0, 1)
    for type, expected in (("gaussian-blur", blurred), ("brightness", hsv_to_rgb(hsv)), ("contrast", faded)):
        found = corrupted(type, severity, x).permute(0, 2, 3, 1).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("level", [0.3, 0.5])
def test_noise_has_the_mean_and_deviation_of_the_released_code(level):
    x = torch.full((1, 1, 300, 300), level, dtype=torch.float64)
    deviations = {"gaussian-noise": 0.06, "shot-noise": (level / 100) ** 0.5, "speckle-noise": 0.1 * level}
    for type, deviation in deviations.items():
        found = corrupted(type, 2 if type != "shot-noise" else 3, x)
        assert float(found.mean()) == pytest.approx(level, abs=4 * deviation / 300)
        assert float(found.std()) == pytest.approx(deviation, rel=0.02)
    found = corrupted("impulse-noise", 5, x)
    shares = [float((found == value).double().mean()) for value in (0.0, level, 1.0)]
    assert shares == pytest.approx([0.035, 0.93, 0.035], abs=0.005)


@pytest.mark.parametrize("type", CORRUPTIONS)
def test_severities_grow_and_draws_come_from_the_generator(type):
    x = images(8, side=16)
    moved = [float((corrupted(type, severity, x) - x).abs().mean()) for severity in range(1, 6)]
    assert moved == sorted(moved)
    assert moved[0] > 0
    assert torch.equal(corrupted(type, 3, x), corrupted(type, 3, x))
    draws = not torch.equal(corrupted(type, 3, x), corrupted(type, 3, x, seed=1))
    assert draws == type.endswith("noise")
    assert [c for c in check(Corruption(type=type)) if not c.passed] == []


def test_a_corruption_says_nothing_about_masked_gradients():
    assert masking({"pgd": 0.6, "corruption": 0.1, "square": 0.61}) is None
    assert masking({"corruption": 0.9, "square": 0.1}) is None


def test_a_model_is_evaluated_under_corruptions():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = robustfl.evaluate(model, "digits", ["corruption", "corruption(type=contrast, severity=5)"])
    assert list(found.ra) == ["corruption", "corruption(type=contrast, severity=5)"]
    with pytest.raises(UsageError, match="type='fog' is not allowed; known: brightness, contrast"):
        robustfl.evaluate(model, "digits", ["corruption(type=fog)"])
