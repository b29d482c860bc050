"""The worker pool: what ends one worker costs its own task alone; devices, plug-ins, progress, memory of workers."""

from __future__ import annotations

import platform
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pool_tasks
import pytest
import torch
from pool_tasks import PoolTask

from robustfl.errors import RobustflError
from robustfl.scenarios.memory import reset_peak
from robustfl.scenarios.worker_pool import Died, Progress, run_in_workers

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library")
MINE = frozenset({"mine.py 1a2b"})
TASKS = [
    *(PoolTask(pool_tasks.half, x) for x in (0, 2, 4, 7)), PoolTask(pool_tasks.half, 6, MINE),
    PoolTask(pool_tasks.forking, 3), PoolTask(pool_tasks.stopping, 0), PoolTask(pool_tasks.spinning, 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> list[tuple[PoolTask, Any]]:
    """All that a pool of two workers says of tasks, some of which end their workers."""
    return list(run_in_workers(TASKS, ["a", "b"], deadline=2.0))


def results(ran: list[tuple[PoolTask, Any]]) -> dict[tuple[str, int], Any]:
    """The result of every task, or how it died."""
    return {(task.function.__name__, task.x): m for task, m in ran if not isinstance(m, Progress)}


def test_a_death_costs_its_own_task_alone(ran: list[tuple[PoolTask, Any]]) -> None:
    found = results(ran)
    assert {x: found["half", x][2] for x in (0, 2, 4, 6)} == {0: 0, 2: 1, 4: 2, 6: 3}
    assert found["half", 7] == Died(7)
    assert str(found["half", 7]) == "exit status 7"


def test_a_task_whose_worker_died_is_tried_once_more_and_last(ran: list[tuple[PoolTask, Any]]) -> None:
    assert [m for task, m in ran if task == PoolTask(pool_tasks.half, 7)] == [Progress(7, 9), Progress(7, 9), Died(7)]
    assert [m for _, m in ran][-2:] == [Progress(3, 9), Died(3)]


def test_a_child_of_a_dead_worker_holds_up_nobody(ran: list[tuple[PoolTask, Any]]) -> None:
    assert results(ran)["forking", 3] == Died(3)


@pytest.mark.parametrize("how", ["stopping", "spinning"])
def test_a_worker_without_an_end_is_killed_at_the_deadline(how: str, ran: list[tuple[PoolTask, Any]]) -> None:
    died = results(ran)[how, 0]
    assert died == Died(-signal.SIGKILL, late=True)
    assert str(died) == "SIGKILL"
    assert ("in spinning" in died.trace) == (how == "spinning")  # a stopped one writes no trace


def test_progress_comes_before_the_result(ran: list[tuple[PoolTask, Any]]) -> None:
    progress, (device, _, result) = (m for task, m in ran if task.x == 4)
    assert (progress, device in "ab", result) == (Progress(4, 9), True, 2)


def test_a_worker_goes_on_with_tasks_of_the_same_plug_ins_only(ran: list[tuple[PoolTask, Any]]) -> None:
    process = {x: results(ran)["half", x][1] for x in (0, 2, 4, 6)}
    assert process[4] in (process[0], process[2])
    assert process[6] not in (process[0], process[2])


@pytest.mark.slow
def test_the_end_of_all_workers_is_an_error() -> None:
    with pytest.raises(RobustflError, match=r"worker processes ended \(SIGKILL\)"):
        list(run_in_workers([PoolTask(pool_tasks.killing_the_supervisor, 0)], ["a"]))


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_by_its_workers(tmp_path: Path) -> None:
    """Its own folder is where workers look for modules, as it is for the script."""
    (tmp_path / "task.py").write_text(
        "class Task:\n    foreign = frozenset()\n    def __call__(self, device, send): return print('noise') or device"
    )
    (tmp_path / "script.py").write_text(
        "from robustfl.scenarios.worker_pool import run_in_workers\nfrom task import Task\n"
        "print([result for _, result in run_in_workers([Task()], ['here'])])"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("['here']\n", "noise\n")


# --- memory and threads of workers -----------------------------------------------------------------------------------


def only(function: Any, x: int, count: int = 1) -> Any:
    """The result of a single task."""
    *_, (_, (_, _, result)) = run_in_workers([PoolTask(function, x)], ["a"], threads=count)
    return result


@pytest.mark.slow
def test_threads_are_those_of_the_call_and_none_runs_where_workers_are_forked() -> None:
    assert only(pool_tasks.threads, 0, count=1) == ("1", 1)


@glibc
@pytest.mark.slow
@pytest.mark.parametrize("users", [False, True])
def test_large_blocks_are_kept_unless_the_user_says_otherwise(users: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if users:
        monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**20))
    pages = 20 * 40 * 2**20 // resource.getpagesize()
    faults = only(pool_tasks.page_faults, 40)
    assert faults > 100 if users else faults < pages / 4  # pages may be large


@glibc
@pytest.mark.slow
def test_a_small_cell_has_a_small_peak_after_a_large_one() -> None:
    large, small = only(pool_tasks.peaks, 400)
    assert large - small > 300 * 2**20


def test_a_gpu_is_woken_before_its_peak_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: called.append("init"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", called.append)
    reset_peak(torch.device("cuda:1"))
    assert called == ["init", torch.device("cuda:1")]
