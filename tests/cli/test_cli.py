"""The command line as a newcomer drives it."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_store import record, stored

from robustfl.cli import invoke
from robustfl.cli.facts import _parameter as parameters
from robustfl.errors import StoreError
from robustfl.parameters import param

TINY = [
    "--set", "rounds=2", "--set", "model=mlp(hidden=(8,))", "--set", 'attack=["none","sf"]', "--set", "seed=0",
    "--set", 'defense=["mean","krum"]', "--set", "norm=fbn", "--set", "partition.gamma=0.5", "--jobs", "0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", [["-h"], ["grid", "-h"], ["run", "--help"], ["report", "-h"], ["list", "-h"]])
def test_help_imports_no_torch(arguments: list[str]) -> None:
    code = (
        f"import sys; from robustfl.cli import invoke; code = invoke({arguments!r}); "
        "sys.exit(code or ('torch' in sys.modules) * 3 or ('pandas' in sys.modules) * 4)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: robustfl" in done.stdout


START = """
import importlib.abc, os, signal, sys
class Interrupted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "robustfl.cli":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupted())
from robustfl.__main__ import main
main()
"""


def test_an_interrupt_during_the_first_imports_ends_with_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nStopped.\n")


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str) -> None:
    command = f'"{sys.executable}" -m robustfl --version {closed}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_grid_prints_a_leaderboard_and_where_things_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["grid", *TINY]) == 0
    out = capsys.readouterr().out
    assert "worst case" in out
    assert "runs/quickstart/cells" in out
    assert invoke(["grid", *TINY]) == 0
    again = capsys.readouterr()
    assert "4 of 4 cells are done" in again.err
    assert "0 cells run now, 4 were there already" in again.out
    assert invoke(["grid", *TINY, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_grid_shows_its_own_cells_and_a_report_those_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["grid", *TINY]) == 0
    capsys.readouterr()
    assert invoke(["grid", *(option.replace("rounds=2", "rounds=3") for option in TINY)]) == 0
    out = capsys.readouterr().out
    assert "overall" not in out
    assert "Cells: 4 done." in out
    assert invoke(["report", "runs/quickstart", "--no-figures"]) == 0
    out = capsys.readouterr().out
    assert [t in out for t in ("SA, overall", "SA, rounds = 2", "SA, rounds = 3", "Cells: 8 done.")] == [True] * 4
    assert invoke(["report", "runs/quickstart", "--no-figures", "--where", "rounds=3"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert [t in out for t in ("Cells: 4 done.", "Only cells with rounds = 3.", "report-rounds-3-")] == [True] * 3
    assert "rounds" in Path("runs/quickstart/report/leaderboard.csv").read_text()  # that of all cells is still there
    assert invoke(["report", "runs/quickstart", "--no-figures", "--where", "rouds=3"]) == 2
    assert invoke(["report", "runs/quickstart", "--no-figures", "--where", "seed=0", "--where", "seed=1"]) == 2
    assert "did you mean 'rounds'" in capsys.readouterr().err
    assert invoke(["report", "runs/quickstart", "--no-figures", "--compare", "rounds"]) == 0
    out = capsys.readouterr().out
    assert "overall" not in out
    assert "Compared by" not in out
    for label, why in (("clients", "all cells have one"), ("f_declared", "all cells have one")):
        assert invoke(["report", "runs/quickstart", "--no-figures", "--compare", label]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert f"--compare has no effect for {label} ({why})." in told


def test_a_dry_run_warns_of_an_attack_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["grid", *TINY, "--set", "attack=alie", "--set", "f=2", "--dry-run"]) == 0
    assert "warning: alie has no effect with n = 10 and f = 2" in " ".join(capsys.readouterr().out.split())


def test_dry_run_trains_nothing_and_names_refusals(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert invoke(["grid", *TINY, "--set", "f=4", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "timing 1 network(s)" in err
    assert "refused" in out
    assert "krum: f=4 needs at least 11 clients" in out
    assert "nothing was trained" in out
    assert "< 1 s" in out
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(("words", "told"), [
    (["--slots", "2"], "it goes with gpus"), (["--gpus", "99"], "there is no GPU 99"),
    (["--cluster", "nowhere"], "cluster"), (["--cell-minutes", "0"], "cell"),
    (["--data-root", "file"], "a file, where"),
])  # fmt: skip
def test_a_dry_run_refuses_what_a_run_would(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "file").touch()
    for more in (["--dry-run"], []):
        assert invoke(["grid", *TINY[:-2], *words, *more]) == 2
        assert told in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_dry_run_without_the_data_says_how_to_get_it(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert invoke(["grid", "fbn-section5", "--dry-run", "--data-root", str(folder / "none")]) == 0
    out = capsys.readouterr().out
    assert "robustfl doctor --fetch cifar10" in out


def test_run_prints_one_cell_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--set", "rounds=2", "--set", "model=mlp(hidden=(8,))"]
    assert invoke(["run", *fixed]) == 0
    out = capsys.readouterr().out
    assert out.startswith("dataset")
    assert "SA" in out
    assert invoke(["run", *fixed, "--format", "json", "--out", "kept"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (Path("kept/run/cells") / f"{record['key']}.json").is_file()


def test_run_prints_all_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["rounds=3", "model=mlp(hidden=(8,))", "tail=2", "forgetting=[1, 3]", "validation=0.2",
             "algorithm=fedavg", "evasions=[]"]  # fmt: skip
    assert invoke(["run", *(word for s in asked for word in ("--set", s))]) == 0
    out = capsys.readouterr().out
    assert re.search(r"SA +\d+\.\d %  \(mean of the last 2 rounds\)", out)
    for round in (1, 3):
        assert re.search(rf"forgetting +-?\d+\.\d points, mean over clients and others' data  \(round {round}\)", out)
    assert re.search(r"^dataset +digits", out, re.MULTILINE)
    domains = ["rounds=1", "model=mlp(hidden=(8,))", "clients=2", "evasions=[]",
               'domains=["digits-domain", "digits-domain(style=shifted)"]']  # fmt: skip
    assert invoke(["run", *(word for s in domains for word in ("--set", s))]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^domains +digits-domain digits-domain\(style=shifted\)", out, re.MULTILINE)
    assert not re.search(r"^(dataset|partition)", out, re.MULTILINE)


def test_run_prints_a_certificate_that_is_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["rounds=1", "model=mlp(hidden=(8,))", "evasions=[]", "f=3", "attack=foe(eta=1e30)", "defense=median"]
    assert invoke(["run", *(word for s in settings for word in ("--set", s))]) == 0
    out = capsys.readouterr().out
    assert re.search(r"attack shift +(inf|nan)", out)
    assert re.search(r"status +done", out)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["grid", *TINY], True),
        (["grid", *TINY, "--dry-run"], False),
        (["run"], False),
        (["run", "--out=kept"], True),
        (["bench", "d", "--contestant", "median/gn"], True),
        (["bench", "study"], True),
        (["bench", "d", "--list"], False),
        (["bench", "d", "--dry-run"], False),
        (["bench", "d", "--from", "b.json"], False),
        (["bench", "site", "--from=b.json", "--page", "pages"], False),
        ([], False),
        (["report", "runs/x", "--out", "there"], False),
    ],
)
def test_ctrl_c_promises_to_go_on_only_where_something_is_kept(
    arguments: list[str], kept: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("robustfl.cli.app.main", stop)
    assert invoke(arguments) == 130
    err = capsys.readouterr().err
    assert "Stopped." in err
    assert ("goes on from here" in err) is kept


def test_a_file_that_is_no_archive_is_refused_without_advice_to_load_pickles(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "mine.npz").write_text("text")
    assert invoke(["run", "--set", "dataset=npz(path=mine.npz)"]) == 2
    err = capsys.readouterr().err
    assert "damaged, or another kind of file; expected train_x" in err
    assert "pickle" not in err


def test_the_type_of_a_parameter_is_a_name_however_it_is_annotated() -> None:
    made = dataclasses.make_dataclass("Made", [("scale", float, param(1.0, gt=0, doc="length"))])
    assert [parameters(f).type for f in dataclasses.fields(made)] == ["float"]


def test_run_asks_for_the_open_axes(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "quickstart"]) == 2
    assert "defense: mean" in capsys.readouterr().err


def test_report_writes_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["grid", *TINY]) == 0
    assert invoke(["report", "runs/quickstart"]) == 0
    names = {p.name for p in Path("runs/quickstart/report").iterdir()}
    assert {"leaderboard.csv", "leaderboard.md", "leaderboard.tex", "leaderboard.json"} <= names
    assert any(n.endswith(".png") for n in names)
    assert any(n.endswith(".pdf") for n in names)
    assert not any("bn-pca" in n or "batch-norm" in n for n in names)  # one for every cell: drawn when asked for
    said = capsys.readouterr().out
    drawn = [n for n in names if n.endswith((".png", ".pdf"))]
    assert f"{len(drawn)} figures" in said
    assert not any(n in said for n in drawn)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_leaderboard_is_printed_before_it_is_written(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("cannot write leaderboard.csv: no space")

    assert invoke(["grid", *TINY]) == 0
    capsys.readouterr()
    monkeypatch.setattr("robustfl.reports.writing.write_all", full)
    assert invoke(["report", "runs/quickstart", "--format", form]) == 1
    told = capsys.readouterr()
    assert "no space" in told.err
    if form == "json":
        assert json.loads(told.out)["cells"] == {"done": 4}
    else:
        assert "Cells: 4 done." in told.out


def test_a_name_that_is_no_file_name_is_told_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["grid", "--set", "name=../x"]) == 2
    assert "1 to 80 letters, digits, '.', '_' or '-'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["attacks", "evasions", "defenses", "norms", "algorithms", "models", "datasets"])
def test_list_names_the_methods(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    from robustfl.registry import entries

    assert invoke(["list", kind]) == 0
    out = capsys.readouterr().out
    assert all(entry.name in out for entry in entries(kind[:-1]))
    assert invoke(["list", kind, "--format", "json"]) == 0
    assert {m["name"] for m in json.loads(capsys.readouterr().out)} == {e.name for e in entries(kind[:-1])}


def test_show_prints_parameters_ranges_and_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["show", "foe"]) == 0
    out = capsys.readouterr().out
    assert "eta" in out
    assert "≥ 0" in out
    assert "1903.03936" in out
    assert invoke(["show", "krum"]) == 0
    assert "5 for f=1" in capsys.readouterr().out
    assert invoke(["show", "quickstart"]) == 0
    assert "[cell]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "titles"),
    [
        ("foe(eta=2)", ["attack foe (version"]),
        ("nnm+mean", ["defense nnm (version", "defense mean (version"]),
        ("nnm + trimmed-mean(weighted=true)", ["defense nnm (version", "defense trimmed-mean (version"]),
    ],
)
def test_show_takes_what_a_scenario_takes(spec: str, titles: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["show", spec]) == 0
    out = capsys.readouterr().out
    assert [out.count(title) for title in titles] == [1] * len(titles)


def test_a_summary_is_a_sentence_also_where_an_equation_goes_on_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["list", "--format", "json"]) == 0
    found = {
        name: [m["summary"].strip() for m in members] for name, members in json.loads(capsys.readouterr().out).items()
    }
    assert [
        s for name, summaries in found.items() if name != "presets" for s in summaries if not s.endswith((".", ")"))
    ] == []


def test_doctor_lists_packages_and_data(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert invoke(["doctor", "--data-root", str(folder), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["torch"]
    assert found["datasets"]["digits"].startswith("ready")
    assert "--fetch cifar10" in found["datasets"]["cifar10"]


def test_doctor_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from robustfl.cli import doctor

    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "scipy" else known(name))
    assert invoke(["doctor"]) == 1
    assert re.search(r"scipy +MISSING", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        (["defense=krum", "f=4", "clients=9"], "refused"),
        (["attack=foe(eta=1e30)", "f=3", "defense=mean"], "diverged"),
    ],
)
def test_run_ends_with_one_unless_the_cell_is_done(
    settings: list[str], status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["rounds=2", "model=mlp(hidden=(8,))", "evasions=[]", *settings]
    assert invoke(["run", *(word for s in asked for word in ("--set", s))]) == 1
    assert re.search(rf"status +{status}", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["grid", "quikstart"], "did you mean 'quickstart'"),
        (["grid", "--set", "atack=sf"], "did you mean 'attack'"),
        (["grid", "--set", "attack=alei"], "did you mean 'alie'"),
        (["grid", "--set", "partition.gamma=2"], "gamma=2"),
        (["grid", "--set", "partition.gama=0.2"], "did you mean 'gamma'"),
        (["grid", "--set", "dataset=Digits"], "did you mean 'digits'"),
        (["grid", "--set", "dataset=/data/my.npz"], "to read it write npz:/data/my.npz"),
        (["grid", "--set", "dataset=mnist", "--data-root", "/nonexistent/x"], "mnist"),
        (["grid", "--device", "cuda:7"], "CUDA device"),
        (["grid", "--jobs", "-1"], "--jobs"),
        (["grid", "--plugin", "missing.py"], "missing.py"),
        (["list", "atacks"], "atacks"),
        (["show", "ali"], "did you mean 'alie'"),
        (["show", "nnm+men"], "no method or preset 'men'; did you mean 'mean'"),
        (["report", "nowhere"], "nowhere"),
        (["gird"], "gird"),
    ],
)
def test_misuse_exits_2_and_says_what_is_right(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert invoke(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "file.txt"], "is a file; give the folder of a store such as runs/quickstart"),
        (["grid", "--out", "file.txt/runs"], "'file.txt/runs' cannot be a folder: 'file.txt' is a file"),
        (["check", "file.pyy"], "no method or file 'file.pyy'; did you mean 'file.py'"),
        (["check", "files.py"], "'files.py' is not a file; did you mean 'file.py'"),
        (["report", "empty"], "'empty' holds no results"),
        (["plot", "heatmap", "store", "--lines", "norm"], "plot heatmap has no lines to choose; plot curves has"),
        (["run", "--state-memory", "12x"], "'12x' is no size; write 500MB or 4GiB"),
        (["run", "--track", "tensorbord"], "is no tracker; did you mean 'tensorboard'"),
        (["merge", "store", "store", "--out", "m", "--source", "a\x1b"], "--source holds control characters"),
        (["submit", "store", "--name", "Not A Name"], "must be lower-case letters, digits and dashes"),
        (["submit", "store", "--trust"], "--trust goes with --check"),
        (["submit", "store", "--sample", "0"], "--sample goes with --check"),
        (["submit", "--check", "empty", "--name", "me"], "--check looks at a submission that is there"),
        (["submit", "--check", "empty", "--work", "w"], "give sample (--sample)"),
        (["verify", "b.json", "--prepare"], "give work (--work)"),
        (["submit", "--check", "empty", "--all", "--cells", "2"], "--all runs every cell, --cells 2 draws some"),
        (["submit", "--check", "empty"], "'empty' is no submission: no board.json.gz"),
    ],
)
def test_what_a_command_cannot_take_is_told_in_words(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    stored(folder / "store", [record(seed=0), record(seed=1)])
    (folder / "empty").mkdir()
    (folder / "file.py").touch()
    (folder / "file.txt").write_text("")
    assert invoke(arguments) == 2
    assert words in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert sorted(path.name for path in folder.iterdir()) == ["empty", "file.py", "file.txt", "store"]  # as it was


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('zip = [["attack", "nope"]]', "'nope' is no axis of this scenario; its cell settings are attack, seed, norm"),
        ('zip = [["attack", "seed"], ["seed", "norm"]]', "zip: 'seed' appears twice"),
        ('zip = [["attack", "norm"]]', "zip: axes must have one length, not {'attack': 2, 'norm': 3}"),
        ("rounds = 3", "no scenario key 'rounds'; it belongs under [cell]: cell.rounds"),
        ('plugin = ["a.py"]', "no scenario key 'plugin'; did you mean 'plugins'"),
        ('plugins = ["a\\u0000b"]', "holds a file name with a null character"),
    ],
)
def test_a_file_that_is_no_scenario_says_what_to_write(
    text: str, words: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    cell = '[cell]\nattack = ["none", "sf"]\nseed = [0, 1]\nnorm = ["gn", "fbn", "none"]\n'
    (folder / "mine.toml").write_text(f"{text}\n{cell}")
    assert invoke(["grid", "mine.toml", "--dry-run"]) == 2
    assert words in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_failure_exits_1(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "runs").mkdir()
    (folder / "runs/quickstart").write_text("a file")
    assert invoke(["grid", *TINY]) == 1
    assert "runs/quickstart" in capsys.readouterr().err
