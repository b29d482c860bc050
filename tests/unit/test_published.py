"""A published board: what it holds, what is wrong with an edited one, and the schema it is published under."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pydantic
import pytest
from board_files import edited, resigned
from fake_store import record

import robustfl.reports
from robustfl.errors import OldFormatWarning, UsageError
from robustfl.records import CellResult, CurvePoint, digest, labels_of, misnamed
from robustfl.reports.published import json_schema, publish, read_board, write_board
from robustfl.reports.published.faults import undeclared
from robustfl.reports.published.format2 import SCHEMA, Cell, merged, shared, without
from robustfl.reports.record_faults import unlikely


def real(**labels: Any) -> CellResult:
    """A record as a run leaves it: the key is the digest of the whole cell."""
    made = record(**labels)
    cell = {"cell": made.labels, "methods": {"norm": {"name": "fbn", "version": 1}}, "schema": 1}
    return made.model_copy(update={"cell": cell, "key": digest(cell)})


def written(folder: Path, *records: CellResult) -> Path:
    return write_board(publish(records, name="study"), folder / "board.json")


def test_an_honest_board_reads_back_as_its_records_with_nothing_wrong(tmp_path: Path) -> None:
    records = [real(seed=0), real(seed=1, sa=0.25), real(seed=2, status="refused", reason="krum: f=4\nmore")]
    board, wrong = read_board(written(tmp_path, *records))
    back = {r.key: r for r in board.records()}
    assert wrong == []
    for one in records:
        assert back[one.key].cell == one.cell
        assert one.labels.items() <= back[one.key].labels.items()
        assert back[one.key].status == one.status
        assert (back[one.key].metrics is None) == (one.metrics is None)
    assert back[records[1].key].metrics.sa == 0.25  # type: ignore[union-attr]
    assert back[records[2].key].reason == "krum: f=4"


@pytest.mark.parametrize("rounds", [("",), ("1", "30")])
def test_mean_forgetting_is_published_without_its_matrices(tmp_path: Path, rounds: tuple[str, ...]) -> None:
    measured = {r: {"mean": 0.25, "matrix": [[0.25]], "clients": [0]} for r in rounds}
    told = {"forgetting": measured.get("", measured)}
    made = real(seed=0, forgetting=True if rounds == ("",) else [int(r) for r in rounds])
    labels = made.labels if rounds == ("",) else {**made.labels, "forgetting": " ".join(rounds)}
    board, wrong = read_board(written(tmp_path, made.model_copy(update={"certificates": told, "labels": labels})))
    means = {r: {"mean": 0.25} for r in rounds}
    assert wrong == []
    assert board.records()[0].certificates["forgetting"] == means.get("", means)


def test_the_same_records_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    first = written(tmp_path, real(seed=0), real(seed=1)).read_bytes()
    assert written(tmp_path, real(seed=1), real(seed=0)).read_bytes() == first


def test_what_all_cells_share_stands_once(tmp_path: Path) -> None:
    data = json.loads(written(tmp_path, real(seed=0), real(seed=1)).read_text())
    assert data["common"]["cell"]["cell"]["norm"] == "fbn"
    assert data["methods"] == [{"name": "fbn", "version": 1}]
    assert data["common"]["cell"]["methods"] == {"norm": 0}
    assert sorted(c["cell"]["cell"]["seed"] for c in data["cells"]) == [0, 1]
    assert all(set(c["cell"]) == {"cell"} and set(c["cell"]["cell"]) == {"seed"} for c in data["cells"])


def test_refused_cells_of_a_contestant_stand_together_and_come_back_under_their_keys(tmp_path: Path) -> None:
    refused = [real(seed=s, status="refused", reason="krum: f=4 needs 11 clients") for s in range(3)]
    other = real(seed=0, defense="median", status="refused", reason="too few")
    path = written(tmp_path, real(seed=9), *refused, other)
    groups = json.loads(path.read_text())["refused"]
    assert sorted(len(group["cells"]) for group in groups) == [1, 3]
    board, wrong = read_board(path)
    assert wrong == []
    found = {r.key: r.reason for r in board.cells if r.status == "refused"}
    assert found == {r.key: r.reason for r in (*refused, other)}


def test_what_most_cells_say_stands_once_and_the_others_say_what_they_lack(tmp_path: Path) -> None:
    facts: list[dict[str, Any]] = [{"device": "cpu", "traffic": {"exchanges": 1}}] * 2 + [{"device": "cuda"}, {}]
    made = [real(seed=s).model_copy(update={"certificates": told}) for s, told in enumerate(facts)]
    path = written(tmp_path, *made)
    assert json.loads(path.read_text())["common"]["certificates"] == {}  # two of four are no majority
    path = written(tmp_path, *made[:3])
    assert json.loads(path.read_text())["common"]["certificates"] == {"device": "cpu", "traffic": 0}
    told = {r.key: r.certificates for r in read_board(path)[0].cells}
    assert told == {r.key: r.certificates for r in made[:3]}


def test_a_compressed_board_is_the_same_board(tmp_path: Path) -> None:
    board = publish([real(seed=0), real(seed=1)], name="x")
    plainly, small = (write_board(board, tmp_path / name) for name in ("b.json", "b.json.gz"))
    assert gzip.decompress(small.read_bytes()) == plainly.read_bytes()
    assert read_board(small) == read_board(plainly)
    assert write_board(board, tmp_path / "again.json.gz").read_bytes() == small.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("b.json.gz", lambda good: good[: len(good) // 2], "truncated or corrupt"),
        ("b.json.gz", lambda good: good + b"x", "truncated or corrupt"),
        ("b.json.gz", lambda good: good[:20] + b"\xff" * 20 + good[40:], "truncated or corrupt"),
        ("b.json.gz", gzip.decompress, r"not compressed by gzip, though its name ends in \.gz"),
        ("b.json", lambda good: good, "compressed by gzip, which its name does not say"),
    ],
)
def test_a_truncated_or_mislabelled_compressed_board_says_so(
    name: str, content: Any, words: str, tmp_path: Path
) -> None:
    good = write_board(publish([real()], name="x"), tmp_path / "good.json.gz").read_bytes()
    (tmp_path / name).write_bytes(content(good))
    with pytest.raises(UsageError, match=words):
        read_board(tmp_path / name)


def test_a_board_of_format_1_is_read_with_a_note_how_to_convert_it(tmp_path: Path) -> None:
    with pytest.warns(OldFormatWarning, match=r"robustfl merge .*board-1\.json --out board-1-2\.json\.gz"):
        board, wrong = read_board(Path(__file__).with_name("board-1.json"))
    assert wrong == []
    new, wrong = read_board(write_board(board, tmp_path / "b.json.gz"))
    assert wrong == []
    assert [r.model_dump(exclude={"timing", "labels"}) for r in new.cells] == [
        r.model_dump(exclude={"timing", "labels"}) for r in board.cells
    ]
    assert all(old.labels.items() <= now.labels.items() for old, now in zip(board.cells, new.cells, strict=True))
    assert [r.timing for r in new.cells if r.status != "refused"] == [
        r.timing for r in board.cells if r.status != "refused"
    ]
    data = json.loads(Path(__file__).with_name("board-1.json").read_text())
    data["cells"][0]["seconds"] += 1.0
    (tmp_path / "edited.json").write_text(json.dumps(data))
    with pytest.warns(OldFormatWarning):
        assert any("edited after it was written" in words for words in read_board(tmp_path / "edited.json")[1])


def test_a_method_beyond_the_table_is_named(tmp_path: Path) -> None:
    path = edited(written(tmp_path, real(), real(seed=1)), lambda d: d["common"]["cell"]["methods"].update(norm=1))
    with pytest.raises(UsageError, match=r"cells\[0\] names methods\[1\], and the table has 1 entries"):
        read_board(path)


def test_a_changed_number_breaks_the_digest(tmp_path: Path) -> None:
    path = edited(written(tmp_path, real()), lambda d: d["cells"][0]["metrics"].update(sa=0.99))
    assert any("edited after it was written" in words for words in read_board(path)[1])


def test_a_changed_setting_is_found_even_under_a_new_digest(tmp_path: Path) -> None:
    path = edited(written(tmp_path, real(seed=0), real(seed=1)), lambda d: d["cells"][0]["cell"]["cell"].update(seed=7))
    wrong = read_board(resigned(path))[1]
    assert len(wrong) == 1
    assert "its settings have the key" in wrong[0]


@pytest.mark.parametrize("value", [1.5, -0.1, "nan"])
def test_a_number_that_is_no_accuracy_is_found_even_under_a_new_digest(tmp_path: Path, value: Any) -> None:
    path = edited(written(tmp_path, real()), lambda d: d["cells"][0]["metrics"].update(sa=value))
    assert any("is no accuracy" in words for words in read_board(resigned(path))[1])


@pytest.mark.parametrize("value", ["0.9", True, "NaN", [0.9]])
def test_what_is_no_number_is_none_in_a_board(tmp_path: Path, value: Any) -> None:
    path = edited(written(tmp_path, real()), lambda d: d["cells"][0]["metrics"].update(sa=value))
    with pytest.raises(UsageError, match=r"cells\[0\]\.metrics\.sa: Input should be a valid number"):
        read_board(resigned(path))


DEVIL: list[tuple[dict[str, Any], str]] = [
    ({"reason": "checked by three reviewers"}, "done, and a reason why not: 'checked by three reviewers'"),
    ({"round": 3}, "done, and diverged in round 3"),
    ({"status": "refused"}, "refused, and has metrics"),
    ({"certificates": {"reviewed": "yes"}}, "its certificate 'reviewed' is none that boards carry"),
    ({"certificates": {"no_effect": 1}}, "no_effect=1 is no fact"),
    ({"certificates": {"attack_shift": -1.0}}, "attack_shift=-1.0 is no distance"),
    ({"certificates": {"versions": {"torch": "9.9"}}}, "its environment says versions {'torch': ['2.6.0']}"),
    ({"commits": ["0" * 40]}, f"cells name the commit {'0' * 40}, which is not in its environment"),
    ({"curve": [{"round": 5, "sa": 0.2, "loss": 1.0}, {"round": 5, "sa": 0.3, "loss": 1.0}]}, "from round to round"),
    ({"curve": [{"round": 5, "sa": 1.2, "loss": 1.0}]}, "curve[0].sa=1.2 is no accuracy"),
    ({"curve": [{"round": 5, "sa": 0.2, "loss": -1.0}]}, "curve[0].loss=-1.0 is below 0"),
    ({"certificates": {"forgetting": {"1": {"mean": 1.5}}}}, "is no table of rounds, or of one, with a mean in"),
    ({"certificates": {"forgetting": {"mean": True}}}, "is no table of rounds, or of one, with a mean in"),
    ({"certificates": {"forgetting": {"": {"mean": 0.5}, "9": 3}}}, "is no table of rounds, or of one, with a mean in"),
    ({"certificates": {"forgetting": [0.5]}}, "is no table of rounds, or of one, with a mean in"),
    ({"metrics": {"sa": 0.5, "loss": 1.0, "per_user": {"sa": [1.0]}}}, "it has per_user, which boards do not carry"),
    ({"metrics": {"sa": 0.5, "loss": 1.0, "asr": 1.5}}, "metrics.asr=1.5 is no accuracy"),
    ({"metrics": {"sa": 0.5, "loss": 1.0, "ra": {"a": 0.1}, "ra_worst": 0.2}}, "ra_worst=0.2 is above"),
    ({"metrics": {"sa": 0.5, "loss": 1.0, "groups": {"selected": {"sa": 0.9}}}}, "a selected round, and selects none"),
    ({"metrics": {"sa": 0.5, "loss": 1.0, "groups": {"tail": {"sa": 0.9}}}}, "a tail of one round"),
    ({"metrics": {"sa": 0.5, "loss": 1.0, "groups": {"ra": {"sa": 0.1}}}}, "a group is called 'ra'"),
    ({"status": "refused", "metrics": None, "certificates": {"dropped": 1}}, "certificate 'dropped'"),
    ({"status": "failed", "metrics": None, "certificates": {"attack_shift": 0.0}}, "certificate 'attack_shift'"),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "words"), DEVIL)
def test_a_cell_that_says_what_no_run_leaves_is_found_even_under_a_new_digest(
    claim: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = edited(written(tmp_path, real()), lambda d: d["cells"][0].update(claim))
    assert any(words in said for said in read_board(resigned(path))[1])


CERTIFICATES: list[tuple[str, list[Any], list[Any]]] = [
    ("device", ["cpu"], [1]),
    ("threads", [1, 2**16], [0, 2**16 + 1, True, 1.0, "2"]),
    ("versions", [{"torch": "2.11.0+cu130"}], ["2", {"torch": 2}, {"torch": "2 #"}, {"evil @ http://x.zip #": "1"}]),
    ("source", ["we"], [3]),
    ("unreliable", ["so", ["a", "b"]], [3, ["a", 3]]),
    ("evaluation", ["of x"], [False]),
    ("model", [{}], ["x"]),
    ("traffic", [{"exchanges": 1, "mebibytes": 0.5}], [{"hops": 1}, {"exchanges": -1}, {"exchanges": True}, 3]),
    ("attack_shift", [0, 0.5, "inf", "nan"], [-1, math.inf, "far", True]),
    ("statistics", [0, 12], [-1, "12"]),
    ("statistics_shift", [0.0, "inf"], [-0.1, "far"]),
    ("dropped", [0, 2.5], [-1, math.inf, True]),
    ("no_effect", [True], [False, 1]),
    ("forgetting", [{"mean": -1}, {"mean": 1}, {"mean": "nan"}], [{"mean": -1.1}, {"mean": 1.1}, {"mean": "inf"}]),
]


@pytest.mark.parametrize(("name", "good", "bad"), CERTIFICATES)
def test_a_certificate_is_what_it_is_called(name: str, good: list[Any], bad: list[Any]) -> None:
    def found(value: Any) -> str | None:
        return undeclared(real(forgetting=True).model_copy(update={"certificates": {name: value}}))

    assert [found(value) for value in good] == [None] * len(good)
    assert all(str(found(value)).startswith(f"{name}={value!r} is no ") for value in bad)


SETTLED = {"rounds": 30, "evaluate_every": 10, "tail": 5, "select": "validation"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "refused", "metrics": None, "round": 3}, "refused, and diverged in round 3"),
        ({"status": "diverged", "metrics": None, "round": 3, "reason": "so"}, None),
        ({"status": "diverged", "round": 3}, "diverged, and has metrics"),
        ({"status": "failed"}, "failed, and has metrics"),
        ({"curve": [{"round": 20}, {"round": 10}]}, "from round to round"),
        ({"curve": [{"round": 0}]}, "from round to round"),
        ({"curve": [{"round": 40}]}, "from round to round"),
        ({"curve": [{"round": 10, "loss": 0.0}, {"round": 20}]}, None),
        ({"curve": [{"round": 10, "ra": 1.5}]}, "no accuracy in [0, 1]"),
        ({"curve": [{"round": 10, "ra": -0.5}]}, "no accuracy in [0, 1]"),
        ({"curve": [{"round": 10}], "status": "diverged", "metrics": None}, None),
        ({"metrics": {"per_class": {"sa": [0.5]}}}, "it has per_class"),
        ({"metrics": {"per_client": {"sa": [0.5]}}}, "it has per_client"),
        ({"metrics": {"asr": -0.5}}, "metrics.asr=-0.5 is no accuracy"),
        ({"metrics": {"asr": 0.0}}, None),
        ({"metrics": {"ra": {"a": 0.25, "b": 0.5}, "ra_worst": 0.25}}, None),
        ({"metrics": {"ra": {"a": 0.25, "b": 0.5}, "ra_worst": 0.375}}, "ra_worst=0.375 is above"),
        ({"metrics": {"groups": {"tail": {}, "selected": {}, "selected, a": {}}}}, None),
        ({"metrics": {"groups": {"selected, a": {}}}, "select": "last"}, "a selected round, and selects none"),
        ({"metrics": {"groups": {"tail": {}}}, "tail": 1}, "means over a tail of one round"),
    ],
)
def test_parts_of_a_cell_fit_each_other(change: dict[str, Any], words: str | None) -> None:
    made = real(**{**SETTLED, **{k: v for k, v in change.items() if k in SETTLED}})
    told = {"scenario": "x", "metrics": {}, **made.model_dump(exclude={"metrics", "certificates"}), **change}
    told["curve"] = [{"sa": 0.5, "loss": 1.0, **point} for point in change.get("curve", ())]
    if told["metrics"] is not None:
        told["metrics"] = {"sa": 0.5, "loss": 1.0, "samples": 9, **told["metrics"]}
    whole = CellResult.model_validate({k: v for k, v in told.items() if k not in SETTLED})
    found = unlikely(whole) or undeclared(whole)
    assert found is None if words is None else words in str(found)


def test_a_curve_may_end_in_a_loss_that_is_no_number() -> None:
    made = real(rounds=30, ra={})
    assert made.metrics is not None
    last = CurvePoint(round=30, sa=0.9, loss=math.nan)
    both = {"metrics": made.metrics.model_copy(update={"loss": math.nan}), "curve": [last], "certificates": {}}
    assert unlikely(made.model_copy(update=both)) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["cells"][0].update(certificates={"device": "tpu"}), "its environment says devices []"),
        (lambda d: d["cells"][0].update(certificates={"threads": 3}), "its environment says threads []"),
        (lambda d: d.update(protocol={"benchmark": 3}), "protocol.benchmark is no table"),
        (lambda d: d.update(protocol={"audit": {}}), "protocol holds 'audit', which says nothing; it may hold autobyz"),
        (lambda d: d.update(protocol={"benchmark": {"contestants": {"a": {"x": 1}}}}), "the search of a holds 'x'"),
    ],
)
def test_what_a_board_says_of_its_cells_together_is_held_against_them(change: Any, words: str, tmp_path: Path) -> None:
    said = read_board(resigned(edited(written(tmp_path, real()), change)))[1]
    assert any(words in fault for fault in said), said


def test_a_board_may_carry_what_earlier_ones_said_of_members_that_did_not_run(tmp_path: Path) -> None:
    facts = {"version": 1, "cheap": "So.", "dropped": {"k": {"attack": "sf"}}, "seed": 0}
    assert (
        read_board(write_board(publish([real()], name="b", protocol={"autobyz": facts}), tmp_path / "b.json"))[1] == []
    )


@pytest.mark.parametrize(
    ("every", "tail", "measured"), [(10, 1, {10, 20, 25}), (0, 1, {3, 6, 24, 25}), (7, 2, {7, 24, 25})]
)
def test_a_curve_of_rounds_that_nothing_was_measured_in_is_found(
    every: int, tail: int, measured: set[int], tmp_path: Path
) -> None:
    made = real(evaluate_every=every, tail=tail, rounds=25)
    for round in (3, 6, 7, 10, 20, 24, 25):
        point = CurvePoint(round=round, sa=0.25, loss=1.5)
        board = publish([made.model_copy(update={"curve": [point]})], name="x", curves=True)
        said = read_board(write_board(board, tmp_path / "b.json"))[1]
        assert any("nothing was measured in" in words for words in said) == (round not in measured)


def test_a_curve_of_a_training_that_stops_early_ends_where_it_stops(tmp_path: Path) -> None:
    made = real(evaluate_every=4, tail=3, rounds=30, stop=10)
    curve = [CurvePoint(round=t, sa=t / 40, loss=1.5) for t in (4, 8, 9, 10)]
    assert made.metrics is not None
    last = {"sa": 0.25, "loss": 1.5, "ra": {}, "ra_worst": None, "groups": {"tail": {"sa": 9 / 40}}}
    told = {"curve": curve, "metrics": made.metrics.model_copy(update=last)}
    assert unlikely(made.model_copy(update=told)) is None
    assert faults_of(made, told, tmp_path) == []
    wrong = {"metrics": made.metrics.model_copy(update=last | {"groups": {"tail": {"sa": 0.5}}})}
    assert "is not the mean over the last rounds" in str(unlikely(made.model_copy(update=told | wrong)))
    ended = {"metrics": made.metrics.model_copy(update=last | {"sa": 0.5})}
    assert "its curve ends in other numbers" in str(unlikely(made.model_copy(update=told | ended)))
    later = {"curve": [*curve, CurvePoint(round=12, sa=0.25, loss=1.5)], "certificates": {}}
    assert "does not go from round to round" in str(undeclared(made.model_copy(update=told | later)))


def faults_of(made: CellResult, change: dict[str, Any], tmp_path: Path) -> list[str]:
    board = publish([made.model_copy(update=change)], name="x", curves=True)
    return read_board(write_board(board, tmp_path / "changed.json"))[1]


@pytest.mark.parametrize(
    ("sa", "ra", "worst", "words"),
    [
        (0.9, 0.5, 0.5, None),
        (0.25, 0.35, 0.35, None),
        (0.9013, 0.5, 0.5, "sa=0.9013 is no share of 360 images"),
        (0.9, 0.501, 0.501, "pgd=0.501 is no share of 20 images"),
        (0.9, 0.5, 0.25, "ra_worst=0.25 is below the accuracy under the only attack"),
    ],
)
def test_an_accuracy_is_a_share_of_the_test_images(
    sa: float, ra: float, worst: float, words: str | None, tmp_path: Path
) -> None:
    made = real(evasions=["pgd"], ra_limit=20)
    made = made.model_copy(update={"labels": made.labels | {"evasions": "pgd"}})
    assert made.metrics is not None
    says = "the global model on the test set, evaluation mode, white box through the evaluated model"
    told = {"sa": sa, "ra": {"pgd": ra}, "ra_worst": worst, "samples": 360, "groups": {}, "evaluation": says}
    said = faults_of(made, {"metrics": made.metrics.model_copy(update=told), "curve": []}, tmp_path)
    assert (said == []) if words is None else any(words in fault for fault in said), said
    users = told | {"evaluation": "the global model on the honest users' test parts, evaluation mode"}
    said = faults_of(made, {"metrics": made.metrics.model_copy(update=users), "curve": []}, tmp_path)
    assert not any("no share" in fault for fault in said)


@pytest.mark.parametrize(
    ("asked", "told", "words"),
    [
        (False, {"7": {"mean": 0.1}}, "it has forgetting of round 7, which forgetting=False does not measure"),
        (False, {"mean": 0.1}, "it has forgetting of the last round, which forgetting=False"),
        (True, {"30": {"mean": 0.1}}, "it has forgetting of round 30, which forgetting=True"),
        ([7, 9], {"mean": 0.1}, "it has forgetting of the last round, which forgetting=[7, 9]"),
        ([7, 9], {"7": {"mean": 0.1}, "x": {"mean": 0.1}}, "it has forgetting of round x, which forgetting=[7, 9]"),
        ([7, 9], {"7": {"mean": 0.1}}, None),
    ],
)
def test_forgetting_of_rounds_that_do_not_measure_it_is_found(asked: Any, told: Any, words: str | None) -> None:
    found = undeclared(real(forgetting=asked, rounds=30).model_copy(update={"certificates": {"forgetting": told}}))
    assert found is None if words is None else words in str(found)


@pytest.mark.parametrize("change", [{"sa": 0.2}, {"loss": 1.2}, {"ra": 0.2}, {"ra": None}])
def test_a_curve_that_ends_in_other_numbers_than_the_metrics_is_found(change: dict[str, Any]) -> None:
    made = real(rounds=30, ra={"pgd": 0.5, "fgsm": 0.6}, sa=0.75).model_copy(update={"certificates": {}})
    last = CurvePoint(round=30, sa=0.75, loss=0.25, ra=0.5)
    assert unlikely(made.model_copy(update={"curve": [last]})) is None
    assert unlikely(made.model_copy(update={"curve": [last.model_copy(update={"round": 27, **change})]})) is None
    other = unlikely(made.model_copy(update={"curve": [last.model_copy(update=change)]}))
    assert other == "its curve ends in other numbers than its metrics"


def elsewhere(**changes: Any) -> list[str]:
    """The faults of a record whose settings and methods are changed, under the key and the labels of these."""
    made = real().model_copy(update={"certificates": {}})
    settings = {**made.cell["cell"], **changes.pop("settings", {})}
    cell = {**made.cell, "cell": settings, **changes}
    made = made.model_copy(update={"cell": cell, "labels": labels_of(settings), "key": digest(cell)})
    return [words for words in (misnamed(made), unlikely(made), undeclared(made)) if words]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": {"norm": {"name": "gn"}}}, "its norm is 'fbn', and its methods have 'gn' there"),
        ({"methods": {"norm": {"name": "fbn/../../x"}}}, "its methods have 'fbn/../../x' there"),
        ({"methods": {"defense": [{"name": "mean"}, {"name": "krum"}]}}, "its methods have 'krum' there"),
        ({"methods": {"norm": 5}}, "its methods have '5' there"),
        ({"settings": {"certificates.no_effect": True}}, "labels.certificates.no_effect is called like a measure"),
        ({"settings": {"ra_pgd": 0.99}}, "labels.ra_pgd is called like a measure"),
    ],
)
def test_what_lies_behind_the_labels_is_found_under_a_right_key(changes: dict[str, Any], words: str) -> None:
    assert elsewhere() == []
    assert any(words in said for said in elsewhere(**changes))


@pytest.mark.parametrize("settings", [{"rounds": "many"}, {"schedule": {"kind": "step", "milestones": 5}}])
def test_settings_of_another_kind_are_no_crash(settings: dict[str, Any]) -> None:
    made = real().model_copy(update={"curve": [CurvePoint(round=1, sa=0.5, loss=1.0)], "certificates": {}})
    cell = {**made.cell, "cell": {**made.cell["cell"], **settings}}
    made = made.model_copy(update={"cell": cell, "key": digest(cell)})
    assert misnamed(made) is not None
    assert undeclared(made) is None


@pytest.mark.parametrize(
    ("group", "name"), [("selected pgd(steps=2,", "eps=0.1)"), ("forgetting", "3"), ("spread", "pgd(steps=9)")]
)
def test_a_group_holds_only_what_its_cell_measures(group: str, name: str) -> None:
    """Else its number could be taken for another one: ``selected`` of ``pgd(steps=2, eps=0.1)``."""
    made = real(evasions=["pgd(steps=2, eps=0.1)"], ra={"pgd(steps=2, eps=0.1)": 0.5})
    made = made.model_copy(update={"labels": labels_of(made.labels)})
    assert made.metrics is not None
    whole = {"spread": {"sa": 0.1, "ra_worst": 0.1, "pgd(steps=2, eps=0.1)": 0.1}}
    with_group = made.model_copy(update={"metrics": made.metrics.model_copy(update={"groups": whole})})
    assert unlikely(with_group) is None
    metrics = made.metrics.model_copy(update={"groups": {group: {name: 0.5}}})
    assert f"groups hold '{group}: {name}'" in str(unlikely(made.model_copy(update={"metrics": metrics})))


def test_a_cell_that_is_there_twice_is_found(tmp_path: Path) -> None:
    path = edited(written(tmp_path, real(), real(seed=1)), lambda d: d["cells"].append(d["cells"][0]))
    assert any("duplicate cell" in words for words in read_board(path)[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a published board"),
        ('{"format": "robustfl-board", "schema_version": 3}', "board format 3; this robustfl reads formats 1 and 2"),
        ('{"format": "robustfl-board", "schema_version": 2}', "Field required"),
    ],
)
def test_what_is_no_board_says_what_it_is(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(UsageError, match=words):
        read_board(tmp_path / "b.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["common"].update(cell=[]),
        lambda d: d["common"].pop("scenario"),
        lambda d: d["cells"][0].update(key="../../etc"),
        lambda d: d["cells"][0].update(surprise=1),
        lambda d: d["cells"][0]["metrics"].update(sa="high"),
        lambda d: d["common"]["cell"].update(methods=3),
        lambda d: d.update(tolerance=7),
    ],
)
def test_a_board_of_a_wrong_shape_names_the_place(tmp_path: Path, change: Any) -> None:
    path = edited(written(tmp_path, real()), change)
    with pytest.raises(UsageError, match=r"board.json: \S+"):
        read_board(path)


def test_no_records_and_no_tolerance_make_no_board() -> None:
    with pytest.raises(UsageError, match="no finished cell"):
        publish([], name="x")
    with pytest.raises(UsageError, match="tolerance=2"):
        publish([real()], name="x", tolerance=2)


def test_what_a_published_cell_must_have_has_no_default() -> None:
    assert {name for name, field in Cell.model_fields.items() if field.is_required()} == {"key", "cell"}


@pytest.mark.skipif(tuple(map(int, pydantic.VERSION.split(".")[:2])) < (2, 11), reason="it words schemas otherwise")
def test_the_published_schema_is_the_one_that_is_read() -> None:
    file = Path(robustfl.reports.__file__).parent / "board.schema.json"
    assert json.loads(file.read_text()) == json_schema(), "write it again: docs/checking.md says how"
    assert json_schema()["properties"]["schema_version"]["const"] == SCHEMA


def test_common_parts_and_the_rest_make_the_whole_again() -> None:
    values = [{"a": 1, "b": {"c": 1, "d": {}}}, {"a": 1.0, "b": {"c": 1, "d": {}, "e": None}}]
    common = shared(values)
    assert common == {"b": {"c": 1, "d": {}}}  # 1 and 1.0 are not the same setting
    assert [merged(common, without(v, common)) for v in values] == values


def test_curves_travel_where_they_are_asked_for_and_change_nothing_elsewhere(tmp_path: Path) -> None:
    point = CurvePoint(round=5, sa=0.25, loss=1.5)
    with_curve = real(seed=0).model_copy(update={"curve": [point]})
    plainly = publish([with_curve], name="x")
    assert plainly.digest == publish([real(seed=0)], name="x").digest
    file = write_board(publish([with_curve], name="x", curves=True), tmp_path / "b.json")
    board, problems = read_board(file)
    assert problems == []
    assert board.records()[0].curve == [point]


@pytest.mark.parametrize("tolerance", [0.0, 1.0])
def test_a_board_may_claim_as_much_or_as_little_as_an_accuracy_is(tolerance: float, tmp_path: Path) -> None:
    board, wrong = read_board(write_board(publish([real()], name="x", tolerance=tolerance), tmp_path / "b.json"))
    assert (board.tolerance, wrong) == (tolerance, [])


def test_what_a_propagation_merges_by_need_not_be_said() -> None:
    made = real(propagation="fedrbn").model_copy(update={"certificates": {}})
    methods = {"propagation": [{"name": "fedrbn", "version": 1}, {"name": "mean", "version": 1}]}
    merged = {"cell": {**made.cell, "methods": methods}, "metrics": None, "status": "failed", "reason": "x"}
    assert undeclared(made.model_copy(update=merged)) is None
    others = {"defense": [{"name": "mean", "version": 1}, {"name": "median", "version": 1}]}
    wrong = merged | {"cell": {**made.cell, "methods": others}}
    assert "its methods have 'median' there" in str(undeclared(made.model_copy(update=wrong)))


def test_tables_are_shared_where_they_are_empty_everywhere_or_share_an_entry() -> None:
    assert shared([{"a": {}}, {"a": {}}]) == {"a": {}}
    assert shared([{"a": {}}, {"a": {"b": 1}}]) == {}
    assert shared([{"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}]) == {"a": {"b": 1}}
