"""Measures a cell's models: its curve, forgetting, the round that validation chooses, the metrics of the last one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import Tensor

from robustfl.attacks.evasion.accounts import masking
from robustfl.engine import Experiment, LocalModels, Personal, State, lent
from robustfl.records import WORST_CLIENT, CurvePoint, Metrics

from .build import Built
from .cell import Cell
from .evaluate import Evaluator
from .kept_models import keep_model
from .run_options import RunOptions

_HANDED_ON = ("propagation", "propagated")


class Measuring:
    """Measures the models of a cell while it trains, or afterwards those that another process has left.

    ``facts`` and ``warnings`` join those of the cell's record, ``curve`` is its curve.
    """

    def __init__(self, cell: Cell, built: Built, options: RunOptions) -> None:
        self._cell, self._built, self._options = cell, built, options
        self.evaluator = Evaluator(cell, built)
        self._selection = Selection(built.experiment, options.state_memory) if cell.select == "validation" else None
        self.curve: list[CurvePoint] = []
        self.facts: dict[str, Any] = {}
        self.warnings: list[str] = []

    def warn(self, words: str) -> None:
        """Note a warning, once."""
        if words not in self.warnings:
            self.warnings.append(words)

    def see(self, tested: State) -> None:
        """Evaluate the model of an evaluated round; ``final`` makes the last point of the curve."""
        if self._selection is not None:
            self._selection.see(tested, self.evaluator.on_validation(tested))
        if tested.round < self._cell.end:
            accuracy, loss = self.evaluator.standard(tested)
            robust = self.evaluator.robust_worst(tested) if self._cell.evaluate_ra else None
            self._point(CurvePoint(round=tested.round, sa=accuracy, loss=loss, ra=robust))

    def forgetting(self, state: State, local: LocalModels | None) -> None:
        """Note forgetting of a round: by itself for the last one, under its number where rounds are listed."""
        if local is None:
            self.warn(f"no honest client took part in round {state.round}, so there is no forgetting to measure")
            return
        found = self.evaluator.forgetting(state, local)
        if len(found["clients"]) < 2:
            self.warn(f"one honest client took part in round {state.round}: there are no others for it to forget")
        if isinstance(self._cell.forgetting, bool):
            self.facts["forgetting"] = found
        else:
            self.facts.setdefault("forgetting", {})[str(state.round)] = found

    def final(self, tested: State, key: str) -> Metrics | None:
        """The metrics of the model that training ended with, and of the chosen round's."""
        metrics = self.evaluator.metrics(tested)
        if self._options.keep_model and self._options.store is not None:
            self.facts["model"] = keep_model(self._options.store, key, self._built, self.evaluator, tested)
        if self._cell.representations:
            seen = self.evaluator.representations(tested)
            self.facts |= {} if seen is None else {"representations": seen}
        for words in (masking(metrics.ra), *self.evaluator.doubts):
            if words is not None:
                self.warn(words)
        self._point(CurvePoint(round=self._cell.end, sa=metrics.sa, loss=metrics.loss, ra=metrics.ra_worst))
        groups = metrics.groups | self._tail(metrics) | self._selected(tested, metrics)
        return metrics.model_copy(update={"groups": groups})

    @property
    def certificates(self) -> dict[str, Any]:
        """The words on the model that was evaluated, and on how many images."""
        one, equal = self.evaluator, self.evaluator.equal_samples
        return {
            "evaluation": one.description, "test_samples": one.samples, "ra_samples": one.ra_samples,
            **({} if equal is None else {"equal_samples": equal}),
        }  # fmt: skip

    def progress(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The part of it that a checkpoint holds: tensors, and plain data."""
        kept = self._selection.progress() if self._selection else None
        return kept, {
            "curve": [point.model_dump() for point in self.curve], "facts": self.facts, "warnings": self.warnings,
        }  # fmt: skip

    def resume(self, kept: Mapping[str, Any] | None, like: State) -> None:
        """Take the tensors of a checkpoint. Raises ``ValueError`` if they are of another cell."""
        if self._selection is not None:
            self._selection.resume(kept or {}, like)

    def continue_from(self, noted: Mapping[str, Any]) -> None:
        """Take the plain data of a checkpoint."""
        self.facts, self.warnings = noted["facts"], noted["warnings"]
        for point in noted["curve"]:  # whoever listens began anew
            self._point(CurvePoint(**point))

    def _point(self, point: CurvePoint) -> None:
        self.curve.append(point)
        self._options.on_point(point)

    def _tail(self, metrics: Metrics) -> dict[str, dict[str, float]]:
        """Means over the evaluations of the last ``tail`` rounds."""
        if self._cell.tail == 1:
            return {}
        points = [p for p in self.curve if p.round > self._cell.end - self._cell.tail]
        means = {"sa": fmean(p.sa for p in points)}
        robust = [p.ra for p in points if p.ra is not None]
        if robust and len(robust) == len(points):
            means["ra_worst"] = fmean(robust)
            means |= {spec: means["ra_worst"] for spec in metrics.ra if len(metrics.ra) == 1}
        return {"tail": means}

    def _selected(self, tested: State, final: Metrics) -> dict[str, dict[str, float]]:
        """The test metrics of the round chosen on validation data, beside those of the last one."""
        selection = self._selection
        if selection is None:
            return {}
        self.facts["selection"] = {
            "round": selection.round, "validation": selection.value, "values": selection.values,
        }  # fmt: skip
        if selection.round == self._cell.end:
            found = final
        else:
            shift = self.evaluator.shift  # of the last round, whichever is chosen
            with selection.lent(tested) as chosen:
                found = self.evaluator.metrics(chosen)
            self.evaluator.shift = shift
        told = {"sa": found.sa, **found.ra}
        told |= {} if found.asr is None else {"asr": found.asr}
        if (worst := found.groups.get("worst client")) is not None:
            told[WORST_CLIENT] = worst["sa"]
        told |= {} if found.ra_worst is None else {"ra_worst": found.ra_worst}
        return {"selected": told} | {f"selected, {name}": group for name, group in found.groups.items()}


class Selection:
    """The best of the states it was shown, by their validation value; of equal values the earliest.

    What tells models apart is kept: θ, the statistics, and the clients' private entries (in a file beyond ``limit``
    bytes); and what attackers remember of statistics that users hand on, which they do before every test.
    """

    def __init__(self, experiment: Experiment, limit: int) -> None:
        self._e, self._limit = experiment, limit
        self._kept: dict[str, Tensor] = {}
        self._attack: dict[str, Mapping[str, Tensor]] = {}
        self._files: list[Any] = []
        self.round = 0
        self.values: list[list[float]] = []

    @property
    def value(self) -> float:
        """The validation value of the chosen round."""
        return next(value for round, value in self.values if round == self.round)

    def see(self, state: State, value: float) -> None:
        """Note the validation value of a state, and keep the state if no earlier one has such a high value."""
        better = not self.round or value > self.value
        self.values.append([state.round, value])
        if better:
            self.round = state.round
            self._keep(_telling(state))
            self._attack = {name: dict(state.attack[name]) for name in _HANDED_ON if name in state.attack}

    def progress(self) -> dict[str, Any]:
        """The part of it that a checkpoint holds."""
        return {"kept": self._kept, "attack": self._attack, "values": self.values}

    def resume(self, progress: Mapping[str, Any], like: State) -> None:
        """Go on from a checkpoint. Raises ``ValueError`` if what was kept is no such state."""
        kept, values = progress["kept"], progress["values"]
        if not values:  # it was written before the first evaluation
            return
        shapes = {name: tensor.shape for name, tensor in _telling(like).items()}
        if {name: tensor.shape for name, tensor in kept.items()} != shapes:
            raise ValueError("its selected model does not fit this cell")
        self.values = values
        self.round = int(max(values, key=lambda seen: seen[1])[0])  # of equal values the first
        self._keep(kept)
        self._attack = dict(progress.get("attack", {}))

    @contextmanager
    def lent(self, now: State) -> Iterator[State]:
        """The chosen state in the memory of the model, which holds ``now`` before and after."""
        personal = None
        if now.personal is not None:
            personal = Personal(self._kept["parameters"], self._kept["own statistics"])
        with lent(now.theta, self._kept["theta"]):
            statistics = self._kept["statistics"]
            yield replace(now, round=self.round, statistics=statistics, personal=personal, attack=self._attack)

    def _keep(self, tensors: Mapping[str, Tensor]) -> None:
        if not self._kept:
            self._kept = {name: tensors[name].clone() for name in ("theta", "statistics")}
            if "parameters" in tensors:
                e, theta = self._e, self._kept["theta"]
                own, self._files = Personal.initial(e.privacy, e.layout, theta, e.settings.clients, self._limit)
                self._kept |= {"parameters": own.parameters, "own statistics": own.statistics}
        for name, tensor in tensors.items():
            self._kept[name].copy_(tensor)


def _telling(state: State) -> dict[str, Tensor]:
    """The tensors in which the models of two rounds differ."""
    found = {"theta": state.theta, "statistics": state.statistics}
    if state.personal is not None:
        found |= {"parameters": state.personal.parameters, "own statistics": state.personal.statistics}
    return found
