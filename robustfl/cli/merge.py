"""``robustfl merge``."""

from __future__ import annotations

from pathlib import Path

from robustfl.cli.printing import as_json, console, say, table


def merge(*, sources: tuple[Path, ...], out: Path, names: tuple[str, ...], tolerance: float, form: str) -> int:
    """Join stores and boards into ``out``, a store or a board file; 1 if a file is no record or cells are in conflict.

    Of cells in conflict nothing is written. One board and a board file: the board in the present format.
    """
    from robustfl.errors import UsageError
    from robustfl.reports.published import merge as merging
    from robustfl.reports.published.diff import in_a_line
    from robustfl.scenarios import Cell
    from robustfl.scenarios.expand import labels

    if len(sources) < 2 and not sources[0].is_file():
        raise UsageError("merge: name at least two stores or boards, or one board to make a store of")
    read = merging.read_sources(sources, names)
    merged = merging.merge(read, tolerance=tolerance)
    if not merged.conflicts:
        usual = labels(Cell.of({}))
        if out.suffix in (".json", ".gz"):
            merging.write_merged_board(merged, read, out, defaults=usual)
        else:
            merging.write_merge(merged, read, out, defaults=usual)
    if form == "json":
        as_json({
            "cells": len(merged.results), "agreed": merged.agreed, "copied": merged.copied,
            "out": None if merged.conflicts else str(out), "problems": merged.problems,
            "conflicts": [
                {"key": c.key, "first": c.first, "second": c.second, "differs": c.agreement.words()}
                for c in merged.conflicts
            ],
        })  # fmt: skip
        return 1 if merged.conflicts or merged.problems else 0
    for problem in merged.problems:
        say(f"not counted: {problem}", err=True)
    if merged.conflicts:
        rows = [
            [c.key[:12], in_a_line(c.labels), f"{c.first} → {c.second}", c.agreement.words()] for c in merged.conflicts
        ]
        console().print(table(["cell", "", "", ""], rows, title=f"{len(rows)} cells in conflict; nothing was written"))
        return 1
    for source in read:
        say(f"{source.name}: {len(source.results)} cells")
    twice = f", {merged.agreed} of them measured more than once and in agreement" if merged.agreed else ""
    say(f"{len(merged.results)} cells{twice}: {out}")
    if merged.copied:
        say(f"{merged.copied} cells are there as copies of one run's record, which measured them once")
    return 1 if merged.problems else 0
