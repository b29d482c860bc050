"""Tiny-ImageNet: folders of images found, fetched, read once, and what is said about bad ones."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import utils

from robustfl.data import TinyImageNet, channel_statistics, tiny_imagenet
from robustfl.errors import DataMissing, UsageError

WNIDS = [f"n{i:08d}" for i in range(200)]
UNPACKED = "tiny-imagenet-200"


def jpeg(colour, mode="RGB", side=64):
    buffer = io.BytesIO()
    Image.new(mode, (side, side), colour).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder as the archive unpacks it: red images, two of class 1, one of every other; two validation images."""
    folder = tmp_path_factory.mktemp("made") / UNPACKED
    red = jpeg((250, 0, 0))
    for wnid in WNIDS:
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images / f"{wnid}_0.JPEG").write_bytes(red)
        (images.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t9\t9\n")
    (folder / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_1.JPEG").write_bytes(red)
    (folder / "wnids.txt").write_text("\n".join(reversed(WNIDS)) + "\n")
    (folder / "val/images").mkdir(parents=True)
    (folder / "val/images/val_0.JPEG").write_bytes(jpeg((0, 0, 250)))
    (folder / "val/images/val_1.JPEG").write_bytes(jpeg(120, "L"))
    lines = [f"val_0.JPEG\t{WNIDS[7]}\t0\t0\t9\t9", f"val_1.JPEG\t{WNIDS[199]}\t0\t0\t9\t9"]
    (folder / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def root(made, tmp_path):
    shutil.copytree(made, tmp_path / UNPACKED)
    return tmp_path


def load(root):
    return TinyImageNet().load(root, download=False)


# --- reading ---------------------------------------------------------------------------------------------------------


def test_images_are_rgb_and_labels_number_the_sorted_classes(root):
    a = load(root)
    assert (a.train_x.shape, a.train_x.dtype, a.classes) == ((201, 64, 64, 3), np.uint8, 200)
    assert np.abs(a.train_x.astype(int) - [250, 0, 0]).max() <= 4
    assert np.abs(a.test_x[0].astype(int) - [0, 0, 250]).max() <= 4
    assert np.unique(a.test_x[1]).tolist() == [120]  # the grey one
    assert a.test_y.tolist() == [7, 199]


def test_training_images_take_turns_by_class(root):
    assert load(root).train_y.tolist() == [*range(200), 1]


@pytest.mark.parametrize("place", [f"tiny-imagenet/{UNPACKED}", "tiny-imagenet", UNPACKED])
def test_it_is_found_where_it_was_unpacked(made, tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(made)
    assert len(load(tmp_path).train_y) == 201


def test_pixels_are_scaled_to_one_around_zero(root):
    assert channel_statistics(load(root), "tiny-imagenet") == ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("change", ["an image more", "an image replaced", "labels"])
def test_what_changes_is_decoded_again(root, change):
    before = load(root).fingerprint
    folder = root / UNPACKED
    if change == "labels":
        annotations = folder / "val/val_annotations.txt"
        annotations.write_text(annotations.read_text().replace(WNIDS[7], WNIDS[8]))
    else:
        fresh = folder / "fresh"
        fresh.write_bytes(jpeg((0, 250, 0)))
        fresh.replace(folder / "train" / WNIDS[5] / "images" / f"{WNIDS[5]}_{'01'['more' in change]}.JPEG")
    assert load(root).fingerprint != before


# --- fetching --------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(made, tmp_path, monkeypatch):
    """A data root beside a server of this machine that has the archive in place of the public one."""
    archive = Path(shutil.make_archive(str(tmp_path / "served" / UNPACKED), "zip", made.parent, UNPACKED))
    handler = functools.partial(_Silent, directory=archive.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(tiny_imagenet, "URL", f"http://127.0.0.1:{server.server_port}/{archive.name}")
        monkeypatch.setattr(tiny_imagenet, "MD5", hashlib.md5(archive.read_bytes()).hexdigest())
        yield tmp_path / "root"
        server.shutdown()
        thread.join()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


def test_it_is_downloaded_on_demand_and_only_the_folder_stays(served):
    assert len(TinyImageNet().load(served).train_y) == 201
    assert sorted(p.name for p in served.iterdir()) == [".cache", UNPACKED]


@pytest.mark.parametrize(("name", "value"), [("MD5", "0" * 32), ("URL", "http://127.0.0.1:9/none.zip")])
def test_a_failed_download_leaves_nothing_and_says_why(served, monkeypatch, name, value):
    monkeypatch.setattr(tiny_imagenet, name, value)
    with pytest.raises(DataMissing, match=r"could not be fetched \(.+\).*robustfl doctor --fetch tiny-imagenet"):
        TinyImageNet().load(served)
    assert not served.exists()


def test_a_folder_another_process_fetched_meanwhile_is_taken(served, made, monkeypatch):
    def slower(*args, **rest):
        served.mkdir(exist_ok=True)
        shutil.copytree(made, served / UNPACKED)
        return original(*args, **rest)

    original = utils.download_and_extract_archive
    monkeypatch.setattr(utils, "download_and_extract_archive", slower)
    assert len(TinyImageNet().load(served).train_y) == 201
    assert sorted(p.name for p in served.iterdir()) == [".cache", UNPACKED]


def test_an_unfinished_folder_of_that_name_is_not_overwritten(tmp_path):
    (tmp_path / UNPACKED).mkdir()
    with pytest.raises(DataMissing, match=rf"{UNPACKED} holds no wnids\.txt; delete or complete it"):
        TinyImageNet().load(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [UNPACKED]


# --- bad folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [f"train/{WNIDS[3]}/images", "val/images", "val/val_annotations.txt"])
def test_a_missing_part_is_named(root, gone):
    (root / UNPACKED / gone).rename(root / "elsewhere")
    with pytest.raises(DataMissing, match=rf"there is no .*{gone}; unpack tiny-imagenet-200\.zip again"):
        load(root)


@pytest.mark.parametrize("gone", [f"train/{WNIDS[3]}/images/{WNIDS[3]}_0.JPEG", "val/images/val_1.JPEG"])
def test_a_folder_that_lacks_listed_images_is_refused(root, gone):
    (root / UNPACKED / gone).unlink()
    with pytest.raises(UsageError, match=rf"lacks 1 images of .*\.txt, such as {Path(gone).name}; unpack"):
        load(root)


def test_a_class_without_images_is_refused_also_without_a_list(root):
    shutil.rmtree(root / UNPACKED / "train" / WNIDS[3])
    (root / UNPACKED / "train" / WNIDS[3] / "images").mkdir(parents=True)
    with pytest.raises(UsageError, match=rf"{WNIDS[3]}/images holds no \.JPEG image"):
        load(root)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("wnids.txt", b"n00000001\nn00000002\n", r"wnids\.txt lists 2 classes; 200 are expected"),
        ("wnids.txt", b"\xff\xfe\xff", r"wnids\.txt is not UTF-8 text"),
        ("val/val_annotations.txt", b"val_0.JPEG\n", r"line 1: expected 'image<tab>class of wnids\.txt', got 'val_0"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn9\n", r"line 1: expected .* got 'val_0\.JPEG.tn9'"),
        ("val/val_annotations.txt", f"../val_0.JPEG\t{WNIDS[0]}\n".encode(), r"lacks 1 images .*\.\./val_0"),
        ("val/val_annotations.txt", b"", r"test_x has shape \(0, 64, 64, 3\)"),
        ("val/images/val_0.JPEG", b"no picture", r"val_0\.JPEG is no readable image"),
        ("val/images/val_0.JPEG", jpeg(0)[:300], r"val_0\.JPEG is no readable image"),
        ("val/images/val_0.JPEG", jpeg(0, side=32), r"val_0\.JPEG has 32×32 pixels; 64×64 are expected"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(root, file, content, message):
    (root / UNPACKED / file).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load(root)
