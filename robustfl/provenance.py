"""Where numbers come from beside versions: the commit of robustfl's own code, and the processor.

``setup.py`` runs this file by itself to write the commit into a package it builds, so nothing of robustfl is imported.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

BUILT = "commit.txt"
"""The file beside this one in which a build says its commit."""
UNKNOWN = "unknown"
FOLDERS = ("robustfl", "attacks", "defenses", "scenarios", "reports")
"""The folders of a checkout that hold the package's code."""
_PATIENCE = 10.0  # seconds


@cache
def commit() -> str:
    """The commit of the code that runs: 40 letters, ``-modified`` behind them if files have changed, or ``unknown``.

    A package that was built from a checkout says it in a file; an editable installation is asked for it once.
    """
    built = Path(__file__).with_name(BUILT)
    if built.is_file():
        return built.read_text(encoding="ascii").strip()
    return commit_of(Path(__file__).resolve().parents[1])


def commit_of(checkout: Path) -> str:
    """The commit of a checkout whose own repository keeps this file, as ``commit`` gives it; else ``unknown``."""
    if _git(checkout, "ls-files", "--error-unmatch", "robustfl/provenance.py") is None:
        return UNKNOWN
    head, status = _git(checkout, "rev-parse", "HEAD"), _git(checkout, "status", "--porcelain", "--", *FOLDERS)
    if head is None or status is None:
        return UNKNOWN
    return head.strip() + ("-modified" if status else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git in a folder, or ``None`` without git or a repository; a calling git's settings are left out."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=_PATIENCE, env={**inherited, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


@cache
def processor() -> str:
    """The processor's name, as far as the system tells it; ``cpu`` if it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "cpu"
