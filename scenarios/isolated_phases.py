"""The three processes of ``isolated``: ``python -m robustfl.scenarios.isolated_phases PHASE FOLDER``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustfl.contracts import Arrays
from robustfl.data import data_root
from robustfl.engine import Experiment, LocalModels, State, initial_state
from robustfl.errors import Diverged, RobustflError, StoreError, told
from robustfl.origins import all_origins
from robustfl.records import CellResult, Metrics, measured_in
from robustfl.registry import load_file, load_plugins, origin_of_file
from robustfl.reports.store import write_atomic, write_stream
from robustfl.torch_settings import standard_settings

from .build import Built, build
from .cell import Cell
from .checkpoint import copy_into, model_places, models_of
from .expand import fingerprints
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
from .plan import ResolvedCell
from .run import run_resolved, set_up
from .run_options import RunOptions

_OF_LOCAL = ("received", "before", "updates", "statistics")


def prepare(folder: Path, plugins: Sequence[str], root: str | None) -> None:
    """Write the training images of the cell's data sets, how many test images there are, and initial weights."""
    job, place = _job(folder), folder / "job"
    cell = _to_evaluate(job["resolved"], plugins)
    write_atomic(place / "fingerprint.txt", fingerprints([cell], root)[cell])
    weights = cell.methods.init
    if weights is not None and not {"..", "/", "~"} & {*Path(weights.path).parts}:
        (place / "data" / weights.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(weights.file(data_root(root)), place / "data" / weights.path)
    _write_data([data.load(data_root(root), download=False) for data in cell.methods.datasets], place / DATA)


def train(folder: Path, plugins: Sequence[str], root: str | None) -> None:
    """Train the cell without test data, and leave its models and a record without numbers of theirs."""
    del root
    job, place, trained = _job(folder), folder / "job", folder / "trained"
    load_plugins()
    for plugin in plugins:
        load_file(plugin)
    published, fingerprint = job["resolved"], (place / "fingerprint.txt").read_text(encoding="utf-8")
    cell = Cell.of(published.get("cell", {}))
    resolved = ResolvedCell.of(cell, fingerprint)
    check_same(published, resolved, job["key"])
    here = RunOptions(device=job["device"], threads=job["threads"], root=place / "data")
    parts, measure = _read_data(place / DATA), partial(Snapshots, folder=trained)
    leave(run_resolved(resolved, here, parts=parts, measure=measure), trained)


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
        record = _measured(record, cell, trained, RunOptions(device=job["device"], threads=job["threads"], root=root))
    leave(record, folder)


class Snapshots(Measuring):
    """Measures nothing: leaves every model that is to be measured in a file of a folder.

    The files hold tensors and numbers alone and are read with ``weights_only``, so that no code in them can run.
    """

    def __init__(self, cell: Cell, built: Built, options: RunOptions, *, folder: Path) -> None:
        super().__init__(cell, built, options)
        self._folder = folder

    def see(self, tested: State) -> None:
        """Leave a model as it is tested, with what is propagated to users just before."""
        with self.evaluator.as_tested(tested) as at:
            self._leave(f"{tested.round:06}.pt", at, None)

    def forgetting(self, state: State, local: LocalModels | None) -> None:
        """Leave the honest participants' models of a round."""
        self._leave(f"{state.round:06}-local.pt", state, local)

    def final(self, tested: State, key: str) -> Metrics | None:
        """Nothing: the last model has been left as those of all evaluated rounds."""
        del tested, key
        return None

    def _leave(self, name: str, state: State, local: LocalModels | None) -> None:
        trigger = dict(state.attack.get("data", {}))
        content = models_of(self._built.experiment, state) | {"local": None, "trigger": trigger}
        if local is not None:
            content["local"] = {"clients": list(local.clients)} | {n: getattr(local, n) for n in _OF_LOCAL}
        write_stream(self._folder / name, partial(torch.save, content))


def _measured(record: CellResult, cell: Cell, trained: Path, options: RunOptions) -> CellResult:
    """The record with what is measured here in the place of all that training says of it."""
    with standard_settings():
        set_up(cell, options)
        built = build(cell, root=options.root, device=options.first_device)
        measuring, state = Measuring(cell, built, options), initial_state(built.experiment)
        fields: dict[str, Any] = {}
        try:
            for file in sorted(trained.glob("*.pt")):
                state = _measure(measuring, built.experiment, state, file)
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


def _measure(measuring: Measuring, experiment: Experiment, start: State, file: Path) -> State:
    """Measure what a file holds, in the memory of ``start``. Raises ``StoreError`` for one that does not fit."""
    try:
        content = torch.load(file, map_location=experiment.device, weights_only=True)
        copy_into(model_places(experiment, start, content))
        state = replace(start, round=int(content["round"]), attack={"data": dict(content["trigger"])})
        local = content["local"]
        models = None if local is None else LocalModels(tuple(local["clients"]), *(local[n] for n in _OF_LOCAL))
    except Exception as error:  # a damaged or foreign file may raise anything
        raise StoreError(f"{file.name}: no model of this cell ({type(error).__name__}: {error})") from None
    if file.stem.endswith("-local"):
        measuring.forgetting(state, models)
    else:
        measuring.see(state)
    return state


def _write_data(parts: Sequence[Arrays], file: Path) -> None:
    """Write data sets as training needs them: everything but the test images and their labels."""
    arrays: dict[str, Any] = {}
    for i, part in enumerate(parts):
        facts = [part.classes, len(part.test_y)]
        arrays |= {f"{i}/x": part.train_x, f"{i}/y": part.train_y, f"{i}/facts": np.array(facts)}
        arrays[f"{i}/fingerprint"] = np.array(part.fingerprint)
        clients = {"train_client": part.train_client, "test_client": part.test_client}
        arrays |= {f"{i}/{name}": column for name, column in clients.items() if column is not None}
    write_stream(file, lambda stream: np.savez(stream, **arrays))


def _read_data(file: Path) -> list[Arrays]:
    """The data sets of such a file; test images are black, and of class 0."""
    with np.load(file, allow_pickle=False) as found:
        parts = []
        for i in range(sum(name.endswith("/x") for name in found.files)):
            x, y, (classes, tests) = found[f"{i}/x"], found[f"{i}/y"], found[f"{i}/facts"]
            black, zero = np.zeros((tests, *x.shape[1:]), x.dtype), np.zeros(tests, y.dtype)
            names = [name for name in ("train_client", "test_client") if f"{i}/{name}" in found.files]
            clients = {name: found[f"{i}/{name}"] for name in names}
            parts.append(Arrays(x, y, black, zero, int(classes), str(found[f"{i}/fingerprint"]), **clients))
    return parts


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
