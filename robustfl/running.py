"""Whose code this process is running, written where a process that outlives it can read it. No torch here.

Without such a process (``shared`` was not called) writing it down costs nothing and changes nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_HALF = 2048
_IMPORT, _CALL, _NOTHING = b"i", b"c", b"\0"


@dataclass(frozen=True)
class Whereabouts:
    """Whose code was running last (empty: robustfl's own), whether it was an import, and the plug-ins at hand."""

    whose: str
    importing: bool
    plug_ins: str


class Page:
    """A page of memory that a process shares with the children it forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * _HALF)
        self._plug_ins: list[str] = []

    def read(self) -> Whereabouts:
        """The text written last, by this process or a child."""
        now, loaded = self._memory[:_HALF], self._memory[_HALF:]
        return Whereabouts(_text(now[1:]), now[:1] == _IMPORT, _text(loaded))

    def swap(self, now: bytes) -> bytes:
        """Put down ``now``; returns what stood there."""
        before = self._memory[:_HALF]
        self._memory[: min(len(now), _HALF)] = now[:_HALF]
        return before

    def note(self, plug_in: str) -> None:
        """Add a plug-in to those at hand."""
        self._plug_ins.append(plug_in)
        content = ", ".join(dict.fromkeys(self._plug_ins)).encode()[: _HALF - 1] + b"\0"
        self._memory[_HALF : _HALF + len(content)] = content


_page: Page | None = None


def shared() -> Page:
    """Begin to write things down, on a page that children of this process share."""
    global _page
    _page = Page()
    return _page


@contextmanager
def running(whose: str, *, importing: bool = False) -> Iterator[None]:
    """Within, the code of ``whose`` runs: what to name should it end the process."""
    if _page is None or not whose:
        yield
        return
    content = (_IMPORT if importing else _CALL) + whose.encode(errors="replace")[: _HALF - 2] + b"\0"
    before = _page.swap(content)
    try:
        yield
    finally:
        _page.swap(before)


def loaded(plug_in: str) -> None:
    """Write down that a plug-in is at hand from now on."""
    if _page is not None:
        _page.note(plug_in)


def _text(content: bytes) -> str:
    return content.partition(b"\0")[0].decode(errors="replace")
