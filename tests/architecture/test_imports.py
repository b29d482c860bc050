"""Imports point downwards and have no cycles (CONTRIBUTING)."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracked import ROOT, product_modules

ROOMS = {
    "kernels": 0, "attacks": 1, "defenses": 1, "norms": 1, "algorithms": 1, "objectives": 1, "models": 1, "data": 1,
    "evaluation": 2, "engine": 2, "reports": 2, "testing": 2, "scenarios": 3, "flower": 3,
    "cli": 4, "reproductions": 5,
}  # fmt: skip
PLUGINS = {name for name, level in ROOMS.items() if level == 1}
# api.py and __init__.py are the facade: they stand on the plug-ins, and no inner module stands on them.
FACADE = {"robustfl", "robustfl.api", "robustfl.__main__"}


def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in product_modules():
        folder, *parts = path.relative_to(ROOT).with_suffix("").parts
        named = ["robustfl", *([] if folder == "robustfl" else [folder]), *parts]
        found[".".join(named[:-1] if named[-1] == "__init__" else named)] = path
    return found


MODULES = modules()


def imports(name: str) -> set[str]:
    """The robustfl modules that ``name`` imports anywhere in its file, relative ones resolved."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    targets: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            targets |= {f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names}
    return {t for t in targets if t in MODULES}


def room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def level(name: str) -> int:
    return ROOMS[room(name)] if room(name) else 0


def misplaced(name: str) -> Iterator[str]:
    """What is wrong with the imports of a module."""
    for target in imports(name):
        if name in FACADE or room(name) == room(target):
            continue
        if target in FACADE and not (target == "robustfl" and room(name) == "cli"):
            yield f"{name} imports {target}"
        if level(target) > level(name):
            yield f"{name} imports upwards: {target}"
        if {room(name), room(target)} <= PLUGINS:
            yield f"{name} imports its sibling {target}"


def test_imports_point_downwards() -> None:
    assert [said for name in sorted(MODULES) for said in misplaced(name)] == []


def test_an_import_upwards_and_one_of_a_sibling_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "import robustfl.scenarios, robustfl.attacks.evasion\nfrom robustfl import norms, api\n"
    (tmp_path / "x.py").write_text(text)
    monkeypatch.setitem(MODULES, "robustfl.norms.x", tmp_path / "x.py")
    assert sorted(misplaced("robustfl.norms.x")) == [
        "robustfl.norms.x imports its sibling robustfl.attacks.evasion",
        "robustfl.norms.x imports robustfl.api",
        "robustfl.norms.x imports upwards: robustfl.scenarios",
    ]


def test_there_are_no_cycles() -> None:
    graph = {name: imports(name) - FACADE for name in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("module", ["robustfl", "robustfl.reports", "robustfl.cli.app"])
def test_import_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_package_is_listed_for_the_wheel() -> None:
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"])
    there = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert listed - {"robustfl.boards"} == there  # files of data alone
