"""One cell from start to record."""

from __future__ import annotations

import platform
import random
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from robustfl.contracts import Arrays
from robustfl.engine import Experiment, RoundRecord, State, train
from robustfl.errors import LONGEST, Diverged, Refused, RowsLost, StoreError, Terminated, UsageError, told
from robustfl.evaluation import macs_per_epoch, traffic
from robustfl.file_io import LARGEST_NUMBER, cut, unsafe
from robustfl.provenance import UNKNOWN, commit, instruction_set, processor
from robustfl.randomness import stream
from robustfl.records import CellResult, CurvePoint, Timing, measured_in, plain
from robustfl.torch_settings import standard_settings

from .bn_statistics import bn_statistics
from .build import Built, build
from .cell import Cell
from .checkpoint import Checkpoint, Keeper, checkpoint_path, packed, unpacked
from .measuring import Measuring
from .memory import REMEDY, exhausted, reset_peak
from .noop_settings import no_effect
from .plan import ResolvedCell
from .run_options import RunOptions
from .tracking import Followed

ON_CPU = RunOptions(device="cpu")


def run_cell(cell: Cell, *, fingerprint: str, scenario: str = "cell", options: RunOptions = ON_CPU) -> CellResult:
    """Resolve one cell on data with this digest, and run it (``run_resolved``)."""
    return run_resolved(ResolvedCell.of(cell, fingerprint, scenario), options)


def run_resolved(
    resolved: ResolvedCell,
    options: RunOptions,
    *,
    parts: list[Arrays] | None = None,
    measure: Callable[[Cell, Built, RunOptions], Measuring] = Measuring,
) -> CellResult:
    """Run one cell. Refusal, divergence and crash become records; interrupts escape, and ``StoreError``.

    Global settings and generators are as before afterwards.
    The record of a cell that goes on from a checkpoint is the same as without; whoever commits the record discards the
    checkpoint. ``timing`` tells of it, as ``options.on_note`` does. Of a team the leading process alone evaluates;
    the others' records say less. ``parts`` take the place of the data sets, and ``measure`` makes what evaluates.
    """
    if options.keep_model and options.store is None:
        raise UsageError("keep_model needs a store to keep the model in; give out (--out)")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    reset_peak(options.first_device)
    folder = options.store or Path("runs") / resolved.scenario
    followed = Followed(options.track if options.team.is_rank0 else (), folder, resolved.key, resolved.labels)

    def on_point(point: CurvePoint) -> None:
        followed.evaluated(point)
        options.on_point(point)

    run = _Run(resolved, replace(options, on_point=on_point))
    with standard_settings():
        set_up(resolved.cell, options)
        outcome = run.outcome(parts, measure)
    facts = outcome.pop("certificates", {}) | run.software | {"precision": resolved.cell.precision}
    facts |= {"processes": options.team.size} if options.team.size > 1 else {}
    record = resolved.record(**outcome, certificates=plain(facts), timing=run.timing(started))
    followed.finished(record)
    return record


def versions() -> dict[str, str]:
    """The software that numbers depend on."""
    return {
        "robustfl": version("robustfl"), "torch": str(torch.__version__), "numpy": np.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


def set_up(cell: Cell, options: RunOptions) -> None:
    """Set threads, float32 products on a GPU in full or in TF32, and the global generators, which plug-ins may use."""
    torch.set_num_threads(options.threads)
    seed = stream(cell.seed, "global").initial_seed()
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    if threading.current_thread() is threading.main_thread():  # elsewhere other threads draw from it, too
        random.seed(seed)
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    for place in places:
        place.allow_tf32 = cell.precision == "tf32"


def failure(error: BaseException, plug_ins: str) -> str:
    """The reason of a cell that failed with an error: the error, the cell's plug-ins, and the traceback."""
    detail = "".join(traceback.format_exception(error))
    if exhausted(error):
        said = "".join(str(error).splitlines()[:1]) or "too much was asked for at once"
        error = MemoryError(f"out of memory: {said}; {REMEDY}")
    return f"{cut(told(error), LONGEST)}{plug_ins}\n{detail}".rstrip()


class _Run:
    """The run of one cell, with what is known if it stops half-way."""

    _built: Built
    _measuring: Measuring

    def __init__(self, resolved: ResolvedCell, options: RunOptions) -> None:
        self._resolved, self._cell, self._options = resolved, resolved.cell, options
        where = options.first_device
        self.software = {"versions": versions(), "device": where.type, "threads": options.threads}
        checkpoint, minutes = None, options.checkpoint_minutes
        if options.store is not None and minutes > 0 and options.team.size == 1:
            made_by = {"key": resolved.key, **self.software}
            checkpoint = Checkpoint(checkpoint_path(options.store, resolved.key), made_by)
        self._keeper = Keeper(checkpoint, every=60 * minutes, device=where, on_note=options.on_note)
        self._ready = False
        self._shifts: dict[str, list[float]] = {}
        self._seconds, self._rounds, self._commits = 0.0, 0, [commit()]

    def outcome(
        self, parts: list[Arrays] | None, measure: Callable[[Cell, Built, RunOptions], Measuring]
    ) -> dict[str, Any]:
        """The outcome of the cell: the fields of its record."""
        plug_ins = self._resolved.plug_ins
        try:
            if (reason := self._resolved.refusal) is not None:
                raise Refused(reason)
            self._built = build(self._cell, root=self._options.root, device=self._options.first_device, parts=parts)
            self._measuring = measure(self._cell, self._built, self._options)
            self._ready = True
            tested = self._train()
            metrics = self._measuring.final(tested, self._resolved.key) if self._options.team.is_rank0 else None
            return {"status": "done", "metrics": metrics, **self._so_far()}
        except RowsLost as error:
            return self._diverged(Diverged(self._rounds + 1, f"so many rows ({error})"))
        except Refused as error:
            return {"status": "refused", "reason": str(error)}
        except Diverged as error:
            return self._diverged(error)
        except StoreError:  # a folder that cannot be written: the next cell would end no better
            raise
        except BaseException as error:
            if not (isinstance(error, Exception) or plug_ins) or isinstance(error, (KeyboardInterrupt, Terminated)):
                raise
            return {"status": "failed", "reason": failure(error, plug_ins)}

    def timing(self, started: str) -> Timing:
        """The measurements that may differ between two runs."""
        where = self._options.first_device
        return Timing(
            seconds=self._keeper.seconds,
            seconds_training=self._seconds,
            seconds_per_round=self._seconds / self._rounds if self._rounds else None,
            peak_memory_bytes=self._keeper.peak_memory_bytes,
            started=started,
            host=socket.gethostname(),
            device=torch.cuda.get_device_name(where) if where.type == "cuda" else f"{processor()}, {instruction_set()}",
            commits=self._commits,
            notes=self._keeper.notes,
        )

    def _train(self) -> State:
        """Train to the end, or from a checkpoint to the end; the state to test."""
        self._begin()
        cell, team = self._cell, self._options.team
        looked_at = cell.forgetting_rounds | ({cell.end} if team.size == 1 else set())
        state, tested = self._resumed()
        clock = time.perf_counter()
        for record in train(
            self._built.experiment, state, measure=self._measured, warn=self._measuring.warn,
            local=lambda round: round in looked_at, team=team, limit=self._options.state_memory,
        ):  # fmt: skip
            tested = record.tested or record.state
            self._seconds += time.perf_counter() - clock
            self._rounds = record.round
            self._note(record)
            self._evaluate(record)
            self._options.on_round(record.round, cell.end, record.loss)
            self._keeper.save(partial(self._progress, record))
            clock = time.perf_counter()
        assert tested is not None
        return tested

    def _begin(self) -> None:
        """Note what is known before the first round."""
        e, warn = self._built.experiment, self._measuring.warn
        for words in self._built.doubts:
            warn(words)
        if self._cell.validation and not any(map(len, self._built.validation)):
            warn(f"validation={self._cell.validation:g} of so few samples keeps none of any client")
        if e.adversarial:
            self._measuring.facts["macs_per_epoch"] = macs_per_epoch(e)
            if not e.objective.needs_adversaries:
                warn(f"at={self._cell.at!r} names users, but nobody trains adversarially with {e.objective.name!r}")

    def _note(self, record: RoundRecord) -> None:
        """Collect the facts that the engine tells of a round: means of shifts, counts of events, last values."""
        facts = self._measuring.facts
        for name, value in record.facts.items():
            if (
                not isinstance(value, (int, float))
                or not isinstance(name, str)
                or unsafe(name)
                or (isinstance(value, int) and abs(value) > LARGEST_NUMBER)
            ):
                continue
            if name.endswith("_shift"):
                self._shifts.setdefault(name, []).append(value)
            elif name == "dropped":
                facts["dropped"] = facts.get("dropped", 0) + value
            elif value is True:
                facts[name] = facts.get(name, 0) + 1
            else:
                facts[name] = value

    def _evaluate(self, record: RoundRecord) -> None:
        if record.round in self._cell.forgetting_rounds:
            self._measuring.forgetting(record.state, record.local)
        if self._measured(record.round) and self._options.team.is_rank0:
            self._measuring.see(record.tested or record.state)
        if record.round == self._cell.end:
            picture = bn_statistics(self._cell, self._built, record.state, record.local)
            self._measuring.facts |= {} if picture is None else {"bn_statistics": picture}

    def _progress(self, record: RoundRecord) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything a checkpoint holds: the engine's state and what has been noted beside it."""
        state = packed(self._built.experiment, record.state)
        state["tested"] = record.tested.statistics if record.tested else None
        state["selected"], measured = self._measuring.progress()
        return state, {**measured, "shifts": self._shifts, "seconds": self._seconds, "commits": self._commits}

    def _resumed(self) -> tuple[State | None, State | None]:
        """The state to go on from and the one to test, if there is a checkpoint."""

        def unpack(content: Mapping[str, Any]) -> State:
            state = unpacked(self._built.experiment, content, limit=self._options.state_memory)
            self._measuring.resume(content["selected"], state)
            return state

        found = self._keeper.found(unpack)
        if found is None:
            return None, None
        state, content, noted = found
        self._measuring.continue_from(noted)
        self._shifts = noted["shifts"]
        self._seconds, self._rounds = noted["seconds"], state.round
        self._commits = list(dict.fromkeys([*noted.get("commits", [UNKNOWN]), commit()]))
        return state, state if content["tested"] is None else replace(state, statistics=content["tested"])

    def _diverged(self, error: Diverged) -> dict[str, Any]:
        return {"status": "diverged", "reason": str(error), "round": error.round, **self._so_far()}

    def _so_far(self) -> dict[str, Any]:
        """The facts known at any time: curve, label counts, certificates; none before the cell is built."""
        if not self._ready:
            return {}
        e, measuring = self._built.experiment, self._measuring
        means = {k: fmean(v) for k, v in self._shifts.items() if v}
        if measuring.evaluator.shift is not None:  # where users hand on statistics for tests alone
            means.setdefault("statistics_shift", measuring.evaluator.shift)
        settings = e.settings
        known = e.attack.certificate(settings.participants, settings.attackers) if settings.attackers else {}
        certificates = {
            **means,
            **known,
            **({"no_effect": True} if no_effect(self._cell) else {}),
            **measuring.facts,
            "traffic": _traffic(e),
            "trainable": e.layout.d,
            "statistics": e.layout.s,
            "byzantine": sorted(settings.byzantine()),
            **({"data_clients": list(self._built.named)} if self._built.named else {}),
            **measuring.certificates,
            "warnings": measuring.warnings,
        }
        return {"curve": measuring.curve, "label_counts": self._built.label_counts, "certificates": certificates}

    def _measured(self, round: int) -> bool:
        cell = self._cell
        return measured_in(round, cell.end, cell.evaluate_every, cell.tail)


def _traffic(e: Experiment) -> dict[str, float]:
    """Numbers a client sends in the first round, exchanges, and the MiB of the whole training (FedTAN's convention)."""
    rounds, end = e.settings.rounds, e.settings.end
    present = [len(e.settings.sample(t)) for t in (0, end - 1)]
    first = traffic(e.norm, e.layout, round=0, rounds=rounds)
    together = sum(e.lockstep and not e.norm.frozen(t, rounds) for t in range(end))
    last = traffic(e.norm, e.layout, round=end - 1, rounds=rounds)
    per_round = (first.mebibytes(present[0]), last.mebibytes(present[1]))
    if e.settings.finetuning is not None:
        together = min(e.settings.finetuning.start, end)
    # Rounds in lock-step, or of AT users alone, come first.
    whole = per_round[0] * together + per_round[1] * (end - together) if together else per_round[1] * end
    return {"numbers_each_way": first.each_way, "exchanges": first.exchanges, "mebibytes": whole}
