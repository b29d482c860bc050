"""Checkpoints: what a long cell needs to go on, in one file that is whole or not there.

``<store>/checkpoints/<key>.pt`` is written every few minutes and removed when the cell has its record. It is loaded
with ``weights_only``, so that no code in it can run, and only if it belongs to the same cell, software and kind of
device and the checksums in the file are right; otherwise the cell starts anew.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import torch
from torch import Tensor

from robustfl.engine import Experiment, State, initial_state
from robustfl.errors import StoreError
from robustfl.records import CellResult, canonical
from robustfl.reports.store import RERUN, Store, write_stream

from .memory import peak_bytes

FORMAT = 1
_PERSONAL = ("parameters", "statistics")
_PLAIN = (bool, int, float, str, type(None))


class IgnoredError(Exception):
    """Why a checkpoint that is there was not used."""


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one cell. ``made_by`` is what a file must agree with to be used: key, versions, device."""

    path: Path
    made_by: Mapping[str, Any]

    def save(self, state: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Write ``state`` (tensors and plain values) and ``run`` (JSON data). Raises ``StoreError``."""
        content = {"format": FORMAT, "made_by": canonical(self.made_by), "run": json.dumps(run), "state": state}
        write_stream(self.path, partial(_save, content))

    def load(self, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The saved content, or None without a file. Raises ``IgnoredError`` for a file that cannot be trusted."""
        if not self.path.is_file():
            return None
        content = self.content(device)
        if content["made_by"] != canonical(self.made_by):
            theirs, ours = json.loads(content["made_by"]), self.made_by
            apart = sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k))
            words = ", ".join(f"{k} ({theirs.get(k)}, now {ours.get(k)})" for k in apart)
            raise IgnoredError(f"it was written with other {words}")
        return content["state"], json.loads(content["run"])

    def content(self, device: torch.device | str) -> dict[str, Any]:
        """The whole file, if it is as it was written."""

        def place(storage: Any, location: str) -> Any:
            here = "cpu" if location == "cpu" else str(device)
            return torch.serialization.default_restore_location(storage, here)  # type: ignore[no-untyped-call]

        try:
            with ZipFile(self.path) as file:  # torch checks no checksums
                damaged = file.testzip()
            content = torch.load(self.path, map_location=place, weights_only=True)
        except Exception as error:  # a damaged or foreign file may raise anything
            raise IgnoredError(f"it is torn or none of robustfl's ({type(error).__name__})") from None
        if damaged is not None:
            raise IgnoredError("its content is damaged")
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise IgnoredError("it is none of this robustfl's")
        return content


class Keeper:
    """Keeps the checkpoint of a running cell and says what became of it; seconds and peak are those of all its runs."""

    def __init__(
        self, checkpoint: Checkpoint | None, *, every: float, device: torch.device, on_note: Callable[[str], None]
    ) -> None:
        self._checkpoint, self._every, self._device, self._on_note = checkpoint, every, device, on_note
        self._started = self._last = time.monotonic()
        self._earlier_seconds, self._earlier_peak = 0.0, 0
        self.notes: list[str] = []

    @property
    def seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started

    @property
    def peak_memory_bytes(self) -> int:
        return max(self._earlier_peak, peak_bytes(self._device))

    def found(
        self, unpack: Callable[[Mapping[str, Any]], State]
    ) -> tuple[State, dict[str, Any], dict[str, Any]] | None:
        """The state of the checkpoint, its raw content and what the run noted; None if there is none to trust."""
        if self._checkpoint is None:
            return None
        try:
            loaded = self._checkpoint.load(self._device)
            if loaded is None:
                return None
            content, run = loaded
            state = unpack(content)
        except (IgnoredError, ValueError) as error:
            self._note(f"a checkpoint was ignored and the cell started anew: {error}")
            return None
        self._earlier_seconds, self._earlier_peak = run["seconds"], run["peak"]
        self._note(f"resumed at round {state.round}")
        return state, content, run["noted"]

    def save(self, progress: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Write a checkpoint if one is due. A cell that cannot have one goes on without."""
        if self._checkpoint is None or time.monotonic() - self._last < self._every:
            return
        try:
            state, noted = progress()
            run = {"seconds": self.seconds, "peak": self.peak_memory_bytes, "noted": noted}
            self._checkpoint.save(state, run)
        except (StoreError, TypeError) as error:
            self._note(f"no checkpoint: {error}")
        self._last = time.monotonic()

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            self._on_note(note)


def checkpoint_path(store: str | Path, key: str) -> Path:
    """Where a cell keeps its checkpoint."""
    return Store(store).checkpoints / f"{key}.pt"


def commit(store: Store, record: CellResult) -> None:
    """Store the record of a cell, and remove its checkpoint unless the cell runs again. Raises ``StoreError``."""
    store.commit(record)
    if record.status not in RERUN:
        discard(store.folder, record.key)


def discard(store: str | Path, key: str) -> None:
    """Remove the checkpoint of a cell that has its record, and what killed writes of it left; also an empty folder."""
    path = checkpoint_path(store, key)
    with contextlib.suppress(OSError):
        for file in (path, *path.parent.glob(f".{path.name}.*.tmp")):
            file.unlink(missing_ok=True)
        path.parent.rmdir()


def _save(content: Mapping[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(content, file)
    except RuntimeError as error:  # torch's own complaint about a file that took less than it was given
        raise error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error)) from None


# --- the engine's state as plain tensors: what goes in comes out bit for bit ----------------------------------------
# Random draws need no place in it: every stream is named by its round (``randomness``).


def packed(experiment: Experiment, state: State) -> dict[str, Any]:
    """Everything the next round needs: nested dicts of tensors and plain values.

    Raises ``TypeError`` where a method keeps anything else, which could not be loaded again safely.
    """
    content = models_of(experiment, state) | {
        "memory": state.memory,
        "root": state.root,
        "smallest_variance": state.smallest_variance,
        "previous": state.previous,
        "server": dict(state.server),
        "attack": {channel: dict(kept) for channel, kept in state.attack.items()},
        "defense": dict(state.defense),
    }
    found: dict[str, Any] = _plain(content, "state")
    return found


def unpacked(experiment: Experiment, content: Mapping[str, Any], *, limit: int) -> State:
    """The state again, in the engine's own memory, or in files beyond ``limit`` bytes.

    Raises ``ValueError`` for one of another experiment.
    """
    try:
        return _unpacked(experiment, content, limit)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"it does not fit this cell: {error}") from None


def _unpacked(experiment: Experiment, content: Mapping[str, Any], limit: int) -> State:
    start = initial_state(experiment, limit=limit)
    places = model_places(experiment, start, content)
    places |= {name: (getattr(start, name), content[name]) for name in ("memory", "root")}
    if not 0 <= content["round"] <= experiment.settings.end:
        raise ValueError(f"round {content['round']} of {experiment.settings.end}")
    copy_into(places | {f"server {k}": (v, content["server"].get(k)) for k, v in start.server.items()})
    return replace(
        start, round=content["round"], smallest_variance=content["smallest_variance"], previous=content["previous"],
        attack=content["attack"], defense=content["defense"],
    )  # fmt: skip


Places = dict[str, tuple[Tensor | None, Tensor | None]]
"""By name, tensors of a state and what is to be copied into them."""


def model_places(experiment: Experiment, start: State, content: Mapping[str, Any]) -> Places:
    """The places of everything that a model, and users' own ones, are made of."""
    personal = content["personal"] or {}
    places: Places = {name: (getattr(start, name), content[name]) for name in ("theta", "statistics")}
    places |= {f"personal {k}": (getattr(start.personal, k, None), personal.get(k)) for k in _PERSONAL}
    return places | {f"buffer {k}": (v, content["buffers"].get(k)) for k, v in experiment.model.named_buffers()}


def models_of(experiment: Experiment, state: State) -> dict[str, Any]:
    """Everything that a model, and users' own ones, are made of, as ``model_places`` reads it."""
    personal = None if state.personal is None else {name: getattr(state.personal, name) for name in _PERSONAL}
    return {
        "round": state.round, "theta": state.theta, "statistics": state.statistics, "personal": personal,
        "buffers": dict(experiment.model.named_buffers()),
    }  # fmt: skip


def copy_into(places: Places) -> None:
    """Copy values into the tensors of a state. Raises ``ValueError`` where shapes or dtypes differ."""
    for name, (into, value) in places.items():
        if (into is None) != (value is None):
            raise ValueError(f"{name} is {'not expected' if into is None else 'missing'}")
        if into is not None and value is not None and (into.shape != value.shape or into.dtype != value.dtype):
            raise ValueError(f"{name} is {value.dtype} {tuple(value.shape)}, not {into.dtype} {tuple(into.shape)}")
    with torch.no_grad():
        for into, value in places.values():
            if into is not None and value is not None:
                into.copy_(value)


def _plain(value: Any, where: str) -> Any:
    """The same with tensors that own no more memory than they show: a view would take its whole storage along."""
    if isinstance(value, Tensor):
        value = value.detach()
        return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where} {k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v, where) for v in value)
    if type(value) not in _PLAIN:
        raise TypeError(f"{where} holds {type(value).__name__}; methods may keep tensors, numbers and texts")
    return value
