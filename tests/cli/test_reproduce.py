"""``robustfl reproduce`` from the shell: the list, arithmetic, what is missing, a run from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from robustfl.cli import invoke
from robustfl.cli.app import app

IMAGES = os.environ.get("ROBUSTFL_TEST_IMAGES", "")


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["reproduce", *arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return int(done.return_value or 0), done.output


def test_counted_claims_need_no_run_and_make_a_page(tmp_path: Path) -> None:
    code, text = call("fedtan/tab3", "--report", str(tmp_path), "--out", str(tmp_path / "runs"))
    assert code == 0
    assert "5 statements about one table or figure" in text
    facts = json.loads((tmp_path / "reproduction.json").read_text())
    verdicts = {s["id"]: s["verdict"] for s in facts["entries"][0]["statements"]}
    assert verdicts["mebibytes-fedtan"] == "confirmed"
    assert verdicts["above-gn"] == "contradicted"  # printed 1.52, recomputed 1.53
    assert sorted(p.suffix for p in tmp_path.glob("reproduction.*")) == [".html", ".json", ".md", ".tex"]


def test_a_board_of_another_study_is_named(tmp_path: Path) -> None:
    board = str(next((Path(__file__).parents[2] / "boards").glob("quickstart.json*")))
    code, text = call("fedtan/tab3", "--from", board, "--report", str(tmp_path))
    assert code == 0
    assert f"{board}: none of its 240 cells belongs to fedtan/tab3 at this scale" in text.replace("\n", " ")


def test_missing_data_leave_a_page_that_says_where_to_put_them(tmp_path: Path) -> None:
    empty = tmp_path / "data"
    empty.mkdir()
    code, text = call(
        "fedtan/fig6", "--no-run", "--report", str(tmp_path / "page"), "--out", str(tmp_path / "runs"),
        "--data-root", str(empty),
    )  # fmt: skip
    assert code == 0
    assert "8 not run" in text
    assert str(empty) in (tmp_path / "page" / "reproduction.md").read_text().replace("\\", "")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fedtam"], "no paper 'fedtam'; did you mean 'fedtan'"),
        (["fedtan/table33"], "fedtan has no table or figure 'table33'; did you mean"),
        ([], "name a paper or a table"),
        (["fedtan", "--scale", "small"], "'small' is none of paper, reduced"),
    ],
)
def test_wrong_targets_exit_with_the_nearest_right_one(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["reproduce", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_list_names_every_table_and_figure_with_its_state(tmp_path: Path) -> None:
    code, text = call("fbn", "--list", "--format", "json", "--out", str(tmp_path), "--data-root", str(tmp_path))
    assert code == 0
    found = {line["name"]: line for line in json.loads(text)}
    assert {"fbn/figure1", "fbn/figure2", "fbn/figure3", "fbn/figure4"} <= set(found)
    assert found["fbn/figure3"]["cells"] == 48
    assert found["fbn/figure3"]["seconds"] > 0


def test_the_list_names_missing_data_once(tmp_path: Path) -> None:
    code, text = call("fbn", "--list", "--out", str(tmp_path), "--data-root", str(tmp_path))
    assert code == 0
    assert "data, see (1)" in text
    assert text.count(f"(1) data set 'cifar10': it is not there. Looked in {tmp_path}") == 1
    assert "(2)" not in text


needs_images = pytest.mark.skipif(
    not IMAGES, reason="ROBUSTFL_TEST_IMAGES names no folder of images; they are not part of the project"
)


def unpack(folder: Path, name: str) -> None:
    subprocess.run([sys.executable, "unpack.py", str(folder), name], cwd=IMAGES, check=True, capture_output=True)


@pytest.mark.slow
@needs_images
def test_cells_of_a_published_board_count_once_it_is_a_store(tmp_path: Path) -> None:
    unpack(tmp_path, "mnist")
    runs, options = tmp_path / "runs", ("--data-root", str(tmp_path))
    board = Path(__file__).parents[2] / "boards" / "reproduction-fedtan.json.gz"
    merged = CliRunner().invoke(app, ["merge", str(board), "--out", str(runs / "published")])
    assert merged.exit_code == 0
    _, listed = call("fedtan/figure6", "--list", "--format", "json", "--out", str(runs), *options)
    assert (json.loads(listed)[0]["done"], json.loads(listed)[0]["seconds"]) == (48, 0)
    code, text = call("fedtan/figure6", "--out", str(runs), "--report", str(tmp_path / "page"), *options)
    assert code == 0
    assert "48 cells were in other stores" in text
    assert "not run" not in text
