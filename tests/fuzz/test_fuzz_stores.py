"""Stores with cells nobody wrote: reports leave them out and say why; numbers nobody measured are shown by nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from inputs import Fuzz, changed, damaged, junk

from robustfl.cli import invoke
from robustfl.file_io import unsafe
from robustfl.records import CellResult, CurvePoint, Metrics, Timing, digest
from robustfl.reports.store import RERUN, Store

pytestmark = pytest.mark.fuzz
LABELS: dict[str, Any] = {
    "dataset": "digits", "partition": "iid", "model": "m", "norm": "fbn", "algorithm": "dsgd", "attack": "sf",
    "defense": "mean", "seed": 0, "f": 3, "f_declared": 3, "clients": 10, "scope": "both",
}  # fmt: skip


def record(**labels: Any) -> dict[str, Any]:
    known = LABELS | labels
    return CellResult(
        key=digest({"cell": known}), scenario="s", status="done", cell={"cell": known}, labels=known,
        metrics=Metrics(
            sa=0.5, loss=1.0, ra={"pgd": 0.25}, ra_worst=0.25, per_class={"sa": [0.5, None]}, samples=8,
            per_user={"sa": [0.5, None]}, groups={"spread": {"sa": 0.1}}, asr=0.5,
        ),
        curve=[CurvePoint(round=1, sa=0.5, loss=1.0, ra=0.2)], label_counts=[[1, 2], [3, 4]],
        certificates={"versions": {"torch": "2"}, "smallest_variance": 0.1, "forgetting": {"matrix": [[0.0]]}},
        timing=Timing(seconds=1.0),
    ).model_dump(mode="json")  # fmt: skip


WHOLE = [record(), record(attack="none"), record(status="refused"), record(norm="gn", seed=1)]


def shown(folder: Path) -> None:
    store = Store(folder)
    assert store.done(store.keys()) == {r.key for r in store.load().results if r.status not in RERUN}
    for form in ("table", "json"):
        command = ["report", str(folder), "--out", str(folder / "out"), "--no-figures", "--format", form]
        assert invoke(command) in (0, 1, 2)
    assert {p.name for p in Path().iterdir()} == {folder.name}


def test_changed_cells(fuzz: Fuzz, capsys: pytest.CaptureFixture[str]) -> None:
    def body(cells: list[Any]) -> None:
        Path("s/cells").mkdir(parents=True, exist_ok=True)
        for old in Path("s/cells").iterdir():
            old.unlink()
        for right, cell in zip(WHOLE, cells, strict=True):
            Path("s/cells", f"{right['key']}.json").write_text(json.dumps(cell), encoding="utf-8")
        shown(Path("s"))
        said = capsys.readouterr()
        assert not unsafe(said.out + said.err, lines=True)

    fuzz(st.tuples(*(st.one_of(st.just(cell), changed(cell)) for cell in WHOLE)).map(list), body, slow=True)


def test_damaged_cells(fuzz: Fuzz, capsys: pytest.CaptureFixture[str]) -> None:
    key = WHOLE[0]["key"]

    def body(data: bytes) -> None:
        Path("s/cells").mkdir(parents=True, exist_ok=True)
        Path("s/cells", f"{key}.json").write_bytes(data)
        Path("s/cells", f"{WHOLE[1]['key']}.json").write_text(json.dumps(WHOLE[1]))
        shown(Path("s"))
        capsys.readouterr()

    fuzz(damaged([json.dumps(WHOLE[0]).encode()]), body, slow=True)


def test_descriptions(fuzz: Fuzz, capsys: pytest.CaptureFixture[str]) -> None:
    whole = {"name": "s", "description": "d", "scenario": {"cell": {}}, "cells": {c["key"]: c["labels"] for c in WHOLE}}

    def body(data: Any) -> None:
        Path("s/cells").mkdir(parents=True, exist_ok=True)
        Path("s/scenario.json").write_text(json.dumps(data), encoding="utf-8")
        Path("s/cells", f"{WHOLE[0]['key']}.json").write_text(json.dumps(WHOLE[0]))
        shown(Path("s"))
        capsys.readouterr()

    fuzz(st.one_of(changed(whole), junk), body, slow=True)
