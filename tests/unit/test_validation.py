"""Records with values out of range: everything that reads a store names them and counts none of their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_store import record, stored

from robustfl.errors import UsageError
from robustfl.records import CellResult, digest
from robustfl.reports import load_board
from robustfl.reports.published import publish_described
from robustfl.reports.store import Store

SETTINGS = {"rounds": 30, "tail": 20, "evasions": ["pgd", "fgsm"]}


def measured() -> CellResult:
    """A record as a run leaves it."""
    made = record(sa=0.75, ra={"pgd": 0.25, "fgsm": 0.5}, curve=(0.0, 0.25, 0.5, 0.75), **SETTINGS)
    cell = {"cell": made.labels, "methods": {}}
    ended = [*made.curve[1:-1], made.curve[-1].model_copy(update={"loss": made.metrics.loss, "ra": 0.25})]
    told = made.metrics.model_copy(update={"groups": {"tail": {"sa": 0.625}}})
    labels = {**made.labels, "evasions": "pgd fgsm"}
    known = {"cell": cell, "labels": labels, "key": digest(cell), "curve": ended, "metrics": told}
    return made.model_copy(update=known)


EDITS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda r: r.update(metrics=None), "done, but without metrics"),
    (lambda r: r["curve"][0].update(sa=1.5), "curve[0].sa=1.5 is no accuracy in [0, 1]"),
    (lambda r: r["curve"][1].update(ra=-0.1), "curve[1].ra=-0.1 is no accuracy in [0, 1]"),
    (lambda r: r["metrics"].update(sa="nan"), "sa=nan is no accuracy"),
    (lambda r: r["metrics"].update(ra={"pgd": 1.5}), "pgd=1.5 is no accuracy"),
    (lambda r: r["metrics"].update(ra_worst=-0.5), "ra_worst=-0.5 is no accuracy"),
    (lambda r: r["metrics"].update(asr=2.0), "metrics.asr=2.0 is no accuracy"),
    (lambda r: r["metrics"].update(groups={"tail": {"sa": 1.2}}), "tail: sa=1.2 is no accuracy"),
    (lambda r: r["metrics"].update(loss=-0.1), "loss=-0.1 is below 0"),
    (lambda r: r["metrics"].update(samples=-1), "samples=-1 is below 0"),
    (lambda r: r["curve"][1].update(loss=-1.0), "curve[1].loss=-1.0 is below 0"),
    (lambda r: r["metrics"].update(per_class={"sa": [0.5, 7.0]}), "metrics.per_class.sa[1]=7.0 is no accuracy"),
    (lambda r: r["metrics"].update(per_client={"sa": [None, -1.0]}), "metrics.per_client.sa[1]=-1.0 is no accuracy"),
    (lambda r: r["metrics"].update(per_user={"pgd": [1.1]}), "metrics.per_user.pgd[0]=1.1 is no accuracy"),
    (lambda r: r["label_counts"][2].__setitem__(0, -4), "label_counts[2]=-4 is below 0"),
    (lambda r: r["certificates"].update(threads=-2), "certificates.threads=-2 is below 0"),
]


@pytest.mark.parametrize(("edit", "words"), EDITS, ids=[words for _, words in EDITS])
def test_a_record_out_of_range_is_a_problem_and_no_number(edit, words, tmp_path):
    whole = measured()
    store = stored(tmp_path, [whole, record()])
    assert not store.load().problems
    data = json.loads(store.path(whole.key).read_text())
    edit(data)
    store.path(whole.key).write_text(json.dumps(data))
    (problem,) = store.load().problems
    assert words in problem.reason
    assert store.done([whole.key]) == set()
    assert any(words in said for said in load_board(tmp_path).problems)


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 5}', '{"cells": {"a": 1}}'])
def test_a_description_that_cannot_be_read_is_told(text: str, tmp_path: Path) -> None:
    store = stored(tmp_path, [record()])
    assert not store.load().problems
    (tmp_path / "scenario.json").write_text(text)
    (said,) = load_board(tmp_path).problems
    assert "scenario.json" in said
    assert "nobody knows which cells are missing" in said
    assert Store(tmp_path).description() == {}


def test_no_board_is_written_that_its_readers_refuse() -> None:
    made = measured()
    assert publish_described([made], {}, name="x").cells
    strange = made.model_copy(update={"certificates": {"attack_shift": "big"}})
    with pytest.raises(UsageError, match=r"certificates\.attack_shift"):
        publish_described([strange], {}, name="x")


def test_a_record_and_a_planned_cell_of_another_version_are_named_by_their_keys(tmp_path: Path) -> None:
    made = measured()
    stored(tmp_path, [made]).describe({"cells": {"0123456789abcdef": made.labels}})
    words = rf"two cells for mean, fbn, sf, seed 0: .*{made.key[:12]} \(done\)"
    with pytest.raises(UsageError, match=words) as raised:
        load_board(tmp_path)
    assert "0123456789ab (missing)" in str(raised.value)
