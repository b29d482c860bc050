"""Code that a file imports from no installed package: what the file does depends on it as on the file's own text."""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

OWN = "robustfl"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def imported(source: bytes, package: str = "") -> dict[str, Path]:
    """By name the files of all modules outside installed packages that Python ``source``, or one of these, imports.

    ``package`` is the one that the source belongs to. Imports inside functions count; a name that is put together
    while the code runs is not seen.
    """
    found: dict[str, Path] = {}
    asked = list(_names(source, package))
    while asked:
        name = asked.pop()
        file = _file_of(name)
        if file is None or name in found:
            continue
        found[name] = file
        inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
        asked += _names(file.read_bytes(), inside) if file.suffix == ".py" else []
    return dict(sorted(found.items()))


def whole(file: Path, package: str = "") -> bytes:
    """The content of a Python file with that of all it imports from no installed package."""
    return _whole(file, package, file.stat().st_mtime_ns)


@cache
def _whole(file: Path, package: str, changed: int) -> bytes:
    del changed
    source = file.read_bytes()
    parts = [name.encode() + b"\0" + path.read_bytes() for name, path in imported(source, package).items()]
    return b"\0".join([source, *parts])


def _names(source: bytes, package: str) -> Iterator[str]:
    """The full names of modules that a source imports; of ``from a import b`` both ``a`` and ``a.b``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(filter(None, [*parents, base]))
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:i]) for i in range(1, len(parts) + 1))


def _file_of(name: str) -> Path | None:
    """The file of a module that is neither robustfl's, nor Python's, nor of an installed package; else None."""
    top = name.partition(".")[0]
    if not name or top == OWN or top in sys.stdlib_module_names or top == "__main__":
        return None
    try:
        spec = _spec_of(name)
    except Exception:  # whatever finders do to a name that is none
        return None
    if spec is None or not spec.origin or not spec.has_location:
        return None
    file = Path(spec.origin).resolve()
    inside = _INSTALLED & set(file.parts) or any(file.is_relative_to(folder) for folder in _STANDARD)
    return None if inside or not file.is_file() else file


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module would come from, without importing any package that it is in."""
    module, parent = sys.modules.get(name), name.rpartition(".")[0]
    if module is not None:
        return module.__spec__
    if not parent:
        return importlib.util.find_spec(name)
    around = _spec_of(parent)
    folders = None if around is None else around.submodule_search_locations
    return None if folders is None else PathFinder.find_spec(name, list(folders))
