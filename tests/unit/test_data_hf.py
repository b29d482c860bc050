"""Data sets of Hugging Face on disk, as Parquet files and in partitions; needs the extra [hf]."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image

from robustfl.data.hf import HuggingFace
from robustfl.errors import DataMissing, UsageError

pytestmark = pytest.mark.hf
datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def table(count, seed, mode="L", **more):
    draws = np.random.default_rng(seed)
    pixels = draws.integers(0, 256, (count, 6, 5, *((3,) if mode == "RGB" else ())), dtype=np.uint8)
    columns = {
        "image": [Image.fromarray(x, mode) for x in pixels],
        "character": draws.integers(0, 3, count).tolist(),
        "writer": [f"w{k}" for k in draws.integers(0, 4, count)],
    }
    kinds = {"image": datasets.Image(), "character": datasets.ClassLabel(names=list("abc"))}
    kinds |= {"writer": datasets.Value("string")}
    for name, values in more.items():
        columns[name] = values
        kinds[name] = datasets.Value("string" if isinstance(values[0], str) else "int64")
    return pixels, columns, datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def saved(folder, **more):
    """Both splits below ``folder/disk``; what they hold."""
    made = {split: table(count, seed) for seed, (split, count) in enumerate({"train": 20, "test": 12}.items())}
    datasets.DatasetDict({split: one[2] for split, one in made.items()}).save_to_disk(str(folder / "disk"))
    return made


def load(place, **params):
    return HuggingFace(path=str(place), **params).load(place.parent)


def test_a_data_set_saved_to_disk_is_read(tmp_path):
    made = saved(tmp_path)
    found = load(tmp_path / "disk", client="writer")
    for split in ("train", "test"):
        pixels, columns, _ = made[split]
        assert np.array_equal(getattr(found, f"{split}_x")[..., 0], pixels)
        assert getattr(found, f"{split}_y").tolist() == columns["character"]
        assert [f"w{k}" for k in getattr(found, f"{split}_client")] == columns["writer"]
    assert (found.classes, found.shape) == (3, (1, 6, 5))
    assert load(tmp_path / "disk").train_client is None


@pytest.mark.parametrize("names", [("data/{}-00000-of-00001.parquet",), ("{}.parquet",), ("{}/0000.parquet",)])
def test_parquet_files_are_read_by_their_split(tmp_path, names):
    made = saved(tmp_path)
    for split in ("train", "test"):
        (tmp_path / "pq" / names[0].format(split)).parent.mkdir(parents=True, exist_ok=True)
        made[split][2].to_parquet(str(tmp_path / "pq" / names[0].format(split)))
    assert load(tmp_path / "pq", client="writer").fingerprint == load(tmp_path / "disk", client="writer").fingerprint


def test_parquet_files_of_other_tools_are_read(tmp_path):
    import io

    import pandas as pd

    def encoded(pixels):
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "png")
            return {"bytes": file.getvalue(), "path": "x.png"}

    made = saved(tmp_path)
    (tmp_path / "pq").mkdir()
    for split, (pixels, columns, _) in made.items():
        frame = pd.DataFrame({"image": list(map(encoded, pixels)), "label": columns["character"]})
        frame.to_parquet(tmp_path / f"pq/{split}.parquet")
    assert load(tmp_path / "pq").fingerprint == load(tmp_path / "disk").fingerprint


def test_partitions_of_flower_datasets_are_clients(tmp_path):
    made = saved(tmp_path)
    for k in range(3):
        made["train"][2].shard(3, k).save_to_disk(str(tmp_path / f"fl/partition_{k}"))
    with pytest.raises(UsageError, match=r"partitions in .*fl have no test images; save common ones to .*fl/test"):
        load(tmp_path / "fl")
    made["test"][2].save_to_disk(str(tmp_path / "fl/test"))
    found = load(tmp_path / "fl")
    assert np.bincount(found.train_client).tolist() == [7, 7, 6]
    assert found.test_client is None
    for k in range(3):
        both = made["train"][2].shard(3, k).train_test_split(test_size=2, seed=0)
        shutil.rmtree(tmp_path / f"fl/partition_{k}")
        both.save_to_disk(str(tmp_path / f"fl/partition_{k}"))
    assert np.bincount(load(tmp_path / "fl").test_client).tolist() == [2, 2, 2]
    shutil.rmtree(tmp_path / "fl/partition_1")
    with pytest.raises(UsageError, match=r"has partition_2 but no partition_1"):
        load(tmp_path / "fl")


def test_labels_that_are_texts_are_numbered_in_their_order(tmp_path):
    words = ["dog", "cat", "owl", "cat"]
    both = {split: table(4, seed, kind=words)[2] for seed, split in enumerate(("train", "test"))}
    datasets.DatasetDict(both).save_to_disk(str(tmp_path / "disk"))
    assert load(tmp_path / "disk", label="kind").train_y.tolist() == [1, 0, 2, 0]


def broken(folder, change):
    made = {split: table(6, seed)[2] for seed, split in enumerate(("train", "test"))}
    made = change(made)
    datasets.DatasetDict(made).save_to_disk(str(folder / "disk"))
    return folder / "disk"


@pytest.mark.parametrize(
    ("change", "params", "message"),
    [
        (lambda m: {"train": m["train"]}, {}, r"has no split 'test', but train; make one, .*train_test_split"),
        (lambda m: {**m, "valid": m["test"]}, {"test": "vali"}, r"no split 'vali', but test, train, valid; .*test="),
        (lambda m: {"validation": m["train"], "test": m["test"]}, {}, r"has no split 'train', but test, validation$"),
        (lambda m: m, {"client": "writr"}, r"client='writr' is no column; did you mean 'writer'"),
        (lambda m: m, {"image": "writer"}, r"image='writer' holds no images"),
        (lambda m: {k: t.remove_columns("character") for k, t in m.items()}, {}, r"no column of labels; give label="),
        (lambda m: {k: t.remove_columns("image") for k, t in m.items()}, {}, r"no column of images; give image=, one"),
        (lambda m: {**m, "test": table(6, 1, label=[1, 0, None, 1, 0, 1])[2]}, {"label": "label"}, r"no column"),
        (
            lambda m: {k: table(6, 1, who=[1, 0, None, 1, 0, None])[2] for k in m}, {"client": "who"},
            r"who of train: 2 of 6 are missing, the first that of image 2",
        ),
        (
            lambda m: {k: table(6, 1, label=[-1] * 6)[2] for k in m}, {},
            r"label of train: 6 of 6 are missing, the first that of image 0",
        ),
        (
            lambda m: {**m, "test": table(6, 1, "RGB")[2]}, {},
            r"6 images are grey, such as hf .*: train: image 0, and 6 coloured, such as .*test: image 0; give",
        ),
    ],
)  # fmt: skip
def test_a_bad_data_set_is_named_with_what_is_wrong(tmp_path, change, params, message):
    with pytest.raises(UsageError, match=message):
        load(broken(tmp_path, change), **params)


def test_names_of_the_hub_are_not_fetched(tmp_path):
    with pytest.raises(DataMissing, match=r"hf: there is no .*ylecun/mnist; not downloaded here: give a local path"):
        HuggingFace(path="ylecun/mnist").load(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match=r"other holds no data set; expected a data set of save_to_disk"):
        load(tmp_path / "other")
    (tmp_path / "other/train.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match=r"other cannot be read: "):
        load(tmp_path / "other")
    table(3, 0)[2].save_to_disk(str(tmp_path / "one"))
    with pytest.raises(UsageError, match=r"one is one split without a name; save both"):
        load(tmp_path / "one")
