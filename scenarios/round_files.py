"""Progress of running cells: told by workers through one small file each, about once a second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

OnRoundOf = Callable[[str, int, int], None]
"""Key, round, rounds."""

_SECONDS = 1.0
_SUFFIX = ".round"


def teller(key: str, folder: str, on_round: OnRoundOf | None) -> Callable[[int, int, float], None]:
    """Make what a running cell calls after every round: it tells ``on_round``, or in a worker a file in ``folder``."""
    last = time.monotonic()

    def tell(round: int, rounds: int, loss: float) -> None:
        nonlocal last
        del loss
        if time.monotonic() - last < _SECONDS:
            return
        last = time.monotonic()
        if on_round is not None:
            on_round(key, round, rounds)
        elif folder:
            with contextlib.suppress(OSError):  # a full disk is told by what matters
                (Path(folder) / f"{key}{_SUFFIX}").write_text(f"{round} {rounds}", encoding="ascii")

    return tell


@contextlib.contextmanager
def watched(folder: str, on_round: OnRoundOf | None) -> Iterator[None]:
    """Within, ``on_round`` hears of what workers write into ``folder``, from a thread."""
    if on_round is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        known: dict[Path, str] = {}
        while not over.wait(_SECONDS):
            for file in Path(folder).glob(f"*{_SUFFIX}"):
                with contextlib.suppress(OSError, ValueError):  # just being written
                    told = file.read_text(encoding="ascii")
                    round, rounds = map(int, told.split())
                    if known.get(file) != told:
                        known[file] = told
                        on_round(file.name.removesuffix(_SUFFIX), round, rounds)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
