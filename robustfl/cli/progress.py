"""Progress of a grid: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from robustfl.cli.printing import console, percent, say, seconds

if TYPE_CHECKING:
    from robustfl.scenarios import Finished, Plan, Results, RunOptions

_EVERY_SECONDS = 10.0
_QUIET_SECONDS = 60.0
_AXES = ("dataset", "partition", "norm", "defense", "attack")
"""What is named first, and alone where nothing varies."""
_NUMBER = re.compile(r"\d+(\.\d+)?")
_PLACE = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)


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


class GridProgress:
    """Shows a running grid on standard error.

    Crashed cells are shown at once, each cause once with its traceback; warnings with the first cell that has them.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = console(err=True)
        self._live = self._console.is_terminal and not quiet
        self._quiet = quiet
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
        if not self._quiet:
            have = f"{stored} of {len(plan.cells)} cells are done" if stored else f"{len(plan.cells)} cells"
            begun = f", {plan.begun} of them from a checkpoint" if plan.begun else ""
            say(f"{self._name}: {have}, {self._total} to run{begun} → {plan.folder}", err=True)
            if others := plan.others:
                words = (
                    "which its report shows, too (--where says which are meant), but for those of earlier code or data"
                )
                say(f"{plan.folder} also holds {others} cells that are not of this scenario, {words}", err=True)
        if self._live and self._total:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[last]}", markup=False), console=self._console,
                transient=True,
            )  # fmt: skip
            self._bar.add_task(self._name, total=self._total, last="")
            self._bar.start()

    def _words(self, labels: Mapping[str, Any]) -> str:
        from robustfl.reports.board import in_words

        return " · ".join(in_words(n, str(labels[n])) for n in self._axes if n in labels)

    def summary(self, finished: Finished) -> str:
        """One finished cell in one line."""
        what = self._words(finished.labels)
        if finished.status == "done":
            return f"{what}: SA {percent(finished.sa)}, RA {percent(finished.ra)} ({finished.seconds:.1f} s)"
        return f"{what}: {finished.status}: {(finished.reason or '').partition(chr(10))[0]}"

    def cell(self, finished: Finished) -> None:
        """One cell ended."""
        self._count += 1
        self._ended[finished.status] += 1
        self._rounds.pop(finished.key, None)
        task = self._tasks.pop(finished.key, None)
        if self._bar is not None and task is not None:
            self._bar.remove_task(task)
        if finished.status == "failed":
            self._console.print(Text(self._failure(finished)))
        if not self._quiet:
            for note in finished.notes:
                self._console.print(Text(f"{self._words(finished.labels)}: {note}"))
            for warning in self._new(finished.warnings):
                self._console.print(Text(f"warning: {warning} ({self._words(finished.labels)}, the first cell of it)"))
        if self._bar is not None:
            words = ", ".join([self._name, *self._troubles()])
            self._bar.update(self._bar.task_ids[0], advance=1, description=words, last=self.summary(finished))
        elif not self._quiet and not self._live:
            now = time.monotonic()
            if now - self._last >= _EVERY_SECONDS or self._count == self._total:
                self._last = now
                where = ", ".join([f"{self._count}/{self._total}", seconds(now - self._started), *self._troubles()])
                say(f"[{where}] {self.summary(finished)}", err=True)

    def round(self, key: str, round: int, rounds: int) -> None:
        """A cell that takes longer than a second is in this round."""
        self._rounds[key] = round, rounds
        if self._bar is not None:
            if key not in self._tasks:
                self._tasks[key] = self._bar.add_task(self._names.get(key, key), total=rounds, last="rounds")
            self._bar.update(self._tasks[key], completed=round)
            return
        now = time.monotonic()
        if self._quiet or now - self._last < _QUIET_SECONDS:
            return
        self._last = now
        told = "; ".join(f"{self._names.get(k, k)}: round {r} of {n}" for k, (r, n) in self._rounds.items())
        where = ", ".join([f"{self._count}/{self._total}", seconds(now - self._started), *self._troubles()])
        say(f"[{where}] running {told}", err=True)

    def _troubles(self) -> list[str]:
        """The numbers of cells that failed and diverged."""
        return [f"{self._ended[s]} {s}" for s in ("failed", "diverged") if self._ended[s]]

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

    def __enter__(self) -> GridProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def options_of(*, state_memory: str = "4GiB", **how: Any) -> RunOptions:
    """The options of a command that say how cells run; what a user should know is printed."""
    from robustfl.scenarios import RunOptions
    from robustfl.scenarios.memory import bytes_of

    return RunOptions(state_memory=bytes_of(state_memory), on_note=partial(say, err=True), **how)


def run_shown(scenario: Any, *, options: RunOptions, out: str, quiet: bool, **more: Any) -> Results:
    """Run a grid with its progress on the screen; ``more`` goes to ``run_grid``."""
    from robustfl.scenarios.grid import run_grid

    with GridProgress(quiet=quiet) as progress:
        results = run_grid(
            scenario, options, out=out, on_start=progress.start, on_cell=progress.cell, on_round=progress.round,
            **more,
        )  # fmt: skip
    if results.lost:
        say(
            f"{results.lost} of {len(results.keys)} cells are not in {results.folder} any more: it was moved or "
            "changed while the grid ran; put them back, or run the grid again",
            err=True,
        )
    return results
