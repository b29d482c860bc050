"""Which plug-ins a stored cell used. No torch here: reports read records only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any


def named_methods(cell: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """From the resolved cell of a record, its methods with the settings that name them, wrapped ones left out.

    >>> [(setting, method["name"]) for setting, method in named_methods({"methods": {"defense": [{"name": "nnm"}]}})]
    [('defense', 'nnm')]
    """
    for setting, methods in cell.get("methods", {}).items():
        for method in methods if isinstance(methods, (list, tuple)) else [methods]:
            if isinstance(method, Mapping) and isinstance(method.get("name"), str):
                yield setting, method


def origins(cell: Mapping[str, Any]) -> dict[str, str]:
    """From the resolved cell of a record, the methods that are not robustfl's own with where they come from.

    Those that another method wraps are among them.

    >>> origins({"methods": {"norm": {"name": "fbn"}, "defense": [{"name": "mine", "origin": "robustfl-mine 1.0"}]}})
    {'defense mine': 'robustfl-mine 1.0'}
    """
    found: dict[str, str] = {}
    for axis, methods in cell.get("methods", {}).items():
        kind = "evasion" if axis == "evasions" else axis
        found |= {f"{kind} {m['name']}": str(m["origin"]) for m in foreign(methods) if "name" in m}
    return found


def short_digest(content: bytes) -> str:
    """The first twelve hexadecimal digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


def file_origin(name: str, content: bytes) -> str:
    """The origin of methods from a plug-in file: its name, and the first twelve digits of its SHA-256.

    >>> file_origin("mine.py", b"")
    'mine.py e3b0c44298fc'
    """
    return f"{name} {short_digest(content)}"


def in_words(found: Mapping[str, str]) -> str:
    """Plug-ins as an error names them: all of them, where it is not known which one it was.

    >>> in_words({"attack a": "a.py 1b2c", "norm b": "robustfl-b 1.0"})
    'one of attack a (a.py 1b2c), norm b (robustfl-b 1.0)'
    """
    named = ", ".join(f"{name} ({origin})" for name, origin in found.items())
    return f"one of {named}" if len(found) > 1 else named


def foreign(value: Any) -> Iterator[Mapping[str, Any]]:
    """The methods with an origin in nested data."""
    if isinstance(value, Mapping):
        if value.get("origin"):
            yield value
        for inner in value.values():
            yield from foreign(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from foreign(inner)


def all_origins(identity: Any) -> set[str]:
    """Every origin in the methods of a resolved cell, those of wrapped methods and parts of methods among them.

    >>> sorted(all_origins({"attack": {"name": "opt", "inner": {"name": "mine", "origin": "mine.py 1a2b"}}}))
    ['mine.py 1a2b']
    """
    return {str(method["origin"]) for method in foreign(identity)}
