"""``robustfl submit``: bundle a store for others, or check a bundle."""

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
    by: str,
    name: str | None,
    plugins: tuple[str, ...],
    tolerance: float,
    trust: tuple[str, ...],
    against: Path | None,
    cells: int | None,
    everything: bool,
    sample: int | None,
    data_root: str | None,
    form: str,
) -> int:
    """Write a bundle, or check one; 1 unless it is accepted."""
    if checks:
        if out is not None or by or name is not None or plugins:
            raise UsageError("--check looks at a bundle that is there; --out, --by, --name and --plugin make one")
        count = drawn(cells, everything=everything)
        return _check(target, trust, against, count, sample, tolerance, data_root, form)
    if trust or against is not None or cells is not None or everything or sample is not None:
        raise UsageError("--trust, --against, --cells, --all and --sample go with --check")
    return _write(target, out, by, name, plugins, tolerance, form)


def _write(
    store: Path, out: Path | None, by: str, name: str | None, plugins: tuple[str, ...], tolerance: float, form: str
) -> int:
    from robustfl.reports.published.bundle import write_bundle

    if not by:
        raise UsageError("--by says who is to be asked about the bundle: a name, a handle, an address")
    made = write_bundle(
        store, out or Path("submissions") / (name or store.resolve().name), by=by, name=name, plugins=plugins,
        tolerance=tolerance,
    )  # fmt: skip
    if form == "json":
        as_json({"bundle": str(made.folder), **made.manifest.model_dump(mode="json"), "wrong": list(made.wrong)})
    else:
        say(f"{made.folder}: {len(made.board.cells)} cells, {len(made.manifest.files) + 1} files")
        for words in made.wrong:
            say(f"it would be refused: {words}", err=True)
        trusted = "".join(f" --trust {name}" for name in made.foreign)
        say(f"check it as others will: robustfl submit --check {made.folder}{trusted}")
    return 1 if made.wrong else 0


def _check(
    folder: Path, trust: tuple[str, ...], against: Path | None, cells: int | None, sample: int | None,
    tolerance: float, root: str | None, form: str,
) -> int:  # fmt: skip
    from robustfl.scenarios.submission import check_submission

    quiet = form == "json"

    def told(finding: Finding) -> None:
        if not quiet:
            say(f"{finding.step}: {_WORDS[finding.passed]}: {finding.words}")

    found = check_submission(
        folder, trust=trust, against=against, cells=cells, sample=sample, tolerance=tolerance, root=root,
        on_finding=told,
    )  # fmt: skip
    verdict = "ACCEPTED" if found.accepted else "REFUSED" if found.refused else "UNDECIDED"
    if quiet:
        findings = [dataclasses.asdict(finding) for finding in found.findings]
        as_json({"bundle": found.bundle.manifest.name, "verdict": verdict, "findings": findings})
    else:
        say(f"\n{found.bundle.manifest.name}: {verdict}")
    return 0 if found.accepted else 1
