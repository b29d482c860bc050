"""Folders of images per class: as torchvision reads them, and every bad folder named."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder as TorchvisionFolder

from robustfl.data import dataset_from_spec
from robustfl.data.pictures import ENDINGS, ImageFolder
from robustfl.errors import DataMissing, UsageError
from robustfl.scenarios import Cell
from robustfl.scenarios.build import build

CLASSES = ("cat", "dog", "owl")


def draw(path, number, mode="RGB", size=(9, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], *((len(mode),) if len(mode) > 1 else ()))
    pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels, mode).save(path)


@pytest.fixture
def place(tmp_path):
    """Three training and two test images of each class, of 9×6 pixels in colour."""
    for part, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(CLASSES):
            for i in range(count):
                draw(tmp_path / f"birds/{part}/{name}/{'deeper/' * (i == 1)}{i}.png", 100 * count + 10 * label + i)
    return tmp_path / "birds"


def load(place, **params):
    return ImageFolder(path=str(place), **params).load(place.parent)


def same_images(found, labels, expected):
    """The images and labels of a data set are those of torchvision's, in another order."""
    got = sorted((int(y), x.tobytes()) for x, y in zip(found, labels, strict=True))
    return got == sorted((y, np.asarray(x).tobytes()) for x, y in expected)


@pytest.mark.parametrize("size", [None, 4])
def test_images_and_labels_are_torchvisions_and_take_turns_by_class(place, size):
    found = load(place, size=size)
    for part in ("train", "test"):
        resized = lambda image: image.resize((4, 4), Image.Resampling.BILINEAR) if size else image  # noqa: E731
        expected = TorchvisionFolder(place / part, transform=resized)
        assert same_images(getattr(found, f"{part}_x"), getattr(found, f"{part}_y"), expected)
    assert found.train_y.tolist() == [0, 1, 2] * 3
    assert (found.shape, found.classes) == ((3, 4, 4) if size else (3, 6, 9), 3)


def test_the_endings_are_torchvisions():
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert set(IMG_EXTENSIONS) == ENDINGS


def test_hidden_files_and_folders_are_skipped(place):
    before = load(place)
    for extra in ("train/.ipynb_checkpoints/0.png", "train/cat/.hidden.png", "test/cat/.ipynb_checkpoints/0.png"):
        draw(place / extra, 0)
    (place / "train/cat/notes.txt").write_text("no image")
    assert load(place).fingerprint == before.fingerprint


def test_a_changed_image_is_read_anew_and_equal_ones_are_not(place, monkeypatch):
    first = load(place)
    draw(place / "train/cat/0.png", 7)
    assert load(place).fingerprint != first.fingerprint
    monkeypatch.setattr("robustfl.data.pictures.arrays_of", None)
    assert isinstance(load(place).train_x, np.memmap)


def test_grey_and_colour(place):
    with Image.open(place / "train/cat/0.png") as image:
        luma = np.asarray(image.convert("L"))
    grey = load(place, channels=1)
    assert grey.shape == (1, 6, 9)
    assert np.array_equal(grey.train_x[0, ..., 0], luma)
    draw(place / "train/cat/0.png", 1, "L")
    with pytest.raises(UsageError, match=r"1 images are grey, such as .*cat/0\.png, and 14 coloured.*channels=3"):
        load(place)
    repeated = load(place, channels=3).train_x[0]
    assert np.array_equal(repeated[..., 0], repeated[..., 2])


def test_grey_images_alone_have_one_channel(tmp_path):
    for i, part in enumerate(("train", "test")):
        for label, name in enumerate("ab"):
            draw(tmp_path / f"grey/{part}/{name}/0.png", 2 * i + label, "L", (5, 5))
    assert load(tmp_path / "grey").shape == (1, 5, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: os.rename(p / "test", p / "val"), r"no folder .*/test; .* must hold .* and holds train, val$"),
        (lambda p: os.rename(p / "train", p / "x"), r"there is no folder .*/train"),
        (lambda p: (p / "train/ant").mkdir(), r"train/ant holds no image \(\.bmp, .*: add some or remove the folder"),
        (lambda p: draw(p / "train/ant/0.png", 0), r"classes in train that test has not: ant; both need"),
        (lambda p: draw(p / "test/ant/0.png", 0), r"classes in test that train has not: ant; both need"),
        (lambda p: draw(p / "test/cat/9.png", 0, size=(8, 8)), r"differ in size, .*9×6 .*cat/9\.png 8×8; give size="),
        (lambda p: (p / "test/cat/9.png").symlink_to(p / "gone"), r"test/cat/9\.png cannot be read: No such file"),
        (lambda p: (p / "test/cat/9.png").write_bytes(b"no image"), r"test/cat/9\.png is no readable image"),
        (lambda p: Image.new("I;16", (9, 6)).save(p / "test/cat/9.png"), r"more than 8 bits per channel"),
    ],
)
def test_a_bad_folder_is_named_with_what_is_wrong(place, change, message):
    change(place)
    with pytest.raises(UsageError, match=message):
        load(place)


def test_a_truncated_image_is_named(place):
    file = place / "test/dog/0.png"
    file.write_bytes(file.read_bytes()[:80])
    with pytest.raises(UsageError, match=r"test/dog/0\.png is no readable image"):
        load(place, size=4)


def test_a_path_that_is_no_such_folder_is_named(place):
    with pytest.raises(DataMissing, match=r"imagefolder: there is no .*nowhere; it should hold train/<class>/"):
        load(place / "nowhere")
    with pytest.raises(UsageError, match=r"0\.png is a file; a folder"):
        load(place / "train/cat/0.png")
    with pytest.raises(UsageError, match="channels=2 must be 1"):
        ImageFolder(path="x", channels=2)


def test_a_path_without_a_data_set_is_answered_with_the_data_set(place, monkeypatch):
    monkeypatch.chdir(place.parent)
    assert dataset_from_spec("imagefolder:birds") == ImageFolder(path="birds")
    with pytest.raises(UsageError, match=r"unknown dataset 'birds'; to read it write imagefolder:birds"):
        dataset_from_spec("birds")
    with pytest.raises(
        UsageError, match=r"unknown dataset 'femnist'; .* \(images of your own: imagefolder\(path=FOLDER\).*npz"
    ):
        dataset_from_spec("femnist")


def test_clients_share_the_images_of_a_folder(place, monkeypatch):
    monkeypatch.chdir(place.parent)
    cell = Cell.of({"dataset": "imagefolder:birds", "model": "mlp", "norm": "none", "clients": 3, "batch": 2})
    built = build(cell, root=place.parent)
    assert [len(part) for part in built.experiment.parts] == [3, 3, 3]
    assert built.test.y.tolist() == [0, 1, 2] * 2
