"""A cell of a board measured again in processes apart: who trains has no test data, who evaluates no attack or defense.

Three processes share a folder: ``prepare`` writes what training needs of the data, ``train`` leaves a model of every
evaluated round, and ``evaluate`` measures these. Each is ``python -m robustfl.scenarios.isolated_phases PHASE FOLDER``
and may run in a container of its own; ``docs/submit.md`` says which folders it needs, and what that proves.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustfl.errors import RobustflError
from robustfl.file_io import read_json
from robustfl.origins import origins
from robustfl.records import CellResult, canonical, plain
from robustfl.reports.published.agreement import settings_apart, versions_apart
from robustfl.reports.store import write_atomic

from .plan import ResolvedCell

EVALUATED = ("dataset", "domains", "partition", "model", "norm", "objective", "evasions", "train_evasion")
"""Settings whose methods evaluation loads: what there is to test, and who is tested on what."""
UNUSED = {
    "algorithm": "fedavg", "defense": "mean", "statistics_defense": "same", "propagation": "none", "attack": "none",
}  # fmt: skip
ELSEWHERE, OTHER_VERSIONS, ANOTHER = "cannot be run here", "other versions", "another cell"
"""Verdicts on a cell that was not measured again."""
DIFFERS = "differs"
JOB, DATA, RECORD, PROBLEM = "job.json", "data.npz", "record.json", "problem.json"


class NotMeasuredError(RobustflError):
    """A cell was not measured again: ``verdict`` says in a word why, ``detail`` in a sentence."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(f"{verdict}: {detail}")
        self.verdict, self.detail = verdict, detail


@dataclass(frozen=True)
class Job:
    """A resolved cell of a board that is to be measured again in a ``folder`` of its own, with the board's plug-ins.

    ``job`` in the folder is what training is given, ``trained`` what it leaves: models, and a record without numbers of
    theirs. The record in the folder itself is that of evaluation. What is there already is not made again. A process
    that takes more than ``minutes`` is killed, with all that it has started.
    """

    folder: Path
    key: str
    resolved: Mapping[str, Any]
    device: str
    threads: int
    plugins: tuple[str, ...] = ()
    root: str | Path | None = None
    minutes: float | None = None

    def result(self) -> CellResult:
        """The cell measured again. Raises ``NotMeasuredError`` where there is nothing to compare."""
        self.prepare()
        for phase, folder in (("train", self.folder / "trained"), ("evaluate", self.folder)):
            if not any((folder / name).is_file() for name in (RECORD, PROBLEM)):
                self._run(phase)
        found = left(self.folder)
        if found is None:
            raise NotMeasuredError(DIFFERS, "its evaluation ended without a record; what it said is above")
        return found

    def prepare(self) -> None:
        """Write what training needs. Raises ``NotMeasuredError`` where the data are not here."""
        if not (self.folder / "job" / DATA).is_file():
            known = {"key": self.key, "resolved": self.resolved, "device": self.device, "threads": self.threads}
            write_atomic(self.folder / "job" / JOB, json.dumps(known))
            (self.folder / "trained").mkdir(parents=True, exist_ok=True)
            self._run("prepare")
            left(self.folder)

    def _run(self, phase: str) -> None:
        """Run a phase. What its process prints goes to standard error: only the files it leaves count.

        Raises ``NotMeasuredError`` where it takes too long.
        """
        command = [sys.executable, "-m", f"{__package__}.isolated_phases", phase, str(self.folder)]
        command += [] if self.root is None or phase == "train" else ["--data-root", str(self.root)]
        command += [word for plugin in self.plugins for word in ("--plugin", plugin)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
        try:
            process.wait(None if self.minutes is None else 60 * self.minutes)
        except subprocess.TimeoutExpired:
            words = f"its phase {phase!r} did not end within {self.minutes:g} minutes"
            raise NotMeasuredError(DIFFERS, words) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check_same(published: Mapping[str, Any], here: ResolvedCell, key: str) -> None:
    """Raise ``NotMeasuredError`` unless a published resolved cell is the one that its settings make ``here``."""
    settings = here.settings
    if versions := versions_apart(published.get("methods", {}), settings["methods"]):
        raise NotMeasuredError(OTHER_VERSIONS, "; ".join(versions))
    if here.key != key:
        raise NotMeasuredError(
            ANOTHER, "; ".join(settings_in_words(published, settings)) or "the settings have another key"
        )


def settings_in_words(published: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The first settings in which two resolved cells differ."""
    apart = settings_apart(published, plain(dict(here)))
    return [f"{path}: {a} published, {b} here" for path, a, b in apart[:3]]


def evaluating(resolved: Mapping[str, Any]) -> dict[str, str]:
    """The plug-in methods of a cell that evaluation loads, with where they come from."""
    methods = resolved.get("methods", {})
    return origins({"methods": {name: methods.get(name) for name in EVALUATED}})


def left(folder: Path) -> CellResult | None:
    """The record that a phase has left in its folder, if it did. Raises ``NotMeasuredError`` where it says why not."""
    if (folder / PROBLEM).is_file():
        said = read_json(folder / PROBLEM)
        known = said["verdict"] in (ELSEWHERE, OTHER_VERSIONS, ANOTHER)
        raise NotMeasuredError(said["verdict"] if known else DIFFERS, str(said["detail"]))
    return CellResult.model_validate(read_json(folder / RECORD)) if (folder / RECORD).is_file() else None


def leave(record: CellResult, folder: Path) -> None:
    """Write the record that ``left`` finds."""
    write_atomic(folder / RECORD, canonical(record.model_dump(mode="json")))
