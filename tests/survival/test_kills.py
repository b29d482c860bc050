"""SIGKILL at random moments of grid, commit and checkpoint: nothing is lost, nothing is torn, nothing differs."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from grids import contents, run, run_until_step, started, whole

pytestmark = pytest.mark.survival


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A store nobody disturbed, and how long it took."""
    out = tmp_path_factory.mktemp("undisturbed")
    started(run, out / "warm").join()
    clock = time.monotonic()
    process = started(run, out)
    process.join()
    assert process.exitcode == 0
    return out, time.monotonic() - clock


def test_grids_killed_at_random_moments_end_as_undisturbed_ones(
    undisturbed: tuple[Path, float], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    expected, needed = contents(undisturbed[0]), undisturbed[1]
    dice, kills, grids = random.Random(0), 0, 0
    wanted = pytestconfig.getoption("kills")
    while True:
        out, stored = tmp_path / str(grids), set[str]()
        while True:
            if kills < wanted and dice.random() < 0.5:
                process = started(run_until_step, out, dice.randint(1, 60))
                process.join()
            else:
                process = started(run, out)
                process.join(dice.uniform(0, needed) if kills < wanted else None)
                process.kill()
                process.join()
            now = whole(out)
            assert stored <= now, "a stored cell was lost"
            stored = now
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
            kills += 1
        assert contents(out) == expected
        assert not (out / "s" / "checkpoints").exists() or not list((out / "s" / "checkpoints").glob("*.pt"))
        grids += 1
        if kills >= wanted:
            break
    print(f"{kills} kills, {grids} grids")
