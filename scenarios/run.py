"""One cell from start to record."""

from __future__ import annotations

import platform
import random
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from statistics import fmean
from typing import Any

import numpy as np
import torch

from robustfl.errors import LONGEST, Diverged, Refused, RowsLost, StoreError, Terminated, UsageError, told
from robustfl.evaluation import macs_per_epoch, traffic
from robustfl.federation import Experiment, RoundRecord, State, train
from robustfl.origins import origins
from robustfl.outside import LARGEST_NUMBER, cut, unsafe
from robustfl.provenance import UNKNOWN, commit, instruction_set, processor
from robustfl.randomness import stream
from robustfl.records import CellResult, Timing, measured_in, plain
from robustfl.torch_settings import standard_settings

from .build import Built, build
from .cell import Cell
from .checkpoint import Checkpoint, Keeper, checkpoint_path
from .execution import Execution
from .expand import key_of, labels, refusal, resolve
from .measuring import Measuring
from .memory import REMEDY, exhausted, reset_peak
from .noop_settings import no_effect
from .packing import packed, unpacked
from .portrait import portrait
from .snapshots import Snapshots, training_data

ON_CPU = Execution(device="cpu")


def run_cell(cell: Cell, *, fingerprint: str, scenario: str = "cell", execution: Execution = ON_CPU) -> CellResult:
    """Run one cell. Refusal, divergence and crash become records; interrupts escape, and ``StoreError``.

    Global settings and generators are as before afterwards.
    The record of a cell that goes on from a checkpoint is the same as without; whoever commits the record discards the
    checkpoint. ``timing`` tells of it, as ``execution.on_note`` does. Of a team the leading process alone evaluates;
    the others' records say less.
    """
    if execution.keep_model and execution.store is None:
        raise UsageError("keep_model needs a store to keep the model in; give out (--out)")
    resolved, started = resolve(cell, fingerprint), datetime.now(UTC).isoformat(timespec="seconds")
    key, where, foreign = key_of(resolved), execution.first_device, origins(resolved)
    reset_peak(where)
    software = {"versions": versions(), "device": where.type, "threads": execution.threads}
    keeper = _keeper(key, software, where, execution)
    plug_ins = "".join(f" [{name}: {origin}]" for name, origin in foreign.items())
    with standard_settings():
        set_up(cell, execution)
        run, outcome = _outcome(cell, key, where, keeper, execution, plug_ins)
    certificates = outcome.pop("certificates", {}) | software | {"precision": cell.precision}
    certificates |= {"processes": execution.team.size} if execution.team.size > 1 else {}
    timing = Timing(
        seconds=keeper.seconds,
        seconds_training=run.seconds if run else 0.0,
        seconds_per_round=run.seconds / run.rounds if run and run.rounds else None,
        peak_memory_bytes=keeper.peak_memory_bytes,
        started=started,
        host=socket.gethostname(),
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else f"{processor()}, {instruction_set()}",
        commits=run.commits if run else [commit()],
        notes=keeper.notes,
    )
    known = {"key": key, "scenario": scenario, "cell": plain(resolved), "labels": labels(cell)}
    return CellResult(**known, **outcome, certificates=plain(certificates), timing=timing)


@dataclass(frozen=True)
class Task:
    """A cell that is to run elsewhere: with its key, the name of its scenario, and the fingerprint of its data."""

    key: str
    cell: Cell
    scenario: str
    fingerprint: str

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings, methods and data that its key is made of, as they are here."""
        return resolve(self.cell, self.fingerprint)

    def run(self, execution: Execution) -> CellResult:
        """Run it here."""
        return run_cell(self.cell, scenario=self.scenario, fingerprint=self.fingerprint, execution=execution)

    def failed(self, reason: str) -> CellResult:
        """The record where it could not be run to an end, or not at all."""
        known = {"cell": plain(self.resolved), "labels": labels(self.cell)}
        return CellResult(key=self.key, scenario=self.scenario, status="failed", reason=reason, **known)


def versions() -> dict[str, str]:
    """The software that numbers depend on."""
    return {
        "robustfl": version("robustfl"), "torch": str(torch.__version__), "numpy": np.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


def set_up(cell: Cell, execution: Execution) -> None:
    """Set threads, float32 products on a GPU in full or in TF32, and the global generators, which plug-ins may use."""
    torch.set_num_threads(execution.threads)
    seed = stream(cell.seed, "global").initial_seed()
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    if threading.current_thread() is threading.main_thread():  # elsewhere other threads draw from it, too
        random.seed(seed)
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    for place in places:
        place.allow_tf32 = cell.precision == "tf32"


def _keeper(key: str, software: Mapping[str, Any], where: torch.device, execution: Execution) -> Keeper:
    """The keeper of the cell's checkpoint, if it is to have one."""
    checkpoint, minutes = None, execution.checkpoint_minutes
    if execution.store is not None and minutes > 0 and execution.team.size == 1:
        checkpoint = Checkpoint(checkpoint_path(execution.store, key), {"key": key, **software})
    return Keeper(checkpoint, every=60 * minutes, device=where, on_note=execution.on_note)


def _diverged(error: Diverged, run: _Run | None) -> dict[str, Any]:
    return {"status": "diverged", "reason": str(error), "round": error.round, **(run.so_far() if run else {})}


def _outcome(
    cell: Cell, key: str, where: torch.device, keeper: Keeper, execution: Execution, plug_ins: str
) -> tuple[_Run | None, dict[str, Any]]:
    """The outcome of the cell: the fields of its record, and the run as far as it came."""
    run: _Run | None = None
    try:
        reason = refusal(cell)
        if reason is not None:
            raise Refused(reason)
        parts = None if execution.training_data is None else training_data(execution.training_data)
        built = build(cell, root=execution.root, device=where, parts=parts)
        run = _Run(cell, key, built, keeper, execution)
        return run, {"status": "done", **run.complete()}
    except RowsLost as error:
        return run, _diverged(Diverged((run.rounds if run else 0) + 1, f"so many rows ({error})"), run)
    except Refused as error:
        return run, {"status": "refused", "reason": str(error)}
    except Diverged as error:
        return run, _diverged(error, run)
    except torch.OutOfMemoryError as error:
        first = str(error).partition(". ")[0]
        reason = f"out of memory on {where}: {first}; use fewer --slots, a smaller batch or --device cpu{plug_ins}"
        return run, {"status": "failed", "reason": reason}
    except StoreError:  # a folder that cannot be written: the next cell would end no better
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or plug_ins) or isinstance(error, (KeyboardInterrupt, Terminated)):
            raise
        detail = "".join(traceback.format_exception(error))
        if exhausted(error):
            said = "".join(str(error).splitlines()[:1]) or "too much was asked for at once"
            error = MemoryError(f"out of memory: {said}; {REMEDY}")
        return run, _failure(error, plug_ins, detail)


def _failure(error: BaseException, plug_ins: str, detail: str) -> dict[str, Any]:
    return {"status": "failed", "reason": f"{cut(told(error), LONGEST)}{plug_ins}\n{detail}".rstrip()}


class _Run:
    """Training and evaluation of one built cell, with what is known if it stops half-way."""

    def __init__(self, cell: Cell, key: str, built: Built, keeper: Keeper, execution: Execution) -> None:
        self._cell, self._built, self._keeper, self._execution = cell, built, keeper, execution
        self._key = key
        self._shifts: dict[str, list[float]] = {}
        there = execution.snapshots
        self._measuring = Measuring(cell, built, execution) if there is None else Snapshots(cell, built, execution)
        self.seconds, self.rounds = 0.0, 0
        self.commits = [commit()]

    def complete(self) -> dict[str, Any]:
        """Train to the end and evaluate: the fields of a finished record."""
        e, team = self._built.experiment, self._execution.team
        self._begin()
        looked_at = self._cell.forgetting_rounds | ({self._cell.end} if team.size == 1 else set())
        state, tested = self._resumed()
        clock = time.perf_counter()
        for record in train(
            e, state, measure=self._measured, warn=self._measuring.warn, local=lambda round: round in looked_at,
            team=team, limit=self._execution.state_memory,
        ):  # fmt: skip
            tested = record.tested or record.state
            if record.round in self._cell.forgetting_rounds:
                self._measuring.forgetting(record.state, record.local)
            self.seconds += time.perf_counter() - clock
            self._look(record, tested)
            self._keeper.save(partial(self._progress, record))
            clock = time.perf_counter()
        assert tested is not None
        metrics = {"metrics": self._measuring.final(tested, self._key)} if team.leads else {}
        return {**metrics, **self.so_far()}

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

    def _look(self, record: RoundRecord, tested: State) -> None:
        """Evaluate and tell what there is to tell of a round."""
        self.rounds = record.round
        self._note(record)
        if self._measured(record.round) and self._execution.team.leads:
            self._measuring.see(tested)
        self._execution.on_round(record.round, self._cell.end, record.loss)
        if record.round == self._cell.end:
            picture = portrait(self._cell, self._built, record.state, record.local)
            self._measuring.facts |= {} if picture is None else {"bn_statistics": picture}

    def _progress(self, record: RoundRecord) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything a checkpoint holds: the engine's state and what has been noted beside it."""
        state = packed(self._built.experiment, record.state)
        state["tested"] = record.tested.statistics if record.tested else None
        state["selected"], measured = self._measuring.progress()
        return state, {**measured, "shifts": self._shifts, "seconds": self.seconds, "commits": self.commits}

    def _resumed(self) -> tuple[State | None, State | None]:
        """The state to go on from and the one to test, if there is a checkpoint."""

        def unpack(content: Mapping[str, Any]) -> State:
            state = unpacked(self._built.experiment, content, limit=self._execution.state_memory)
            self._measuring.resume(content["selected"], state)
            return state

        found = self._keeper.found(unpack)
        if found is None:
            return None, None
        state, content, noted = found
        self._measuring.continue_from(noted)
        self._shifts = noted["shifts"]
        self.seconds, self.rounds = noted["seconds"], state.round
        self.commits = list(dict.fromkeys([*noted.get("commits", [UNKNOWN]), commit()]))
        return state, state if content["tested"] is None else replace(state, statistics=content["tested"])

    def so_far(self) -> dict[str, Any]:
        """The facts known at any time: curve, label counts, certificates."""
        e, measuring = self._built.experiment, self._measuring
        means = {k: fmean(v) for k, v in self._shifts.items() if v}
        if measuring.evaluator.shift is not None:  # where users hand on statistics for tests alone
            means.setdefault("statistics_shift", measuring.evaluator.shift)
        settings = e.settings
        present = settings.attackers
        known = e.attack.certificate(settings.participants, present) if present else {}
        certificates = {
            **means,
            **known,
            **({"no_effect": True} if no_effect(self._cell) else {}),
            **measuring.facts,
            "traffic": _traffic(e),
            "trainable": e.layout.d,
            "statistics": e.layout.s,
            "byzantine": sorted(settings.byzantine()),
            **measuring.certificates,
            "warnings": measuring.warnings,
        }
        return {"curve": measuring.curve, "label_counts": self._built.label_counts, "certificates": certificates}

    def _measured(self, round: int) -> bool:
        cell = self._cell
        return measured_in(round, cell.end, cell.evaluate_every, cell.tail)

    def _note(self, record: RoundRecord) -> None:
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
