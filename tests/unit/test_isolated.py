"""Cells measured again by phases that share nothing but a folder: the same record, whatever is measured."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robustfl
from robustfl.records import CellResult, plain
from robustfl.scenarios import Cell, isolated_phases
from robustfl.scenarios.expand import fingerprints
from robustfl.scenarios.isolated import DATA, PROBLEM, RECORD, Job, NotMeasuredError, check_same
from robustfl.scenarios.isolated_phases import run
from robustfl.scenarios.plan import ResolvedCell

BASE: dict[str, Any] = {
    "model": "mlp(hidden=(8,))",
    "norm": "fbn",
    "clients": 4,
    "rounds": 2,
    "batch": 8,
    "evasions": [],
}
DOMAINS = ["digits-domain(style=clean)", "digits-domain(style=textured)"]
CELLS: dict[str, dict[str, Any]] = {
    "a curve under attack": {"f": 1, "attack": "sf", "defense": "median", "evaluate_every": 1, "evasions": ["fgsm"]},
    "private statistics and a chosen round": {"norm": "fedbn", "select": "validation", "validation": 0.2,
                                              "evaluate_every": 1, "tail": 2},
    "a backdoor": {"f": 1, "attack": "badnets"},
    "a trigger that is fitted to models": {"f": 1, "attack": "model-replacement(a3fl)"},
    "forgetting and representations": {"algorithm": "fedavg", "validation": 0.2, "forgetting": [1, 2],
                                       "representations": 4},
    "propagated statistics": {"norm": "dual-bn(local=true)", "model": "digits-cnn", "objective": "at",
                              "at": "ratio(rho=0.5)", "domains": DOMAINS, "propagation": "fedrbn",
                              "train_evasion": "fgsm"},
    "a refused cell": {"defense": "krum", "f": 2},
}  # fmt: skip


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phases run in this process, which is faster."""
    monkeypatch.setattr(Job, "_run", lambda job, phase: run(phase, job.folder))


def job(record: CellResult, folder: Path) -> Job:
    return Job(folder, record.key, record.cell, "cpu", 1)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_phases_apart_measure_what_one_process_does(cell: dict[str, Any], tmp_path: Path) -> None:
    record = robustfl.run({**BASE, **cell}, device="cpu")
    again = job(record, tmp_path).result()
    for name in ("status", "metrics", "curve", "label_counts", "certificates"):
        assert getattr(again, name) == getattr(record, name), name


@pytest.mark.usefixtures("one_process")
def test_training_is_given_no_test_image(tmp_path: Path) -> None:
    job(robustfl.run(BASE, device="cpu"), tmp_path).prepare()
    with np.load(tmp_path / "job" / DATA) as given:
        images = sum(given[name].shape[0] for name in given.files if name.endswith("/x"))
    arrays = robustfl.registry.create("dataset", "digits").load(tmp_path)
    assert images == len(arrays.train_y)


@pytest.mark.usefixtures("one_process")
def test_what_training_left_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = robustfl.run({**BASE, "evaluate_every": 1}, device="cpu")
    assert record.metrics is not None
    asked = job(record, tmp_path)
    asked.result()
    trained = tmp_path / "trained"
    (tmp_path / RECORD).unlink()
    forged = record.model_copy(update={"metrics": record.metrics.model_copy(update={"sa": 1.0})})
    (trained / RECORD).write_text(forged.model_dump_json())
    assert asked.result().metrics == record.metrics
    for file, content, words in (
        (trained / "000001.pt", b"no model", "no model of this cell"), (trained / RECORD, b"{}", "is no record"),
    ):  # fmt: skip
        (tmp_path / RECORD).unlink(missing_ok=True)
        file.write_bytes(content)
        with pytest.raises(NotMeasuredError, match=words):
            asked.result()
        (tmp_path / PROBLEM).unlink()
    (trained / RECORD).write_text(record.model_dump_json())
    (trained / "000001.pt").unlink()
    with pytest.raises(NotMeasuredError, match="left no model of round 1"):
        asked.result()


@pytest.mark.usefixtures("one_process")
def test_another_version_or_unknown_data_are_named(tmp_path: Path) -> None:
    record = robustfl.run(BASE, device="cpu")
    methods = {**record.cell["methods"], "norm": {**record.cell["methods"]["norm"], "version": 99}}
    other = record.model_copy(update={"cell": {**record.cell, "methods": methods}})
    with pytest.raises(NotMeasuredError, match="other versions: norm fbn: version 99 published"):
        job(other, tmp_path / "a").result()
    (tmp_path / "b").mkdir()
    gone = record.model_copy(update={"cell": {**record.cell, "cell": {**record.cell["cell"], "dataset": "nowhere"}}})
    with pytest.raises(NotMeasuredError, match=r"cannot be run here: .*nowhere"):
        job(gone, tmp_path / "b").result()


def test_a_snapshot_holds_no_code(tmp_path: Path) -> None:
    (tmp_path / "evil.pt").write_bytes(b"")
    torch.save({"round": print}, tmp_path / "evil.pt")
    with pytest.raises(Exception, match="weights_only"):
        torch.load(tmp_path / "evil.pt", weights_only=True)


def test_a_cell_whose_key_is_not_that_of_its_settings_is_another(tmp_path: Path) -> None:
    cell = Cell.of(BASE)
    resolved = ResolvedCell.of(cell, fingerprints([cell], None)[cell])
    check_same(plain(resolved.settings), resolved, resolved.key)
    with pytest.raises(NotMeasuredError, match="the settings have another key"):
        check_same(plain(resolved.settings), resolved, resolved.key[::-1])


def test_a_phase_is_a_process_that_is_told_the_plug_ins_and_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    code = f"import json, sys; json.dump(sys.argv[1:], open({str(said)!r}, 'w'))"
    monkeypatch.setattr("robustfl.scenarios.isolated.sys.executable", str(script(tmp_path, code)))
    made = replace(job(robustfl.run(BASE, device="cpu"), tmp_path), plugins=("mine.py",), root="data")
    made._run("evaluate")
    expected = ["-m", isolated_phases.__name__, "evaluate", str(tmp_path)]
    assert json.loads(said.read_text()) == [*expected, "--data-root", "data", "--plugin", "mine.py"]


def test_a_phase_that_does_not_end_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plug-in that starts a process and waits: neither outlives the deadline."""
    child = tmp_path / "child"
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '600']); "
        f"f = open({str(child)!r}, 'w'); f.write(str(p.pid)); f.close(); p.wait()"
    )
    monkeypatch.setattr("robustfl.scenarios.isolated.sys.executable", str(script(tmp_path, code)))
    made = replace(job(robustfl.run(BASE, device="cpu"), tmp_path), minutes=0.1)
    with pytest.raises(NotMeasuredError, match=r"its phase 'train' did not end within 0\.1 minutes"):
        made._run("train")
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child.read_text()}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child.read_text()}/cmdline").exists()


def script(folder: Path, code: str) -> Path:
    """A program in the place of the interpreter that runs this whatever it is told."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    file.chmod(0o755)
    return file
