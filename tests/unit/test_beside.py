"""What a plug-in's file imports from no installed package, and layer kinds, are in the key or refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from robustfl import layer_kinds, registry
from robustfl.beside import imported, whole
from robustfl.contracts import Attack
from robustfl.errors import RobustflError, UsageError
from robustfl.watch import checked

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
        whole.__globals__["_whole"].cache_clear()
        exec("import by_hand_of_mine", {})
        origins.append(registry.lookup("attack", "by-hand").origin)
    assert all(origin.startswith("by_hand_of_mine.py ") for origin in origins)
    assert len(set(origins)) == 2


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


def test_a_plug_in_that_overflows_on_huge_rows_diverges_as_robustfls_own_do(folder: Path) -> None:
    (folder / "scaled.py").write_text(ATTACK.format(name="scaled", imports="", inside="pass"))
    registry.load_file(folder / "scaled.py")
    plug_in = registry.create("attack", "scaled")
    assert isinstance(plug_in, Attack)
    made, like = torch.tensor([[torch.inf, 1.0]]), torch.zeros(1, 2)
    assert checked(made, like, plug_in, torch.tensor([[2e19, 0.0]])) is made
    for shown in (torch.tensor([[1e19, 0.0]]), torch.zeros(0, 2), torch.tensor([[1e19]], dtype=torch.float64)):
        with pytest.raises(RobustflError, match="returned entries that are not finite"):
            checked(made, like, plug_in, shown)
