"""``python -m benchmarks [TABLE ...]``: tables of one run.

Words from the first ``--`` on go to ``byzfl_accuracy``, ``growth`` and ``gpu``, as in ``gpu --device cpu --small``.
Without names all tables of ``TABLES`` but the last two are made.
"""

from __future__ import annotations

import importlib
import sys

TABLES = (
    "kernels", "zoo", "gradients", "local_steps", "operations", "evasion", "rounds", "whole", "precision", "grid",
    "site", "growth", "byzfl_accuracy", "gpu",
)  # fmt: skip
WITH_WORDS = ("byzfl_accuracy", "growth", "gpu")

if __name__ == "__main__":
    words = sys.argv[1:]
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    chosen, rest = words[:first] or list(TABLES[:-2]), tuple(words[first:])
    for name in chosen:
        if name not in TABLES:
            sys.exit(f"no table {name!r}; there are {', '.join(TABLES)}")
        table = importlib.import_module(f"benchmarks.{name}")
        table.main(rest) if name in WITH_WORDS else table.main()
