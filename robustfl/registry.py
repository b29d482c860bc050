"""Registries of methods: decorator, entry points, plug-in files, and specs like ``"foe(eta=2)"``.

``@register("alie", version=1)`` on a subclass of a contract puts it in the registry of its kind. Built-ins and third
parties come in the same way: through the entry-point group ``robustfl.plugins`` or ``--plugin file.py``.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from robustfl.contracts import Method
from robustfl.errors import UsageError, closest
from robustfl.parameters import reject_unknown

KINDS = ("attack", "evasion", "defense", "norm", "algorithm", "model", "dataset", "partition")
GROUP = "robustfl.plugins"
_RESERVED = {"kind", "name", "version", "paper", "spec"}
_NAME = re.compile(r"[a-z0-9][a-z0-9.\-]*")

M = TypeVar("M", bound=type[Method])


@dataclasses.dataclass(frozen=True)
class Entry:
    """One registered method and where it came from (``origin`` is empty for robustfl's own)."""

    kind: str
    name: str
    version: int
    cls: type[Method]
    origin: str = ""


_entries: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
_state = {"origin": "", "loaded": False, "loading": False}
_files: dict[str, str] = {}


def register(name: str, *, version: int = 1) -> Callable[[M], M]:
    """Register a frozen dataclass under ``name`` in the registry of its contract.

    Raises ``UsageError`` for a taken or malformed name, and for a class that is no concrete method.
    """

    def decorate(cls: M) -> M:
        for reserved in _RESERVED.intersection(_field_names(cls)):
            raise UsageError(f"{cls.__name__}: {reserved!r} is a fact of every method; name the parameter differently")
        kind = getattr(cls, "kind", "")
        if kind not in KINDS:
            raise UsageError(f"{cls.__name__} must derive from a contract in robustfl.contracts to be registered")
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no method name: small letters, digits, '-' and '.' only")
        if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:
            raise UsageError(f"{cls.__name__} must be a frozen dataclass (@dataclass(frozen=True) below @register)")
        if inspect.isabstract(cls):
            missing = ", ".join(sorted(cls.__abstractmethods__))
            raise UsageError(f"{cls.__name__} does not implement {missing}")
        taken = _entries[kind].get(name)
        if taken is not None:
            raise UsageError(f"{kind} {name!r} is taken by {taken.cls.__module__}.{taken.cls.__qualname__}")
        cls.name, cls.version = name, version
        _entries[kind][name] = Entry(kind, name, version, cls, str(_state["origin"]))
        return cls

    return decorate


def _field_names(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def load_plugins() -> None:
    """Import every module named by the entry-point group, once. A broken third-party plug-in names itself."""
    if _state["loaded"] or _state["loading"]:
        return
    _state["loading"] = True
    try:
        for point in sorted(
            entry_points(group=GROUP), key=lambda p: (p.dist is None or p.dist.name != "robustfl", p.name)
        ):
            _load_point(point)
        _state["loaded"] = True
    finally:
        _state["loading"] = False


def _load_point(point: EntryPoint) -> None:
    own = point.dist is not None and point.dist.name == "robustfl"
    origin = "" if own or point.dist is None else f"{point.dist.name} {point.dist.version}"
    _import_as(
        origin, lambda: importlib.import_module(point.value.split(":")[0]), f"plug-in {point.name!r} ({origin})", own
    )


def _import_as(origin: str, load: Callable[[], Any], what: str, own: bool = False) -> None:
    before = _state["origin"]
    _state["origin"] = origin
    try:
        load()
    except Exception as error:
        if own or isinstance(error, UsageError):
            raise
        raise UsageError(f"{what} could not be imported: {type(error).__name__}: {error}") from error
    finally:
        _state["origin"] = before


def load_file(path: str | Path) -> None:
    """Load a plug-in file; its content's digest becomes part of its methods' identity. Loading twice is a no-op."""
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(f"plug-in {str(path)!r} is not a file")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    if _files.get(str(file)) == digest:
        return
    if str(file) in _files:
        raise UsageError(f"plug-in {str(path)!r} changed after it was loaded; start a new process")
    load_plugins()
    module_name = f"robustfl_plugin_{file.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plug-in {str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader
    sys.modules[module_name] = module
    before = {kind: set(names) for kind, names in _entries.items()}
    try:
        _import_as(f"{file.name} {digest}", lambda: loader.exec_module(module), f"plug-in {str(path)!r}")
    except BaseException:
        sys.modules.pop(module_name, None)
        for kind, names in _entries.items():
            for name in set(names) - before[kind]:
                del names[name]
        raise
    _files[str(file)] = digest


def entries(kind: str) -> list[Entry]:
    """All entries of a kind, by name."""
    load_plugins()
    return [_entries[kind][name] for name in sorted(_entries[kind])]


def lookup(kind: str, name: str) -> Entry:
    """The entry ``name``; raises ``UsageError`` with close matches."""
    load_plugins()
    found = _entries[kind].get(name)
    if found is None:
        raise UsageError(f"unknown {kind} {name!r}; {closest(name, _entries[kind])}")
    return found


def create(kind: str, spec: str, **params: Any) -> Any:
    """Build a method from ``"name"`` or ``"name(a=1, b=2)"`` and keyword parameters."""
    name, inline = parse(spec)
    entry = lookup(kind, name)
    given = {**inline, **params}
    known = [f.name for f in dataclasses.fields(entry.cls)]  # type: ignore[arg-type]
    reject_unknown(f"{kind} {name!r}", given, known)
    required = [
        f.name
        for f in dataclasses.fields(entry.cls)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for key in required:
        if key not in given:
            raise UsageError(f"{kind} {name!r}: parameter {key!r} is required")
    return entry.cls(**given)


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """``"foe(eta=2, mode=own)"`` to ``("foe", {"eta": 2, "mode": "own"})``. Values: numbers, fractions, words."""
    text = spec.strip()
    if "(" not in text:
        return text, {}
    name, _, rest = text.partition("(")
    if not rest.endswith(")"):
        raise UsageError(f"{spec!r}: a closing parenthesis is missing; write name(parameter=value, ...)")
    params: dict[str, Any] = {}
    for item in _split(rest[:-1]):
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"{spec!r}: {item!r} is not parameter=value")
        params[key.strip()] = read_value(value.strip())
    return name.strip(), params


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, letter in enumerate(text):
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
            continue
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [p for p in [*parts, text[start:]] if p.strip()]


def read_value(text: str) -> Any:
    """A Python literal, a fraction like ``8/255``, ``true``/``false``, or else the word itself."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "inf": float("inf")}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    if re.fullmatch(r"\d+\s*/\s*\d+", text):
        return float(Fraction(text.replace(" ", "")))
    return text


def describe(method: Method) -> str:
    """The shortest spec that builds ``method`` again: name and the parameters that differ from their defaults."""
    shown = []
    for f in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if f.default is dataclasses.MISSING or value != f.default:
            shown.append(f"{f.name}={_write_value(value)}")
    return method.name + (f"({', '.join(shown)})" if shown else "")


def _write_value(value: Any) -> str:
    """Text that ``read_value`` reads back exactly."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    if isinstance(value, str) and read_value(value) == value and re.fullmatch(r"[\w./:~-]+", value):
        return value
    return repr(value)


def identity(method: Method) -> Mapping[str, Any]:
    """What of a method enters a cell key: name, version, every parameter, and the origin of a plug-in."""
    entry = lookup(method.kind, method.name)
    params = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    known: dict[str, Any] = {"name": entry.name, "version": entry.version, "params": params}
    return known | ({"origin": entry.origin} if entry.origin else {})
