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
from robustfl.cli import invoke
from robustfl.errors import OldFormatWarning, UsageError
from robustfl.records import CellResult, CurvePoint, digest
from robustfl.reports.published import json_schema, publish, read_board, write_board
from robustfl.reports.published.board import Certificates
from robustfl.reports.published.format2 import SCHEMA, merged, shared, without


def real(**labels: Any) -> CellResult:
    """A record as a run leaves it: the key is the digest of the whole cell."""
    made = record(**labels)
    cell = {"cell": made.labels, "methods": {"norm": {"name": "fbn", "version": 1}}, "key_version": 2}
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


@pytest.mark.parametrize("own", [{}, {"own": 0.5}], ids=["of an older record", "of today's"])
@pytest.mark.parametrize("rounds", [("",), ("1", "30")])
def test_mean_forgetting_is_published_without_its_matrices(
    tmp_path: Path, rounds: tuple[str, ...], own: dict[str, float]
) -> None:
    measured = {r: {"mean": 0.25, **own, "matrix": [[0.25]], "clients": [0]} for r in rounds}
    told = {"forgetting": measured.get("", measured)}
    made = real(seed=0, forgetting=True if rounds == ("",) else [int(r) for r in rounds])
    labels = made.labels if rounds == ("",) else {**made.labels, "forgetting": " ".join(rounds)}
    board, wrong = read_board(written(tmp_path, made.model_copy(update={"certificates": told, "labels": labels})))
    means = {r: {"mean": 0.25, **own} for r in rounds}
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


def test_a_changed_setting_is_found_even_under_a_new_digest(tmp_path: Path) -> None:
    path = edited(written(tmp_path, real(seed=0), real(seed=1)), lambda d: d["cells"][0]["cell"]["cell"].update(seed=7))
    wrong = read_board(resigned(path))[1]
    assert len(wrong) == 1
    assert "its settings have the key" in wrong[0]


@pytest.mark.parametrize("value", ["0.9", True, "NaN", [0.9]])
def test_what_is_no_number_is_none_in_a_board(tmp_path: Path, value: Any) -> None:
    path = edited(written(tmp_path, real()), lambda d: d["cells"][0]["metrics"].update(sa=value))
    with pytest.raises(UsageError, match=r"cells\[0\]\.metrics\.sa: Input should be a valid number"):
        read_board(resigned(path))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"metrics": {"sa": "nan", "loss": 1.0}}, "sa=nan is no accuracy"),
    ({"certificates": {"reviewed": "yes"}}, "certificates.reviewed: Extra inputs are not permitted"),
    ({"certificates": {"threads": 0}}, "certificates.threads: Input should be greater than or equal to 1, not 0"),
    ({"curve": [{"round": 5, "sa": 0.2, "loss": -1.0}]}, "curve[0].loss=-1.0 is below 0"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_value_out_of_range_is_found_even_under_a_new_digest(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = edited(written(tmp_path, real()), lambda d: d["cells"][0].update(change))
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
    ("no_effect", [True], [1, "yes"]),
    ("forgetting", [{"mean": -1}, {"mean": "nan"}, {"7": {"mean": 1}}], [{"mean": -1.1}, {"mean": True}, {"x": 3}]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "good", "bad"), CERTIFICATES)
def test_a_certificate_is_what_it_is_called(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        Certificates.model_validate({name: value})
    for value in bad:
        with pytest.raises(pydantic.ValidationError, match=name):
            Certificates.model_validate({name: value})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"certificates.no_effect": True}, "labels.certificates.no_effect is no setting"),
        ({"ra_pgd": "x"}, "labels.ra_pgd is no setting"),
        ({"attack": {"name": "sf"}}, "labels.attack is a dict, not a text or a number"),
    ],
)
def test_a_setting_is_a_text_or_a_number_and_no_column_of_measures(
    setting: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert any(words in said for said in read_board(written(tmp_path, real(**setting)))[1])


def test_a_certificate_of_another_type_is_told_and_is_no_crash(tmp_path: Path) -> None:
    told = {"attack_shift": 0.0, "dropped": "many"}
    path = written(tmp_path, real().model_copy(update={"certificates": told}))
    assert invoke(["verify", "--check-only", str(path)]) == 1
    assert any("certificates.dropped" in words for words in read_board(path)[1])


@pytest.mark.parametrize("settings", [{"rounds": "many"}, {"schedule": {"kind": "step", "milestones": 5}}])
def test_settings_of_another_kind_are_no_crash(settings: dict[str, Any], tmp_path: Path) -> None:
    assert read_board(written(tmp_path, real(**settings)))[1] == []


@pytest.mark.parametrize("versions", [{"torch": "2 #"}, {"evil @ http://x.zip #": "1"}])
def test_versions_that_no_requirement_may_name_reach_no_board(versions: dict[str, str], tmp_path: Path) -> None:
    made = real()
    path = written(tmp_path, made)
    told = {name: [version] for name, version in versions.items()}
    with pytest.raises(UsageError, match=r"environment\.versions"):
        read_board(resigned(edited(path, lambda d: d["environment"].update(versions=told))))
    with pytest.raises(UsageError, match=r"environment\.versions"):
        publish([made.model_copy(update={"certificates": {"versions": versions}})], name="x")


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ({"benchmark": 3}, "protocol.benchmark: Input should be a valid dictionary"),
        ({"benchmark": {"contestants": {"a": 1}}}, "protocol.benchmark.contestants.a: Input should be a valid dict"),
        ({"audit": {}}, "protocol.audit: Extra inputs are not permitted"),
        ({"benchmark": {"contestants": {"a": {"x": 1}}}}, "protocol.benchmark.contestants.a.x: Extra inputs"),
    ],
)
def test_a_protocol_is_made_of_tables_with_known_fields(protocol: Any, words: str, tmp_path: Path) -> None:
    path = resigned(edited(written(tmp_path, real()), lambda d: d.update(protocol=protocol)))
    (said,) = read_board(path)[1]
    assert said.startswith(words)


def test_numbers_that_no_run_leaves_are_left_to_those_who_run_it_again(tmp_path: Path) -> None:
    odd = {"ra": {"fgsm": 0.5}, "ra_worst": 0.75, "groups": {"ra": {"sa": 0.5}, "tail": {"fgsm": 1.0}}}
    made = real(seed=0, evasions="pgd", round=3, reason="so", metrics=odd)
    curve = [CurvePoint(round=t, sa=0.5, loss=1.0) for t in (9, 3)]
    board = publish([made.model_copy(update={"curve": curve})], name="x", curves=True)
    path = write_board(board, tmp_path / "b.json")
    assert read_board(path)[1] == []
    assert invoke(["report", str(path), "--no-figures", "--out", str(tmp_path / "report")]) == 0


def test_a_board_may_carry_what_earlier_ones_said_of_members_that_did_not_run(tmp_path: Path) -> None:
    facts = {"version": 1, "cheap": "So.", "dropped": {"k": {"attack": "sf"}}, "seed": 0}
    assert (
        read_board(write_board(publish([real()], name="b", protocol={"autobyz": facts}), tmp_path / "b.json"))[1] == []
    )


def test_a_cell_that_is_there_twice_is_found(tmp_path: Path) -> None:
    path = edited(written(tmp_path, real(), real(seed=1)), lambda d: d["cells"].append(d["cells"][0]))
    assert any("duplicate cell" in words for words in read_board(path)[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["common"].update(cell=[]),
        lambda d: d["common"].pop("scenario"),
        lambda d: d.pop("cells"),
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


def test_no_records_and_no_tolerance_make_no_board(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no finished cell"):
        publish([], name="x")
    with pytest.raises(UsageError, match="tolerance=2"):
        publish([real()], name="x", tolerance=2)
    for tolerance in (0.0, 1.0):
        board, wrong = read_board(write_board(publish([real()], name="x", tolerance=tolerance), tmp_path / "b.json"))
        assert (board.tolerance, wrong) == (tolerance, [])


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
