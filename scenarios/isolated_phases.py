"""The three processes of ``isolated``: ``python -m robustfl.scenarios.isolated_phases PHASE FOLDER``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robustfl.data import data_root
from robustfl.errors import Diverged, RobustflError, told
from robustfl.federation import initial_state
from robustfl.origins import all_origins
from robustfl.records import CellResult, measured_in
from robustfl.registry import load_file, load_plugins, origin_of_file
from robustfl.reports.store import write_atomic
from robustfl.torch_settings import standard_settings

from .build import build
from .cell import Cell
from .execution import Execution
from .expand import fingerprints, resolve
from .isolated import (
    DATA,
    DIFFERS,
    ELSEWHERE,
    EVALUATED,
    JOB,
    PROBLEM,
    UNUSED,
    NotMeasuredError,
    check_same,
    leave,
    left,
)
from .measuring import Measuring
from .methods import method
from .run import run_cell, set_up
from .snapshots import measured, write_training_data


def prepare(folder: Path, plugins: Sequence[str], root: str | None) -> None:
    """Write the training images of the cell's data sets, how many test images there are, and initial weights."""
    job, place = _job(folder), folder / "job"
    cell = _to_evaluate(job["resolved"], plugins)
    write_atomic(place / "fingerprint.txt", fingerprints([cell], root)[cell])
    weights = cell.methods.init
    if weights is not None and not {"..", "/", "~"} & {*Path(weights.path).parts}:
        (place / "data" / weights.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(weights.file(data_root(root)), place / "data" / weights.path)
    write_training_data([data.load(data_root(root), download=False) for data in cell.methods.datasets], place / DATA)


def train(folder: Path, plugins: Sequence[str], root: str | None) -> None:
    """Train the cell without test data, and leave its models and a record without numbers of theirs."""
    del root
    job, place, trained = _job(folder), folder / "job", folder / "trained"
    load_plugins()
    for plugin in plugins:
        load_file(plugin)
    published, fingerprint = job["resolved"], (place / "fingerprint.txt").read_text(encoding="utf-8")
    cell = Cell.of(published.get("cell", {}))
    check_same(published, resolve(cell, fingerprint), job["key"])
    here = Execution(
        device=job["device"], threads=job["threads"], root=place / "data", training_data=place / DATA,
        snapshots=trained,
    )  # fmt: skip
    record = run_cell(cell, fingerprint=fingerprint, execution=here)
    leave(record, trained)


def evaluate(folder: Path, plugins: Sequence[str], root: str | None) -> None:
    """Measure the models that training has left, on the data sets themselves."""
    job, trained = _job(folder), folder / "trained"
    try:
        record = left(trained)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotMeasuredError(DIFFERS, f"what its training left is no record: {told(error)}") from None
    if record is None:
        raise NotMeasuredError(DIFFERS, "its training ended without a record")
    cell = _to_evaluate(job["resolved"], plugins)
    record = record.model_copy(update={"metrics": None, "curve": []})
    if record.status in ("done", "diverged"):
        record = _measured(record, cell, trained, Execution(device=job["device"], threads=job["threads"], root=root))
    leave(record, folder)


def _measured(record: CellResult, cell: Cell, trained: Path, execution: Execution) -> CellResult:
    """The record with what is measured here in the place of all that training says of it."""
    with standard_settings():
        set_up(cell, execution)
        built = build(cell, root=execution.root, device=execution.first_device)
        measuring, state = Measuring(cell, built, execution), initial_state(built.experiment)
        fields: dict[str, Any] = {}
        try:
            for file in sorted(trained.glob("*.pt")):
                state = measured(measuring, built.experiment, state, file)
            seen = {point.round for point in measuring.curve} | {state.round}
            rounds = range(1, cell.end + 1 if record.status == "done" else (record.round or 1))
            for round in rounds:
                if measured_in(round, cell.end, cell.evaluate_every, cell.tail) and round not in seen:
                    raise NotMeasuredError(DIFFERS, f"its training left no model of round {round}")
            if record.status == "done":
                fields["metrics"] = measuring.final(state, record.key)
        except Diverged as error:
            fields |= {"status": "diverged", "reason": str(error), "round": error.round}
    told = {**record.certificates, **measuring.facts, **measuring.certificates, "warnings": measuring.warnings}
    return record.model_copy(update={**fields, "curve": measuring.curve, "certificates": told})


def _job(folder: Path) -> dict[str, Any]:
    job: dict[str, Any] = json.loads((folder / "job" / JOB).read_text(encoding="utf-8"))
    return job


def _to_evaluate(resolved: Mapping[str, Any], plugins: Sequence[str]) -> Cell:
    """The cell as evaluation builds it: without what acts in training alone, but for the trigger of a backdoor.

    Of plug-ins those are loaded that methods of ``EVALUATED`` settings come from, and no others.
    """
    methods = resolved.get("methods", {})
    needed = all_origins({name: methods.get(name) for name in EVALUATED})
    load_plugins(only={origin.partition(" ")[0] for origin in needed})
    for plugin in plugins:
        if origin_of_file(plugin) in needed:
            load_file(plugin)
    settings = {**resolved.get("cell", {}), **UNUSED}
    attack = str(resolved.get("cell", {}).get("attack", "none"))
    if not all_origins(methods.get("attack")) and method("attack", attack).triggers:
        settings["attack"] = attack
    return Cell.of(settings)


def run(phase: str, folder: Path, plugins: Sequence[str] = (), root: str | None = None) -> None:
    """Run one phase; what it has to say is in its files."""
    try:
        PHASES[phase](folder, plugins, root)
    except RobustflError as error:
        verdict, detail = getattr(error, "verdict", ELSEWHERE), getattr(error, "detail", told(error))
        place = folder / "trained" if phase == "train" else folder
        write_atomic(place / PROBLEM, json.dumps({"verdict": verdict, "detail": detail}))


PHASES = {"prepare": prepare, "train": train, "evaluate": evaluate}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=PHASES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plugin", action="append", default=[], help="a file that methods of the cell are from")
    parser.add_argument("--data-root", default=None)
    given = parser.parse_args()
    run(given.phase, given.folder, given.plugin, given.data_root)
