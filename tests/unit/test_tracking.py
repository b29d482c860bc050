"""Trackers: what TensorBoard is told, and that following a cell never hurts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from fake_store import record

import robustfl
from robustfl.errors import UsageError
from robustfl.records import CurvePoint
from robustfl.scenarios.tracking import Followed, TensorBoard, check, run_name

LABELS = {"norm": "fbn", "attack": "foe(eta=10)", "defense": "mean", "seed": 0}


def events(folder: Path) -> Any:
    """What TensorBoard itself reads from the one run under ``folder``."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (run,) = (folder / "tensorboard").iterdir()
    return reader.EventAccumulator(str(run)).Reload()


def test_tensorboard_gets_every_evaluated_round_and_the_final_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path, "ab" * 16, LABELS)
    board.evaluated(CurvePoint(round=5, sa=0.5, loss=1.0))
    board.evaluated(CurvePoint(round=10, sa=0.75, loss=0.5, ra=0.25))
    board.finished(record(sa=0.75, ra={"pgd": 0.25}, curve=[0.1, 0.75]))
    found = events(tmp_path)
    assert [(e.step, e.value) for e in found.Scalars("sa")] == [(5, 0.5), (10, 0.75)]
    assert [(e.step, e.value) for e in found.Scalars("ra")] == [(10, 0.25)]
    assert [(e.step, e.value) for e in found.Scalars("final/ra pgd")] == [(10, 0.25)]
    assert found.Tensors("status/text_summary")[0].tensor_proto.string_val[0] == b"done"


def test_tensorboard_says_why_a_cell_was_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    TensorBoard(tmp_path, "ab" * 16, LABELS).finished(record(status="refused", reason="krum: f=4\nmore"))
    assert events(tmp_path).Tensors("status/text_summary")[0].tensor_proto.string_val[0] == b"refused: krum: f=4"


def test_a_cell_that_is_run_again_is_one_line_not_two(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for sa in (0.1, 0.9):
        board = TensorBoard(tmp_path, "ab" * 16, LABELS)
        board.evaluated(CurvePoint(round=1, sa=sa, loss=1.0))
        board.finished(record(sa=sa))
    assert [e.value for e in events(tmp_path).Scalars("sa")] == pytest.approx([0.9])


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'robustfl\[track\]'"):
        check(["tensorboard"])


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'tensorboard'"):
        check(["tensorbord"])


def test_a_tracker_that_raises_is_dropped_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    followed = Followed(["tensorboard"], tmp_path, "ab" * 16, LABELS)
    followed.evaluated(CurvePoint(round=1, sa=0.5, loss=1.0))
    monkeypatch.setattr(TensorBoard, "_scalars", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.warns(RuntimeWarning, match="tensorboard no longer follows cell abababababab: disk full"):
        followed.evaluated(CurvePoint(round=13, sa=0.5, loss=1.0))
    followed.finished(record())  # nobody is told


def test_a_run_name_is_a_plain_folder_name() -> None:
    name = run_name("cd" * 16, {"norm": "fbn", "attack": "a/b:c" * 60, "defense": "../x", "f": 3, "seed": 1})
    assert "/" not in name
    assert len(name) < 200
    assert name.endswith("cdcdcdcdcdcd")


def test_a_function_of_the_callers_hears_of_every_evaluation() -> None:
    heard: list[CurvePoint] = []
    settings = {"model": "mlp(hidden=(4,))", "clients": 2, "rounds": 2, "evaluate_every": 1, "evasions": []}
    assert robustfl.run(settings, on_point=heard.append).curve == heard
    assert [point.round for point in heard] == [1, 2]
