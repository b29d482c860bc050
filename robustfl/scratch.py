"""Folders for passing files, in the system's folder for these. What killed processes left of them is swept away.

Who makes one holds a lock on a file in it for as long as it lives; the system drops the lock with the process, so a
folder whose lock is free belongs to nobody.

Earlier versions held no locks, and their pools of workers left entries in shared memory. Such a thing belongs to
nobody if it is this user's, has the name and the content that robustfl gives (or, in shared memory, the name that
joblib's pool gives, with the number of a process that is gone), and nothing in it has changed for a day: a process of
another container that shares the folder cannot be seen from here.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "robustfl-"
_LOCK = ".robustfl-lock"
ABANDONED_SECONDS = 86400.0
_SHARED = Path("/dev/shm")
_UNLOCKED = re.compile(r"robustfl-(?:slots-|plugins-)?[a-z0-9_]{8}")
_CONTENT = re.compile(r"[0-9a-f]{32}.*|[0-9a-f]{12}|gpu\d+-\d+|kernels\.so")
_OF_PROCESS = re.compile(r"(?:sem\.loky-|joblib_memmapping_folder_)(\d+)[-_].*")


@contextmanager
def scratch(what: str) -> Iterator[Path]:
    """An empty folder that is gone afterwards, or swept away later if this process is killed."""
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{what}-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            (folder / "lock").rename(folder / _LOCK)  # only now: it is never there unlocked
            yield folder
        finally:
            os.close(handle)


def sweep() -> None:
    """Remove what no living process owns."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # held by its owner, of another user, or removed by somebody else meanwhile
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if _UNLOCKED.fullmatch(folder.name) and _ours(folder) and _abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
    for entry in _SHARED.glob("*"):
        named = _OF_PROCESS.fullmatch(entry.name)
        with suppress(OSError):
            if named is not None and not _lives(int(named[1])) and _abandoned(entry):
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()


def _ours(folder: Path) -> bool:
    """True if it is a folder as ``tempfile`` makes them, without a lock and with nothing foreign in it."""
    private = stat.S_ISDIR(mode := folder.lstat().st_mode) and stat.S_IMODE(mode) == 0o700
    return private and all(_CONTENT.fullmatch(inner.name) for inner in folder.iterdir())


def _abandoned(path: Path) -> bool:
    """True if it is this user's, and nothing in it has changed for long."""
    about = [p.lstat() for p in (path, *path.rglob("*"))]
    return all(a.st_uid == os.getuid() for a in about) and max(a.st_mtime for a in about) < time.time() - (
        ABANDONED_SECONDS
    )


def _lives(process: int) -> bool:
    """True if there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        pass
    return True
