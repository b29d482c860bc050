"""Plug-ins as their authors live with them: a template, a check, an installation, a grid, a leaderboard."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

import pytest

from robustfl import registry
from robustfl.autobyz import NAME
from robustfl.cli import invoke
from robustfl.cli.new import facts, write
from robustfl.cli.options import TEMPLATES
from robustfl.errors import UsageError
from robustfl.origins import origins
from robustfl.scenarios.methods import _WORDS

KINDS = ("attack", "defense", "norm", "evasion")
TINY = [
    "--set", "rounds=2", "--set", "model=mlp(hidden=(8,))", "--set", "seed=0", "--set", "attack=sf",
    "--set", "defense=median", "--set", "norm=fbn", "--set", "partition.gamma=0.5", "--jobs", "0",
]  # fmt: skip
PLUGIN = '''
from dataclasses import dataclass
import torch
from robustfl.contracts import *
from robustfl.registry import register
COUNT = 0

@register("{name}", version=1)
@dataclass(frozen=True)
class Plugin({base}):
    """A plug-in."""
    {method}
        {body}
    def min_clients(self, f): return 1
'''
FORGE = ("Attack", "def forge(self, view, *, generator):")
AGGREGATE = ("Aggregator", "def aggregate(self, X, *, f, context):")
PERTURB = ("Evasion", "def perturb(self, model, x, y, *, generator=None):")


@pytest.fixture(autouse=True)
def folder(clean_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; files of methods loaded in a test are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    registry._files.clear()


def plug_in(name: str, body: str, of: tuple[str, str] = FORGE) -> str:
    base, method = of
    Path("plugin.py").write_text(PLUGIN.format(name=name, base=base, method=method, body=body), encoding="utf-8")
    return "plugin.py"


# --- new -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TEMPLATES)
def test_new_writes_a_package_that_passes_its_check(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["new", kind, "my-own.x", "--dir", "here"]) == 0
    assert "robustfl check my-own.x" in capsys.readouterr().out
    package = Path("here/robustfl-my-own.x")
    written = {str(p.relative_to(package)) for p in package.rglob("*") if p.is_file()}
    source = f"src/robustfl_my_own_x/{kind.removeprefix('stateful-')}.py"
    assert written == {
        "README.md", "pyproject.toml", source, "src/robustfl_my_own_x/__init__.py", "tests/test_my_own_x.py"
    }  # fmt: skip
    assert not any("$" in (package / p).read_text(encoding="utf-8") for p in written)
    assert invoke(["check", str(package / source)]) == 0
    assert "laws hold" in capsys.readouterr().out
    test = runpy.run_path(str(package / "tests" / "test_my_own_x.py"))
    arguments = {"tmp_path": Path("cache").absolute()} if kind == "dataset" else {}
    examples = [run for name, run in test.items() if name.startswith("test_") and name != "test_contract"]
    assert len(examples) == 1
    examples[0](**arguments)


def test_what_new_writes_is_in_style() -> None:
    package = Path("packages")
    for kind in TEMPLATES:
        write(kind, f"a-{kind}", package)
    for command in (
        ["check", "--select", "E,F,W,I,B,UP,SIM,RUF,N", "--ignore", "N803,RUF001,RUF002"],
        ["format", "--check"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--isolated", "--line-length", "120", str(package)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "name", "cls"),
    [
        ("attack", "reversed-median", "ReversedMedianAttack"),
        ("attack", "3x", "Attack3xAttack"),
        ("norm", "norm", "NormNorm"),
        ("defense", "true", "TrueDefense"),
        ("evasion", "my-evasion", "MyEvasion"),
    ],
)
def test_every_name_makes_a_class(kind: str, name: str, cls: str) -> None:
    words = facts(kind, name)
    assert words["cls"] == cls
    assert words["package"].isidentifier()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new", "attack", "alie"], "'alie' is taken by robustfl.attacks"),
        (["new", "attack", "My Attack"], "no method name"),
        (["new", "attack", "x-"], "no method name"),
        (["new", "attack", "a" * 260], "has 260 letters; the name of a package has at most 80"),
        (["new", "preset", "x"], "'preset' is none of"),
        (["new", "stateful-defense", "krum"], "defense 'krum' is taken by robustfl.defenses"),
        (["new", "attack", "autobyz"], "attack 'autobyz' is taken by robustfl for the built-in set of attacks"),
        (["new", "stateful-defense", "same"], "defense 'same' is taken by robustfl for the defense of updates"),
        (["new", "attack", "there"], "already there"),
        (["new", "attack", "x", "--dir", "robustfl-there/file"], "is a file, where a folder is needed"),
        (["check", "aile"], "did you mean 'alie'"),
        (["check", "nowhere.py"], "'nowhere.py' is not a file"),
        (["check", "robustfl-there"], "is a folder; pip install -e it"),
        (["check", "foe(etta=1)"], "did you mean 'eta'"),
        (["check", "foe", "--limit", "0"], "--limit"),
    ],
)
def test_misuse_exits_2_and_says_what_is_right(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("robustfl-there").mkdir()
    Path("robustfl-there/file").touch()
    assert invoke(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("command", [["run"], ["grid", "quickstart", "--dry-run"]])
def test_a_plug_in_without_a_method_is_told(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.py").write_text("x = 1")
    assert invoke([*command, "--plugin", "odd.py", "--set", "attack=no-such"]) == 2
    assert "warning: plug-in 'odd.py': no method has @register(name) in it" in capsys.readouterr().err


def test_new_where_nothing_can_be_written_fails(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert invoke(["new", "attack", "x", "--dir", "file/deeper"]) == 1
    assert "cannot write" in capsys.readouterr().err


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_prints_each_law_and_fails_when_one_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", "sf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("pass  inputs untouched") for line in lines)
    file = plug_in("shifty", "return view.honest.mul_(2).mean(0).expand(view.f, -1)")
    assert invoke(["check", file]) == 1
    out = capsys.readouterr().out
    assert "attack shifty (plugin.py" in out
    assert "FAIL  inputs untouched" in " ".join(out.split("\n"))
    assert "view.honest was written to" in out


def test_check_takes_the_parts_of_a_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", "clipping(c=0.5)+mean", "--format", "json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["clipping", "mean"]
    assert invoke(["check", "clipping+maen"]) == 2
    assert "did you mean 'mean'" in capsys.readouterr().err


def test_a_taken_name_is_a_broken_law_that_names_the_owner(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", plug_in("sf", "return view.honest[:1]")]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "FAIL name" in out
    assert "'sf' is taken by robustfl.attacks.byzantine.foe.SignFlip" in out


@pytest.mark.parametrize(
    ("name", "form"),
    [("autobyz", FORGE), ("same", AGGREGATE), ("none", AGGREGATE), ("sa", PERTURB)],
)
def test_a_name_that_scenarios_read_as_something_else_is_taken(
    name: str, form: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = plug_in(name, "return None", form)
    with pytest.raises(UsageError, match=f"'{name}' is taken by robustfl for .*; choose another name"):
        registry.load_file(file)
    assert invoke(["check", file]) == 1
    assert "FAIL name" in " ".join(capsys.readouterr().out.split())


def test_words_of_scenarios_are_no_names_of_methods() -> None:
    for setting, word in _WORDS.items():
        kind = "defense" if setting in ("statistics_defense", "propagation") else setting
        assert kind not in registry.KINDS or word in registry.WORDS[kind]
    assert NAME in registry.WORDS["attack"]


@pytest.mark.parametrize(
    ("text", "limit", "words"),
    [
        ("import time\ntime.sleep(0.5)", 0.1, "does not end within 0.1 s"),
        ("1 / 0", 60, "ZeroDivisionError"),
        ("def (", 60, "SyntaxError"),
        ("x = 1", 60, "no method has @register"),
    ],
)
def test_files_that_do_not_load_fail_and_say_why(
    text: str, limit: float, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.py").write_text(text, encoding="utf-8")
    before = {*threading.enumerate()}
    assert invoke(["check", "odd.py", "--limit", str(limit)]) == 1
    for left in {*threading.enumerate()} - before:  # the import that was given up
        left.join()
    out = " ".join(capsys.readouterr().out.split())
    assert "FAIL loads" in out
    assert words in out


def test_a_method_without_defaults_says_how_to_check_it(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(plug_in("scaled", "return self.by * view.honest.mean(0).expand(view.f, -1)"))
    file.write_text(file.read_text().replace('"""A plug-in."""', '"""A plug-in."""\n    by: float'), encoding="utf-8")
    assert invoke(["check", str(file)]) == 1
    assert "check 'scaled(parameter=value)'" in " ".join(capsys.readouterr().out.split())
    assert invoke(["check", "scaled(by=2)", "--plugin", str(file)]) == 0


# --- grids -----------------------------------------------------------------------------------------------------------


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted(Path("runs", name, "cells").glob("*.json"))]


@pytest.mark.parametrize(
    ("of", "body", "words"),
    [
        (FORGE, "return torch.zeros(view.f, 3)", "returned a tensor (3, 3)"),
        (FORGE, "raise KeyError('my bug')", "my bug"),
        (AGGREGATE, "return X.mean(0) * float('nan')", "not finite"),
        (PERTURB, "x.add_(1); return x.clone()", "wrote to what it was shown"),
    ],
)
def test_a_plug_in_that_breaks_its_contract_fails_its_cell_and_is_named(
    of: tuple[str, str], body: str, words: str
) -> None:
    file = plug_in("naughty", body, of)
    axis = {FORGE: "attack=naughty", AGGREGATE: "defense=naughty", PERTURB: 'evasions=["naughty"]'}[of]
    assert (
        invoke(["run", "quickstart", *TINY[:-2], "--set", axis, "--set", "name=n", "--plugin", file, "--out", "runs"])
        == 1
    )
    (record,) = records("n")
    assert record["status"] == "failed"
    assert words in record["reason"]
    assert "naughty" in record["reason"]
    assert "plugin.py" in record["reason"]


# --- installed -------------------------------------------------------------------------------------------------------


class Environment:
    """A fresh environment that also sees what this one has, so that nothing is fetched."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        here = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        (self.site / "_outer.pth").write_text("".join(f"import site; site.addsitedir({p!r})\n" for p in here))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [str(self.python), *command], capture_output=True, text=True, check=False,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *packages: Path) -> None:
        offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
        folders = [str(p.resolve()) for p in packages]
        command = ("-m", "pip", "--python", str(self.python), "install", "--force-reinstall", *offline, *folders)
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def robustfl(self, *commands: list[str], tests: Sequence[str] = ()) -> str:
        """Tests and several command lines in one process: importing torch is what takes time."""
        code = f"from robustfl.cli import invoke\nfor command in {commands!r}: assert invoke(command) == 0, command"
        if tests:
            code = f"import pytest\nassert pytest.main(['-q', '-p', 'no:cacheprovider', *{tests!r}]) == 0\n{code}"
        return self.run("-c", code)


@pytest.mark.slow
def test_installed_plug_ins_take_part_with_their_distribution_and_version(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "fresh")
    packages = [write(kind, f"my-{kind}", Path()) for kind in KINDS]
    environment.install(*packages)
    tests = [str(p / "tests") for p in packages]
    axes = [
        'attack=["none", "my-attack(scale=2)"]',
        "norm=my-norm",
        "defense=nnm+my-defense",
        'evasions=["my-evasion"]',
    ]
    cells = [word for axis in axes for word in ("--set", axis)]
    grid = ["grid", *TINY, *cells, "--set", "name=g", "--jobs", "1"]
    out = environment.robustfl(
        ["list"], ["show", "my-attack"], grid, ["report", "runs/g", "--no-figures"], tests=tests
    )  # fmt: skip
    assert re.search(r"my-norm .* robustfl-my-norm 0\.1\.0", out)
    assert "from: robustfl-my-attack 0.1.0" in out
    records_of = {r["labels"]["attack"]: r for r in records("g")}
    assert {r["status"] for r in records_of.values()} == {"done"}
    assert origins(records_of["none"]["cell"]) == {
        f"{kind} my-{kind}": f"robustfl-my-{kind} 0.1.0" for kind in ("norm", "defense", "evasion")
    }
    assert origins(records_of["my-attack(scale=2)"]["cell"])["attack my-attack"] == "robustfl-my-attack 0.1.0"
    assert "attack my-attack: robustfl-my-attack 0.1.0" in " ".join(out.split())

    project = packages[0] / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.1.0"', 'version = "0.2.0"'))
    environment.install(packages[0])
    out = environment.robustfl(["list", "--markdown"], grid)
    assert "my-attack" not in out.partition("g: ")[0]  # the page of robustfl's own methods
    assert "1 cells run now, 1 were there already" in out


# --- entry points, as installers write them --------------------------------------------------------------------------


def distribution(folder: Path, name: str, text: str, *, editable: bool = False) -> EntryPoint:
    """A distribution ``robustfl-NAME`` of one module in ``folder``, which is on the path."""
    module = f"robustfl_{name}"
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: robustfl-{name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{module}.py,,\n")
    (info / "top_level.txt").write_text(f"{module}\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nrobustfl-{name} = {module}\n")
    url = {"url": folder.as_uri(), "dir_info": {"editable": editable}}
    (info / "direct_url.json").write_text(json.dumps(url))
    (point,) = (p for p in Distribution.at(info).entry_points if p.group == registry.GROUP)
    return point


def text_of(name: str) -> str:
    return PLUGIN.format(name=name, base=FORGE[0], method=FORGE[1], body="return view.honest[:1]")


@pytest.mark.slow
def test_an_editable_plug_in_is_known_by_its_code_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    origins_of = []
    for text in (text_of("calm"), text_of("calm") + "# changed"):
        point = distribution(folder, "calm", text, editable=True)
        assert point.dist is not None
        origins_of.append(registry._origin_of_distribution(point.dist, "robustfl_calm"))
    assert all(o.startswith("robustfl-calm 1.0+") for o in origins_of)
    assert len(set(origins_of)) == 2
    registry._load_point(point)
    assert registry.identity(registry.create("attack", "calm"))["origin"] == origins_of[1]


def test_a_plug_in_imported_by_hand_is_known_by_its_distribution(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    distribution(folder, "by_hand", text_of("by-hand"))
    registry._distributions.cache_clear()
    import_module("robustfl_by_hand")
    registry._distributions.cache_clear()
    assert registry.lookup("attack", "by-hand").origin == "robustfl-by_hand 1.0"


def test_a_class_of_no_distribution_is_known_by_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "loose_module.py").write_text(text_of("loose"), encoding="utf-8")
    import_module("loose_module")
    assert re.fullmatch(r"loose_module\.py [0-9a-f]{12}", registry.lookup("attack", "loose").origin)


def test_an_installed_plug_in_that_takes_a_name_names_itself_and_the_owner(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    point = distribution(folder, "thief", text_of("fine") + text_of("sf"))
    words = r"plug-in 'robustfl-thief' \(robustfl-thief 1\.0\): attack 'sf' is taken by robustfl\.attacks"
    with pytest.raises(UsageError, match=words):
        registry._load_point(point)
    with pytest.raises(UsageError, match="unknown attack 'fine'"):
        registry.lookup("attack", "fine")


def test_robustfls_own_methods_have_no_origin() -> None:
    own = [e for kind in registry.KINDS for e in registry.entries(kind) if e.cls.__module__.startswith("robustfl.")]
    assert own
    assert not [e for e in own if e.origin]
    assert set(registry.identity(registry.create("attack", "foe(eta=2)"))) == {"name", "version", "params"}


def test_the_page_about_plug_ins_shows_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    (test,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    space: dict[str, Any] = {}
    exec(test, space)
    (mark,) = space["test_contract"].pytestmark
    for check in mark.args[1]:
        space["test_contract"](check)
    commands = [line.split("#")[0].split() for line in text.splitlines() if line.startswith("robustfl new")]
    assert [invoke(c[1:]) for c in commands] == [0]
    assert Path("robustfl-my-attack/src/robustfl_my_attack/attack.py").is_file()
