"""Progress of a grid: bars on a terminal, one below the cell of a notebook, plain lines elsewhere."""

from __future__ import annotations

import html
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from robustfl.records import CellResult

from .plan import Plan
from .run_options import WARNING

_EVERY_SECONDS = 10.0  # between two lines about cells that ended
_QUIET_SECONDS = 60.0  # and about cells that are still running
_NOTEBOOK_SECONDS = 0.2  # between two updates; a notebook stores each of them on its way
_AXES = ("dataset", "partition", "norm", "defense", "attack")
"""What is named first, and alone where nothing varies."""
_NUMBER = re.compile(r"\d+(\.\d+)?")
_PLACE = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Finished:
    """One cell that just ended, as progress displays need it."""

    key: str
    labels: dict[str, Any]
    status: str
    reason: str | None
    sa: float | None
    ra: float | None
    seconds: float
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    found: bool = False
    """Another grid stored it; it did not run here."""

    @classmethod
    def of(cls, record: CellResult, *, found: bool = False) -> Finished:
        """The end of a cell with this record."""
        metrics, timing = record.metrics, record.timing
        return cls(
            record.key, record.labels, record.status, record.reason, metrics.sa if metrics else None,
            metrics.ra_worst if metrics else None, timing.seconds, tuple(timing.notes),
            tuple(record.certificates.get("warnings") or ()), found,
        )  # fmt: skip


def in_notebook() -> bool:
    """True if this code runs in a kernel that a notebook shows the outputs of."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def varying(labels: Sequence[Mapping[str, Any]]) -> list[str]:
    """The labels that tell these cells apart, in the order of reading; the seed comes last."""
    names = [n for n in dict.fromkeys(n for cell in labels for n in cell) if len({str(c.get(n)) for c in labels}) > 1]
    if "f" in names and all(c.get("f") == c.get("f_declared") for c in labels):
        names = [n for n in names if n != "f_declared"]
    first = [n for n in _AXES if n in names]
    return [*first, *(n for n in names if n not in (*first, "seed")), *(["seed"] if "seed" in names else [])]


def cause(reason: str) -> tuple[str, ...]:
    """The cause of a failure: the kind of error and the line it came from; the same in all cells that a bug hits."""
    places = _PLACE.findall(reason)
    kind = reason.partition(":")[0]
    return (kind, *places[-1]) if places else (reason.partition("\n")[0],)


def duration(seconds: float) -> str:
    """A duration a person reads at a glance."""
    for length, limit, unit in ((1, 90, "s"), (60, 5400, "min"), (3600, 48 * 3600, "h")):
        if seconds < limit:
            return f"{seconds / length:.{int(unit == 'h')}f} {unit}" if seconds >= 1 else "< 1 s"
    return f"{seconds / 86400:.1f} days"


class GridProgress(AbstractContextManager["GridProgress", None]):
    """Shows a running grid on a console; with ``notebook`` as one bar, which needs no widgets; without either nowhere.

    Crashed cells are shown at once, each cause once with its traceback. ``on_note`` hears the notes of cells, and the
    warnings with the first cell that has them. ``quiet``: of all this nothing but the crashes.
    """

    def __init__(
        self, console: Console | None, on_note: Callable[[str], None], *, notebook: bool = False, quiet: bool = False
    ) -> None:
        self._console, self._on_note, self._quiet = console, on_note, quiet
        self._live = console is not None and console.is_terminal and not quiet
        self._display: Any = import_module("IPython.display") if notebook else None
        self._handle: Any = None
        self._bar: Progress | None = None
        self._total = self._count = 0
        self._started = self._last = time.monotonic()
        self._name = ""
        self._axes: list[str] = []
        self._names: dict[str, str] = {}
        self._ended: Counter[str] = Counter()
        self._causes: set[tuple[str, ...]] = set()
        self._warned: set[str] = set()
        self._rounds: dict[str, tuple[int, int]] = {}
        self._tasks: dict[str, TaskID] = {}

    def start(self, plan: Plan) -> None:
        """Say what is there and what will run."""
        known = {key: cell.labels for key, cell in plan.cells.items()}
        self._axes = varying(list(known.values())) or list(_AXES)
        self._names = {key: self._words(found) for key, found in known.items()}
        self._total, self._name = len(plan.missing), plan.scenario.name
        stored = len(plan.cells) - self._total
        have = f"{stored} of {len(plan.cells)} cells are done" if stored else f"{len(plan.cells)} cells"
        begun = f", {plan.begun} of them from a checkpoint" if plan.begun else ""
        self._print(f"{self._name}: {have}, {self._total} to run{begun} → {plan.folder}")
        if others := plan.others:
            words = "reports include them, unless their code or data changed; filter with --where"
            self._print(f"{plan.folder} also holds {others} cells of other settings: {words}")
        if self._live and self._total:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[last]}", markup=False), console=self._console,
                transient=True,
            )  # fmt: skip
            self._bar.add_task(self._name, total=self._total, last="")
            self._bar.start()
        self._show_in_notebook(now=True)

    def cell(self, finished: Finished) -> None:
        """One cell ended."""
        self._count += 1
        self._ended[finished.status] += 1
        self._rounds.pop(finished.key, None)
        what = self._words(finished.labels)
        if finished.status == "failed":
            self._print(self._failure(finished), always=True)
        if not self._quiet:
            for note in finished.notes:
                self._on_note(f"{what}: {note}")
            for warning in self._new(finished.warnings):
                self._on_note(f"{WARNING}{warning} ({what}, the first cell of it)" if what else WARNING + warning)
        if self._bar is not None:
            if (task := self._tasks.pop(finished.key, None)) is not None:
                self._bar.remove_task(task)
            words = ", ".join([self._name, *self._troubles()])
            self._bar.update(self._bar.task_ids[0], advance=1, description=words, last=self.summary(finished))
        elif self._due(_EVERY_SECONDS) or self._count == self._total:
            self._print(f"{self._place()} {self.summary(finished)}")
        self._show_in_notebook(now=self._count == self._total)

    def round(self, key: str, round: int, rounds: int) -> None:
        """A cell that takes longer than a second is in this round."""
        self._rounds[key] = round, rounds
        self._show_in_notebook()
        if self._bar is not None:
            if key not in self._tasks:
                self._tasks[key] = self._bar.add_task(self._names.get(key, key), total=rounds, last="rounds")
            self._bar.update(self._tasks[key], completed=round)
        elif self._due(_QUIET_SECONDS):
            told = "; ".join(f"{self._names.get(k, k)}: round {r} of {n}" for k, (r, n) in self._rounds.items())
            self._print(f"{self._place()} running {told}")

    def summary(self, finished: Finished) -> str:
        """One finished cell in one line."""
        what = self._words(finished.labels)
        if finished.status == "done":
            sa, ra = ("–" if value is None else f"{100 * value:.1f}" for value in (finished.sa, finished.ra))
            return f"{what}: SA {sa}, RA {ra} ({finished.seconds:.1f} s)"
        return f"{what}: {finished.status}: {(finished.reason or '').partition(chr(10))[0]}"

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _print(self, words: str, *, always: bool = False) -> None:
        if self._console is not None and (always or not self._quiet):
            self._console.print(Text(words), soft_wrap=True)

    def _words(self, labels: Mapping[str, Any]) -> str:
        from robustfl.reports.board import in_words  # loads pandas

        return " · ".join(in_words(n, str(labels[n])) for n in self._axes if n in labels)

    def _due(self, seconds: float) -> bool:
        """True if nothing was said for so long."""
        if time.monotonic() - self._last < seconds:
            return False
        self._last = time.monotonic()
        return True

    def _place(self) -> str:
        passed = duration(time.monotonic() - self._started)
        return f"[{', '.join([f'{self._count}/{self._total}', passed, *self._troubles()])}]"

    def _troubles(self) -> Iterator[str]:
        """The numbers of cells that failed and diverged."""
        return (f"{self._ended[s]} {s}" for s in ("failed", "diverged") if self._ended[s])

    def _new(self, warnings: Sequence[str]) -> list[str]:
        """The warnings that no cell has had so far; others say the same with other numbers."""
        kinds = {_NUMBER.sub("", warning): warning for warning in warnings}
        new = [warning for kind, warning in kinds.items() if kind not in self._warned]
        self._warned |= kinds.keys()
        return new

    def _failure(self, finished: Finished) -> str:
        """A failure in words, with its traceback if there was none like it."""
        reason = finished.reason or ""
        found = cause(reason)
        if found in self._causes:
            return f"{self.summary(finished)} (as above, {self._ended['failed']} failed so far)"
        self._causes.add(found)
        return f"{self.summary(finished)}\n{reason.partition(chr(10))[2]}".rstrip()

    def _show_in_notebook(self, *, now: bool = False) -> None:
        """Show cells that ended, a running one as the share of its rounds."""
        if self._display is None or not self._total or not (now or self._due(_NOTEBOOK_SECONDS)):
            return
        done = self._count + min(sum(r / n for r, n in self._rounds.values() if n), len(self._rounds))
        words = ", ".join([*self._troubles(), *(f"round {r} of {n}" for r, n in self._rounds.values())])
        bar = self._display.HTML(
            f'<progress max="{self._total}" value="{done:.3g}" style="width:20em"></progress> '
            f"{int(done)} of {self._total} cells <small>{html.escape(words or self._name)}</small>"
        )
        if self._handle is None:
            self._handle = self._display.display(bar, display_id=True)
        else:
            self._handle.update(bar)
