"""``python -m tests.bench [kernels|zoo|gradients|evasion|rounds|grid|site]``: each table as measured in one run."""

from __future__ import annotations

import importlib
import sys

TABLES = ("kernels", "zoo", "gradients", "evasion", "rounds", "grid", "site")

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(TABLES)
    for name in chosen:
        if name not in TABLES:
            sys.exit(f"no table {name!r}; there are {', '.join(TABLES)}")
        importlib.import_module(f"tests.bench.{name}").main()
