"""Files from outside: archives, checkpoints, boards. Each is read whole, or refused in words; no code in it runs.

A further kind of file is one more row of ``READERS``.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_store import record
from hypothesis import strategies as st
from inputs import Fuzz, damaged

from robustfl.data.npz import read_npz
from robustfl.errors import StoreError, UsageError
from robustfl.reports.published import publish, read_board, write_board
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario, expand
from robustfl.scenarios.checkpoint import Checkpoint, IgnoredError

pytestmark = pytest.mark.fuzz
MADE_BY = {"key": "0", "versions": {"torch": "2"}}


def archives() -> list[bytes]:
    x, y = np.arange(64, dtype=np.uint8).reshape(4, 4, 4), np.array([0, 1, 0, 1])
    found = []
    for save in (np.savez, np.savez_compressed):
        for images in (x, x / 255.0):
            file = io.BytesIO()
            save(file, train_x=images, train_y=y, test_x=images, test_y=y)
            found.append(file.getvalue())
    file = io.BytesIO()
    np.savez(file, train_x=np.array([print], dtype=object), train_y=y, test_x=x, test_y=y)  # holds a pickle
    return [*found, file.getvalue()]


def checkpoints() -> list[bytes]:
    state = {"round": 3, "theta": torch.arange(6.0), "attack": {"update": {"row": torch.ones(2, 3)}}, "memory": None}
    Checkpoint(Path("c.pt"), MADE_BY).save(state, {"noted": {"curve": [1.5]}})
    own = Path("c.pt").read_bytes()
    other = io.BytesIO()
    torch.save({"format": 1, "state": os.system}, other)
    return [own, other.getvalue(), pickle.dumps(os.system)]


def boards() -> list[bytes]:
    made = [record(seed=0), record(seed=1, status="refused", reason="krum: f=4")]
    keyed = [r.model_copy(update={"cell": {"cell": r.labels, "methods": {}}}) for r in made]
    return [write_board(publish(some, name="study"), "board.json").read_bytes() for some in (keyed, keyed[:1])]


def scenarios() -> list[bytes]:
    text = b'name = "s"\nexclude = [{ attack = "alie", f = 1 }]\n[cell]\nattack = ["alie", "sf"]\nf = [1, 2]\n'
    return [text, b"\xef\xbb\xbf" + text, b"a = " + b"[" * 100_000, b"a = " + b"7" * 5000]


def read_scenario(path: Path) -> Any:
    return expand(Scenario.load(path))


def cells() -> list[bytes]:
    return [record().model_dump_json().encode(), b"[" * 100_000, b"7" * 5000]


def read_cell(path: Path) -> Any:
    store = Store("s")
    store.cells.mkdir(parents=True, exist_ok=True)
    store.path(record().key).write_bytes(path.read_bytes())
    return store.read(record().key)


def read_checkpoint(path: Path) -> Any:
    return Checkpoint(path, MADE_BY).load(torch.device("cpu"))


READERS: dict[str, tuple[Callable[[], list[bytes]], Callable[[Path], Any], type[Exception]]] = {
    "npz": (archives, partial(read_npz, classes=None), UsageError),
    "checkpoint": (checkpoints, read_checkpoint, IgnoredError),
    "board": (boards, read_board, UsageError),
    "scenario": (scenarios, read_scenario, UsageError),
    "cell": (cells, read_cell, StoreError),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.filterwarnings("ignore")  # a damaged header may ask for what numpy deprecates
def test_damaged_files(kind: str, fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    make, read, refusal = READERS[kind]
    whole = make()
    file = Path("file")
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("code in a file was run"))

    def body(data: bytes) -> None:
        file.write_bytes(data)
        Path("s").mkdir(exist_ok=True)
        before = sorted(Path().iterdir())
        with contextlib.suppress(refusal):
            read(file)
        assert sorted(Path().iterdir()) == before

    fuzz(st.one_of(damaged(whole), st.sampled_from(whole)), body)
