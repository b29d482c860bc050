"""Every test is in one tier, the nightly run has a group for each marker, and its report names every skip."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import NIGHTLY, pytest_itemcollected
from tests.tracked import ROOT

OPTIONS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
REPORT = runpy.run_path(str(ROOT / ".ci" / "nightly_report.py"))
RESULTS = """<testsuites><testsuite tests="2" failures="0" errors="0" skipped="1" time="1">
<testcase classname="tests.docs.test_a" name="test_b[c]"><skipped message="no images"/></testcase>
<testcase classname="tests.docs.test_a" name="test_d"/></testsuite></testsuites>"""


def test_the_markers_of_the_nightly_run_are_declared_left_out_by_default_and_run_by_it() -> None:
    options = OPTIONS["ini_options"]
    assert [line.partition(":")[0] for line in options["markers"]] == list(NIGHTLY)
    assert f"-m 'not ({' or '.join(NIGHTLY)})'" in options["addopts"]
    nightly = (ROOT / ".ci" / "nightly").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^group (\w+)", nightly, flags=re.MULTILINE)) == list(NIGHTLY)


def test_a_test_with_two_of_the_markers_is_refused() -> None:
    item: Any = SimpleNamespace(nodeid="x", get_closest_marker=lambda name: name in ("docs", "slow") or None)
    with pytest.raises(pytest.UsageError, match="x belongs to docs and slow"):
        pytest_itemcollected(item)


@pytest.mark.parametrize("script", ["run", "nightly"])
def test_the_scripts_are_well_formed(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / script)], check=True)


@pytest.mark.parametrize(
    ("listed", "code", "results", "wrong"),
    [
        ("docs/test_a::test_b | no images", 0, RESULTS, []),
        ("# nothing\n", 0, RESULTS, ["skipped without being listed: tests/docs/test_a::test_b[c]: no images"]),
        ("test_b | no disk", 0, RESULTS, ["skipped without being listed"]),
        ("test_b | images", 1, RESULTS, ["docs: exit code 1"]),
        ("", 5, '<testsuite tests="0"/>', ["docs: exit code 5", "docs: no test passed"]),
        ("", 0, None, []),
    ],
)
def test_a_nightly_run_fails_on_failures_empty_groups_and_skips_that_are_not_listed(
    listed: str, code: int, results: str | None, wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs.code").write_text(f"{code}\n")
    (tmp_path / "skips.txt").write_text(listed)
    if results is not None:
        (tmp_path / "docs.xml").write_text(results)
    assert REPORT["main"](tmp_path, tmp_path / "skips.txt") == bool(wrong)
    said = capsys.readouterr().out
    assert all(words in said for words in wrong)
    assert said.splitlines()[1].startswith("docs ")
