"""Local data sets of Hugging Face's ``datasets``: saved to disk, as Parquet files, or in partitions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robustfl.contracts import Arrays
from robustfl.data.checks import Array, checked_arrays
from robustfl.data.pictures import Encoded, arrays_of, common_form
from robustfl.data.specs import find_path
from robustfl.data.stored import Source, StoredDataset, file_stamp
from robustfl.errors import FileMissing, UsageError, closest, reason, some
from robustfl.parameters import param
from robustfl.registry import register

_PARTITION = re.compile(r"partition_(\d+)")
_FORMS = (
    "a data set of save_to_disk with the splits train and test, Parquet files such as train.parquet and test.parquet, "
    "or folders partition_0, partition_1, …"
)
_INSTALL = "needs the package datasets: pip install 'robustfl[hf]'"


@register("hf", version=1)
@dataclass(frozen=True)
class HuggingFace(StoredDataset):
    """A data set of Hugging Face's ``datasets`` on this machine; scenarios also write ``hf:PATH``. Nothing is fetched.

    ``path`` holds what ``DatasetDict.save_to_disk`` wrote; or Parquet files, each in a folder of its split's name or
    with a name that begins with it (``train-00000-of-00002.parquet``); or partitions as Flower Datasets saves them,
    ``partition_0``, ``partition_1``, …, every one a client's, each with a training and a test split or with training
    images alone and common test images in the folder ``test``. A relative path is looked up in the working directory,
    then in the data root.

    ``image`` and ``label`` name columns; by default the only one of images, and ``label`` or the only one of classes.
    Labels that are texts are numbered in their order. ``client`` names the column that says whose each image is, for
    ``partition=natural`` and ``tests=own``. ``size`` and ``channels`` are those of ``imagefolder``. Needs the extra
    ``hf``.

    >>> HuggingFace(path="femnist", label="character", client="writer_id").client
    'writer_id'
    """

    path: str = param(doc="the folder of the data set")
    image: str | None = param(None, doc="the column of images; none: the only one")
    label: str | None = param(None, doc="the column of labels; none: label, or the only one of classes")
    client: str | None = param(None, doc="the column that says whose an image is")
    size: int | None = param(None, ge=1, doc="height and width; none: all images have one size")
    channels: int | None = param(None, ge=1, le=3, doc="1 or 3; none: all images are grey, or all coloured")
    test: str = param("test", doc="the split of test images")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels == 2:
            raise UsageError("HuggingFace: channels=2 must be 1 (grey) or 3 (RGB)")

    def source(self, root: Path, *, download: bool) -> Source:
        try:
            place = find_path(self.name, self.path, root, f"it should hold {_FORMS}")
        except FileMissing as error:
            here = (
                f"not downloaded here: give a local path, such as that of load_dataset({self.path!r}).save_to_disk(…)"
            )
            raise FileMissing(f"{str(error).partition(';')[0]}; {here}") from None
        if place.is_file():
            raise UsageError(f"hf: {place} is a file; the folder of {_FORMS} is expected")
        files = [file for file in place.rglob("*") if file.suffix in (".arrow", ".json", ".parquet")]
        given = [getattr(self, field.name) for field in fields(self) if field.name not in ("limit", "test_limit")]
        stamp = file_stamp(f"hf {given}", files)
        return Source(hashlib.sha256(stamp.encode()).hexdigest(), partial(self._decode, place))

    def _decode(self, place: Path) -> Arrays:
        try:
            import datasets
        except ImportError as error:
            raise UsageError(f"hf {_INSTALL} ({reason(error)})") from None
        try:
            splits = _read(datasets, place, self.test)
        except UsageError:
            raise
        except Exception as error:  # whatever pyarrow makes of a damaged file
            raise UsageError(f"hf: {place} cannot be read: {reason(error)}") from error
        where, raw = f"hf {place}", dict[str, Any]()
        for part, tables in splits.items():
            image, label = self._columns(datasets, where, tables[0][1])
            pictures, labels, clients = list[Encoded](), list[Any](), list[Any]()
            for client, table in tables:
                pictures += _pictures(datasets, table, image, f"{where}: {part}", len(pictures))
                labels += list(table[label])
                clients += list(table[self.client]) if self.client else [client] * len(table)
            raw |= {f"{part}_x": pictures, f"{part}_y": _complete(f"{where}: {label} of {part}", labels)}
            if self.client or clients[0] is not None:
                column = self.client or "partition"
                raw[f"{part}_client"] = _complete(f"{where}: {column} of {part}", clients)
        form = common_form(where, [*raw["train_x"], *raw["test_x"]], self.size, self.channels)
        raw |= {name: arrays_of(raw[name], *form) for name in ("train_x", "test_x")}
        return checked_arrays(where, _numbered(raw))

    def _columns(self, datasets: Any, where: str, table: Any) -> tuple[str, str]:
        """The names of the columns of images and of labels."""
        kinds: Mapping[str, Any] = table.features
        for name, column in (("image", self.image), ("label", self.label), ("client", self.client)):
            if column is not None and column not in kinds:
                raise UsageError(f"{where}: {name}={column!r} is no column; {closest(column, kinds)}")
        images = [name for name, kind in kinds.items() if _holds_images(datasets, kind)]
        classes = [name for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
        labels = ["label"] if "label" in kinds else classes
        chosen = []
        for name, column, found in (("image", self.image, images), ("label", self.label, labels)):
            if column is None and len(found) != 1:
                what = f"{len(found)} columns of {name}s" if found else f"no column of {name}s"
                raise UsageError(f"{where}: {what}; give {name}=, one of {', '.join(kinds)}")
            chosen.append(column or found[0])
        if chosen[0] not in images:
            raise UsageError(f"{where}: image={chosen[0]!r} holds no images but {kinds[chosen[0]]}")
        return chosen[0], chosen[1]


def _holds_images(datasets: Any, kind: Any) -> bool:
    return isinstance(kind, datasets.Image) or (isinstance(kind, Mapping) and "bytes" in kind)


Tables = dict[str, list[tuple[int | None, Any]]]
"""For train and test the tables of a split, each with the number of its partition."""


def _read(datasets: Any, place: Path, test: str) -> Tables:
    """The splits of a folder. Raises ``UsageError`` for one that holds no data set, or lacks a split."""
    names = {"train": "train", "test": test}
    partitions = {int(m[1]): f for f in place.iterdir() if f.is_dir() and (m := _PARTITION.fullmatch(f.name))}
    if partitions:
        return _partitions(datasets, place, partitions, names)
    if (place / "dataset_dict.json").is_file():
        known = datasets.load_from_disk(str(place))
    elif (place / "state.json").is_file():
        raise UsageError(
            f"hf: {place} is one split without a name; save both, DatasetDict(train=…, test=…).save_to_disk(…)"
        )
    else:
        known = _parquet(datasets, place, list(names.values()))
    missing = [name for name in names.values() if name not in known]
    if missing:
        there = some(sorted(known), 8)
        more = "" if missing == ["train"] else "; the split of test images is chosen by test="
        if [*known] == ["train"]:
            more = "; make one, known['train'].train_test_split(0.1, seed=0).save_to_disk(…)"
        raise UsageError(f"hf: {place} has no split {missing[0]!r}, but {there}{more}")
    return {part: [(None, known[name])] for part, name in names.items()}


def _parquet(datasets: Any, place: Path, names: Sequence[str]) -> dict[str, Any]:
    """The splits of Parquet files by their names; of those that are not asked for an empty place."""
    from pyarrow.parquet import read_table

    files: dict[str, list[Path]] = {}
    for file in sorted(place.rglob("*.parquet")):
        name = file.parent.name if file.parent.name in names and file.parent != place else file.stem.split("-")[0]
        files.setdefault(name, []).append(file)
    if not files:
        raise UsageError(f"hf: {place} holds no data set; expected {_FORMS}")
    known = dict[str, Any].fromkeys(files)
    for name in known.keys() & {*names}:
        known[name] = datasets.concatenate_datasets([datasets.Dataset(read_table(file)) for file in files[name]])
    return known


def _partitions(datasets: Any, place: Path, found: Mapping[int, Path], names: Mapping[str, str]) -> Tables:
    """The splits of partitions, each with the number of its client."""
    gaps = sorted(set(range(max(found) + 1)) - set(found))
    if gaps:
        raise UsageError(
            f"hf: {place} has partition_{max(found)} but no partition_{gaps[0]}; complete or renumber them"
        )
    tables: Tables = {"train": [], "test": []}
    for client, folder in sorted(found.items()):
        known = datasets.load_from_disk(str(folder))
        splits = known if isinstance(known, datasets.DatasetDict) else {"train": known}
        if "train" not in splits:
            raise UsageError(f"hf: {folder} has no split 'train', but {some(sorted(splits), 8)}")
        tables["train"].append((client, splits["train"]))
        if names["test"] in splits:
            tables["test"].append((client, splits[names["test"]]))
    common = place / names["test"]
    if not tables["test"] and common.is_dir():
        tables["test"] = [(None, datasets.load_from_disk(str(common)))]
    if not tables["test"]:
        raise UsageError(
            f"hf: the partitions in {place} have no test images; save common ones to {common}, or both splits of each "
            "partition"
        )
    return tables


def _pictures(datasets: Any, table: Any, column: str, where: str, start: int) -> list[Encoded]:
    images = table.select_columns([column])
    if isinstance(table.features[column], datasets.Image):
        images = images.cast_column(column, datasets.Image(decode=False))
    found = []
    for i, row in enumerate(images, start):
        one = row[column] or {}
        content = one.get("bytes") or (Path(one["path"]).read_bytes() if one.get("path") else b"")
        found.append(Encoded(f"{where}: image {i}", content))
    return found


def _complete(what: str, values: list[Any]) -> Array:
    """A column without missing values as an array."""
    missing = [i for i, value in enumerate(values) if value is None or value == -1]
    if missing:
        raise UsageError(f"{what}: {len(missing)} of {len(values)} are missing, the first that of image {missing[0]}")
    return np.asarray(values)


def _numbered(raw: dict[str, Any]) -> dict[str, Any]:
    """Labels that are texts as numbers, in the order of the texts of both splits."""
    train, test = raw["train_y"], raw["test_y"]
    if train.dtype.kind != "U" or test.dtype.kind != "U":
        return raw
    numbers = np.unique(np.concatenate([train, test]), return_inverse=True)[1]
    return {**raw, "train_y": numbers[: len(train)], "test_y": numbers[len(train) :]}
