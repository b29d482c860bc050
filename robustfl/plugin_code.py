"""Digests of the code of plug-ins: of modules outside installed packages, and of classes of the main program."""

from __future__ import annotations

import ast
import dis
import hashlib
import importlib.util
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import torch

from robustfl.errors import UsageError
from robustfl.file_io import python_files
from robustfl.origins import short_digest

OWN, MAIN = "robustfl", "__main__"
_NO_CONTENT = {"__doc__", "__annotations__", "__annotations_cache__", "__firstlineno__", "__static_attributes__"}
_loaded: dict[str, tuple[object, str]] = {}  # by module which loading it was, and its digest when first asked for


def files_of(name: str) -> dict[str, Path]:
    """The files of a top-level module or package that is neither Python's, nor robustfl's, nor installed; else none."""
    spec = getattr(sys.modules[name], "__spec__", None) if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or name in {OWN, MAIN} | sys.stdlib_module_names:
        return {}
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    own = [path for path in map(Path, places) if not {"site-packages", "dist-packages"} & set(path.resolve().parts)]
    files = [(path, file) for path in own for file in (python_files(path) if path.is_dir() else [path])]
    return {file.relative_to(path.parent).as_posix(): file for path, file in files if file.is_file()}


def imports(source: bytes) -> set[str]:
    """The top-level modules that a source imports, also inside functions; names made at run time are not seen."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def code_of(*names: str) -> dict[str, str]:
    """By name the digests of modules and packages outside installed ones, and of all that these import.

    Raises ``UsageError`` for one that changed after this process imported it.
    """
    found, left = dict[str, str](), [name.partition(".")[0] for name in names]
    for name in left:  # which grows meanwhile
        if name not in found and (files := files_of(name)):
            texts = {place: file.read_bytes() for place, file in files.items()}
            found[name] = short_digest(repr(texts).encode() if len(texts) > 1 else texts[min(texts)])
            spec, known = getattr(sys.modules.get(name), "__spec__", None), _loaded.get(name)
            if spec is not None and known is not None and known[0] is spec and known[1] != found[name]:
                raise UsageError(f"{name} changed after it was imported ({files[min(files)]}); start a new process")
            _loaded[name] = spec, found[name]
            left += [other for text in texts.values() for other in imports(text)]
    return dict(sorted(found.items()))


def session_code(cls: type) -> tuple[str, dict[str, str]]:
    """A digest of a class of the main program with all that it uses there, and ``code_of`` the modules it uses."""
    content = _Content()
    content.dump(cls)
    code = code_of(*content.modules)
    return short_digest(content.digest.digest() + repr(code).encode()), code


class _Content(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Digests values as pickles: of the main program by content, of modules by name, what cannot be pickled by type."""

    def __init__(self) -> None:
        self.digest, self.modules = hashlib.sha256(), set[str]()
        super().__init__(SimpleNamespace(write=self.digest.update), protocol=5)

    def persistent_id(self, value: Any) -> Any:
        if type(value) is str:  # equal ones may be one object in another session
            return value.encode("utf-8", "surrogatepass")
        if isinstance(value, ModuleType) or (isinstance(value, (type, FunctionType)) and value.__module__ != MAIN):
            name = value.__name__ if isinstance(value, ModuleType) else f"{value.__module__}.{value.__qualname__}"
            self.modules.add(name)
            return name
        return sorted(value, key=repr) if type(value) in (set, frozenset) else None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type):
            own = {name: item for name, item in sorted(vars(value).items()) if name not in _NO_CONTENT}
            return object, (), [value.__bases__, own]
        if isinstance(value, FunctionType):
            return object, (), self._function(value)
        if isinstance(value, CodeType):  # without lines and files; another version of Python compiles otherwise
            parts = value.co_code, value.co_exceptiontable, value.co_consts, value.co_names, value.co_varnames
            return object, (), [*parts, value.co_freevars, value.co_flags]
        if isinstance(value, torch.Tensor):
            flat = value.detach().cpu().reshape(-1).view(torch.uint8)
            return object, (), [str(value.dtype), list(value.shape), flat.numpy().tobytes()]
        try:
            if hasattr(value, "__wrapped__"):
                return object, (), [type(value), value.__wrapped__]
            reduced = self.dispatch_table.get(type(value), lambda other: other.__reduce_ex__(5))(value)
        except Exception:  # whatever an object's own pickling raises
            reduced = repr(type(value))
        return (str, (reduced,)) if isinstance(reduced, str) else reduced

    def _function(self, f: FunctionType) -> list[Any]:
        """The code and defaults of a function, and the values of the global names that it reads."""
        steps, codes = list[dis.Instruction](), [f.__code__]
        for code in codes:  # which grows meanwhile, by functions inside
            steps += dis.get_instructions(code)
            codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        self.modules |= {step.argval for step in steps if step.opname == "IMPORT_NAME" and step.argval}
        names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        read = {name: f.__globals__[name] for name in sorted(names & f.__globals__.keys())}
        return [f.__code__, f.__defaults__, f.__kwdefaults__, f.__closure__, vars(f), read]
