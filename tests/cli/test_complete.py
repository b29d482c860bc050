"""What the shell completes, and where a wrong word is pointed to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robustfl.cli import invoke
from robustfl.scenarios import preset_names


@pytest.mark.parametrize(
    ("words", "typed", "offered"),
    [
        (["grid"], "quick", "quickstart"),
        (["show"], "quick", "quickstart"),
        (["list"], "att", "attacks"),
        (["run", "--set", "f=3"], "bench/", "bench/d"),
        (["check"], "my_at", "my_at"),  # completed by the shell as a file
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


def test_every_preset_is_offered_without_importing_torch() -> None:
    code = (
        "import sys; from click.shell_completion import BashComplete; from robustfl.cli import app; "
        "found = BashComplete(app, {}, 'robustfl', '_ROBUSTFL_COMPLETE').get_completions(['show'], ''); "
        "print(*(item.value for item in found), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [*preset_names(), "False"], done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["plot", "heatmpa", "."], "did you mean 'heatmap'"),
        (["new", "defence", "x"], "did you mean 'defense'"),
        (["grid", "krumm"], "--set defense=krum"),
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
