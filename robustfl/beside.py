"""Code that a file imports from no installed package: what the file does depends on it as on the file's own text."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from robustfl.errors import UsageError

OWN = "robustfl"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_FOREIGN = _INSTALLED | {"node_modules", "__pycache__"}
_loaded: dict[str, tuple[ModuleSpec, bytes]] = {}
"""Of loaded modules what their files held when this process first asked, and of which loading that is true."""
_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk a folder as ``os.walk`` does, without entering hidden folders, caches, and environments inside it."""
    for here, folders, files in os.walk(folder):
        yield Path(here), list(folders), files
        inside = [name for name in folders if not name.startswith(".") and name not in _FOREIGN]
        folders[:] = [name for name in inside if not Path(here, name, "pyvenv.cfg").exists()]


def python_files(folder: Path) -> list[Path]:
    """The Python files of a package's folder, sorted; none of an environment that lies in it."""
    return sorted(here / name for here, _, files in walk(folder) for name in files if name.endswith(".py"))


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
        asked += _names(_content(name, file), _package_of(name, file)) if file.suffix == ".py" else []
    return dict(sorted(found.items()))


def whole(file: Path, package: str = "") -> bytes:
    """The content of a Python file with that of all it imports from no installed package, as this process loaded it."""
    source = file.read_bytes()
    parts = [name.encode() + b"\0" + _content(name, path) for name, path in imported(source, package).items()]
    return b"\0".join([source, *parts])


def whole_package(module: str) -> bytes | None:
    """The content of the package or single file that ``module`` is in, with all these import from no installed one.

    Of a namespace, which several packages share, its own part. ``None`` for a module without a file.
    """
    specs = ((name, _spec_of(name)) for name in _with_parents(module))
    found = next(((n, s.origin) for n, s in specs if s is not None and s.has_location and s.origin), None)
    if found is None:
        return None
    root, first = found[0], Path(found[1]).resolve()
    own = python_files(first.parent) if first.name == "__init__.py" else [first]
    texts, others = {file: file.read_bytes() for file in own}, dict[str, Path]()
    for file, text in texts.items():
        inside = ".".join([root, *file.parent.relative_to(first.parent).parts])
        others |= imported(text, inside if first.name == "__init__.py" else root.rpartition(".")[0])
    parts = [file.relative_to(first.parent).as_posix().encode() + b"\0" + text for file, text in texts.items()]
    parts += [n.encode() + b"\0" + _content(n, file) for n, file in sorted(others.items()) if file not in texts]
    return b"\0".join(parts)


def digests(source: bytes, package: str = "") -> dict[str, str]:
    """By name the digests of the modules that ``imported`` finds, as this process loaded them."""
    return {name: short_digest(_content(name, file)) for name, file in imported(source, package).items()}


def digests_of(module: str) -> dict[str, str]:
    """Those of a module itself and of what it imports; none for one of Python, robustfl or an installed package."""
    file = _file_of(module)
    if file is None:
        return {}
    text = _content(module, file)
    return {module: short_digest(text)} | (digests(text, _package_of(module, file)) if file.suffix == ".py" else {})


def forget_others(code: Mapping[str, str]) -> set[str]:
    """Unload the modules of ``code`` that this process loaded from other texts; the names of all that went with them.

    For processes that live longer than one version of what they import. Raises ``UsageError`` where a module's file
    is not here, or is another than its digest says.
    """
    importlib.invalidate_caches()
    stale = {name for name, digest in code.items() if name in sys.modules and _remembered(name) != digest}
    tops = {name.partition(".")[0] for name in stale}
    gone = {name for name in sys.modules if name.partition(".")[0] in tops}
    for name in gone:
        del sys.modules[name]
        _loaded.pop(name, None)
    for name, digest in code.items():
        file = _file_of(name)
        if file is None or short_digest(file.read_bytes()) != digest:
            raise UsageError(
                f"{name} changed after it was imported, or is another one here: {file or 'there is no such file'}; "
                "start a new process"
            )
    return gone


def _remembered(name: str) -> str:
    """The digest of what a loaded module's file held when it was asked for; empty for one that nobody asked about."""
    spec, content = _loaded.get(name, (None, b""))
    return short_digest(content) if spec is not None and sys.modules[name].__spec__ is spec else ""


def _package_of(name: str, file: Path) -> str:
    """The package in which the relative imports of a module begin."""
    return name if file.name == "__init__.py" else name.rpartition(".")[0]


def _content(name: str, file: Path) -> bytes:
    """What a module's file holds; of a loaded module what it held when it was first asked for since it was loaded."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None:
        return file.read_bytes()
    if name not in _loaded or _loaded[name][0] is not spec:
        _loaded[name] = spec, file.read_bytes()
    return _loaded[name][1]


def short_digest(content: bytes) -> str:
    """The first twelve hexadecimal digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


@cache
def _names(source: bytes, package: str) -> tuple[str, ...]:
    """The full names of modules that a source imports; of ``from a import b`` both ``a`` and ``a.b``."""
    found: list[str] = []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(filter(None, [*parents, base]))
            found += [*_with_parents(base), *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(found)


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
    if folders is None:
        return None
    try:
        return PathFinder.find_spec(name, list(folders))
    except KeyError:  # a namespace inside one that is not imported, for which Python asks that one
        spec = ModuleSpec(name, None, is_package=True)
        inside = (Path(folder) / name.rpartition(".")[2] for folder in folders)
        spec.submodule_search_locations = [str(folder) for folder in inside if folder.is_dir()]
        return spec
