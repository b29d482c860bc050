"""``robustfl submit``: write the results of a store for others, or check what somebody wrote."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from robustfl.cli.printing import as_json, say
from robustfl.cli.verify import drawn
from robustfl.errors import UsageError

if TYPE_CHECKING:
    from robustfl.scenarios.submission import Finding

_WORDS = {True: "passes", False: "REFUSED", None: "not checked"}


def submit(
    target: Path,
    *,
    checks: bool,
    out: Path | None,
    name: str | None,
    plugins: tuple[str, ...],
    tolerance: float,
    trust: bool,
    against: Path | None,
    cells: int | None,
    everything: bool,
    sample: int | None,
    work: Path | None,
    prepare: bool,
    data_root: str | None,
    form: str,
) -> int:
    """Write a submission, or check one; 1 unless it is accepted."""
    if checks:
        if out is not None or name is not None or plugins:
            raise UsageError("--check looks at a submission that is there; --out, --name and --plugin make one")
        count = drawn(cells, everything=everything)
        return _check(target, trust, against, count, sample, tolerance, work, prepare, data_root, form)
    for option, given in {
        "trust": trust, "against": against, "cells": cells, "all": everything, "sample": sample, "work": work,
        "prepare": prepare,
    }.items():  # fmt: skip
        if given is not None and given is not False:
            raise UsageError(f"--{option} goes with --check")
    return _write(target, out, name, plugins, tolerance, form)


def _write(
    store: Path, out: Path | None, name: str | None, plugins: tuple[str, ...], tolerance: float, form: str
) -> int:
    from robustfl.reports.published.submitting import write_submission

    made = write_submission(store, out, name=name, plugins=plugins, tolerance=tolerance)
    if form == "json":
        as_json({
            "folder": str(made.folder), "board": made.board.name, "plugins": dict(made.plugins),
            "packages": list(made.packages), "wrong": list(made.wrong),
        })  # fmt: skip
    else:
        say(f"{made.folder}: {len(made.board.cells)} cells, {len(made.plugins)} plug-ins")
        for words in made.wrong:
            say(f"it would be refused: {words}", err=True)
        say(f"check it as others will: robustfl submit --check {made.folder}{' --trust' * bool(made.plugins)}")
    return 1 if made.wrong else 0


def _check(
    folder: Path, trust: bool, against: Path | None, cells: int | None, sample: int | None, tolerance: float,
    work: Path | None, prepare: bool, root: str | None, form: str,
) -> int:  # fmt: skip
    from robustfl.scenarios.submission import check_submission

    quiet = form == "json"

    def told(finding: Finding) -> None:
        if not quiet:
            say(f"{finding.step}: {_WORDS[finding.passed]}: {finding.words}")

    found = check_submission(
        folder, trust=trust, against=against, cells=cells, sample=sample, tolerance=tolerance, root=root, work=work,
        prepare_only=prepare, on_finding=told,
    )  # fmt: skip
    name = found.submitted.board.name
    verdict = "ACCEPTED" if found.accepted else "REFUSED" if found.refused else "UNDECIDED"
    if quiet:
        as_json({"name": name, "verdict": verdict, "findings": [dataclasses.asdict(f) for f in found.findings]})
    else:
        say(f"\n{name}: {verdict}")
    return 0 if found.accepted else 1
