"""The files of the project: those git tracks, never what else lies in the folder (an environment, results, caches)."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("robustfl", "attacks", "defenses", "reports", "reproductions", "scenarios")


@cache
def tracked(*patterns: str) -> list[Path]:
    """The tracked files that match one of git's ``patterns`` (a folder, ``*.py``), or all; deleted ones left out."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--", *patterns], capture_output=True, text=True, check=True
    ).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def product_modules() -> list[Path]:
    """The Python files of the package."""
    return [path for path in tracked(*PRODUCT) if path.suffix == ".py"]
