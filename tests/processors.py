"""The whole suite as other machines run it: ``python -m tests.processors``.

Every kind of vector instructions × 1, 2 and 4 threads, in shuffled order, twice, while all cores are busy with
something else. Nothing may depend on any of it. Takes eighteen times the suite; ``--kinds``, ``--threads`` and
``--rounds`` take less, ``--numeric`` only the files that are about arithmetic, and what follows ``--`` goes to pytest:

    python -m tests.processors --numeric --rounds 1
    python -m tests.processors --kinds none --threads 1 --rounds 1 -- tests/unit
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KINDS = {
    "default": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "none": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
THREADS = (1, 2, 4)
NUMERIC = ("contracts", "reference", "unit")
BESIDE = frozenset({
    "file_io", "grid", "ground_floor", "hostile_plugins", "library_calls", "merging", "notebooks", "plots", "progress",
    "published", "reports", "reproduction", "scenarios", "site", "site_contents", "site_example", "slots",
    "small_print", "store", "tables", "time_limit", "tracking",
})  # fmt: skip
"""Files of ``tests/unit`` about processes, texts and pages; what is not named here counts as arithmetic."""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Within, so many processes compute all the time."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # not longer than this process lives
    load = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def numeric(folder: Path) -> list[Path]:
    """The files of tests whose results come out of arithmetic."""
    found = [file for room in NUMERIC for file in sorted((folder / room).glob("test_*.py"))]
    return [file for file in found if file.stem.removeprefix("test_") not in BESIDE]


def main() -> int:
    """Run all of it; 1 if a test failed anywhere."""
    parser = argparse.ArgumentParser(prog="python -m tests.processors", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="vector instructions")
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS, help="of torch")
    parser.add_argument("--rounds", type=int, default=2, help="orders of the tests")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**32, help="of the first order [default: another]"
    )
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="busy processes beside [default: cores]")
    parser.add_argument("--numeric", action="store_true", help="only the files of arithmetic")
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="for pytest")
    chosen = parser.parse_args()
    folder = Path(__file__).parent
    files = [str(f) for f in numeric(folder)] if chosen.numeric else []
    failed = []
    for i, (_, kind, threads) in enumerate(itertools.product(range(chosen.rounds), chosen.kinds, chosen.threads)):
        seed = chosen.seed + i
        what = f"instructions {kind}, {threads} thread(s), --shuffle {seed}"
        print(f"--- {what}", flush=True)
        settings = os.environ | KINDS[kind] | {"OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "pytest", "--shuffle", str(seed), *files, *chosen.pytest]
        with busy(chosen.load):
            if subprocess.run(command, cwd=folder.parent, env=settings, check=False).returncode:
                failed.append(what)
    print("\n".join(["", *(f"failed with {what}" for what in failed)]) if failed else "passed everywhere")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
