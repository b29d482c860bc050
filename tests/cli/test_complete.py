"""What the shell completes, and where a wrong word is pointed to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robustfl.cli import complete, invoke
from robustfl.registry import entries
from robustfl.scenarios import Cell, preset_names


@pytest.mark.parametrize("kind", list(complete._ROOMS))
def test_methods_read_off_the_sources_are_those_of_the_registry(kind: str) -> None:
    assert complete.methods(kind) == {e.name for e in entries(kind) if not e.origin}


def test_settings_read_off_the_source_are_those_of_a_cell() -> None:
    assert complete.cell_settings() == list(Cell.model_fields)


@pytest.mark.parametrize(
    ("words", "typed", "offered"),
    [
        (["grid"], "quick", "quickstart"),
        (["show"], "trimm", "trimmed-mean"),
        (["list"], "att", "attacks"),
        (["run", "--set"], "attack=ali", "attack=alie"),
        (["run", "--set"], "defense=nnm+trim", "defense=nnm+trimmed-mean"),
        (["run", "--set"], "dataset=cif", "dataset=cifar10"),
        (["run", "--set"], "partition=ga", "partition=gamma"),
        (["run", "--set"], "statistics_defense=med", "statistics_defense=median"),
        (["run", "--set"], "roun", "rounds="),
        (["doctor", "--fetch"], "mn", "mnist"),
        (["check"], "alie", "alie"),
    ],
)
def test_the_shell_is_offered(words: list[str], typed: str, offered: str) -> None:
    from click.shell_completion import BashComplete

    from robustfl.cli import app

    found = BashComplete(app, {}, "robustfl", "_ROBUSTFL_COMPLETE").get_completions(words, typed)
    assert offered in [item.value for item in found]


def test_the_shell_gets_its_answer_and_no_error() -> None:
    told = {"_ROBUSTFL_COMPLETE": "bash_complete", "COMP_WORDS": "robustfl gr", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "robustfl"], env=os.environ | told, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,grid\n", "")


def test_completing_imports_no_torch() -> None:
    code = "import sys; from robustfl.cli import complete as c; c.methods('attack'); c.cell_settings(); c._presets(); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["list", "attaks"], "did you mean 'attacks'"),
        (["plot", "heatmpa", "."], "did you mean 'heatmap'"),
        (["new", "defence", "x"], "did you mean 'defense'"),
        (["grid", "krumm"], "--set defense=krum"),
        (["grid", "quickstrat"], "did you mean 'quickstart'"),
        (["run", "--defense", "krum"], "--set defense=VALUE"),
        (["grid", "--local-steps", "3"], "No such option"),
    ],
)
def test_a_wrong_word_is_pointed_to_the_right_one(
    line: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(line) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["--site", "--out"])
def test_a_file_in_the_place_of_a_folder_is_refused_before_anything_is_written(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert invoke(["report", str(tmp_path / "store"), option, str(tmp_path / "taken")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken"]


def test_presets_are_offered() -> None:
    assert complete._presets() == set(preset_names())
