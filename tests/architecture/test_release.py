"""One version everywhere, workflows that parse and run what exists, wheels with kernels or without."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from robustfl.cli.app import app
from robustfl.kernels import native
from robustfl.kernels.compiling import compiler, prebuild, prebuilt
from tests.tracked import ROOT, product_modules, tracked

WORKFLOWS = tracked(".github/workflows/*.yml")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INSTALLED_BY = {
    "build": "build==",
    "cibuildwheel": "cibuildwheel==",
    "mkdocs": ".[docs]",
    "pytest": ".[test]",
    "pip": "",
}


def steps(path: Path) -> list[dict[str, Any]]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [step for job in loaded["jobs"].values() for step in job["steps"]]


def test_the_version_is_the_same_everywhere_and_in_the_changelog() -> None:
    version = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == version
    written = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert written[0] in (version, "Unreleased")
    literal = re.compile(rf'version\s*=\s*"{re.escape(version)}"')
    named = [p for p in product_modules() if literal.search(p.read_text(encoding="utf-8"))]
    assert named == []


def test_there_are_workflows_for_tests_wheels_and_the_site() -> None:
    assert {"site", "tests", "wheels"} <= {path.stem for path in WORKFLOWS}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_jobs_have_limits_and_few_rights(path: Path) -> None:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert loaded["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 360 for job in loaded["jobs"].values())
    uses = [step["uses"] for step in steps(path) if "uses" in step]
    assert uses
    assert [use for use in uses if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", use)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_commands_of_a_workflow_exist(path: Path) -> None:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    for job in loaded["jobs"].values():
        runs = [step["run"] for step in job["steps"] if "run" in step]
        for run in runs:
            named = re.findall(r"^\s*robustfl (\S+)", run, flags=re.MULTILINE)
            assert set(named) <= set(app.commands), run
            if "\n" not in run.strip():
                _exists(shlex.split(run), runs)


def _exists(words: list[str], runs: list[str]) -> None:
    """A module that another step installs, a file of the repository, or a tool that runners have."""
    if words[:2] == ["python", "-m"]:
        wanted = INSTALLED_BY[words[2]]
        assert not wanted or any(wanted in other for other in runs), f"{words[2]} is not installed"
    elif words[0] in INSTALLED_BY:
        _exists(["python", "-m", *words], runs)
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    elif words[0] not in ("gh", "pip", "test"):
        assert os.access(ROOT / words[0], os.X_OK), words


def test_extras_that_workflows_install_exist() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    named = {name for group in re.findall(r"\.\[([a-z,]+)\]", text) for name in group.split(",")}
    assert named
    assert named <= set(PROJECT["project"]["optional-dependencies"])


# --- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_kernels_of_a_wheel_are_compiled_for_every_level_and_the_fitting_one_is_chosen(tmp_path: Path) -> None:
    made = prebuild(ROOT / "robustfl" / "kernels" / "native.c", tmp_path / "kernels")
    assert tmp_path / "kernels" / "native-DEFAULT.so" in made
    assert all(library.read_bytes()[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe") for library in made)
    assert prebuilt(tmp_path / "kernels", "of-tomorrow") == tmp_path / "kernels" / "native-DEFAULT.so"
    if len(made) > 1:
        assert prebuilt(tmp_path / "kernels", "AVX2") == tmp_path / "kernels" / "native-AVX2.so"
    assert prebuilt(tmp_path, "AVX2") is None


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_kernels_that_are_there_are_loaded_and_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prebuild(ROOT / "robustfl" / "kernels" / "native.c", tmp_path)
    monkeypatch.setattr(native, "prebuilt", lambda folder, level: prebuilt(tmp_path, level))
    monkeypatch.setattr(native, "shipped", native.shipped.__wrapped__)
    monkeypatch.setattr(native, "compiled", lambda *given: pytest.fail("it compiles"))
    found = native.library.__wrapped__()
    assert found is not None
    assert Path(found._name).parent == tmp_path
    monkeypatch.delenv("ROBUSTFL_NATIVE", raising=False)
    monkeypatch.setattr(native, "_account", native._Account())
    monkeypatch.setattr(native, "library", lambda: found)
    assert native.ready(torch.zeros(3, 4))  # from the first call on


def test_a_library_of_another_platform_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "native-DEFAULT.so").write_bytes(b"not a library")
    monkeypatch.setattr(native, "prebuilt", lambda folder, level: prebuilt(tmp_path, level))
    monkeypatch.setattr(native, "shipped", native.shipped.__wrapped__)
    monkeypatch.setattr(native, "compiled", lambda *given: False)
    assert native.library.__wrapped__() is None
