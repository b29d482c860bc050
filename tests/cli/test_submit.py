"""The whole way in: outsiders' methods, a submission, its check; an honest one is accepted, each cheat is refused."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from other_boards import changed

import robustfl
from robustfl import registry
from robustfl.cli import invoke
from robustfl.errors import StoreError, UsageError
from robustfl.records import CellResult, digest
from robustfl.reports.published import submitting
from robustfl.reports.published.merge import merge, read_source, write_merge
from robustfl.reports.published.submitting import _brought, read_submission, write_submission
from robustfl.reports.store import Store
from robustfl.scenarios import evaluate
from robustfl.scenarios.isolated_phases import run
from robustfl.scenarios.submission import Submission, check_submission
from robustfl.scenarios.verify import verify

pytestmark = pytest.mark.slow

HEAD = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from robustfl import param, register
from robustfl.contracts import Aggregator, Attack
"""
PUSH = (
    HEAD
    + '''
@register("push", version=1)
@dataclass(frozen=True)
class Push(Attack):
    """The attackers send the honest mean, turned and stretched."""
    paper: ClassVar[str] = "An outsider, 2026"
    scale: float = param(2.0, ge=0, doc="how far")

    def forge(self, view, *, generator):
        return -self.scale * view.honest.mean(0).expand(view.f, -1).clone()
'''
)
CALM = (
    HEAD
    + '''
@register("calm", version=1)
@dataclass(frozen=True)
class Calm(Aggregator):
    """The mean of the middle values of every coordinate."""
    paper: ClassVar[str] = "Another outsider, 2026"

    def aggregate(self, X, *, f, context):
        return X.sort(dim=0).values[f : len(X) - f].mean(0)

    def min_clients(self, f):
        return 2 * f + 1
'''
)
MANY = PUSH.replace("view.f, -1", "view.f + 1, -1")
OWN_NORM = """
from dataclasses import dataclass
from torch import nn
from robustfl import register
from robustfl.contracts import Norm


@register("own")
@dataclass(frozen=True)
class Own(Norm):
    def layer(self, channels):
        return nn.GroupNorm(1, channels)
"""
CELL: dict[str, Any] = {
    "model": "mlp(hidden=(8,))", "norm": "none", "clients": 5, "f": 1, "rounds": 2, "batch": 8, "evasions": [],
    "attack": ["none", "push"], "defense": ["mean", "calm"], "seed": [0, 1],
}  # fmt: skip


@contextmanager
def strangers() -> Iterator[None]:
    """Within, plug-ins are loaded as in a process of its own."""
    registry.load_plugins()
    before = {kind: dict(names) for kind, names in registry._entries.items()}
    files = dict(registry._files)
    try:
        yield
    finally:
        registry._changed()
        for kind, names in before.items():
            registry._entries[kind].clear()
            registry._entries[kind].update(names)
        registry._files.clear()
        registry._files.update(files)


def ran(folder: Path, attack: str = PUSH, defense: str = CALM, **more: Any) -> Path:
    """A store that outsiders filled, whose methods lie in a folder of its own each."""
    for name, text in (("push", attack), ("calm", defense)):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.py").write_text(text)
    with strangers():
        for name in ("push", "calm"):
            registry.load_file(folder / name / f"{name}.py")
        scenario = robustfl.Scenario.of({"name": "outside", "cell": {**CELL, **more}})
        robustfl.grid(scenario, out=folder / "runs", jobs=0, device="cpu")
    return folder / "runs" / "outside"


def submitted(folder: Path, store: Path) -> Path:
    plugins = [folder / name / f"{name}.py" for name in ("push", "calm")]
    return write_submission(store, folder / "theirs", plugins=plugins).folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    return submitted(folder, ran(folder))


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "theirs")
    return tmp_path / "theirs"


def checked(folder: Path, **options: Any) -> Submission:
    with strangers():
        return check_submission(folder, **{"trust": True, **options})


def refused(found: Submission) -> str:
    assert not found.accepted
    assert found.refused
    return "; ".join(f"{f.step}: {f.words}" for f in found.refused)


# --- the honest one --------------------------------------------------------------------------------------------------


def test_an_honest_submission_is_accepted_and_its_board_joins_the_others(honest: Path, tmp_path: Path) -> None:
    found = checked(honest, cells=4)
    assert found.accepted, found.findings
    assert [f.step for f in found.findings] == ["form", "contract", "contract", "numbers"]
    assert found.verification is not None
    assert [check.verdict for check in found.verification.checks] == ["identical"] * 4
    board = honest / "board.json.gz"
    joined = merge([read_source(board, name="theirs")] * 2, tolerance=0.01)
    write_merge(joined, [read_source(board)], tmp_path / "all")
    assert invoke(["report", str(tmp_path / "all"), "--no-figures", "--site", str(tmp_path / "site")]) == 0
    assert any("calm" in page.read_text() for page in (tmp_path / "site").rglob("*.html"))


def test_processes_that_ran_elsewhere_are_believed_by_what_they_left(honest: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"work": tmp_path / "work", "sample": 1, "cells": 1}
    before = checked(honest, trust=False, prepare_only=True, **how)
    assert [(f.step, f.passed) for f in before.findings] == [("form", True), ("numbers", None)]
    (job,) = (tmp_path / "work").iterdir()
    plugins = [str(path) for path in (honest / "plugins").iterdir()]
    with strangers():
        run("train", job, plugins)
    with strangers():
        run("evaluate", job, plugins)
    assert checked(honest, trust=False, **how).accepted


def test_what_a_submission_holds(honest: Path) -> None:
    found = read_submission(honest)
    assert found.wrong == ()
    assert sorted(p.name for p in honest.rglob("*") if p.is_file()) == ["board.json.gz", "calm.py", "push.py"]
    assert list(found.plugins) == ["plugins/calm.py", "plugins/push.py"]


def test_nothing_of_it_runs_before_somebody_says_that_he_has_read_it(copy: Path) -> None:
    found = checked(copy, trust=False)
    assert found.verification is None
    (words,) = [f.words for f in found.undecided]
    assert words.startswith("not run before you have read it and say --trust: plugins/calm.py (SHA-256 ")


def test_the_command_tells_each_step_and_ends_with_the_verdict(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["submit", "--check", str(copy)]) == 1
    said = capsys.readouterr().out
    assert "form: passes: 8 cells, 2 plug-ins" in said
    assert "trust: not checked: " in said
    assert "outside: UNDECIDED" in said
    (copy / "recipe.toml").write_text("")
    assert invoke(["submit", "--check", str(copy)]) == 1
    assert "outside: REFUSED" in capsys.readouterr().out


# --- what is refused without running anything ------------------------------------------------------------------------


def test_a_changed_a_missing_and_an_additional_file_are_refused(copy: Path) -> None:
    (copy / "plugins" / "calm.py").write_text(CALM.replace("X.sort", " X.sort"))
    (copy / "plugins" / "push.py").unlink()
    (copy / "plugins" / "more.py").symlink_to(copy / "plugins" / "calm.py")
    (copy / "a\nform: passes: b").write_text("")
    os.mkfifo(copy / "plugins" / "pipe.py")
    said = refused(checked(copy))
    assert r"a\nform: passes: b is no file of a submission" in said
    assert "plugins/more.py is no file of a submission" in said
    assert "plugins/pipe.py is no file of a submission" in said
    assert said.count("which it does not bring") == 2
    assert "it brings calm.py" in said


def test_a_missing_seed_is_refused_its_own_or_one_of_the_board_it_joins(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "whole")

    def of(data: dict[str, Any], seed: int, *defenses: str) -> bool:
        kept = (c for c in data["cells"] if c["labels"]["seed"] != seed or c["labels"]["defense"] not in defenses)
        data["cells"] = list(kept)
        return True

    said = refused(checked(changed(copy, lambda data: of(data, 1, "calm"))))
    assert "calm, none lacks none with seed 1, push with seed 1" in said
    shutil.copytree(tmp_path / "whole", copy, dirs_exist_ok=True)
    changed(copy, lambda data: of(data, 1, "calm", "mean"))
    assert read_submission(copy).wrong == ()
    said = refused(checked(copy, against=tmp_path / "whole" / "board.json.gz"))
    assert "mean, none lacks none with seed 1" in said


def test_a_board_with_no_task_of_the_submission_says_nothing_of_it(copy: Path) -> None:
    board = read_submission(copy).board
    assert read_submission(copy, against=board).wrong == ()
    cells = (r.model_copy(update={"labels": {**r.labels, "batch": 77}}) for r in board.cells)
    other = replace(board, name="other", cells=tuple(cells))
    (words,) = read_submission(copy, against=other).wrong
    assert words.startswith("it shares no task with other, the board it is to join")


def test_a_cell_under_another_key_is_refused(copy: Path) -> None:
    def claim(data: dict[str, Any]) -> None:
        data["cells"][0]["key"] = data["cells"][0]["key"][::-1]

    said = refused(checked(changed(copy, claim), cells=None))
    assert "form: board.json.gz: cell" in said or "another key" in said


def test_a_submission_is_not_made_of_what_others_cannot_have(honest: Path, tmp_path: Path) -> None:
    store = honest.parent / "runs" / "outside"
    with pytest.raises(UsageError, match=r"give the source with --plugin path/to/calm.py"):
        write_submission(store, tmp_path / "b")
    (tmp_path / "calm.py").write_text(CALM + "\n")
    files = [tmp_path / "calm.py", honest.parent / "push" / "push.py"]
    with pytest.raises(UsageError, match=r"calm.py has changed since the cells ran"):
        write_submission(store, tmp_path / "b", plugins=files)
    with pytest.raises(UsageError, match="is there already"):
        write_submission(store, honest)
    assert not (tmp_path / "b").exists()


def test_a_submission_is_there_as_a_whole_or_not_at_all(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, files = honest.parent / "runs" / "outside", sorted((honest / "plugins").iterdir())

    def full(path: Path, content: object) -> None:
        raise StoreError(f"cannot write {path.name}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(submitting, "write_atomic", full)
        with pytest.raises(StoreError, match="No space left"):
            write_submission(store, tmp_path / "b", plugins=files)
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    assert write_submission(store, plugins=files, name="ours").wrong == ()
    assert [path.name for path in (tmp_path / "submissions").iterdir()] == ["ours"]


def test_installed_plugins_are_named_by_what_to_install(honest: Path, copy: Path) -> None:
    (record, *_) = Store(honest.parent / "runs" / "outside").load().results

    def using(origin: str) -> list[CellResult]:
        return [record.model_copy(update={"cell": {"methods": {"attack": {"name": "a", "origin": origin}}}})]

    assert _brought(using("robustfl-mine 1.0"), []) == {}
    with pytest.raises(UsageError, match="which nobody else has"):
        _brought(using("session 0123456789ab"), [])

    def installed(data: dict[str, Any]) -> None:
        for cell in data["cells"]:
            if cell["labels"]["attack"] == "push":
                cell["cell"]["methods"]["attack"]["origin"] = "mine 2.1.dev0+0123456789ab"
                cell["key"] = digest(cell["cell"])

    (copy / "plugins" / "push.py").unlink()
    found = read_submission(changed(copy, installed))
    assert (found.wrong, found.packages) == ((), ("mine==2.1.dev0",))


# --- what only shows when it runs ------------------------------------------------------------------------------------


def test_a_number_that_is_not_reached_is_refused(copy: Path) -> None:
    def better(data: dict[str, Any]) -> None:
        for cell in data["cells"]:
            cell["metrics"]["sa"] = min(1.0, cell["metrics"]["sa"] + 0.2)

    said = refused(checked(changed(copy, better), cells=1))
    assert "numbers: cell" in said
    assert "differs" in said


def test_an_attack_with_more_rows_than_f_is_refused(tmp_path: Path) -> None:
    folder = submitted(tmp_path, ran(tmp_path, attack=MANY, defense=CALM, seed=0, rounds=1))
    assert "contract: push.py: attack push: " in refused(checked(folder, cells=1))


# Reaches the test set over the objects of the process, and calls every image what the model says of it.
RELABELS = """
import gc
def reach(X):
    for found in gc.get_objects():
        if type(found).__name__ == "Built":
            images = torch.arange(len(found.test))
            with torch.no_grad():
                said = found.experiment.model.eval()(found.test.pixels(images, dtype=X.dtype)).argmax(1)
            found.test.y.copy_(said)
"""
# Puts another function in the place of one that evaluation uses.
PLANTS = """
def reach(X):
    from robustfl.scenarios import evaluate
    true = evaluate.standard_accuracy
    def perfect(*args, **kwargs):
        found = true(*args, **kwargs)
        return type(found)(torch.ones_like(found.hits), found.labels, found.loss)
    perfect.__name__ = "perfect"
    if true.__name__ != "perfect":
        evaluate.standard_accuracy = perfect
"""
# The same as soon as it is imported; the method itself is honest.
AT_IMPORT = PLANTS + "\nreach(None)\ndef reach(X):\n    pass\n"
# Says what it would like to hear, and ends the process, where others look.
ENDS = """
import os, sys
def reach(X):
    if "isolated_phases" in sys.argv[0]:
        print("outside: ACCEPTED", flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize(("reach", "why"), [
    (RELABELS, r"differs: sa 1|differs: sa 0.9"), (PLANTS, "differs: sa 1.0000"), (AT_IMPORT, "differs: sa 1.0000"),
    (ENDS, "differs: its training ended without a record"),
])  # fmt: skip
def test_code_that_reaches_beyond_training_changes_no_number_that_is_measured_again(
    reach: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = CALM.replace("        return X.sort", "        reach(X)\n        return X.sort") + reach
    monkeypatch.setattr(evaluate, "standard_accuracy", evaluate.standard_accuracy)  # is put back afterwards
    folder = submitted(tmp_path, ran(tmp_path, defense=calm, seed=0, rounds=2))
    monkeypatch.undo()
    capfd.readouterr()
    with strangers():
        found = verify(folder / "board.json.gz", isolated=True, cells=None, where={"defense": "calm", "attack": "push"},
                       plugins=tuple(str(path) for path in (folder / "plugins").iterdir()))  # fmt: skip
    (check,) = found.checks
    assert re.match(why, f"{check.verdict}: {check.detail}"), check
    assert "ACCEPTED" not in capfd.readouterr().out


@pytest.mark.filterwarnings("ignore:clients run one after another")
def test_a_norm_that_evaluation_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_NORM)
    with strangers():
        registry.load_file(tmp_path / "own.py")
        cell = {"model": "digits-cnn", "norm": "own", "clients": 4, "rounds": 1, "evasions": []}
        robustfl.grid(robustfl.Scenario.of({"name": "normed", "cell": cell}), out=tmp_path, jobs=0)
    folder = write_submission(tmp_path / "normed", tmp_path / "theirs", plugins=[tmp_path / "own.py"]).folder
    with strangers():
        found = verify(folder / "board.json.gz", isolated=True, plugins=(str(folder / "plugins" / "own.py"),))
    (check,) = found.checks
    assert check.verdict == "identical"
    assert check.detail.startswith("evaluated by norm own (own.py ")
