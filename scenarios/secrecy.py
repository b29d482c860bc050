"""Training depends on no test data: cells with plug-ins run twice, and what these reach for meanwhile is heard."""

from __future__ import annotations

import inspect
import logging
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor

from robustfl.beside import python_files
from robustfl.contracts import Arrays, Dataset
from robustfl.errors import RobustflError, told
from robustfl.origins import origins
from robustfl.records import CellResult
from robustfl.registry import entries, load_file
from robustfl.reports.published.bundle import Bundle

from .cell import Cell
from .execution import Execution
from .expand import fingerprints
from .run import run_cell

Note = Callable[[str, bool | None, str], None]
"""Takes note of a step of a check: if it passed, and the words on it."""
_CODE = (".py", ".pyc", ".so", ".pyd")
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_DATA = (".npy", ".npz", ".csv", ".gz", ".zip", ".tar", ".pt", ".pth", ".pkl", ".pickle", ".parquet", ".h5", ".mat")
_FRAMES = (
    "sys._getframe", "sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile",
    "gc.get_objects", "gc.get_referrers", "gc.get_referents",
)  # fmt: skip
_OF_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")  # from these, too, one gets to one's callers
_ASKING = (inspect.__file__, traceback.__file__, str(Path(pandas.__file__).parent))
_HANDING = (logging.__file__,)
"""Modules that ask for a caller's frame for others in one call, and for themselves in many."""
_MADE = ("exec", "compile", "code.__new__", "ctypes.dlopen", "ctypes.dlsym")
"""Code that is in no file, or in no language, that one could read."""
_FILES = ("open", "os.listdir", "os.scandir")
_OUTSIDE = ("socket.connect", "socket.sendto", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")


def check_secrecy(bundle: Bundle, sample: int, root: str | Path | None, note: Note) -> None:
    """Train cells with the plug-ins twice, once with other test data: the models must be the same.

    The second time in a fresh process, so that nothing remembers the first, and files that plug-ins open are noted.
    """
    files = tuple(str(bundle.folder / name) for name in sorted(bundle.manifest.plugins))
    packages = tuple(bundle.manifest.packages)
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_overhear, initargs=(files, packages)
    ) as fresh:
        for brought, record in _drawn_for(bundle.board.records(), sample).items():
            methods = ", ".join(brought)
            try:
                other, opened = fresh.submit(_trained_elsewhere, record, root).result()
                model = _trained(record, root)
            except (RobustflError, BrokenProcessPool) as error:
                note("secrecy", None, f"cell {record.key[:12]} cannot be run here: {told(error)}")
                continue
            if opened:
                note("secrecy", False, f"{methods}: the plug-in reaches for {', '.join(opened)}")
            if model != other:
                note("secrecy", False, f"{methods}: other test data change what is trained: {model}, then {other}")
            elif not opened:
                note("secrecy", True, f"{methods}: the trained model does not depend on the test data")


def _drawn_for(records: Sequence[CellResult], sample: int) -> dict[tuple[str, ...], CellResult]:
    """A finished cell for every set of plug-in methods that meet in one, drawn among all of these.

    Were it the shortest, or the cheapest by what its record says, who submits it would choose it.
    """
    found: dict[tuple[str, ...], list[CellResult]] = {}
    for record in sorted(records, key=lambda r: r.key):
        methods = tuple(sorted(origins(record.cell))) if record.status == "done" else ()
        if methods:
            found.setdefault(methods, []).append(record)
    draw = random.Random(f"secrecy {sample}")
    return {methods: draw.choice(found[methods]) for methods in sorted(found)}


def _trained(record: CellResult, root: str | Path | None) -> str:
    """The digest of the model that a cell trains, or how it ends without one."""
    # Attacks on the result and evaluations on the way cost time and change nothing.
    cell = Cell.of({**record.cell.get("cell", {}), "evasions": [], "evaluate_every": 0, "select": "last", "tail": 1})
    with tempfile.TemporaryDirectory() as store:
        here = Execution(device="cpu", root=root, store=Path(store), checkpoint_minutes=0, keep_model=True)
        made = run_cell(cell, fingerprint=fingerprints([cell], root)[cell], execution=here)
    kept = made.certificates.get("model")
    return f"model {kept['digest'][:12]}" if kept else f"{made.status}: {(made.reason or '').partition(chr(10))[0]}"


_opened: list[str] = []
_looking: list[None] = []


def _overhear(files: tuple[str, ...], packages: tuple[str, ...]) -> None:
    """Prepare a process: from now on test data are others, and what plug-ins' code reaches for is noted."""
    own = {str(Path(file).resolve()) for file in files}
    for entry in entries():
        own |= _code_beside(entry.cls) if entry.origin in packages else set()
    _hear_mapped_files()
    sys.addaudithook(lambda event, arguments: _heard(event, arguments, own))
    for file in files:
        load_file(file)
    loads = {entry.cls: entry.cls.load for entry in entries("dataset")}  # type: ignore[attr-defined]
    for cls, load in loads.items():
        cls.load = _altered(load)  # type: ignore[attr-defined]


def _code_beside(cls: type) -> set[str]:
    """The file of a class, with all of the package that it belongs to."""
    file = Path(inspect.getfile(cls)).resolve()
    package = sys.modules[cls.__module__.partition(".")[0]]
    folders = [Path(folder) for folder in getattr(package, "__path__", ())]
    return {str(file)} | {str(path.resolve()) for folder in folders for path in python_files(folder)}


def _hear_mapped_files() -> None:
    """From now on torch tells of files that it maps below Python, under whatever name it is asked to."""
    storages: Any = torch.UntypedStorage
    storages.from_file = staticmethod(_announced(storages.from_file))
    library: Any = torch.library.Library
    _kernels.append(library("aten", "IMPL"))
    _kernels[-1].impl("from_file", _mapped, "CPU")  # where torch.from_file and its other names lead


_kernels: list[Any] = []
"""Kernels last as long as the library that holds them."""


def _mapped(
    filename: str, shared: bool | None = None, size: int | None = 0, *, dtype: torch.dtype | None = None, **rest: Any
) -> Tensor:
    """``aten::from_file`` by way of a storage, which tells of it."""
    del rest
    kind, entries = dtype or torch.get_default_dtype(), size or 0
    storage: Any = torch.UntypedStorage.from_file(filename, bool(shared), entries * kind.itemsize)
    made: Tensor = torch.empty(0, dtype=kind).set_(storage, 0, (entries,), (1,))
    return made


def _announced(opens: Callable[..., Any]) -> Callable[..., Any]:
    def announced(filename: Any, *args: Any, **kwargs: Any) -> Any:
        sys.audit("open", filename, "r", 0)
        return opens(filename, *args, **kwargs)

    return announced


def _trained_elsewhere(record: CellResult, root: str | Path | None) -> tuple[str, list[str]]:
    """In the prepared process: how the cell ends, and what the plug-ins' code has reached for since the last cell."""
    ended, reached = _trained(record, root), list(dict.fromkeys(_opened))
    _opened.clear()
    return ended, reached


def _heard(event: str, arguments: tuple[Any, ...], own: Collection[str]) -> None:
    """Note it if code of the files ``own`` reaches for data files, its callers, the network or other programs."""
    if _looking:  # to look for a frame is an event, too
        return
    _looking.append(None)
    try:
        _note(event, arguments, own)
    finally:
        _looking.pop()


def _note(event: str, arguments: tuple[Any, ...], own: Collection[str]) -> None:
    if event in _FILES:
        what = arguments[0]
        if not isinstance(what, (str, bytes, os.PathLike)) or not _is_data(os.fsdecode(what)):
            return
    elif event in _FRAMES or (event == "object.__getattr__" and arguments[1] in _OF_FRAMES):
        if _asked_by(own):
            _opened.append(event if event in _FRAMES else arguments[1])
        return
    elif event in _MADE:
        if sys._getframe(3).f_code.co_filename in own:
            _opened.append(event)
        return
    elif event not in _OUTSIDE:
        return
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        if frame.f_code.co_filename in own:
            _opened.append(Path(os.fsdecode(arguments[0])).name if event in _FILES else event)
            return
        frame = frame.f_back


def _asked_by(own: Collection[str]) -> bool:
    """True if code of the files ``own`` asks, itself or through others; libraries ask for frames all the time."""
    frame: FrameType | None = sys._getframe(4)
    if frame is not None and frame.f_code.co_filename in _HANDING:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith(_ASKING):
        frame = frame.f_back
    while frame is not None and _in_no_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename in own


def _in_no_file(code: str) -> bool:
    """True for code that was made of a text, of whose maker it then is."""
    return code.startswith("<") and not code.startswith("<frozen ")


def _is_data(path: str) -> bool:
    """True if a file is neither code nor part of the system or of an installed library, data of libraries excepted."""
    path, said = os.path.realpath(path), path  # the system has links to everything
    if path.endswith(_CODE) or path.startswith(_SYSTEM) or path in sys.path or said in sys.path:
        return False
    installed = (os.path.realpath(p) + os.sep for p in sys.path if Path(p).name in ("site-packages", "dist-packages"))
    return path.endswith(_DATA) or not path.startswith((sys.prefix, sys.base_prefix, *installed))


def _altered(load: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """``Dataset.load`` with other test data: images in another order and half as bright, labels moved by one class."""

    def loaded(self: Dataset, root: Path, *, download: bool = True) -> Arrays:
        arrays = load(self, root, download=download)
        labels = (np.asarray(arrays.test_y) + 1) % arrays.classes
        images = np.roll(arrays.test_x, 1, axis=0)
        images = images // 2 if np.issubdtype(images.dtype, np.integer) else images * np.asarray(0.5, images.dtype)
        return replace(arrays, test_x=images, test_y=labels)

    return loaded
