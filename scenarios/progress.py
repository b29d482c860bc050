"""Progress of a grid that runs from Python: a live bar in a notebook, a bar on a terminal where one is asked for."""

from __future__ import annotations

import html
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .run_options import OnCellRound

_EVERY = 0.2  # seconds between two updates; a notebook stores each of them on its way

OnStart = Callable[[Any], None]
"""Called with the plan of the grid."""
OnCell = Callable[[Any], None]
"""Called with each cell that just ended."""


class NotebookDisplay:
    """A bar below the cell of the notebook, updated in place; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, done: float, total: int, words: str) -> None:
        """Show ``done`` of ``total`` cells, a running one as the share of its rounds."""
        ipython: Any = import_module("IPython.display")
        bar = ipython.HTML(
            f'<progress max="{total}" value="{done:.3g}" style="width:20em"></progress> '
            f"{int(done)} of {total} cells <small>{html.escape(words)}</small>"
        )
        if self._handle is None:
            self._handle = ipython.display(bar, display_id=True)
        else:
            self._handle.update(bar)

    def stop(self) -> None:
        """Leave the bar where it is."""


class TerminalDisplay:
    """One line on standard error."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def show(self, done: float, total: int, words: str) -> None:
        if self._bar is None:
            self._bar = Progress(
                BarColumn(), TextColumn("{task.fields[count]}"), TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False), console=Console(file=sys.stderr),
            )  # fmt: skip
            self._bar.add_task("", total=total, count="")
            self._bar.start()
        self._bar.update(
            self._bar.task_ids[0], completed=done, description=words, count=f"{int(done)} of {total} cells"
        )

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def in_notebook() -> bool:
    """True if this code runs in a kernel that a notebook shows the outputs of."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def shown(
    progress: bool | None, on_start: OnStart, on_cell: OnCell, on_round: OnCellRound | None, *, heard: bool
) -> Iterator[tuple[OnStart, OnCell, OnCellRound | None]]:
    """The three callbacks of a grid, which also show its progress if ``progress`` says so.

    ``None`` means: in a notebook, unless the caller listens itself (``heard``).
    """
    if progress is None:
        progress = in_notebook() and not heard
    if not progress:
        yield on_start, on_cell, on_round
        return
    display = NotebookDisplay() if in_notebook() else TerminalDisplay()
    bar = _Bar(display, on_start, on_cell, on_round)
    try:
        yield bar.start, bar.cell, bar.round
    finally:
        display.stop()


class _Bar:
    """Counts what it is told, shows it, and passes it on."""

    def __init__(
        self,
        display: NotebookDisplay | TerminalDisplay,
        on_start: OnStart,
        on_cell: OnCell,
        on_round: OnCellRound | None,
    ) -> None:
        self._display, self._next = display, (on_start, on_cell, on_round)
        self._total, self._count, self._last = 0, 0, 0.0
        self._ended: Counter[str] = Counter()
        self._running: dict[str, tuple[int, int]] = {}

    def start(self, plan: Any) -> None:
        self._total = len(plan.missing)
        if self._total:
            self._show(f"{plan.scenario.name}, {len(plan.cells) - self._total} were there", now=True)
        self._next[0](plan)

    def cell(self, finished: Any) -> None:
        self._count += 1
        self._ended[finished.status] += 1
        self._running.pop(finished.key, None)
        self._show(self._words(), now=self._count == self._total)
        self._next[1](finished)

    def round(self, key: str, round: int, rounds: int) -> None:
        self._running[key] = round, rounds
        self._show(self._words())
        if self._next[2] is not None:
            self._next[2](key, round, rounds)

    def _words(self) -> str:
        ended = [f"{n} {status}" for status, n in sorted(self._ended.items()) if status != "done"]
        running = [f"round {r} of {n}" for r, n in self._running.values()]
        return ", ".join([*ended, *running])

    def _show(self, words: str, *, now: bool = False) -> None:
        clock = time.monotonic()
        if now or clock - self._last >= _EVERY:
            self._last = clock
            part = sum(r / n for r, n in self._running.values() if n)
            self._display.show(self._count + min(part, len(self._running)), self._total, words)
