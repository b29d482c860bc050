"""The table of a nightly run: ``nightly_report.py FOLDER SKIPS``.

FOLDER holds for every group the exit code ``GROUP.code`` and, where pytest ran it, its results ``GROUP.xml``. SKIPS
lists the skips that may be: on each line a pattern of a test's id, a bar with spaces around it, and a pattern of its
reason. Exits with 1 if a group failed, ran no test, or skipped one that is not listed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

Listed = list[tuple[re.Pattern[str], re.Pattern[str]]]


def allowed(text: str) -> Listed:
    """The patterns of a list of skips; empty lines and lines that begin with ``#`` say nothing."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = [line.partition(" | ")[::2] for line in lines]
    return [(re.compile(test.strip()), re.compile(reason.strip())) for test, reason in pairs]


def skipped(tree: ElementTree.Element) -> list[tuple[str, str]]:
    """Test ids and reasons of what was skipped."""
    found = []
    for case in tree.iter("testcase"):
        for skip in case.iter("skipped"):
            test = f"{case.get('classname', '').replace('.', '/')}::{case.get('name', '')}"
            found.append((test, skip.get("message") or skip.text or ""))
    return found


def faults(name: str, code: int, tree: ElementTree.Element | None, listed: Listed) -> tuple[str, list[str]]:
    """The row of a group, and what is wrong with it."""
    wrong = [f"{name}: exit code {code}"] if code else []
    if tree is None:
        return f"{name:<12} {'ok' if not code else 'failed':>8}", wrong
    suites = list(tree.iter("testsuite"))
    tests, failures, errors, skips = (
        sum(int(s.get(word, 0)) for s in suites) for word in ("tests", "failures", "errors", "skipped")
    )
    seconds = sum(float(s.get("time", 0)) for s in suites)
    passed = tests - failures - errors - skips
    if not passed:
        wrong.append(f"{name}: no test passed")
    for test, reason in skipped(tree):
        if not any(t.search(test) and r.search(reason) for t, r in listed):
            wrong.append(f"{name}: skipped without being listed: {test}: {reason}")
    return f"{name:<12} {passed:8} {failures + errors:7} {skips:8} {seconds:8.0f}", wrong


def main(folder: Path, skips: Path) -> int:
    """Print the table; 1 if anything is wrong."""
    listed, wrong = allowed(skips.read_text(encoding="utf-8")), list[str]()
    print(f"{'group':<12} {'passed':>8} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for code in sorted(folder.glob("*.code")):
        results = code.with_suffix(".xml")
        tree = ElementTree.parse(results).getroot() if results.is_file() else None
        row, said = faults(code.stem, int(code.read_text()), tree, listed)
        print(row)
        wrong += said
    print("\n".join(["", *wrong]) if wrong else "\nnothing failed, and every skip is listed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
