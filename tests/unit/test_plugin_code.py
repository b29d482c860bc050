"""The code of plug-ins outside installed packages, and layer kinds: they are in the key, or refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from robustfl import layer_kinds, registry
from robustfl.errors import UsageError
from robustfl.file_io import python_files
from robustfl.plugin_code import code_of, session_code

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
def folder(clean_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(tmp_path))]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("imports", "inside"), [("import helper_of_mine", "pass"), ("", "import helper_of_mine"),
                            ("from helper_of_mine import SCALE", "pass")],
)  # fmt: skip
def test_a_plug_in_file_that_imports_a_file_beside_it_is_refused(folder: Path, imports: str, inside: str) -> None:
    (folder / "helper_of_mine.py").write_text("SCALE = 1.0\n")
    file = folder / "mine.py"
    file.write_text(ATTACK.format(name="beside", imports=imports, inside=inside))
    with pytest.raises(UsageError, match=r"it imports helper_of_mine \(.*\), whose code would be in no key"):
        registry.load_file(file)
    with pytest.raises(UsageError, match="unknown attack 'beside'"):
        registry.create("attack", "beside")


def test_code_is_all_that_is_imported_outside_installed_packages(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "one.py").write_text(
        "from . import two\nimport numpy, json, torch.nn, robustfl, no_such_module\n"
    )
    (folder / "pack" / "two.py").write_text("def f():\n    import far\n")
    (folder / "far.py").write_text("import pack.one\n")
    before = code_of("pack.one")
    assert list(before) == ["far", "pack"]
    assert not {"far", "pack"} & sys.modules.keys()  # nothing runs
    assert code_of("numpy", "json", "robustfl.errors", "__main__", "no_such_module") == {}
    (folder / "pack" / "two.py").write_text("def (")
    assert list(code_of("pack")) == ["pack"]
    assert code_of("pack")["pack"] != before["pack"]


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


NOTEBOOK = """
import helper_of_mine as h
from helper_of_mine import scaled
import torch
class One:
    def f(self): return h.SCALE, torch
class Two:
    def f(self): return scaled(1)
class Three:
    def f(self):
        from helper_of_mine import SCALE
        from . import sibling
        return SCALE
"""


def test_a_class_of_a_notebook_is_known_by_the_modules_beside_it(folder: Path) -> None:
    helper, found = folder / "helper_of_mine.py", []
    for scale in (1.0, 1.0, 30.0):
        helper.write_text(f"SCALE = {scale}\ndef scaled(x): return SCALE * x\n")
        sys.modules.pop("helper_of_mine", None)
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(NOTEBOOK, space)
        found.append([session_code(space[name]) for name in ("One", "Two", "Three")])
    assert {module for _, code in found[0] for module in code} == {"helper_of_mine"}
    assert found[0] == found[1]
    assert not {digest for digest, _ in found[1]} & {digest for digest, _ in found[2]}


def test_code_that_was_edited_is_refused_until_it_is_loaded_again(folder: Path) -> None:
    """The key is that of the code which runs here, and workers run no other."""
    file = folder / "by_hand_of_mine.py"
    file.write_text(ATTACK.format(name="by-hand", imports="", inside="pass"))
    module = importlib.import_module("by_hand_of_mine")
    sent = registry.pack([registry.lookup("attack", "by-hand")])
    registry.unpack(sent)
    file.write_text(file.read_text() + "# edited\n")
    for again in (lambda: registry.unpack(sent), lambda: registry.pack([registry.lookup("attack", "by-hand")])):
        with pytest.raises(UsageError, match="by_hand_of_mine changed after it was imported"):
            again()
    del registry._entries["attack"]["by-hand"], sys.modules["by_hand_of_mine"]
    with pytest.raises(UsageError, match="by_hand_of_mine changed after it was imported, or is another one here"):
        registry.unpack(sent)
    assert importlib.import_module("by_hand_of_mine") is not module
    registry.unpack(registry.pack([registry.lookup("attack", "by-hand")]))


def editable(module: str) -> str:
    """Where methods of an editable distribution come from."""
    told = {"direct_url.json": '{"dir_info": {"editable": true}}'}
    dist = SimpleNamespace(name="acme-attack", version="0.1", read_text=told.get)
    return registry._origin_of_distribution(dist, module)  # type: ignore[arg-type]


@pytest.mark.parametrize("edited", ["acme/atk/__init__.py", "acme/atk/deep/one.py", "acme/data/two.py", "three.py"])
def test_an_editable_package_is_known_by_all_of_its_code(edited: str, folder: Path) -> None:
    """Also in a namespace, and where it imports modules beside itself."""
    texts = {
        "acme/atk/__init__.py": "import three\n",
        "acme/atk/deep/one.py": "",
        "three.py": "",
        "acme/data/two.py": "",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = editable("acme.atk")
    assert before.startswith("acme-attack 0.1+")
    (folder / edited).write_text(texts[edited] + "SCALE = 30\n")
    assert editable("acme.atk") != before


ENVIRONMENTS = {
    ".venv": ".venv/lib/other.py", "renamed": "env/lib/other.py", "installed": "lib/site-packages/other.py",
    "node": "node_modules/other.py", "git": ".git/other.py", "cache": "__pycache__/other.py",
}  # fmt: skip


@pytest.mark.parametrize("other", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_environment_inside_a_package_is_no_code_of_it(other: str, folder: Path) -> None:
    pack = folder / "pack"
    (pack / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", other, "env/pyvenv.cfg"):
        (pack / name).parent.mkdir(parents=True, exist_ok=True)
        (pack / name).write_text("")
    assert python_files(pack) == [pack / "__init__.py", pack / "inner" / "__init__.py"]


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


def test_layer_kinds_of_another_file_are_in_the_key_of_a_model_from_elsewhere(folder):
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
