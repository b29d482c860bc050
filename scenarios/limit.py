"""The time a cell may take, kept in a worker process of a grid, which records what a cell that had to be ended left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from robustfl.alarms import alarm
from robustfl.contracts import Method
from robustfl.results import names


class OutOfTimeError(BaseException):
    """The cell's time is up. No ``Exception``: a method that catches everything must not go on."""


def reason(minutes: float, where: str) -> str:
    """Why the cell failed, in words."""
    return f"time limit of {minutes:g} min (--cell-minutes) reached{where}; what was checkpointed is kept"


@contextmanager
def limited(minutes: float | None, trace: Path) -> Iterator[None]:
    """Within, at most so many minutes; ``trace`` is where it is written what the process was at when it was ended."""
    if minutes is None:
        yield
        return
    with (
        open(trace, "w", encoding="utf-8") as file,
        alarm(60 * minutes, lambda frame: OutOfTimeError(reason(minutes, _method(frame))), file),
    ):
        yield


def _method(frame: FrameType | None) -> str:
    """Whose code was running: the innermost method on the stack."""
    while frame is not None:
        running = frame.f_locals.get("self")
        if isinstance(running, Method):
            return f" in {names(running)}"
        frame = frame.f_back
    return ""
