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
    """The processor's name with family and model, as far as the system tells them; ``cpu`` if it does not.

    Names alone are those of whole families: ``AMD EPYC (family 25, model 1)``.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    first = dict(_entry(line) for line in text.partition("\n\n")[0].splitlines())
    parts = [f"{name} {first[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if first.get(key)]
    name = first.get("model name") or platform.processor() or platform.machine() or "cpu"
    return f"{name} ({', '.join(parts)})" if parts else name


def _entry(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def instruction_set() -> str:
    """The vector instructions that torch computes with on this processor, such as ``AVX2``."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability())
