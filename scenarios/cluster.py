"""Cells on the workers of a running ``dask.distributed`` scheduler; their records come back here.

Workers need robustfl and the data sets, and nothing else: no shared folder, no scenario, no plug-in file. A worker that
dies gives its cell to another one. Cells are submitted one by one and not through joblib, whose ``dask`` backend waits
forever for a cell that the scheduler gave up.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from robustfl.errors import ClusterError, RobustflError, UsageError, reason
from robustfl.file_io import python_files
from robustfl.origins import named_methods
from robustfl.records import CellResult, canonical
from robustfl.registry import load_file, load_plugins, unpack
from robustfl.tempdirs import scratch

from .expand import fingerprints
from .plan import ResolvedCell
from .run import run_resolved
from .run_options import RunOptions
from .worker_pool import Died, run_in_workers

CONNECT_SECONDS = 10
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class RemoteCell:
    """A cell as it travels: with the contents of plug-ins and the methods of the main program, and what the worker
    must agree with. One with plug-ins is a task for a process of its own."""

    resolved: ResolvedCell
    plugins: tuple[tuple[str, bytes], ...]
    software: dict[str, str]
    options: RunOptions
    sent: bytes = b""
    worker: str = ""
    foreign: frozenset[str] = frozenset()

    def __call__(self, device: str, send: Callable[[Any], None]) -> str | RobustflError:
        del device, send
        return _run(self.worker, self)


def software() -> dict[str, str]:
    """The software client and workers must share: robustfl with a digest of its code, and torch without its build."""
    return {"robustfl": f"{version('robustfl')} (code {_code()})", "torch": str(torch.__version__).partition("+")[0]}


@cache
def _code() -> str:
    digest = hashlib.sha256()
    for room in ("robustfl", "robustfl.attacks", "robustfl.defenses", "robustfl.reports", "robustfl.scenarios"):
        found = find_spec(room)
        for folder in found.submodule_search_locations or () if found else ():
            for file in python_files(Path(folder).resolve()):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def contents(plugins: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """Plug-in files by name and content. Raises ``UsageError`` for one that cannot be read."""
    try:
        return tuple((Path(plugin).name, Path(plugin).read_bytes()) for plugin in plugins)
    except OSError as error:
        raise UsageError(f"plug-in {error.filename!r} cannot be read: {reason(error)}") from None


# --- here ------------------------------------------------------------------------------------------------------------


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the scheduler at ``address``. Raises ``ClusterError``."""
    from distributed import Client

    for name in ("tornado", "asyncio", *logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what matters is said below, once
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no dask scheduler answers at {address} ({type(error).__name__}); start one with `dask scheduler` or "
            "correct the address; finished cells are kept, and the same command does the rest"
        ) from None
    try:
        yield client
    finally:
        client.close(timeout=2)  # type: ignore[no-untyped-call]


def run_remotely(client: Any, work: Sequence[RemoteCell], note: Callable[[str], None]) -> Iterator[CellResult]:
    """The records of all cells as they come in; a cell that kills its workers again and again comes back as failed.

    Raises ``ClusterError`` when the scheduler is lost, and what workers found wrong with the whole grid.
    """
    from distributed import as_completed

    # Grids that send the same cell in the same way share its computation.
    digests = [hashlib.sha256(repr(item).encode()).hexdigest()[:12] for item in work]
    items = {f"robustfl-{one.resolved.key}-{digest}": one for one, digest in zip(work, digests, strict=True)}
    futures = [client.submit(execute, item, key=key, pure=False) for key, item in items.items()]
    try:
        if not client.ncores():
            note("The scheduler has no workers yet; cells run as soon as it has.")
        for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
            yield _outcome(client, future, items[future.key])
    finally:
        if client.status == "running":
            client.cancel(futures, force=True)


def _outcome(client: Any, future: Any, item: RemoteCell) -> CellResult:
    """The record of a finished cell, or the error that a worker sent."""
    from distributed import KilledWorker

    if future.status == "error":
        error = future.exception()
        if isinstance(error, KilledWorker):
            return item.resolved.failed(f"every worker that tried this cell died (out of memory?): {error}")
        raise ClusterError(f"a worker could not take a cell: {type(error).__name__}: {error}")
    while client.status == "running" and future.status != "cancelled":
        try:
            result = future.result(timeout=5)
        except TimeoutError:  # its worker died before it was fetched: another one computes the cell anew
            continue
        except Exception as error:
            if client.status == "running":
                words = f"a worker's result could not be fetched: {type(error).__name__}: {error}"
                raise ClusterError(words) from None
            break
        if isinstance(result, RobustflError):
            raise result
        return CellResult.model_validate_json(result)
    address = client.scheduler.address if client.scheduler else "this address"
    raise ClusterError(
        f"the scheduler at {address} is gone; start it and its workers again: finished cells are kept, and the same "
        "command does the rest"
    )


# --- on a worker -----------------------------------------------------------------------------------------------------


def execute(item: RemoteCell) -> str | RobustflError:
    """Run one cell on a worker and return its record as JSON; what is wrong with the worker comes back as a value.

    A cell with plug-ins that are not installed runs in a process of its own: the worker lives on, and is never to run
    their code in another cell.
    """
    from distributed import get_worker

    name = get_worker().address
    with _one_at_a_time:  # threads of one process share torch's settings
        if not item.plugins and not item.sent:
            return _run(name, item)
        task, threads = replace(item, worker=name), item.options.threads
        try:
            ((_, outcome),) = run_in_workers([task], [item.options.device], threads=threads)
        except RobustflError as error:  # the process that watches it was killed, too
            outcome = Died(-signal.SIGKILL, trace=str(error))
        if isinstance(outcome, Died):
            words = f"its process on worker {name} died (out of memory?): {outcome}\n{outcome.trace}"
            return _json(item.resolved.failed(words))
        return outcome  # type: ignore[no-any-return]


def _json(record: CellResult) -> str:
    return canonical(record.model_dump(mode="json"))


def _run(name: str, item: RemoteCell) -> str | RobustflError:
    try:
        for package, theirs in software().items():
            if theirs != item.software[package]:
                raise ClusterError(f"worker {name} has {package} {theirs}, this side has {item.software[package]}; "
                                   "install the same on both and restart workers")  # fmt: skip
        load_plugins()
        with scratch("plugins") as folder:
            for number, (file, content) in enumerate(item.plugins):
                (folder / str(number)).mkdir()
                path = folder / str(number) / Path(file).name
                path.write_bytes(content)
                load_file(path)
            unpack(item.sent)
            _check_identity(name, item)
            record = run_resolved(item.resolved, item.options)
    except UsageError as error:
        return UsageError(f"worker {name}: {error}")
    except RobustflError as error:
        return error
    return _json(record)


def _check_identity(name: str, item: RemoteCell) -> None:
    """Refuse a worker on which the cell is another one: other data, or another version of a method."""
    resolved = item.resolved
    found = fingerprints([resolved.cell], item.options.root)[resolved.cell]
    if found != resolved.data:
        raise ClusterError(f"worker {name} has other data for {resolved.cell.dataset} ({found}) than this side "
                           f"({resolved.data}); remove its data folder or give --data-root")  # fmt: skip
    if not resolved.same_here:
        seen = (f"{m['name']} {m['version']} {m.get('origin', '')}" for _, m in named_methods(resolved.settings))
        raise ClusterError(f"worker {name} reads a cell otherwise, with {', '.join(map(str.strip, seen))}: install the "
                           "same on both and restart workers")  # fmt: skip
