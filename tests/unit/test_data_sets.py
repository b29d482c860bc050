"""Data sets: where they are looked for, the cache, limits, and what is said about bad files."""

from __future__ import annotations

import bz2
import io
import json
import os
import shutil
import struct
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import robustfl
from robustfl.data import (
    Cifar10,
    Digits,
    Emnist,
    Mnist,
    Npz,
    Svhn,
    Usps,
    data_root,
    dataset_from_spec,
    public,
    stored,
)  # fmt: skip
from robustfl.data.checks import checked_arrays, data_doubts
from robustfl.errors import DataMissing, UsageError
from robustfl.models.weights import Weights
from robustfl.randomness import numpy_stream
from robustfl.scenarios import Cell, Scenario, run_cell
from robustfl.scenarios.build import build


def images(**changes):
    """A tiny archive's arrays: eight 2×2 images, three classes."""
    x = np.arange(8 * 4, dtype=np.uint8).reshape(8, 2, 2, 1)
    good = {"train_x": x[:6], "train_y": np.arange(6) % 3, "test_x": x[6:], "test_y": np.array([0, 2])}
    return {k: v for k, v in {**good, **changes}.items() if v is not None}


def archive(folder, name="mine.npz", **changes):
    path = Path(folder) / name
    np.savez(path, **images(**changes))
    return path


def folders(root):
    return sorted(p.name for p in (root / ".cache").iterdir())


# --- the root --------------------------------------------------------------------------------------------------------


def test_the_root_is_the_argument_else_the_variable_else_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUSTFL_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root(str(tmp_path / "given")) == tmp_path / "given"
    assert data_root(None) == tmp_path / "variable"
    monkeypatch.setenv("ROBUSTFL_DATA", "")
    assert data_root() == tmp_path / "xdg/robustfl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == tmp_path / "home/.cache/robustfl"
    assert data_root("~/d") == tmp_path / "home/d"


def test_a_home_that_is_not_there_is_told(tmp_path, monkeypatch):
    def nobody(user):
        raise KeyError(user)

    with pytest.raises(UsageError, match="data root ~nobody-here/d: there is no such home"):
        data_root("~nobody-here/d")
    with pytest.raises(DataMissing, match=r"there is no .*/~nobody-here/a\.npz"):
        Npz(path="~nobody-here/a.npz").load(tmp_path)
    with pytest.raises(DataMissing, match=r"there is no file of weights .*/~nobody-here/a\.pt"):
        Weights(path="~nobody-here/a.pt").load(torch.nn.Linear(1, 1), tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME", "ROBUSTFL_DATA"):  # as in a container under a number that no user has
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(UsageError, match=r"there is no such home; give --data-root or set \$ROBUSTFL_DATA"):
        data_root()


# --- digits ----------------------------------------------------------------------------------------------------------


def test_digits_are_a_fixed_stratified_split_of_all_images(tmp_path):
    from sklearn.datasets import load_digits

    a = Digits().load(tmp_path)
    assert (a.train_x.shape, a.test_x.shape, a.shape) == ((1442, 8, 8, 1), (355, 8, 8, 1), (1, 8, 8))
    share = np.bincount(a.test_y) / (np.bincount(a.test_y) + np.bincount(a.train_y))
    assert np.abs(share - 0.2).max() < 0.005
    whole = load_digits()
    everything = np.concatenate([a.train_x, a.test_x])[..., 0]
    assert sorted(everything.sum((1, 2))) == sorted(np.rint(whole.images * 255 / 16).sum((1, 2)))
    fifth_zero = np.flatnonzero(whole.target == 0)[4]
    assert np.array_equal(a.test_x[a.test_y == 0][0, ..., 0], np.rint(whole.images[fifth_zero] * 255 / 16))


def test_digits_work_without_a_writable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    a = Digits().load(tmp_path / "file")  # a folder cannot be made below a file, not even by root
    assert a.fingerprint == Digits().load(tmp_path).fingerprint


# --- the cache -------------------------------------------------------------------------------------------------------


def test_images_are_memory_mapped_from_the_cache_and_not_decoded_again(tmp_path, monkeypatch):
    path = archive(tmp_path)
    first = Npz(path=str(path)).load(tmp_path)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", None)
    again = Npz(path=str(path)).load(tmp_path)
    assert isinstance(again.train_x, np.memmap)
    assert not again.train_x.flags.writeable
    assert np.array_equal(again.train_x, images()["train_x"])
    assert (again.classes, again.fingerprint) == (3, first.fingerprint)
    assert folders(tmp_path) == [f"npz-{first.fingerprint[:32]}"]


def test_changed_content_is_noticed_and_equal_content_shared(tmp_path):
    path = archive(tmp_path)
    first = Npz(path=str(path)).load(tmp_path)
    copy = Npz(path=str(archive(tmp_path, "copy.npz"))).load(tmp_path)
    assert copy.fingerprint == first.fingerprint
    assert len(folders(tmp_path)) == 1
    archive(tmp_path, test_y=np.array([1, 2]))
    assert Npz(path=str(path)).load(tmp_path).fingerprint != first.fingerprint
    assert Npz(path=str(tmp_path / "copy.npz")).load(tmp_path).fingerprint == first.fingerprint


def test_a_shared_folder_knows_its_last_sixteen_sources(tmp_path, monkeypatch):
    files = [archive(tmp_path, f"{i}.npz") for i in range(17)]
    for path in files:
        Npz(path=str(path)).load(tmp_path)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", None)
    for path in files[1:]:
        Npz(path=str(path)).load(tmp_path)  # decodes nothing
    with pytest.raises(TypeError):
        Npz(path=str(files[0])).load(tmp_path)


def test_a_stamp_tells_files_by_place_size_and_time_and_the_way_they_are_read(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_bytes(b"123")
        os.utime(tmp_path / folder / "x", (1, 1))
    monkeypatch.chdir(tmp_path / "a")
    before = stored.file_stamp("npz", [Path("x")])
    assert before == stored.file_stamp("npz", [tmp_path / "a/x"]) != stored.file_stamp("mnist", [Path("x")])
    monkeypatch.chdir(tmp_path / "b")
    assert stored.file_stamp("npz", [Path("x")]) != before
    for content, when in ((b"1234", 1), (b"123", 2)):
        (tmp_path / "a/x").write_bytes(content)
        os.utime(tmp_path / "a/x", (when, when))
        assert stored.file_stamp("npz", [tmp_path / "a/x"]) != before


def test_a_folder_under_the_name_of_another_content_is_not_taken_for_it(tmp_path):
    mine, other = (archive(tmp_path, f"{i}.npz", test_y=np.array([0, i])) for i in (1, 2))
    right, wrong = (Npz(path=str(path)).load(tmp_path).fingerprint[:32] for path in (mine, other))
    shutil.rmtree(tmp_path / f".cache/npz-{right}")
    (tmp_path / f".cache/npz-{wrong}").rename(tmp_path / f".cache/npz-{right}")
    assert Npz(path=str(mine)).load(tmp_path).test_y.tolist() == [0, 1]


def test_what_killed_processes_left_is_swept_after_a_day(tmp_path):
    folder = tmp_path / ".cache"
    for name, age in (("old", 90_000), ("young", 80_000)):
        (folder / f".tmp-{name}").mkdir(parents=True)
        os.utime(folder / f".tmp-{name}", (time.time() - age,) * 2)
    (folder / ".tmp-gone").symlink_to("nowhere")  # as one that its owner has just renamed
    a = Npz(path=str(archive(tmp_path))).load(tmp_path)
    assert isinstance(a.train_x, np.memmap)
    assert folders(tmp_path) == [".tmp-gone", ".tmp-young", f"npz-{a.fingerprint[:32]}"]


@pytest.mark.parametrize("damage", ["train_x.npy", "meta.json"])
def test_a_damaged_cache_is_decoded_again(tmp_path, damage):
    path = archive(tmp_path)
    first = Npz(path=str(path)).load(tmp_path)
    file = tmp_path / ".cache" / folders(tmp_path)[0] / damage
    file.write_bytes(file.read_bytes()[:-3])
    again = Npz(path=str(path)).load(tmp_path)
    assert np.array_equal(again.train_x, images()["train_x"])
    assert again.fingerprint == first.fingerprint
    assert isinstance(Npz(path=str(path)).load(tmp_path).train_x, np.memmap)


def test_a_cache_that_the_system_does_not_open_is_not_called_damaged(tmp_path, monkeypatch, caplog):
    path = archive(tmp_path)
    Npz(path=str(path)).load(tmp_path)

    def none_left(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("robustfl.data.stored._open", none_left)
    assert isinstance(Npz(path=str(path)).load(tmp_path).train_x, np.ndarray)
    assert "cannot be read (Too many open files)" in caplog.text
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("damage", ["another image", "another label", "empty"])
def test_a_cached_array_with_other_content_is_decoded_again(tmp_path, damage, caplog):
    """Of the same size, shape and dtype: only the digest tells. Another process has not looked at it yet."""
    path = archive(tmp_path)
    first = Npz(path=str(path)).load(tmp_path)
    file = tmp_path / ".cache" / folders(tmp_path)[0] / ("test_y.npy" if "label" in damage else "train_x.npy")
    data = bytearray(file.read_bytes())
    data[-8] ^= 1
    file.write_bytes(b"" if damage == "empty" else data)
    again = Npz(path=str(path)).load(tmp_path)
    assert "damaged" in caplog.text
    assert np.array_equal(again.train_x, images()["train_x"])
    assert np.array_equal(again.test_y, images()["test_y"])
    assert again.fingerprint == first.fingerprint
    assert isinstance(Npz(path=str(path)).load(tmp_path).train_x, np.memmap)


def test_a_process_computes_the_digest_of_what_it_maps_once(tmp_path, monkeypatch):
    path = archive(tmp_path)
    Npz(path=str(path)).load(tmp_path)
    monkeypatch.setattr("robustfl.data.stored._verified", set())  # as in another process
    seen = []
    real = stored.content_digest
    monkeypatch.setattr(stored, "content_digest", lambda *given: seen.append(1) or real(*given))
    for _ in range(3):
        Npz(path=str(path)).load(tmp_path)
    assert len(seen) == 1


def test_a_full_disk_leaves_no_half_written_folder_and_the_images_in_memory(tmp_path, monkeypatch, caplog):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    path = archive(tmp_path)
    monkeypatch.setattr("robustfl.data.stored.np.save", full)
    a = Npz(path=str(path)).load(tmp_path)
    assert np.array_equal(a.train_x, images()["train_x"])
    assert folders(tmp_path) == []
    assert "No space left" in caplog.text


def test_whoever_decodes_second_takes_the_folder_of_the_first(tmp_path, monkeypatch):
    path = archive(tmp_path)
    real, raced = Path.rename, []

    def rename(self, target):  # just before we are done, another process is
        if not raced:
            raced.append(True)
            Npz(path=str(path)).load(tmp_path)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    a = Npz(path=str(path)).load(tmp_path)
    assert np.array_equal(a.train_x, images()["train_x"])
    assert folders(tmp_path) == [f"npz-{a.fingerprint[:32]}"]
    meta = json.loads((tmp_path / ".cache" / folders(tmp_path)[0] / "meta.json").read_text())
    assert len(meta["sources"]) == 1  # both had the same


# --- limits ----------------------------------------------------------------------------------------------------------


def test_the_images_that_a_limit_keeps_are_those_of_a_stream_of_the_content_and_the_split(tmp_path):
    whole, some = Digits().load(tmp_path), Digits(limit=100, test_limit=7).load(tmp_path)
    for split, size in (("train", 100), ("test", 7)):
        x = getattr(whole, f"{split}_x")
        kept = np.sort(numpy_stream(0, "limit", split, whole.fingerprint).permutation(len(x))[:size])
        assert np.array_equal(getattr(some, f"{split}_x"), x[kept])


def test_fingerprint_is_that_of_the_loaded_arrays(tmp_path):
    for d in (Digits(), Digits(limit=100), Digits(test_limit=9), Digits(limit=10**6)):
        assert d.fingerprint(tmp_path) == d.load(tmp_path).fingerprint
    assert Digits(limit=10**6).fingerprint(tmp_path) == Digits().fingerprint(tmp_path)
    one, other = Digits(limit=100, test_limit=50), Digits(limit=50, test_limit=100)
    assert one.fingerprint(tmp_path) != other.fingerprint(tmp_path)


# --- archives --------------------------------------------------------------------------------------------------------


def test_spec_texts_name_data_sets(tmp_path):
    assert dataset_from_spec("npz:a/b.npz") == Npz(path="a/b.npz") == dataset_from_spec("npz(path=a/b.npz)")
    assert dataset_from_spec("mnist(limit=10)") == Mnist(limit=10)
    with pytest.raises(UsageError, match="a path is missing"):
        dataset_from_spec("npz: ")
    with pytest.raises(UsageError, match="'mnist'"):
        dataset_from_spec("mnits")


def test_a_relative_archive_is_found_in_the_working_folder_then_in_the_root(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    archive(tmp_path)
    assert len(Npz(path="mine.npz").load(tmp_path).train_y) == 6
    archive(tmp_path / "here", test_y=np.array([0, 1]))
    assert Npz(path="mine.npz").load(tmp_path).test_y.tolist() == [0, 1]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(Npz(path="~/mine.npz").load(tmp_path).train_y) == 6
    with pytest.raises(DataMissing, match=r"there is no .*here/none\.npz or .*none\.npz"):
        Npz(path="none.npz").load(tmp_path)


def test_grey_images_gain_a_channel_and_floats_stay_floats(tmp_path):
    x = images()["train_x"][..., 0] / 23  # the largest is 1
    a = Npz(path=str(archive(tmp_path, train_x=x, test_x=x[:2]))).load(tmp_path)
    assert (a.train_x.shape, a.train_x.dtype, a.shape) == ((6, 2, 2, 1), np.float32, (1, 2, 2))
    assert np.array_equal(a.train_x[..., 0], x.astype(np.float32))


NAN = np.where(np.arange(24).reshape(6, 2, 2, 1) == 9, np.nan, 0.5)
BAD = {
    "nan": ({"train_x": NAN, "test_x": np.zeros((2, 2, 2, 1))}, r"train_x: image 2 holds nan; .*\[0, 1\]"),
    "range": ({"train_x": NAN * 0 + 1.5, "test_x": np.zeros((2, 2, 2, 1))}, r"train_x: image 0 holds 1\.5"),
    "int": ({"test_x": np.zeros((2, 2, 2, 1), int)}, "test_x is int64; expected uint8"),
    "rank": ({"train_x": np.zeros((6, 4), np.uint8)}, r"train_x has shape \(6, 4\); expected"),
    "channels-first": ({"train_x": np.zeros((6, 3, 8, 8), np.uint8)}, "channels last"),
    "empty": ({"test_x": np.zeros((0, 2, 2), np.uint8), "test_y": np.zeros(0, int)}, "test_x .* at least one image"),
    "dtypes": ({"test_x": np.zeros((2, 2, 2, 1))}, "one dtype and shape"),
    "sizes": ({"test_x": np.zeros((2, 3, 2, 1), np.uint8)}, "one dtype and shape"),
    "count": ({"train_y": np.arange(5)}, r"train_y has shape \(5,\); expected one label per image, \[6\]"),
    "negative": ({"train_y": np.array([0, 1, 2, -4, 0, 1])}, "train_y: label -4 of image 3; labels must be ≥ 0"),
    "float labels": ({"test_y": np.array([0.0, 1.0])}, "test_y is float64; expected integers"),
    "one class": ({"train_y": np.zeros(6, int), "test_y": np.zeros(2, int)}, "at least two classes"),
    "sparse labels": ({"test_y": np.array([0, 10**6])}, "labels reach 1000000"),
    "missing": ({"test_y": None}, "no array 'test_y'"),
    "pickled": ({"train_y": np.array([{}] * 6, dtype=object)}, "train_y cannot be read: Object arrays"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_archive_is_named_with_array_and_expectation(tmp_path, case):
    changes, message = BAD[case]
    path = archive(tmp_path, **changes)
    with pytest.raises(UsageError, match=message) as caught:
        Npz(path=str(path)).load(tmp_path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / ".cache").exists()


def test_a_bad_image_is_named_by_its_place_among_all(tmp_path):
    x = np.zeros((5000, 1, 1))
    x[4500] = 2
    path = archive(tmp_path, train_x=x, train_y=np.arange(5000) % 3, test_x=x[:2])
    with pytest.raises(UsageError, match=r"train_x: image 4500 holds 2\.0"):
        Npz(path=str(path)).load(tmp_path)


def test_images_may_have_four_channels_and_labels_any_width(tmp_path):
    x, y = np.zeros((6, 2, 2, 4), np.uint8), np.arange(6, dtype=np.int16) % 3
    a = Npz(path=str(archive(tmp_path, train_x=x, train_y=y, test_x=x[:2]))).load(tmp_path)
    assert (a.shape, a.train_y.dtype, a.train_y.tolist()) == ((4, 2, 2), np.int64, [0, 1, 2, 0, 1, 2])


def test_the_digest_tells_equal_bytes_of_other_shapes_types_and_numbers_of_classes():
    raw = {"train_x": np.zeros((2, 4, 1, 1), np.uint8), "test_x": np.zeros((2, 4, 1, 1), np.uint8)}
    raw |= {"train_y": np.arange(2), "test_y": np.arange(2)}
    turned = {**raw, **{name: raw[name].reshape(2, 1, 4, 1) for name in ("train_x", "test_x")}}
    floats = {**raw, **{name: np.zeros((2, 1, 1, 1), np.float32) for name in ("train_x", "test_x")}}
    whole = {**raw, **{name: raw[name].reshape(2, 2, 2, 1) for name in ("train_x", "test_x")}}
    found = {checked_arrays("", given, classes=2).fingerprint for given in (raw, turned, floats, whole)}
    assert len(found | {checked_arrays("", raw, classes=3).fingerprint}) == 5


@pytest.mark.parametrize("keep", [0, 10, 400, -30])
def test_a_truncated_archive_is_named(tmp_path, keep):
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"mine\.npz"):
        Npz(path=str(path)).load(tmp_path)


def test_a_flipped_bit_in_an_archive_is_noticed(tmp_path):
    path = archive(tmp_path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as z:
        data[z.getinfo("train_x.npy").header_offset + 200] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="train_x cannot be read"):
        Npz(path=str(path)).load(tmp_path)


def test_a_single_array_is_no_archive(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    (tmp_path / "mine.npz").write_bytes(buffer.getvalue())
    with pytest.raises(UsageError, match="single array"):
        Npz(path=str(tmp_path / "mine.npz")).load(tmp_path)


# --- torchvision's data sets -----------------------------------------------------------------------------------------


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def idx_files(folder, train="train", test="t10k", first=0, names="{}-{}-ubyte"):
    folder.mkdir(parents=True)
    for split, count in ((train, 3), (test, 2)):
        x = np.arange(count * 6).reshape(count, 2, 3)
        (folder / names.format(split, "images-idx3")).write_bytes(idx(x))
        (folder / names.format(split, "labels-idx1")).write_bytes(idx(np.arange(count) + first))


@pytest.mark.parametrize("place", ["mnist/MNIST/raw", "MNIST/raw"])
def test_mnist_is_read_from_its_own_folder_or_a_torchvision_root(tmp_path, place):
    idx_files(tmp_path / place)
    a = Mnist().load(tmp_path, download=False)
    assert np.array_equal(a.train_x[..., 0], np.arange(18).reshape(3, 2, 3))
    assert (a.test_y.tolist(), a.classes) == ([0, 1], 10)
    (tmp_path / place / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataMissing):
        Mnist().load(tmp_path, download=False)


def test_the_folder_of_a_set_goes_before_a_torchvision_root(tmp_path):
    idx_files(tmp_path / "MNIST/raw", first=5)
    idx_files(tmp_path / "mnist/MNIST/raw")
    assert Mnist().load(tmp_path, download=False).test_y.tolist() == [0, 1]


def test_the_archive_takes_precedence_and_labels_must_fit(tmp_path):
    idx_files(tmp_path / "mnist/MNIST/raw")
    archive(tmp_path, "mnist.npz")
    assert len(Mnist().load(tmp_path).train_y) == 6
    archive(tmp_path, "mnist.npz", test_y=np.array([0, 10]))
    with pytest.raises(UsageError, match=r"label 10 of image 1; labels must be in \[0, 10\)"):
        Mnist().load(tmp_path)


def test_emnist_is_turned_upright_and_letters_start_at_zero(tmp_path):
    idx_files(tmp_path / "emnist/EMNIST/raw", "train", "test", 1, "emnist-letters-{}-{}-ubyte")
    a = Emnist(split="letters").load(tmp_path, download=False)
    assert np.array_equal(a.train_x[0, ..., 0], np.arange(6).reshape(2, 3).T)
    assert (a.train_y.tolist(), a.classes) == ([0, 1, 2], 26)
    with pytest.raises(DataMissing):
        Emnist().load(tmp_path, download=False)
    archive(tmp_path, "emnist-balanced.npz")
    assert len(Emnist().load(tmp_path, download=False).train_y) == 6


def test_usps_is_read_from_its_text(tmp_path):
    for name, label in (("usps.bz2", 1), ("usps.t.bz2", 10)):
        line = f"{label} " + " ".join(f"{i + 1}:{1.0 if i == 3 else -1.0}" for i in range(256))
        (tmp_path / name).write_bytes(bz2.compress(line.encode() + b"\n"))
    a = Usps().load(tmp_path, download=False)
    assert (a.shape, a.train_y.tolist(), a.test_y.tolist()) == ((1, 16, 16), [0], [9])
    assert np.flatnonzero(a.train_x).tolist() == [3]
    (tmp_path / "usps.t.bz2").unlink()
    with pytest.raises(DataMissing):
        Usps().load(tmp_path, download=False)


def test_cifar_and_svhn_come_channels_last(tmp_path, monkeypatch):
    x = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    cifar = SimpleNamespace(data=x, targets=[3, 1])
    svhn = SimpleNamespace(data=x.transpose(0, 3, 1, 2), labels=np.array([3, 1]))
    fake = SimpleNamespace(CIFAR10=lambda *_, **__: cifar, SVHN=lambda *_, **__: svhn)
    monkeypatch.setattr(public, "_datasets", lambda: fake)
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name in ("cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch"):
        (tmp_path / name).write_text("")
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_text("")
    for d in (Cifar10(), Svhn()):
        a = d.load(tmp_path, download=False)
        assert np.array_equal(a.train_x, x)
        assert a.train_y.tolist() == [3, 1]


_KINDS = [f"{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
PUBLIC = [
    ("fashion-mnist", "FashionMNIST", [f"FashionMNIST/raw/{s}-{k}" for s in ("train", "t10k") for k in _KINDS], 10),
    ("cifar100", "CIFAR100", ["cifar-100-python/train", "cifar-100-python/test"], 100),
    ("svhn", "SVHN", ["train_32x32.mat", "test_32x32.mat"], 10),
]
for _split, _count in (("balanced", 47), ("byclass", 62), ("bymerge", 47), ("digits", 10), ("mnist", 10)):
    _names = [f"EMNIST/raw/emnist-{_split}-{s}-{k}" for s in ("train", "test") for k in _KINDS]
    PUBLIC.append((f"emnist(split={_split})", "EMNIST", _names, _count))


@pytest.mark.parametrize(("spec", "theirs", "files", "classes"), PUBLIC, ids=[p[0] for p in PUBLIC])
def test_a_public_set_is_torchvisions_of_its_name_with_both_its_splits(
    tmp_path, monkeypatch, spec, theirs, files, classes
):
    def read(folder, *, train=None, split="", download):
        labels = np.array([1 if train or split == "train" else 2])
        shape = (1, 3, 4, 4) if theirs == "SVHN" else (1, 4, 4)
        return SimpleNamespace(data=np.zeros(shape, np.uint8), targets=labels, labels=labels)

    monkeypatch.setattr(public, "_datasets", lambda: SimpleNamespace(**{theirs: read}))
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    a = dataset_from_spec(spec).load(tmp_path, download=False)
    assert (a.train_y.tolist(), a.test_y.tolist(), a.classes) == ([1], [2], classes)


def test_a_damaged_file_is_named_with_the_command(tmp_path):
    idx_files(tmp_path / "mnist/MNIST/raw")
    (tmp_path / "mnist/MNIST/raw/t10k-images-idx3-ubyte").write_bytes(b"\0\0\10\3\0")
    with pytest.raises(
        UsageError, match=r"'mnist': the files in .*mnist cannot be read .*robustfl doctor --fetch mnist"
    ):
        Mnist().load(tmp_path, download=False)


def test_missing_data_name_the_folder_and_the_command(tmp_path):
    for read in (Cifar10().load, Cifar10().fingerprint):
        with pytest.raises(DataMissing, match=rf"{tmp_path}/cifar10 .*cifar10\.npz.*robustfl doctor --fetch cifar10"):
            read(tmp_path, download=False)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_nothing_and_says_why(tmp_path, monkeypatch):
    def fetch(folder, **kwargs):
        (folder / "MNIST").mkdir()
        (folder / "MNIST/half").write_text("half")
        raise OSError("Tried a mirror, got:\nnetwork is unreachable\n")

    monkeypatch.setattr(public, "_datasets", lambda: SimpleNamespace(MNIST=fetch))
    with pytest.raises(DataMissing, match=r"got: network is unreachable\).*robustfl doctor --fetch mnist"):
        Mnist().load(tmp_path / "no" / "such")
    assert list(tmp_path.iterdir()) == []


def test_a_download_lands_in_the_data_sets_own_folder(tmp_path, monkeypatch):
    def fetch(folder, *, train, download):
        for kind in ("images-idx3", "labels-idx1") if download else ():  # each split by itself, as SVHN's
            (folder / "MNIST/raw").mkdir(parents=True, exist_ok=True)
            (folder / f"MNIST/raw/{'train' if train else 't10k'}-{kind}-ubyte").write_text("")
        return SimpleNamespace(data=np.zeros((1, 2, 2), np.uint8), targets=[0])

    monkeypatch.setattr(public, "_datasets", lambda: SimpleNamespace(MNIST=fetch))
    Mnist().load(tmp_path)
    assert (tmp_path / "mnist/MNIST/raw/train-images-idx3-ubyte").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".cache", "mnist"]


# --- right in form, wrong in sense ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"train_x": np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1) // 23}, "of a training image is above 0.0039,"),
        ({"train_x": np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1) // 12 * 17}, "a training image is above 0.067,"),
        ({"train_x": np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1) // 12 * 18}, ""),
        ({"test_x": np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1) + 3}, "pixel of a test image is above 0.039"),
        ({"train_y": np.arange(6) % 3 + 1, "test_y": np.array([1, 3])}, "no image has class 0 of 0 … 3"),
        ({"train_y": np.arange(6) % 3 * 2, "test_y": np.array([0, 4])}, "classes 1, 3 of 0 … 4, and the model learns"),
        ({"train_y": np.arange(6) % 2}, "no training image of class 2, of which there are 1 test images"),
        ({"train_y": np.arange(6) % 2 * 3, "test_y": np.array([1, 2])}, "no training image of classes 1, 2, of which"),
        ({"test_x": np.arange(16, 24, dtype=np.uint8).reshape(2, 2, 2, 1)}, "2 of 2 test images"),
    ],
)  # fmt: skip
def test_data_of_the_right_form_may_be_doubtful(changes, told):
    found = data_doubts(checked_arrays("here", images(**changes)))
    assert len(found) == bool(told)
    assert told in "".join(found)


def test_a_class_that_a_random_test_part_would_hold_is_missed():
    x = np.arange(160, dtype=np.uint8).reshape(160, 1, 1, 1)
    raw = {"train_x": x[:100], "train_y": np.arange(100) % 3, "test_x": x[100:], "test_y": np.arange(60) % 2}
    assert not data_doubts(checked_arrays("here", raw))  # 33 of 100: a random part would hold 19.8
    raw["train_y"] = (np.arange(100) + 2) % 3
    assert data_doubts(checked_arrays("here", raw)) == [
        "no test image of class 2, of which there are 34 training images"
    ]


def test_published_data_repeat_some_images():
    x = np.arange(200 * 4, dtype=np.uint16).astype(np.uint8).reshape(200, 2, 2, 1)
    x[:, 0, 0, 0] = np.arange(200)
    y = np.arange(200) % 2
    for again, told in ((1, 0), (2, 1)):  # of a hundred
        test = np.concatenate([x[:again], x[100 + again :]])
        raw = {"train_x": x[:100], "train_y": y[:100], "test_x": test, "test_y": y[100:]}
        assert len(data_doubts(checked_arrays("here", raw))) == told


def test_a_cell_tells_the_doubts_about_its_data(tmp_path):
    archive(tmp_path, train_y=np.arange(6) % 2)
    cell = Cell(dataset=f"npz:{tmp_path}/mine.npz", model="mlp", norm="none", clients=2, f=0, batch=1, rounds=1)
    (words,) = run_cell(cell, fingerprint="x").certificates["warnings"]
    assert words.startswith("npz(path=")
    assert "no training image of class 2" in words


@pytest.mark.parametrize("jobs", [None, 0, pytest.param(1, marks=pytest.mark.slow)])
def test_callers_in_python_hear_the_doubts_about_data_once(jobs: int | None, tmp_path) -> None:
    archive(tmp_path, train_y=np.arange(6) % 2 * 3, test_y=np.array([0, 3]))
    settings = {"dataset": f"npz:{tmp_path}/mine.npz", "model": "mlp", "norm": "none", "clients": 2, "f": 0, "batch": 1}
    settings |= {"rounds": 1, "evasions": []}
    heard: list[str] = []

    def call(**how: Any) -> object:
        if jobs is None:
            return robustfl.run(settings, **how)
        grid = Scenario.of({"name": "s", "cell": {**settings, "seed": [0, 1]}})
        return robustfl.grid(grid, out=tmp_path / str(len(how)), jobs=jobs, **how)

    call(on_note=heard.append)
    (words,) = heard
    assert words.startswith("warning: npz(path=")
    assert "labels are not consecutive: no image has classes 1, 2 of 0 … 3" in words
    with pytest.warns(UserWarning, match="labels are not consecutive") as told:
        call()
    assert [Path(w.filename).name for w in told] == [Path(__file__).name]


def test_a_limit_beyond_the_data_is_told_of(tmp_path):
    archive(tmp_path)
    for limits, told in (("limit=6, test_limit=2", 0), ("limit=7, test_limit=2", 1), ("limit=7, test_limit=3", 2)):
        dataset = f"npz(path={tmp_path}/mine.npz, {limits})"
        cell = Cell(dataset=dataset, model="mlp", norm="none", clients=2, f=0, batch=1, rounds=1)
        found = run_cell(cell, fingerprint="x").certificates["warnings"]
        assert sum("changes nothing: there are" in words for words in found) == told


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"crop": 5}, "crop = 5 shifts images of 8 × 8 pixels"),
        ({"crop": 4}, None),
        ({"representations": 41, "evasions": ["fgsm"]}, "representations = 41 is more than there are: a user has 40"),
        ({"representations": 40, "evasions": ["fgsm"]}, None),
    ],
)
def test_more_pixels_or_images_than_there_are(settings, told):
    base = {"dataset": "digits(limit=60, test_limit=40)", "model": "mlp", "norm": "none", "clients": 2, "f": 0}
    found = build(Cell.of({**base, "batch": 8, "rounds": 1, **settings})).doubts
    assert [words.startswith(told) for words in found] == [True] if told else found == ()
