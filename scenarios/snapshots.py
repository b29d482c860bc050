"""Models that leave the process that trains them: what training needs of data goes in, a file per evaluated round out.

The files hold tensors and numbers alone and are read with ``weights_only``, so that no code in them can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Arrays
from robustfl.errors import StoreError
from robustfl.federation import Experiment, LocalModels, State
from robustfl.records import Metrics
from robustfl.reports.store import write_stream

from .measuring import Measuring

_OF_LOCAL = ("received", "before", "updates", "statistics")


class Snapshots(Measuring):
    """Measures nothing: leaves every model that is to be measured in a file of the folder ``execution.snapshots``."""

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
        content: dict[str, Any] = {
            "round": state.round, "theta": state.theta, "statistics": state.statistics,
            "buffers": dict(self._built.experiment.model.named_buffers()), "personal": None, "local": None,
        }  # fmt: skip
        if state.personal is not None:
            content["personal"] = {"parameters": state.personal.parameters, "statistics": state.personal.statistics}
        if local is not None:
            content["local"] = {"clients": list(local.clients)} | {n: getattr(local, n) for n in _OF_LOCAL}
        assert self._execution.snapshots is not None
        write_stream(self._execution.snapshots / name, partial(torch.save, content))


def measured(measuring: Measuring, experiment: Experiment, start: State, file: Path) -> State:
    """Measure what a file holds, in the memory of ``start``. Raises ``StoreError`` for one that does not fit."""
    try:
        content = torch.load(file, map_location=experiment.device, weights_only=True)
        state = _restored(experiment, start, content)
        local = content["local"]
        models = None if local is None else LocalModels(tuple(local["clients"]), *(local[n] for n in _OF_LOCAL))
    except Exception as error:  # a damaged or foreign file may raise anything
        raise StoreError(f"{file.name}: no model of this cell ({type(error).__name__}: {error})") from None
    if file.stem.endswith("-local"):
        measuring.forgetting(state, models)
    else:
        measuring.see(state)
    return state


def _restored(experiment: Experiment, start: State, content: Mapping[str, Any]) -> State:
    buffers, personal = dict(experiment.model.named_buffers()), content["personal"]
    places: list[tuple[Tensor, Tensor]] = [
        (start.theta, content["theta"]), (start.statistics, content["statistics"]),
        *((own, content["buffers"][name]) for name, own in buffers.items()),
    ]  # fmt: skip
    if start.personal is not None:
        places += [(getattr(start.personal, name), personal[name]) for name in ("parameters", "statistics")]
    for into, value in places:
        if into.shape != value.shape or into.dtype != value.dtype:
            raise ValueError(f"{value.dtype} {tuple(value.shape)} in the place of {into.dtype} {tuple(into.shape)}")
        with torch.no_grad():
            into.copy_(value)
    return replace(start, round=int(content["round"]))


def write_training_data(parts: Sequence[Arrays], file: Path) -> None:
    """Write data sets as training needs them: everything but the test images and their labels."""
    arrays: dict[str, Any] = {}
    for i, part in enumerate(parts):
        facts = [part.classes, len(part.test_y)]
        arrays |= {f"{i}/x": part.train_x, f"{i}/y": part.train_y, f"{i}/facts": np.array(facts)}
        arrays[f"{i}/fingerprint"] = np.array(part.fingerprint)
    write_stream(file, lambda stream: np.savez(stream, **arrays))


def training_data(file: Path) -> list[Arrays]:
    """The data sets of such a file; test images are black, and of class 0."""
    with np.load(file, allow_pickle=False) as found:
        parts = []
        for i in range(len(found.files) // 4):
            x, y, (classes, tests) = found[f"{i}/x"], found[f"{i}/y"], found[f"{i}/facts"]
            black, zero = np.zeros((tests, *x.shape[1:]), x.dtype), np.zeros(tests, y.dtype)
            parts.append(Arrays(x, y, black, zero, int(classes), str(found[f"{i}/fingerprint"])))
    return parts
