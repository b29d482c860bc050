"""Batches on the device: pixels, augmentation and normalization."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from robustfl.contracts import Arrays
from robustfl.data import Augment, Normalize, Resident, channel_statistics
from robustfl.data.resident import rotated
from robustfl.randomness import stream


def resident(shape=(5, 4, 6, 3)):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    x[0, 0, 0] = 255
    return Resident.of(x, np.arange(shape[0])), x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_the_chosen_images_over_255(dtype):
    data, x = resident()
    index = torch.tensor([3, 0, 3])
    pixels = data.pixels(index, dtype=dtype)
    expected = torch.tensor(x[[3, 0, 3]].transpose(0, 3, 1, 2)).to(dtype) / 255
    assert torch.equal(pixels, expected)
    assert pixels.dtype == dtype
    assert pixels.max() == 1
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert data.labels(index).tolist() == [3, 0, 3]
    assert torch.equal(data.pixels(slice(1, 3)), data.pixels(torch.tensor([1, 2])))
    assert len(data) == 5


def test_float_images_are_taken_as_they_are_and_never_shared():
    x = np.random.default_rng(0).random((3, 2, 2, 1), dtype=np.float32)
    data = Resident.of(x, np.zeros(3, int))
    for pixels in (data.pixels(slice(0, 3)), data.pixels(torch.arange(3))):
        assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), x)
        pixels.zero_()
    assert x.any()


def test_memory_mapped_images_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", resident()[1])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Resident.of(mapped, np.arange(5))  # and no warning, which would be an error here
    assert data.x.data_ptr() == mapped.ctypes.data


def test_augmentation_keeps_its_input_dtype_and_layout_and_repeats():
    data, _ = resident()
    x = data.pixels(slice(0, 5), dtype=torch.float64)
    before = x.clone()
    augment = Augment(flip=True, crop_padding=2)
    y = augment(x, stream(0, "a"))
    assert torch.equal(x, before)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, augment(x, stream(0, "a")))
    assert not torch.equal(y, augment(x, stream(1, "a")))
    assert torch.equal(Augment()(x, stream(0, "a")), x)


def test_normalize_acts_by_channel_in_the_dtype_of_its_input_and_has_no_state():
    layer = Normalize((0.25, 0.5), (0.5, 2.0))
    x = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    assert layer(x).flatten().tolist() == [1.5, 0.25]
    assert layer.double()(x).dtype == torch.float64
    assert layer.float()(x.float()).dtype == torch.float32
    exact = Normalize((0.1307,), (0.3081,)).double()(x[:, :1])
    assert exact.item() == (1 - 0.1307) / 0.3081
    assert not layer.state_dict()
    assert not list(layer.parameters())


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_channel_statistics_are_those_of_the_training_images(kind):
    x = np.random.default_rng(0).integers(0, 256, (3000, 2, 3, 2), dtype=np.uint8)
    scaled = x / 255
    given = x if kind == "uint8" else scaled.astype(np.float32)
    mean, std = channel_statistics(Arrays(given, np.zeros(3000, int), given, np.zeros(3000, int), 2, ""))
    assert mean == pytest.approx(scaled.mean((0, 1, 2)), rel=1e-6)
    assert std == pytest.approx(scaled.std((0, 1, 2)), rel=1e-6)


def test_known_data_sets_have_the_customary_statistics_if_channels_agree():
    x = np.full((2, 2, 2, 1), 51, np.uint8)
    arrays = Arrays(x, np.zeros(2, int), x, np.zeros(2, int), 2, "")
    assert channel_statistics(arrays, "mnist") == ((0.1307,), (0.3081,))
    assert channel_statistics(arrays, "fashion-mnist") == ((0.2860,), (0.3530,))
    colour = replace(arrays, train_x=np.repeat(x, 3, axis=-1))
    for name in ("cifar10", "cifar100"):
        assert channel_statistics(colour, name) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert channel_statistics(colour, "tiny-imagenet") == ((0.5,) * 3, (0.5,) * 3)
    assert channel_statistics(arrays, "cifar10") == (
        pytest.approx((0.2,)),
        (1.0,),
    )  # a constant channel is not divided by 0


# --- rotation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (9, 9), (7, 12)])
def test_images_are_turned_as_torchvision_turns_them(shape):
    x = torch.rand(6, 3, *shape, generator=stream(0, "x"), dtype=torch.float64)
    degrees = torch.tensor([0.0, 7.3, -29.1, 61.7, 180.0, -123.4])
    for image, angle, turned in zip(x, degrees, rotated(x, degrees), strict=True):
        expected = rotate(image, float(angle), interpolation=InterpolationMode.NEAREST)
        # A centre that falls between two pixels may be rounded either way.
        assert (turned != expected).double().mean() < 0.05


def test_a_quarter_turn_is_exact_and_corners_become_zero():
    x = torch.rand(2, 1, 9, 9, generator=stream(0, "x")) + 0.5
    turned = rotated(x, torch.tensor([90.0, 45.0]))
    assert torch.equal(turned[0], torch.rot90(x[0], 1, (1, 2)))
    assert [float(turned[1, 0, i, j]) for i in (0, 8) for j in (0, 8)] == [0, 0, 0, 0]
    assert turned[1, 0, 4, 4] == x[1, 0, 4, 4]
