"""Measures a cell's models: its curve, forgetting, the round that validation chooses, the metrics of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from robustfl.attacks.evasion.accounts import masking
from robustfl.federation import LocalModels, State
from robustfl.records import CurvePoint, Metrics

from .build import Built
from .cell import Cell
from .evaluate import Evaluator
from .execution import Execution
from .kept_models import keep_model
from .selection import Selection


class Measuring:
    """Measures the models of a cell while it trains, or afterwards those that another process has left.

    ``facts`` and ``warnings`` join those of the cell's record, ``curve`` is its curve.
    """

    def __init__(self, cell: Cell, built: Built, execution: Execution) -> None:
        self._cell, self._built, self._execution = cell, built, execution
        self.evaluator = Evaluator(cell, built)
        self._selection = Selection(built.experiment, execution.state_memory) if cell.select == "validation" else None
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
        if self._execution.keep_model and self._execution.store is not None:
            self.facts["model"] = keep_model(self._execution.store, key, self._built, self.evaluator, tested)
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
        self._execution.on_point(point)

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
        told |= {} if found.ra_worst is None else {"ra_worst": found.ra_worst}
        return {"selected": told} | {f"selected, {name}": group for name, group in found.groups.items()}
