"""What a store does when the disk, the clock or another grid is against it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grids import SCENARIO, contents, run, started, whole

from robustfl.cli import invoke
from robustfl.errors import StoreError
from robustfl.reports.store import Store
from robustfl.scenarios import grid

pytestmark = pytest.mark.survival
SETTINGS = ["--set", "model=mlp(hidden=(8,))", "--set", "rounds=30", "--set", "evasions=[]", "--set", "clients=9"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("undisturbed")
    grid(SCENARIO, out=out, jobs=0)
    return contents(out)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of its own, where the machine lets us."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True)
        if made.returncode:
            pytest.skip("this machine lets us mount no disk")
        return place

    yield mount
    while os.path.ismount(place):
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_grid_and_room_lets_it_go_on(
    mounted: Callable[[str], Path], expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    disk = mounted("size=36k")
    with pytest.raises(StoreError, match="No space left on device; free space there"):
        grid(SCENARIO, out=disk, jobs=0, checkpoint_minutes=1e-9)
    assert len(whole(disk)) < len(expected)
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    grid(SCENARIO, out=disk, jobs=0, checkpoint_minutes=1e-9)
    assert contents(disk) == expected


def test_a_full_disk_is_told_to_the_user_in_one_line(
    mounted: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    disk = mounted("size=4k")
    assert invoke(["run", *SETTINGS, "--out", str(disk), "--checkpoint-minutes", "1e-9"]) == 1
    error = capsys.readouterr().err
    assert "no checkpoint: cannot write" in error
    assert "Error: cannot write" in error
    assert "Traceback" not in error


def test_a_read_only_folder_is_told_before_anything_runs(
    mounted: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    disk = mounted("ro")
    with pytest.raises(StoreError, match=r"Read-only file system.*make the folder writable"):
        grid(SCENARIO, out=disk, jobs=0)
    assert invoke(["run", *SETTINGS, "--out", str(disk)]) == 1
    captured = capsys.readouterr()
    assert "Read-only file system" in captured.err
    assert captured.out == ""


def _limited(out: Path) -> None:
    """Files of at most 4 KB: smaller than a record."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        grid(SCENARIO, out=out, jobs=0, checkpoint_minutes=1e-9)
        os._exit(9)
    except StoreError as error:
        os._exit(7 if "File too large" in str(error) else 8)


def test_files_that_may_not_grow_leave_nothing_torn(tmp_path: Path, expected: dict[str, Any]) -> None:
    process = started(_limited, tmp_path)
    process.join()
    assert process.exitcode == 7
    assert whole(tmp_path) == set()
    assert [p for p in tmp_path.rglob("*") if p.suffix in (".tmp", ".pt")] == []
    grid(SCENARIO, out=tmp_path, jobs=0)
    assert contents(tmp_path) == expected


def test_a_file_system_without_rename_is_told_and_finished_cells_stay(
    tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid(SCENARIO, out=tmp_path, jobs=0)
    lost = sorted((tmp_path / "s" / "cells").iterdir())[0]
    lost.unlink()

    def refuses(source: Any, target: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuses)
        with pytest.raises(StoreError, match=r"may not replace a file by a rename.*choose a folder elsewhere"):
            grid(SCENARIO, out=tmp_path, jobs=0)
    assert whole(tmp_path) == expected.keys() - {lost.stem}


def test_a_rename_that_tears_is_noticed_and_mended(
    tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a rename is a copy: half of the record is there when the connection breaks."""
    replace = os.replace

    def copies(source: Path, target: Path) -> None:
        if target.parent.name == "cells":
            target.write_bytes(Path(source).read_bytes()[:500])
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", copies)
        with pytest.raises(StoreError, match="Input/output error"):
            grid(SCENARIO, out=tmp_path, jobs=0)
    (problem,) = Store(tmp_path / "s").load().problems
    assert "truncated" in problem.reason
    grid(SCENARIO, out=tmp_path, jobs=0)
    assert contents(tmp_path) == expected


def test_a_clock_that_goes_backwards_changes_nothing(
    tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(2_000_000_000, 0, -86_400))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    grid(SCENARIO, out=tmp_path, jobs=0, checkpoint_minutes=1e-9)
    assert contents(tmp_path) == expected
    assert all(r.timing.seconds >= 0 for r in Store(tmp_path / "s").load().results)


def test_two_grids_on_one_store_do_not_hurt_each_other(tmp_path: Path, expected: dict[str, Any]) -> None:
    both = [started(run, tmp_path) for _ in range(2)]
    for process in both:
        process.join()
    assert [p.exitcode for p in both] == [0, 0]
    assert contents(tmp_path) == expected
    assert [p.name for p in tmp_path.rglob("*") if p.suffix in (".tmp", ".pt")] == []
