"""Compiling the C kernels: when they first pay, or once for a wheel. No torch here: a wheel is built without it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-shared", "-fPIC", "-pthread")
HERE: tuple[tuple[str, ...], ...] = (("-march=native",), ("-mcpu=native",), ())
"""Options for this very machine, the best first."""
LEVELS = {"AVX512": ("-march=x86-64-v4",), "AVX2": ("-march=x86-64-v3",), "DEFAULT": ()}
"""Options for the processors that ``torch.backends.cpu.get_cpu_capability`` tells apart; without x86, the last only."""


def compiler() -> list[str] | None:
    """The command of a C compiler, or ``None`` where there is none that makes libraries as these."""
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return found.split() if found and os.name == "posix" else None


def compiled(source: Path, target: Path, options: tuple[str, ...]) -> bool:
    """Compile ``source`` to the shared library ``target``; False if that fails."""
    command = compiler()
    if command is None:
        return False
    try:
        words = [*command, *FLAGS, *options, "-o", str(target), str(source)]
        return subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def prebuilt(folder: Path, level: str) -> Path | None:
    """The library of a wheel for processors of that ``level``, or for any; ``None`` if the wheel has none."""
    names = [f"native-{level}.so", "native-DEFAULT.so"]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def prebuild(source: Path, folder: Path) -> list[Path]:
    """Compile ``source`` into ``folder`` for every level that the compiler knows; returns the libraries."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    levels = LEVELS if x86 else {"DEFAULT": ()}
    folder.mkdir(parents=True, exist_ok=True)
    targets = {folder / f"native-{level}.so": options for level, options in levels.items()}
    return [target for target, options in targets.items() if compiled(source, target, options)]
