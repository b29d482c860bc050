"""Memory in worker processes: large blocks stay at hand within a cell, and no cell answers for the one before it."""

import platform
import resource

import pytest
import torch

from robustfl.scenarios.memory import peak_bytes, reset_peak
from robustfl.workers import spread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library"),
]
CPU = torch.device("cpu")
MIB = 2**20


def _faults(megabytes: int) -> int:
    """Pages that the system had to find while so large a tensor was made and let go of twenty times, but the first."""
    torch.ones(megabytes * MIB // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(megabytes * MIB // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _peaks(megabytes: int) -> tuple[int, int]:
    """The peaks of two cells, a large and a small one."""
    found = []
    for size in (megabytes, 1):
        reset_peak(CPU)
        torch.ones(size * MIB // 4)
        found.append(peak_bytes(CPU))
    return found[0], found[1]


def test_large_blocks_are_not_handed_back_and_asked_for_again() -> None:
    ((_, faults),) = spread(_faults, [40], 1, threads=1)
    assert isinstance(faults, int)
    pages = 20 * 40 * MIB // resource.getpagesize()
    assert faults < pages / 10


def test_a_users_own_settings_of_the_c_library_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**20))
    ((_, faults),) = spread(_faults, [40], 1, threads=1)
    assert isinstance(faults, int)
    assert faults > 100  # pages may be large


def test_a_small_cell_has_a_small_peak_after_a_large_one() -> None:
    ((_, peaks),) = spread(_peaks, [400], 1, threads=1)
    assert isinstance(peaks, tuple)
    assert peaks[0] - peaks[1] > 300 * MIB


def test_a_gpu_is_woken_before_its_peak_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: called.append("init"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", called.append)
    reset_peak(torch.device("cuda:1"))
    assert called == ["init", torch.device("cuda:1")]
