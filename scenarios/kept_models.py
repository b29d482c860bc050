"""Trained models that leave: one ``.npz`` beside the records of a store, and ``robustfl.load_model``.

``<store>/models/<key>.npz`` holds the parameters and buffers of the model a cell was tested with, by their names in the
network, the users' own entries where they have any, and a note that says how the network is built. It is read without
pickle, so that no code in it can run, and only if its content has the digest that the cell's record states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.arguments import usable_device
from robustfl.contracts import BranchedLayer, Norm
from robustfl.engine import Personal, State
from robustfl.engine.personal import Privacy
from robustfl.errors import RobustflError, StoreError, UsageError, closest
from robustfl.layout import flatten_parameters, layout_of, write_statistics
from robustfl.origins import in_words, origins
from robustfl.records import CellResult, canonical, plain
from robustfl.registry import identity
from robustfl.reports.published import read_board
from robustfl.reports.published.agreement import versions_apart
from robustfl.reports.store import Store, open_store, write_stream
from robustfl.torch_settings import standard_settings

from .build import Built, skeleton
from .cell import Cell
from .evaluate import Evaluator
from .methods import method

FORMAT = 1
_BUILDS = ("model", "norm")
"""The methods that a network is built of."""
_NEEDED = (*_BUILDS, "scaling", "seed", "dtype")
"""The settings that a network is built of: plug-ins that the cell used otherwise need not be here."""
_NOTE, _OWN = "note", ("own/parameters", "own/statistics")
_SHORTEST = 6  # letters of a key that stand for the whole

Arrays = dict[str, np.ndarray[Any, Any]]


def model_path(folder: str | Path, key: str) -> Path:
    """Where the model of a cell lies."""
    return Path(folder) / "models" / f"{key}.npz"


def keep_model(folder: str | Path, key: str, built: Built, evaluator: Evaluator, state: State) -> dict[str, Any]:
    """Write the model as it was tested; returns what the record says of the file. Raises ``StoreError``."""
    with evaluator.as_tested(state) as at:
        named = _named(built.experiment.model)
        if evaluator.personal and at.personal is not None:
            named |= dict(zip(_OWN, (at.personal.parameters, at.personal.statistics), strict=True))
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in named.items()}
    note = {
        "format": FORMAT, "key": key, "shape": list(built.test.x.permute(0, 3, 1, 2).shape[1:]),
        "classes": built.experiment.classes, "branch": evaluator.branch, "users": evaluator.users,
    }  # fmt: skip
    arrays[_NOTE] = np.frombuffer(canonical(note).encode(), dtype=np.uint8)
    path = model_path(folder, key)
    save: Any = np.savez_compressed  # whose types know of no names that a caller chooses
    write_stream(path, lambda file: save(file, **arrays))
    return {"digest": _digest(arrays), "bytes": path.stat().st_size}


@standard_settings()
def load_model(
    source: str | Path, key: str, *, user: int | None = None, device: str | torch.device = "cpu"
) -> nn.Module:
    """The trained model of a cell that ran with ``keep_model``, in evaluation mode: pixels in [0, 1] to logits.

    ``source`` is the folder of a store (``"runs/quickstart"``) or a published board, which has the folder ``models``
    of its store beside it; ``key`` is the cell's, or so much of its beginning as is nobody else's. Of a norm with
    private parts (FedBN, …) every user has a model: ``user`` is an honest one's number. Data are not needed. Raises
    ``UsageError`` for a cell that is not there or has no model, or a device that cannot be used, and ``StoreError`` for
    a file that is not the one the record tells of.

    >>> import robustfl, tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     record = robustfl.run({"rounds": 1, "clients": 2, "evasions": []}, out=out, keep_model=True)
    ...     model = robustfl.load_model(f"{out}/run", record.key)
    >>> robustfl.evaluate(model, "digits", evasions=[]).sa == record.metrics.sa
    True
    """
    where = usable_device(device, "load_model")
    record, path = _found(source, key)
    arrays, note = _read(record, path)
    cell, own = _cell(record), arrays.keys() & set(_OWN)
    if (user is None) != (not own):
        each = f"the users of cell {record.key[:12]} have models of their own; give user=, one of {note['users']}"
        raise UsageError(f"load_model: {each}" if own else f"load_model: user={user}, but all users share one model")
    if user is not None and user not in note["users"]:
        raise UsageError(f"load_model: user={user} is no honest user of the cell; these are {note['users']}")
    model = skeleton(cell, shape=tuple(note["shape"]), classes=note["classes"])
    _fill(model, arrays, path)
    if user is not None:
        _personalise(model, cast(Norm, method("norm", cell.norm)), arrays, user)
    for layer in model.modules():
        if isinstance(layer, BranchedLayer):
            layer.branch = note["branch"]
    return model.eval().to(where)


def _found(source: str | Path, key: str) -> tuple[CellResult, Path]:
    """The record of the cell ``key`` of a store or of a board, and the file of its model.

    Raises ``UsageError`` if the cell is not there or has kept no model.
    """
    place = Path(source)
    if place.is_file():
        board, wrong = read_board(place)
        if wrong:
            raise StoreError(f"{place}: {wrong[0]}")
        records = {record.key: record for record in board.cells}
        keys, read, folder = set(records), records.__getitem__, place.parent
    else:
        store = open_store(place)
        keys, read, folder = store.keys(), store.read, store.folder
    whole = _whole(key, keys, str(source))
    record = read(whole)
    kept = record.certificates.get("model")
    path = model_path(folder, whole)
    if not isinstance(kept, Mapping) or not isinstance(kept.get("digest"), str):
        left = f"; {path} is none the record tells of" if path.is_file() else ""
        raise UsageError(
            f"load_model: cell {whole[:12]} ({record.status}) has kept no model{left}; run it with --keep-model (a "
            "stored cell runs again in another folder, or once its record is deleted)"
        )
    if not path.is_file():
        raise UsageError(f"load_model: no file {str(path)!r}; put the folder 'models' of the store there")
    return record, path


def _whole(key: str, keys: Collection[str], source: str) -> str:
    """The one key that is ``key`` or begins with it."""
    matching = [k for k in keys if k == key] or [k for k in keys if len(key) >= _SHORTEST and k.startswith(key)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"load_model: key={key!r} is the beginning of {len(matching)} cells of {source!r}; give more")
    raise UsageError(f"load_model: {source!r} has no cell {key!r}; {closest(key, sorted(keys))}")


def _cell(record: CellResult) -> Cell:
    """The settings of a record's network. Raises ``UsageError`` where it would not be built as it was."""
    settings = record.cell.get("cell", {})
    try:
        cell = Cell.of({name: settings[name] for name in _NEEDED if name in settings})
        here = {name: plain(identity(method(name, getattr(cell, name)))) for name in _BUILDS}
    except UsageError as error:
        if theirs := {what: origin for what, origin in origins(record.cell).items() if what.split()[0] in _BUILDS}:
            raise UsageError(
                f"load_model: {error}; the cell used {in_words(theirs)}: first robustfl.registry.load_file(its file), "
                "or install its package"
            ) from error
        raise
    stored = record.cell.get("methods", {})
    apart = versions_apart({name: stored.get(name) for name in here}, here)
    if apart:
        raise UsageError(f"load_model: cell {record.key[:12]} was made with another version: {'; '.join(apart)}")
    return cell


# --- files -----------------------------------------------------------------------------------------------------------


def _named(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those that no checkpoint of torch would hold included."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _digest(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Of names, types, shapes and values, so that it does not depend on how the file is packed."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(canonical([name, array.dtype.str, list(array.shape)]).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _read(record: CellResult, path: Path) -> tuple[Arrays, dict[str, Any]]:
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        digest = _digest(arrays)
        note = json.loads(arrays.pop(_NOTE).tobytes())
    except Exception as error:  # a damaged or foreign file may raise anything
        raise StoreError(f"{path}: torn, or no model of robustfl's ({type(error).__name__})") from None
    if digest != record.certificates["model"]["digest"]:
        raise StoreError(f"{path}: not the model that the record tells of: its digest is another")
    if note.get("format") != FORMAT or note.get("key") != path.stem:  # of an old store the record has a new key
        raise StoreError(f"{path}: a model of another cell, or of another robustfl")
    return arrays, note


def _fill(model: nn.Module, arrays: Mapping[str, np.ndarray[Any, Any]], path: Path) -> None:
    named = _named(model)
    apart = sorted(named.keys() ^ (arrays.keys() - set(_OWN)))
    if apart:
        raise RobustflError(f"{path}: the network built here differs from the stored one in {', '.join(apart[:4])}")
    for name, tensor in named.items():
        if tuple(tensor.shape) != arrays[name].shape:
            raise RobustflError(f"{path}: {name} has shape {arrays[name].shape}, here {tuple(tensor.shape)}")
        # The stored precision is the model's; only then do values and gradients come out as they did.
        tensor.data = torch.from_numpy(arrays[name].copy())


def _personalise(model: nn.Module, norm: Norm, arrays: Mapping[str, np.ndarray[Any, Any]], user: int) -> None:
    """Put a user's own entries where the common ones are."""
    layout = layout_of(model)
    theta = flatten_parameters(model, layout)
    parameters, statistics = (torch.from_numpy(arrays[name]) for name in _OWN)
    privacy = Privacy.of(norm, layout, torch.device("cpu"))
    own: Tensor = Personal(parameters, statistics).models_of([user], privacy, theta)[0]
    theta.copy_(own)
    if privacy.statistics:
        write_statistics(model, layout, statistics[user])


def missing_models(store: Store, keys: set[str]) -> int:
    """The number of the stored cells ``keys`` that are done and have no model."""
    return store.statuses(key for key in keys if not model_path(store.folder, key).is_file()).get("done", 0)
