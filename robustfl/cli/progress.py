"""Progress of a grid: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from robustfl.cli.printing import console, percent, say, seconds

if TYPE_CHECKING:
    from robustfl.scenarios import Finished, Plan

_EVERY_SECONDS = 10.0


def summary(finished: Finished) -> str:
    """One finished cell in one line."""
    what = _what(finished)
    if finished.status == "done":
        return f"{what}: SA {percent(finished.sa)}, RA {percent(finished.ra)} ({finished.seconds:.1f} s)"
    return f"{what}: {finished.status}: {(finished.reason or '').splitlines()[0]}"


def _what(finished: Finished) -> str:
    labels = finished.labels
    return " · ".join(str(labels[k]) for k in ("partition", "norm", "defense", "attack")) + f" · seed {labels['seed']}"


class GridProgress:
    """Shows a running grid on standard error. Crashed cells are shown at once, with their traceback."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = console(err=True)
        self._live = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._bar: Progress | None = None
        self._total = self._count = 0
        self._started = self._last = time.monotonic()

    def start(self, plan: Plan) -> None:
        """Say what is there and what will run."""
        self._total = len(plan.missing)
        stored = len(plan.cells) - self._total
        if not self._quiet:
            have = f"{stored} of {len(plan.cells)} cells are done" if stored else f"{len(plan.cells)} cells"
            begun = f", {plan.begun} of them from a checkpoint" if plan.begun else ""
            say(f"{plan.scenario.name}: {have}, {self._total} to run{begun} → {plan.folder}", err=True)
        if self._live and self._total:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[last]}", markup=False), console=self._console, transient=True,
            )  # fmt: skip
            self._bar.add_task(plan.scenario.name, total=self._total, last="")
            self._bar.start()

    def cell(self, finished: Finished) -> None:
        """One cell ended."""
        self._count += 1
        if finished.status == "failed":
            _, _, trace = (finished.reason or "").partition("\n")
            self._console.print(Text(f"{summary(finished)}\n{trace}".rstrip()))
        if not self._quiet:
            for note in finished.notes:
                self._console.print(Text(f"{_what(finished)}: {note}"))
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, last=summary(finished))
        elif not self._quiet and not self._live:
            now = time.monotonic()
            if now - self._last >= _EVERY_SECONDS or self._count == self._total:
                self._last = now
                spent = seconds(now - self._started)
                say(f"[{self._count}/{self._total}, {spent}] {summary(finished)}", err=True)

    def __enter__(self) -> GridProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
