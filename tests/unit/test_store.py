"""The store: whole files or none, what counts as done, and errors that name the folder."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fake_store import record, stored

import robustfl
from robustfl.cli import invoke
from robustfl.errors import StoreError, UsageError
from robustfl.records import CellResult, digest
from robustfl.reports import load, load_board
from robustfl.reports.store import Store, open_store, retire, write_atomic
from robustfl.reports.writing import publish_store
from robustfl.scenarios import single


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    item = record(sa=0.1 + 0.2, curve=[0.1, 0.3])
    store = stored(tmp_path, [item])
    assert store.read(item.key) == item
    assert store.keys() == {item.key}
    assert store.path(item.key).is_file()


def test_nothing_is_created_before_the_first_write(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    assert store.keys() == set()
    assert store.done(["ab"]) == set()
    assert not (tmp_path / "s").exists()


def test_failed_cells_run_again_and_the_other_states_are_done(tmp_path: Path) -> None:
    states = ["done", "refused", "diverged", "failed"]
    items = {s: record(status=s, seed=i) for i, s in enumerate(states)}
    store = stored(tmp_path, list(items.values()))
    keys = [r.key for r in items.values()]
    assert store.done(keys) == {items[s].key for s in states[:3]}
    assert store.statuses(keys) == {"done": 1, "refused": 1, "diverged": 1, "failed": 1}
    assert store.done(["0" * 32]) == set()


@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_a_truncated_file_is_not_done_and_is_reported_as_a_problem(tmp_path: Path, keep: int) -> None:
    item = record()
    store = stored(tmp_path, [item])
    path = store.path(item.key)
    path.write_bytes(path.read_bytes()[:keep])
    assert store.done([item.key]) == set()
    loaded = store.load()
    assert loaded.results == ()
    assert loaded.problems[0].path == path
    assert "truncated" in loaded.problems[0].reason
    with pytest.raises(StoreError, match="delete the file"):
        store.read(item.key)
    store.commit(item)
    assert store.done([item.key]) == {item.key}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": 99}, "schema 99; this robustfl reads 1"),
        ({"status": "great"}, "status 'great' is none of"),
        ({"key": "other"}, "another cell, 'other'"),
        ({"timing": {"seconds_per_round": -3.0}}, "timing.seconds_per_round: Input should be greater"),
        ({"timing": {"seconds": "nan"}}, "timing.seconds: Input should be a valid number"),
        ({"timing": {"seconds": math.nan}}, "corrupt (not JSON: NaN is no number there)"),
        ({"surprise": 1}, "surprise"),
        ({"curve": 3}, "curve"),
    ],
)
def test_a_foreign_record_is_a_problem_with_its_reason(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    item, other = record(), record(seed=1)
    store = stored(tmp_path, [item, other])
    data = json.loads(store.path(item.key).read_text())
    store.path(item.key).write_text(json.dumps(data | change) + "\n")
    loaded = store.load()
    assert [r.key for r in loaded.results] == [other.key]
    assert reason in loaded.problems[0].reason


@pytest.mark.parametrize("text", ["[]", "{}", "null", '"x"', "NaN", "\x00"])
def test_json_that_is_no_record_is_a_problem(tmp_path: Path, text: str) -> None:
    store = stored(tmp_path, [record()])
    (store.cells / "ab12.json").write_text(text)
    assert len(store.load().problems) == 1
    assert store.done(["ab12"]) == set()


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = record(sa=0.5)
    store = stored(tmp_path, [old])

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cells: No space left on device; free space") as caught:
        store.commit(record(sa=0.9))
    assert str(tmp_path) in str(caught.value)
    assert os.listdir(store.cells) == [f"{old.key}.json"]
    assert store.read(old.key) == old


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another one"):
        Store(tmp_path / "file" / "store").commit(record())


def test_a_folder_that_cannot_be_written_is_told_before_a_cell_is_trained(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("kept")

    def trained(*_: object, **how: object) -> None:
        pytest.fail("trained")

    with monkeypatch.context() as patch:
        patch.setattr(single, "run_resolved", trained)
        with pytest.raises(StoreError, match=r"cannot write .* in .*file/run/cells: Not a directory"):
            robustfl.run({"rounds": 1}, out=tmp_path / "file")
        for command in ("grid", "run", "bench d"):
            assert invoke([*command.split(), "--out", str(tmp_path / "file")]) == 2
    assert (tmp_path / "file").read_text() == "kept"
    assert Store(tmp_path / "s").ready() is None
    assert list(tmp_path.glob("s/cells/*")) == []


def test_temporary_files_are_ignored_and_swept_when_old(tmp_path: Path) -> None:
    item = record()
    store = stored(tmp_path, [item])
    old, young = store.cells / f".a.json.{'1' * 32}.tmp", store.cells / f".b.json.{'2' * 32}.tmp"
    for path in (old, young):
        path.write_text("{")
    os.utime(old, (time.time() - 7200,) * 2)
    assert store.keys() == {item.key}
    store.describe({"name": "s"})
    assert not old.exists()
    assert young.exists()
    assert store.description()["name"] == "s"


def test_what_killed_merges_reports_and_models_left_is_swept_when_nobody_writes_to_it_any_more(tmp_path: Path) -> None:
    store = stored(tmp_path, [record()])
    names = ("report/.leaderboard.md.{}.tmp", "models/.a.npz.{}.tmp", ".merge-{}.tmp/cells/x")
    left = [tmp_path / name.format("3" * 32) for name in names]
    busy, foreign = tmp_path / f".merge-{'4' * 32}.tmp" / "cells" / "y", tmp_path / "report" / ".mine.tmp"
    for path in (*left, busy, foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    long_ago = (time.time() - 7200,) * 2
    for path in (*left, left[2].parent, left[2].parents[1], busy, busy.parents[1], foreign):
        os.utime(path, long_ago)  # and a merge that writes to its folder now
    assert len(store.sweep()) == 3
    assert not any(path.exists() for path in (*left, left[2].parents[1]))
    assert busy.exists()
    assert foreign.exists(), "somebody else's"


def test_a_report_and_a_run_sweep_the_folders_that_they_write_to(tmp_path: Path) -> None:
    stored(tmp_path / "s", [record()])
    robustfl.run({"rounds": 1, "clients": 2, "evasions": []}, out=tmp_path)
    places = ("s", "out", "site/contestants", "run/checkpoints")
    left = [tmp_path / place / f".page.html.{'5' * 32}.tmp" for place in places]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<")
        os.utime(path, (time.time() - 7200,) * 2)
    publish_store(tmp_path / "s", tmp_path / "out", figures=False, site=tmp_path / "site")
    assert [path.exists() for path in left] == [False, False, False, True]
    robustfl.run({"rounds": 1, "clients": 2, "evasions": []}, out=tmp_path)
    assert not left[3].exists()


@pytest.mark.parametrize("key", ["../x", "", ".hidden", "a/b"])
def test_a_key_that_leaves_the_folder_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match="key="):
        Store(tmp_path).path(key)


def _commit_many(folder: Path, sa: float) -> None:
    for _ in range(30):
        Store(folder).commit(record(sa=sa))


@pytest.mark.slow
def test_writers_of_one_cell_never_tear_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_commit_many, args=(tmp_path, sa)) for sa in (0.25, 0.75)]
    for worker in workers:
        worker.start()
    key, seen = record().key, 0
    while any(w.is_alive() for w in workers):
        if Store(tmp_path).path(key).is_file():
            assert Store(tmp_path).read(key).metrics is not None
            seen += 1
    assert all(w.exitcode == 0 for w in workers)
    assert seen
    assert os.listdir(tmp_path / "cells") == [f"{key}.json"]


def test_a_wrong_path_names_the_stores_nearby_or_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="robustfl grid"):
        open_store(tmp_path)
    stored(tmp_path / "runs" / "quickstart", [record()])
    for path in (tmp_path / "runs", tmp_path / "runs" / "quikstart", tmp_path):
        with pytest.raises(UsageError, match=r"stores nearby: .*quickstart"):
            open_store(path)
    assert open_store(tmp_path / "runs" / "quickstart" / "cells").folder == tmp_path / "runs" / "quickstart"
    assert len(load(tmp_path / "runs" / "quickstart").results) == 1


def test_files_of_an_earlier_report_go_and_those_of_others_stay(tmp_path: Path) -> None:
    place, other = tmp_path / "report", tmp_path / "other.txt"
    for file in (place / "pages" / "old.html", place / "new.html", place / "mine.txt", other):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("words")
    retire(place, [place / "pages" / "old.html", place / "new.html", other])
    with (place / ".written").open("a") as listing:
        listing.write("../other.txt\n")
    retire(place, [place / "new.html"])
    left = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert left == ["other.txt", "report/.written", "report/mine.txt", "report/new.html"]
    assert (place / ".written").read_text() == "new.html\n"


def test_a_report_takes_nothing_of_its_own_away_nor_of_a_site_that_it_does_not_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "s", [record()])
    for _ in range(2):
        made = publish_store("s", "rep", figures=False, site=tmp_path / "rep")
        assert all(file.is_file() for file in (*made.files, *made.site))
    nested = publish_store("s", "out", figures=False, site="out/site")
    publish_store("s", "out", figures=False)
    assert all(file.is_file() for file in (*nested.files, *nested.site))


def test_a_write_goes_through_a_link_and_takes_the_place_of_no_pipe(tmp_path: Path) -> None:
    """A link stays a link and what it leads to is written, also where that is not there yet."""
    (tmp_path / "there").mkdir()
    for name in ("link", "again"):
        (tmp_path / name).symlink_to(tmp_path / "there" / "file")
        write_atomic(tmp_path / name, name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / "file").read_text() == name
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "piped").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "piped"):
        with pytest.raises(UsageError, match="is a pipe or a device"):
            write_atomic(tmp_path / name, "x")
        assert (tmp_path / name).is_fifo()


def test_cells_of_earlier_data_are_left_out_once_their_settings_are_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def of(data: str, **labels: Any) -> CellResult:
        made = record(**labels)
        cell = {**made.cell, "data": data}
        return made.model_copy(update={"cell": cell, "key": digest(cell)})

    old, new, other = of("a" * 64, sa=0.9), of("b" * 64, sa=0.5), of("a" * 64, sa=0.7, seed=7)
    for made in (old, other):
        store.commit(made)
    assert store.current() == store.load()  # nobody was asked anything
    store.describe({"cells": {new.key: new.labels}})
    assert store.current().results == store.load().results  # not yet run again
    store.commit(new)
    found = store.current()
    assert {r.key for r in found.results} == {new.key, other.key}
    assert found.earlier == 1
    board = load_board(tmp_path)
    assert (
        board.notes[-1] == "Cells of earlier code or data, of which the same settings were run again, are left out: 1."
    )
    assert [place.mean for place in board.select(metric="sa").rows[0].cells] == [pytest.approx(0.6)]
    store.describe({"cells": {old.key: old.labels}})  # the old data are back
    assert {r.key for r in store.current().results} == {old.key, other.key}
