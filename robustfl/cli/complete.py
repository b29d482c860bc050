"""Shell completion: presets, files, methods, settings; read off the sources, as importing torch takes seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from robustfl.beside import python_files

_ROOMS = {
    "attack": "robustfl.attacks/byzantine", "evasion": "robustfl.attacks/evasion", "defense": "robustfl.defenses",
    "norm": "robustfl.norms", "algorithm": "robustfl.algorithms", "objective": "robustfl.objectives",
    "model": "robustfl.models", "dataset": "robustfl.data", "partition": "robustfl.data",
}  # fmt: skip
_METHOD = re.compile(r'^@register\("([^"]+)".*\n(?:@.*\n)*class \w+\(([^)]*)\)', flags=re.MULTILINE)
_SETTINGS = {
    "statistics_defense": "defense",
    "propagation": "defense",
    "evasions": "evasion",
    "train_evasion": "evasion",
}
"""Cell settings that name methods of a kind of another name."""


def scenarios(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets and TOML files."""
    del ctx, param
    return [*matching(incomplete, _presets()), CompletionItem(incomplete, type="file")]


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Methods of every kind and presets."""
    del ctx, param
    return matching(incomplete, {name for kind in _ROOMS for name in methods(kind)} | _presets())


def checked(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Methods and Python files."""
    return [*names(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


def data_sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Data sets by name."""
    del ctx, param
    return matching(incomplete, methods("dataset"))


def settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``NAME=`` of a cell's settings; behind a setting that names a method, methods."""
    del ctx, param
    name, equals, value = incomplete.partition("=")
    if not equals:
        return matching(name, (f"{setting}=" for setting in cell_settings()))
    steps, plus, last = value.rpartition("+")
    kind = _SETTINGS.get(name, name)
    found = methods(kind) if kind in _ROOMS else set()
    return matching(incomplete, (f"{name}={steps}{plus}{method}" for method in found if method.startswith(last)))


def methods(kind: str) -> set[str]:
    """The names of robustfl's own methods of a kind.

    >>> {"foe", "alie"} <= methods("attack"), "iid" in methods("dataset"), "iid" in methods("partition")
    (True, False, True)
    """
    found: dict[str, str] = {}
    for path in python_files(_folder(_ROOMS[kind])):
        found |= dict(_METHOD.findall(path.read_text(encoding="utf-8")))
    if _ROOMS[kind] == "robustfl.data":
        return {name for name, bases in found.items() if ("Partition" in bases) == (kind == "partition")}
    return set(found)


def cell_settings() -> list[str]:
    """The names of a cell's settings."""
    source = (_folder("robustfl.scenarios") / "cell.py").read_text(encoding="utf-8")
    (cell,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Cell")
    lines = (n.target for n in cell.body if isinstance(n, ast.AnnAssign))
    return [n.id for n in lines if isinstance(n, ast.Name) and not n.id.startswith("_") and n.id != "model_config"]


def _presets() -> set[str]:
    folder = _folder("robustfl.scenarios") / "presets"
    return {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml")}


def _folder(room: str) -> Path:
    package, _, below = room.partition("/")  # finding a package inside a room would import the room
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / below


def matching(incomplete: str, options: Iterable[str]) -> list[CompletionItem]:
    """The options that go on from what is typed."""
    return [CompletionItem(option) for option in sorted(options) if option.startswith(incomplete)]
