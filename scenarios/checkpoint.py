"""Checkpoints: what a long cell needs to go on, in one file that is whole or not there.

``<store>/checkpoints/<key>.pt`` is written every few minutes and removed when the cell has its record. It is loaded
with ``weights_only``, so that no code in it can run, and only if it belongs to the same cell, software and kind of
device and its content has the digest written with it; otherwise the cell starts anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from robustfl.errors import StoreError
from robustfl.federation import State
from robustfl.records import CellResult, canonical
from robustfl.reports.store import RERUN, Store, write_stream

from .memory import peak_bytes

FORMAT = 1


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
        content["digest"] = _digest(content)
        write_stream(self.path, partial(_save, content))

    def load(self, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The saved content, or None without a file. Raises ``IgnoredError`` for a file that cannot be trusted."""
        if not self.path.is_file():
            return None
        content = self.content(device)
        if content["made_by"] != canonical(self.made_by):
            raise IgnoredError(_difference(json.loads(content["made_by"]), self.made_by))
        return content["state"], json.loads(content["run"])

    def content(self, device: torch.device | str) -> dict[str, Any]:
        """The whole file, if it is as it was written."""

        def place(storage: Any, location: str) -> Any:
            here = "cpu" if location == "cpu" else str(device)
            return torch.serialization.default_restore_location(storage, here)  # type: ignore[no-untyped-call]

        try:
            content = torch.load(self.path, map_location=place, weights_only=True)
        except Exception as error:  # a damaged or foreign file may raise anything
            raise IgnoredError(f"it is torn or none of robustfl's ({type(error).__name__})") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise IgnoredError("it is none of this robustfl's")
        if content.pop("digest", None) != _digest(content):
            raise IgnoredError("its content is damaged")
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


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    differ = sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k))
    return "it was written with other " + ", ".join(f"{k} ({theirs.get(k)}, now {ours.get(k)})" for k in differ)


def _digest(content: Mapping[str, Any]) -> str:
    found = hashlib.blake2b(digest_size=16)
    _feed(found, content)
    return found.hexdigest()


def _feed(into: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        into.update(f"{value.dtype}{tuple(value.shape)}".encode())
        into.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            into.update(f"|{name}|".encode())
            _feed(into, part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _feed(into, part)
    else:
        into.update(repr(value).encode())
