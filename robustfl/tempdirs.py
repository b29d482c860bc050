"""Folders for passing files, in the system's folder for these. What killed processes left of them is swept away.

Who makes one holds a lock on a file in it for as long as it lives; the system drops the lock with the process, so a
folder whose lock is free belongs to nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "robustfl-"
_LOCK = ".robustfl-lock"


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
