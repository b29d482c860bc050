"""What comes from outside: files that are none, texts a terminal would obey, values that a setting cannot have."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_store import record, stored

from robustfl.contracts import Attack
from robustfl.data.checks import checked_arrays
from robustfl.data.pictures import array_of
from robustfl.data.stored import Source, load_cached
from robustfl.errors import StoreError, UsageError
from robustfl.file_io import LARGEST_FILE, parse_toml, read_file, read_json, shown, unsafe, unsafe_texts
from robustfl.records import digest, misnamed
from robustfl.registry import register
from robustfl.reports.published import submitting
from robustfl.reports.published.agreement import agree
from robustfl.reports.published.merge import merge, read_source, write_merge
from robustfl.reports.store import Store, write_stream
from robustfl.reports.tables import FORMS
from robustfl.scenarios import Scenario, expand
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.dry_run import estimate
from robustfl.scenarios.spec import apply_settings

# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["pipe", "device", "large", "deep", "number"])
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file that must not be waited for, read to its end or followed into its depth."""
    file = tmp_path / "strange"
    if request.param == "pipe":
        os.mkfifo(file)
    elif request.param == "device":
        file.symlink_to("/dev/zero")
    elif request.param == "large":
        with open(file, "wb") as sparse:
            sparse.truncate(LARGEST_FILE + 1)
    else:
        file.write_text("[" * 100_000 if request.param == "deep" else "7" * 5000)
    return file


def test_strange_files_are_errors_in_words_at_once(strange: Path) -> None:
    with pytest.raises((OSError, ValueError)) as caught:
        read_json(strange)
    assert not isinstance(caught.value, RecursionError)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"sa": NaN}', "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ('{"sa": 0.1, "ra": 0.2, "sa": 0.9}', "it says 'sa' twice"),
        ('{"a": [{"b\\u001b": 1, "b\\u001b": 2}]}', "twice"),
        (f'{{"samples": -1{"0" * 400}}}', "it holds a whole number of 402 digits"),
    ],
)
def test_what_two_readers_could_read_apart_is_no_json(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        read_json(file)
    assert not unsafe(str(caught.value))


def test_strange_files_in_a_store_are_problems(strange: Path, tmp_path: Path) -> None:
    store = stored(tmp_path / "s", [record()])
    strange.rename(store.path("ab"))
    assert [p.path.stem for p in store.load().problems] == ["ab"]
    assert store.done(store.keys()) == {record().key}


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "7" * 5000, "a = {" * 10_000, "a"])
def test_no_text_ends_the_reader_of_toml(text: str) -> None:
    with pytest.raises(ValueError, match=r"deep|digits|Expected|Invalid|Unclosed") as caught:
        parse_toml(text)
    assert not isinstance(caught.value, RecursionError)


def test_a_scenario_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf[cell]\nrounds = 7\n")
    assert [cell.rounds for cell in expand(Scenario.load(tmp_path / "s.toml"))] == [7]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_an_empty_cached_array_is_decoded_again(tmp_path: Path) -> None:
    x, y = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    source = Source("1", lambda: checked_arrays("x", {"train_x": x, "train_y": y, "test_x": x, "test_y": y}))
    load_cached(tmp_path, "x", source)
    for file in tmp_path.rglob("*.npy"):
        file.write_bytes(b"")
    assert len(load_cached(tmp_path, "x", source).train_x) == 4


def test_an_image_too_large_is_named(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("1", (20_000, 20_000)).save(tmp_path / "large.png")
    with pytest.raises(UsageError, match=r"large\.png is too large an image"):
        array_of(tmp_path / "large.png", (8, 8))


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["\x1b", "\r", "\x07", "\x9b", "\x7f", "\u202e", "\ud800"])
def test_what_a_terminal_obeys_is_spelt_out(sign: str) -> None:
    assert unsafe(f"a{sign}b")
    assert not unsafe(shown(f"a{sign}b"))
    assert shown(f"a{sign}b").startswith("a\\")


def test_every_unsafe_text_of_nested_data_is_found_at_its_place() -> None:
    deep: Any = "a\x1b"
    for _ in range(6):
        deep = [deep]
    data = {"a": 1.5, "b": ["fine", "two\nlines", {"c\x7f": None}], "d": deep, "e\\": "\\n \u00e9 \U0001f600"}
    found = [("b[1]", "two\nlines"), ("b[2]", "c\x7f"), ("d[0][0][0][0][0][0]", "a\x1b")]
    assert list(unsafe_texts(data)) == found


def test_every_sign_that_a_terminal_would_obey_is_unsafe() -> None:
    signs = [chr(i) for i in range(sys.maxunicode + 1)]
    assert [sign for sign in signs if unsafe(sign, lines=True)] == [sign for sign in signs if shown(sign) != sign]


@pytest.mark.parametrize("label", ["a\x1b[2KACCEPTED", "a\nACCEPTED", "\ud800"])
def test_a_record_whose_labels_hold_control_signs_is_a_problem(label: str, tmp_path: Path) -> None:
    made = record(attack="sf")
    store = stored(tmp_path / "s", [made])
    text = store.path(made.key).read_text().replace('"sf"', f'"{label.encode("unicode_escape").decode()}"')
    store.path(made.key).write_text(text.replace("\\x1b", "\\u001b"))
    (problem,) = store.load().problems
    assert "control characters" in problem.reason


def test_what_a_method_said_when_it_failed_is_kept_and_spelt_out(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", [record(status="failed", reason="KeyError: \x1b[31m\ud800")])
    assert store.load().results[0].reason == "KeyError: \\x1b[31m\\ud800"


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_no_name_is_a_formula_in_a_spreadsheet(first: str, tmp_path: Path) -> None:
    from robustfl.reports import load_board

    name = f"{first}cmd|' /C calc'!A0"
    store = stored(tmp_path / "s", [record(defense=name), record(defense="mean")])
    lines = FORMS["csv"](load_board(store.folder)).splitlines()
    assert any(name in line for line in lines)
    assert all(f"'{name}" in line for line in lines if name in line)


# --- records and stores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"sa": 2.0}, {"sa": "NaN"}, None])
def test_a_damaged_record_is_not_done(change: dict[str, Any] | None, tmp_path: Path) -> None:
    import json

    made = record()
    store = stored(tmp_path / "s", [made])
    data = json.loads(store.path(made.key).read_text())
    data["metrics"] = None if change is None else {**data["metrics"], **change}
    store.path(made.key).write_text(json.dumps(data))
    assert store.done([made.key]) == set()
    assert not store.load().results


@pytest.mark.parametrize("part", ["labels", "cell", "key"])
def test_a_record_of_other_labels_or_settings_is_not_done_and_on_no_board(part, tmp_path, capsys):
    import json

    from robustfl.cli import invoke

    records = [record(defense="mean", sa=0.91), record(defense="krum", sa=0.73)]
    store = stored(tmp_path / "s", records)
    key = records[1].key
    file = store.path(key)
    data = json.loads(file.read_text())
    if part == "labels":
        data["labels"]["defense"] = "median"
    elif part == "cell":
        data["cell"]["cell"]["f"] = data["labels"]["f"] = 1
    else:
        key = data["key"] = "0" * 32
        file.unlink()
        file = store.path(key)
    file.write_text(json.dumps(data))
    assert store.done([key]) == set()
    assert invoke(["report", str(store.folder), "--no-figures"]) == 0
    said = capsys.readouterr().out
    assert "91.0" in said
    assert "73.0" not in said
    assert f"{file.name}: its " in said


def test_labels_and_keys_follow_from_settings() -> None:
    made = record()
    assert misnamed(made) is None
    swapped = made.model_copy(update={"labels": {**made.labels, "defense": "krum"}})
    assert "label defense='krum' is not its setting 'mean'" in str(misnamed(swapped))
    assert "missing" in str(misnamed(made.model_copy(update={"labels": {"seed": 0}})))
    assert "no setting" in str(misnamed(made.model_copy(update={"labels": {**made.labels, "x": 1}})))
    assert "have the key" in str(misnamed(made.model_copy(update={"key": "0" * 32})))


def test_a_cell_under_a_wrong_name_is_neither_merged_nor_compared(tmp_path: Path) -> None:
    good, bad = record(seed=0), record(seed=1)
    bad = bad.model_copy(update={"labels": {**bad.labels, "defense": "krum"}})
    source = read_source(stored(tmp_path / "s", [good, bad]).folder)
    assert [r.key for r in source.results] == [good.key]
    assert "is not its setting" in source.problems[0]


def test_a_merge_on_a_full_disk_leaves_nothing_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = read_source(stored(tmp_path / "s", [record(seed=i) for i in range(3)]).folder)
    written = []

    def full(path: Path, write: Any) -> None:
        written.append(path)
        if len(written) == 3:
            raise StoreError("no space left")
        write_stream(path, write)

    with monkeypatch.context() as patch:
        patch.setattr("robustfl.reports.store.write_stream", full)
        with pytest.raises(StoreError):
            write_merge(merge([source], tolerance=0), [source], tmp_path / "all")
    assert not Store(tmp_path / "all").keys()
    write_merge(merge([source], tolerance=0), [source], tmp_path / "all")
    assert len(Store(tmp_path / "all").keys()) == 3
    assert not list((tmp_path / "all").glob(".*"))


@pytest.mark.parametrize("change", [{"loss": 3.0}, {"loss": float("nan")}, {"samples": 361}, {"evaluation": "other"}])
def test_loss_samples_and_evaluation_must_agree_too(change: dict[str, Any]) -> None:
    made = record()
    other = made.model_copy(update={"metrics": made.metrics.model_copy(update=change)})
    assert not agree(made, other, tolerance=0.01).agrees
    near = made.model_copy(update={"metrics": made.metrics.model_copy(update={"loss": made.metrics.loss + 0.05})})
    assert agree(made, near, tolerance=0.01).verdict == "within"


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rounds=true", "rounds=True must be a number"),
        ("batch=true", "must be a number"),
        ('clients="10"', "must be a number, without quotes"),
        ("flip=1", "must be true or false"),
        ("participation=1e-9", "less than one client"),
        ("attack=alie(z=1, z=2)", "z is given twice"),
        ("attack=" + "opt(" * 200 + "sf" + ")" * 200, "at most 16 deep"),
        ("rounds=1\nseed=3", "sets more than rounds"),
        ("rounds=1 # x", "holds a comment"),
        ("seed=[1, # x\n2]", "holds a comment"),
        ("description='#'#", "holds a comment"),
        ("seed=" + "7" * 5000, "more than 4300 digits"),
        ("seed=" + "7" * 3000, "must be at most"),
        ("clients=100000000000000000000", "must be at most"),
        ("attack=[]", r"attack=\[\] is an empty axis"),
        ("rounds=[]", r"rounds=\[\] is an empty axis"),
        ("attack.z=[]", "empty axis"),
        ("schedule.kind=step", "values are missing"),
        ('schedule={kind="step", values=[-0.1]}', "must all be > 0"),
        ('schedule={kind="step", values=[0.1, 0.2], milestones=[0]}', "rounds ≥ 1"),
        ("schedule.lr=true", "must be a number"),
        ("schedule.lr=1e300", "input should be less than"),
        ('schedule={kind="step", values=[0.1, 0.2]}', "2 values need 1 milestones, not 0"),
        ("at=userz", "no such rule; did you mean 'users'"),
        ("at=users", "write users"),
        ("at=domains(first=2)", "2 domains; there are 1, so 1 to 1 are allowed"),
        ("finetune=nope", "no such rule; did you mean 'none'"),
        ("scale=big", "'s' has no such scale; it has none"),
        ("rounds", "must have the form name=value or a.b=value"),
        ("=3", "must have the form name=value or a.b=value"),
        ("ruonds=3", "'rounds'"),
        ("rounds.x=3", "no part 'x'"),
        ("defense=fedrbn+mean", "it belongs in the setting 'propagation'"),
        ("propagation=mean", "propagates nothing; begin with fedrbn, and let '[+]rule' follow it"),
        ("attack=opt(attack=alia)", "opt': attack='alia': unknown attack 'alia'"),
        ('evasions=["pgd(restarts=2, random_start=false)"]', "restarts=2 without random_start would repeat one run"),
        ('model="mlp\\u001b[2K"', "control characters"),
        ("defense=" + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_an_error(setting: str, words: str) -> None:
    base: dict[str, Any] = {"name": "s", "cell": {"attack": "alie", "f": 1}}
    with pytest.raises(UsageError, match=words):
        expand(apply_settings(base, [setting]))


@pytest.mark.parametrize("text", ['"a # b"', "'a#b'", '"""a # b"""', "a # b", '"\\" # b"'])
def test_a_text_may_hold_what_begins_a_comment(text: str) -> None:
    kept = apply_settings({"name": "s"}, [f"description={text}"]).description
    assert "#" in kept
    assert "b" in kept


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_attacks_called_like_numbers_are_methods(name: str) -> None:
    base: dict[str, Any] = {"name": "s", "cell": {"f": 1}}
    for setting in (f"attack={name}", f'attack="{name}"', f'attack=["none", {name}]'):
        assert expand(apply_settings(base, [setting]))[-1].attack == name


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"attack": "allie"}, "did you mean 'alie'"),
        ({"attack": []}, "empty axis"),
        ({"f": "3"}, "must be a number"),
        ({"f": -1}, "greater than or equal"),
        ({"scope": "updates"}, "should be 'update'"),
        ({"defense": "nnm"}, "end the pipeline"),
        ({"defense": 3}, "must be a method spec"),
        ({"at": "alll"}, "no such rule"),
        ({"propagation": "fedrbm"}, "fedrbn"),
        ({}, "would drop every cell"),
    ],
)
def test_an_exclusion_that_can_match_nothing_is_an_error(rule: dict[str, Any], words: str) -> None:
    data = {"name": "s", "cell": {"attack": ["none", "alie"], "f": [1, 3]}, "exclude": [rule]}
    with pytest.raises(UsageError, match=words):
        expand(Scenario.of(data))


@pytest.mark.parametrize("rule", [{"attack": "alie"}, {"attack": "alie(z=1)"}, {"f": 7}, {"evasions": []}])
def test_an_exclusion_that_matches_nothing_today_is_none(rule: dict[str, Any]) -> None:
    assert expand(Scenario.of({"name": "s", "cell": {"attack": "sf", "f": 1}, "exclude": [rule]}))


@pytest.mark.parametrize(("name", "words"), [("pipe.toml", "is no regular file"), ("folder", "is a folder")])
def test_a_scenario_that_is_no_file_says_what_it_is(name: str, words: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=words):
        Scenario.load(str(tmp_path / name))


# --- dry runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [{"model": "mlp(hidden=(999999999999,))"}])
def test_a_dry_run_names_what_this_machine_cannot_do(cell: dict[str, Any], tmp_path: Path) -> None:
    found = estimate(Scenario.of({"name": "s", "cell": {"rounds": 2, **cell}}), out=tmp_path)
    assert "could not be timed" in found.summary()
    assert found.seconds is None


def test_looking_at_a_cell_lists_no_clients() -> None:
    assert Cell(clients=10**15, attack="alie", f=1).settings.candidates is None


def test_too_many_cells_are_counted_and_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(values: Any) -> None:
        raise AssertionError(values)

    scenario = Scenario.of({"name": "s", "cell": {"seed": list(range(1000)), "rounds": list(range(1, 1001))}})
    monkeypatch.setattr(Cell, "of", never)
    with pytest.raises(UsageError, match="asks for 1000000 combinations; a grid takes at most 200000"):
        expand(scenario)


# --- methods ---------------------------------------------------------------------------------------------------------


def test_a_version_and_defaults_are_data() -> None:
    @dataclass(frozen=True)
    class Plain(Attack):
        def forge(self, view: Any, *, generator: Any) -> Any: ...

    for version in (object(), 0, 1.5, True):
        with pytest.raises(UsageError, match="version="):
            register("x-plain", version=version)(Plain)  # type: ignore[arg-type]

    def made(default: Any) -> type[Attack]:
        @dataclass(frozen=True)
        class Odd(Attack):
            z: Any = default

            def forge(self, view: Any, *, generator: Any) -> Any: ...

        return Odd

    for default in (torch.zeros, lambda: 1, object()):
        with pytest.raises(UsageError, match="z has a"):
            register("x-odd", version=1)(made(default))


def test_a_key_is_the_digest_of_what_it_is_made_of() -> None:
    from robustfl.scenarios.expand import key_of, resolve

    for cell in (Cell(), Cell(attack="foe(eta=1e300)"), Cell(evasions=())):
        resolved = resolve(cell, "ü")
        assert key_of(resolved) == digest(resolved)


def test_a_plug_in_as_large_as_may_be_is_one_and_a_larger_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_bytes(b"# " + b"x" * 98)
    for most, accepted in ((100, True), (99, False)):
        monkeypatch.setattr(submitting, "LARGEST_FILE", most)
        plugins, wrong = submitting._files(tmp_path)
        assert (bool(plugins), not wrong) == (accepted, accepted)
