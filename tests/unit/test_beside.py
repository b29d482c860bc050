"""What a plug-in's file imports from no installed package, and layer kinds, are in the key or refused."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from robustfl import layer_kinds, registry, sessions
from robustfl.beside import digests_of, forget_others, imported, python_files, whole
from robustfl.errors import UsageError

ATTACK = '''
from dataclasses import dataclass
from robustfl.contracts import Attack
from robustfl.registry import register
{imports}
@register("{name}", version=1)
@dataclass(frozen=True)
class Mine(Attack):
    """An attack."""
    def forge(self, view, *, generator):
        {inside}
        return helper_of_mine.SCALE * view.honest[:view.f]
'''


@pytest.fixture(autouse=True)
def folder(clean_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


@pytest.mark.parametrize(
    ("imports", "inside"), [("import helper_of_mine", "pass"), ("", "import helper_of_mine"),
                            ("from helper_of_mine import SCALE", "pass")],
)  # fmt: skip
def test_a_plug_in_file_that_imports_a_file_beside_it_is_refused(folder: Path, imports: str, inside: str) -> None:
    (folder / "helper_of_mine.py").write_text("SCALE = 1.0\n")
    file = folder / "mine.py"
    file.write_text(ATTACK.format(name="beside", imports=imports, inside=inside))
    for _ in range(2):  # also when the helper is imported already
        with pytest.raises(UsageError, match=r"it imports helper_of_mine \(.*\), whose code would be in no key"):
            registry.load_file(file)
    with pytest.raises(UsageError, match="unknown attack 'beside'"):
        registry.create("attack", "beside")


def test_what_is_imported_from_elsewhere_is_found_through_other_files(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "one.py").write_text(
        "from . import two\nimport numpy, json, torch.nn, robustfl, no_such_module\n"
    )
    (folder / "pack" / "two.py").write_text("import far\n")
    (folder / "far.py").write_text("import pack.one\n")
    found = imported(b"def f():\n    from pack import one\n")
    assert {name: path.name for name, path in found.items()} == {
        "far": "far.py", "pack": "__init__.py", "pack.one": "one.py", "pack.two": "two.py",
    }  # fmt: skip
    assert not {name for name in sys.modules if name in ("far", "pack.one")}  # nothing runs
    assert imported(b"import numpy\nfrom torch import nn\nfrom robustfl.contracts import *\ndef (") == {}


def test_a_class_registered_by_hand_is_known_by_what_its_file_imports_too(folder: Path) -> None:
    file, helper, origins = folder / "by_hand_of_mine.py", folder / "helper_of_mine.py", []
    file.write_text(ATTACK.format(name="by-hand", imports="import helper_of_mine", inside="pass"))
    for scale in (1.0, 30.0):
        helper.write_text(f"SCALE = {scale}\n")
        for name in ("by_hand_of_mine", "helper_of_mine"):
            sys.modules.pop(name, None)
        registry._entries["attack"].pop("by-hand", None)
        exec("import by_hand_of_mine", {})
        origins.append(registry.lookup("attack", "by-hand").origin)
    assert all(origin.startswith("by_hand_of_mine.py ") for origin in origins)
    assert len(set(origins)) == 2


def test_code_that_was_edited_counts_once_it_is_loaded_again(folder: Path) -> None:
    """The key is that of the code which runs here, not of what has been saved meanwhile."""
    script, helper = folder / "script_of_mine.py", folder / "helper_of_mine.py"
    script.write_text("import helper_of_mine\n")
    helper.write_text("SCALE = 1.0\n")
    module = importlib.import_module("helper_of_mine")
    first = whole(script)
    helper.write_text("SCALE = 30.0\n")
    assert whole(script) == first
    importlib.reload(module)
    assert whole(script) != first


NOTEBOOK = """
import helper_of_mine as h
from helper_of_mine import scaled
import torch
class One:
    def f(self): return h.SCALE, torch
class Two:
    def f(self): return scaled(1)
"""


def test_a_class_of_a_notebook_is_known_by_the_modules_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper, found = folder / "helper_of_mine.py", []
    for scale in (1.0, 1.0, 30.0):
        helper.write_text(f"SCALE = {scale}\ndef scaled(x): return SCALE * x\n")
        sys.modules.pop("helper_of_mine", None)
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(NOTEBOOK, space)
        found.append([sessions.content(space[name]) for name in ("One", "Two")])
        assert sessions.beside_of(space["One"]) == sessions.beside_of(space["Two"])
        assert list(sessions.beside_of(space["One"])) == ["helper_of_mine"]
    assert found[0] == found[1]
    assert not {*found[1]} & {*found[2]}


def editable(module: str) -> str:
    """Where methods of an editable distribution come from."""
    told = {"direct_url.json": '{"dir_info": {"editable": true}}'}
    dist = SimpleNamespace(name="acme-attack", version="0.1", read_text=told.get)
    return registry._origin_of_distribution(dist, module)  # type: ignore[arg-type]


@pytest.mark.parametrize("edited", ["acme/atk/__init__.py", "acme/atk/deep/one.py", "acme/data/two.py", "three.py"])
def test_an_editable_package_is_known_by_all_of_its_code(
    edited: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a namespace that another distribution shares, and where it imports modules beside itself."""
    one, other = folder / "first" / "src", folder / "second" / "src"
    texts = {
        "acme/atk/__init__.py": "import three\nfrom acme.data import two\n", "acme/atk/deep/one.py": "", "three.py": "",
        "acme/data/two.py": "",
    }  # fmt: skip
    for name, text in texts.items():
        (one / name).parent.mkdir(parents=True, exist_ok=True)
        (one / name).write_text(text)
    (other / "acme" / "zzz").mkdir(parents=True)
    monkeypatch.syspath_prepend(one)
    before = editable("acme.atk")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])  # pip installs another part of the namespace
    (other / "acme" / "zzz" / "__init__.py").write_text("import numpy\n")
    assert editable("acme.atk") == before
    assert before.startswith("acme-attack 0.1+")
    (one / edited).write_text(texts[edited] + "SCALE = 30\n")
    assert editable("acme.atk") != before


ENVIRONMENTS = {
    ".venv": ".venv/lib/other.py", "renamed": "env/lib/other.py", "installed": "lib/site-packages/other.py",
    "node": "node_modules/other.py", "git": ".git/other.py", "cache": "__pycache__/other.py",
}  # fmt: skip


@pytest.mark.parametrize("other", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_environment_inside_a_package_is_no_code_of_it(other: str, folder: Path) -> None:
    pack = folder / "pack"
    (pack / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py"):
        (pack / name).write_text("")
    before, files = editable("pack"), python_files(pack)
    assert files == [pack / "__init__.py", pack / "inner" / "__init__.py"]
    (pack / other).parent.mkdir(parents=True)
    (pack / other).write_text("SCALE = 1\n")
    (pack / "env").mkdir(exist_ok=True)
    (pack / "env" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert (editable("pack"), python_files(pack)) == (before, files)


def test_a_worker_imports_what_its_sender_did_or_says_so(folder: Path) -> None:
    pack = folder / "pack_of_mine"
    pack.mkdir()
    (pack / "__init__.py").write_text("")
    (pack / "scales.py").write_text("SCALE = 1.0\n")
    (folder / "user_of_mine.py").write_text("from pack_of_mine import scales\n")
    stale = importlib.import_module("user_of_mine")
    before = digests_of("user_of_mine")
    assert list(before) == ["user_of_mine", "pack_of_mine", "pack_of_mine.scales"]
    assert forget_others(before) == set()
    assert digests_of("numpy") == digests_of("json") == digests_of("robustfl.errors") == {}
    (pack / "scales.py").write_text("SCALE = 30.00\n")
    assert digests_of("user_of_mine") == before, "this process has the old code"
    with pytest.raises(UsageError, match=r"pack_of_mine.scales changed after it was imported, or is another one here"):
        forget_others(before)
    sender = {**before, "pack_of_mine.scales": hashlib.sha256(b"SCALE = 30.00\n").hexdigest()[:12]}
    assert forget_others(sender) >= {"pack_of_mine", "pack_of_mine.scales"}
    del sys.modules["user_of_mine"]
    assert importlib.import_module("user_of_mine").scales.SCALE == 30
    assert stale.scales.SCALE == 1
    with pytest.raises(UsageError, match=r"no_such_module_of_mine .* there is no such file"):
        forget_others({"no_such_module_of_mine": "0" * 12})


EDITED = """
import pathlib, sys
import robustfl
from dataclasses import dataclass
from robustfl.contracts import Attack
from robustfl.registry import register
import scale_of_mine
{where}
CELL = {{"dataset": "digits(limit=100, test_limit=50)", "model": "mlp", "norm": "none", "clients": 4, "f": 1,
        "rounds": 1, "evasions": [], "attack": "scaled"}}
def ran(out, jobs):
    made = robustfl.grid(robustfl.Scenario.of({{"name": "s", "cell": CELL}}), out=out, jobs=jobs)
    return made.frame[["key", "loss"]].values.tolist()
if __name__ == "__main__":
    first = ran("here", 0)
    if {early}:
        assert ran("worker", 1) == first
    changed = pathlib.Path("scale_of_mine.py")
    changed.write_text("SCALE = 30.0\\n" + METHOD)
    assert ran("same", 0) == first
    try:
        ran("new", 1)
    except robustfl.errors.UsageError as error:
        print(error)
"""
METHOD = '''
from dataclasses import dataclass
from robustfl.contracts import Attack
from robustfl.registry import register
@register("scaled", version=1)
@dataclass(frozen=True)
class Scaled(Attack):
    """An attack."""
    def forge(self, view, *, generator):
        return -{scale} * view.honest[:1]
'''


@pytest.mark.slow
@pytest.mark.parametrize(("imported_method", "early"), [(True, True), (True, False), (False, False)])
def test_workers_never_run_other_code_than_the_key_says(imported_method: bool, early: bool, folder: Path) -> None:
    """A module is edited between two grids of one process: its workers would import the new text."""
    beside = METHOD.format(scale="SCALE") if imported_method else ""
    (folder / "scale_of_mine.py").write_text("SCALE = 1.0\n" + beside)
    own = "" if imported_method else METHOD.format(scale="scale_of_mine.SCALE")
    text = EDITED.format(where=own, early=early).replace('"SCALE = 30.0\\n" + METHOD', repr("SCALE = 30.0\n" + beside))
    (folder / "script_of_mine.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script_of_mine.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "scale_of_mine changed after it was imported" in done.stdout


KIND = '''
from torch import nn
from robustfl.layer_kinds import LayerKind, layer_kind
@layer_kind(nn.PReLU)
class Slopes(LayerKind):
    """A kind."""
    def forward(self, layer, x, weights):
        return nn.functional.prelu(x, weights["weight"])
'''
MODEL = '''
from dataclasses import dataclass
from torch import nn
from robustfl.contracts import Model
from robustfl.registry import register
@register("net-of-mine", version=1)
@dataclass(frozen=True)
class Mine(Model):
    """A model."""
    def build(self, norm, *, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.PReLU(), nn.Linear(64, classes))
'''


def test_layer_kinds_of_another_file_are_in_the_key_of_a_model_from_elsewhere(
    folder: Path,
) -> None:
    (folder / "net.py").write_text(MODEL)
    (folder / "kinds.py").write_text(KIND + ATTACK.format(name="unused", imports="", inside="pass"))
    registry.load_file(folder / "net.py")
    before, own = (registry.identity(registry.create("model", name)) for name in ("net-of-mine", "mlp"))
    registry.load_file(folder / "kinds.py")
    after, still = (registry.identity(registry.create("model", name)) for name in ("net-of-mine", "mlp"))
    assert "layer_kinds" not in before
    (kind,) = after["layer_kinds"]
    assert kind.startswith("kinds.py ")
    assert still == own


def test_a_plug_in_that_fails_leaves_no_layer_kind(folder: Path) -> None:
    (folder / "kinds.py").write_text(KIND + "1 / 0\n")
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        registry.load_file(folder / "kinds.py")
    assert nn.PReLU not in layer_kinds.TABLE
