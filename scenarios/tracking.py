"""TensorBoard follows cells while they run."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from robustfl.errors import UsageError, closest
from robustfl.records import CellResult, CurvePoint


class TensorBoard:
    """Event files of one cell in ``<folder>/tensorboard/<cell>``: accuracies by round, final numbers, hyper-parameters.

    Every cell has a folder of its own, so that cells of one grid run side by side. Raises ``UsageError`` if the package
    ``tensorboard`` is missing. TensorFlow is not needed.
    """

    def __init__(self, folder: str | Path, key: str, labels: Mapping[str, Any]) -> None:
        self.require()
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self.folder = Path(folder) / "tensorboard" / run_name(key, labels)
        for old in self.folder.glob("events.out.tfevents.*"):  # of a run that was killed: two runs would be one zigzag
            with suppress(OSError):
                old.unlink()
        writer: Any = SummaryWriter
        self._writer = writer(str(self.folder))
        plain = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in labels.items()}
        *start, self._end = hparams(plain, {})  # type: ignore[no-untyped-call]
        for part in start:
            self._writer.file_writer.add_summary(part)

    @staticmethod
    def require() -> None:
        """Raise ``UsageError`` if the package is missing."""
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise UsageError(
                "track='tensorboard' needs the package tensorboard: pip install 'robustfl[track]'"
            ) from None

    def evaluated(self, point: CurvePoint) -> None:
        """Scalars ``sa``, ``loss`` and, where it was measured, ``ra`` of the round."""
        self._scalars({"sa": point.sa, "loss": point.loss, "ra": point.ra}, point.round)

    def finished(self, record: CellResult) -> None:
        """Scalars ``final/sa``, ``final/ra pgd``, …; the status and its reason as text."""
        last = max((p.round for p in record.curve), default=0)
        metrics = record.metrics
        if metrics is not None:
            robust = {f"final/ra {n}": v for n, v in metrics.ra.items()}
            found = {"final/sa": metrics.sa, "final/ra_worst": metrics.ra_worst, "final/asr": metrics.asr}
            self._scalars(robust | found, last)
        reason = (record.reason or "").strip().splitlines()
        self._writer.add_text("status", ": ".join([record.status, *reason[:1]]), last)
        if record.status == "done":
            self._writer.file_writer.add_summary(self._end)
        self._writer.close()

    def _scalars(self, values: Mapping[str, float | None], step: int) -> None:
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, step)


def check(names: Sequence[str]) -> None:
    """Raise ``UsageError`` for a tracker that is unknown, or whose package is missing; before anything runs."""
    for name in names:
        if name != "tensorboard":
            raise UsageError(f"track={name!r} is no tracker; {closest(name, ['tensorboard'])}")
        TensorBoard.require()


class Followed:
    """The tracker of one cell, kept from hurting it: if it raises it is dropped with a warning."""

    def __init__(self, names: Sequence[str], folder: str | Path, key: str, labels: Mapping[str, Any]) -> None:
        self._what, self._tracker = key[:12], None
        self._tracker = self._guarded(TensorBoard, folder, key, labels) if names else None

    def evaluated(self, point: CurvePoint) -> None:
        """Tell the tracker that a round was evaluated."""
        if self._tracker is not None:
            self._guarded(self._tracker.evaluated, point)

    def finished(self, record: CellResult) -> None:
        """Tell the tracker that the cell ended."""
        if self._tracker is not None:
            self._guarded(self._tracker.finished, record)

    def _guarded(self, tell: Callable[..., Any], *told: Any) -> Any:
        try:
            return tell(*told)
        except Exception as error:
            self._tracker = None
            warnings.warn(f"tensorboard no longer follows cell {self._what}: {error}", RuntimeWarning, stacklevel=3)


def run_name(key: str, labels: Mapping[str, Any]) -> str:
    """The folder of a cell's events: what tells it apart, short, then its key.

    >>> run_name("00af" * 8, {"attack": "foe(eta=10)", "defense": "nnm+median", "norm": "fbn", "seed": 0})
    'fbn,foe(eta=10),nnm+median,seed=0,00af00af00af'
    """
    parts = [str(labels[n]) for n in ("partition", "norm", "attack", "defense") if n in labels]
    parts += [f"{n}={labels[n]}" for n in ("f", "seed") if n in labels]
    whole = re.sub(r"[^A-Za-z0-9()=+.,_-]+", "-", ",".join(parts))
    return f"{whole[:150]},{key[:12]}"
