"""Which plug-ins a stored cell used. No torch here: reports read records only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def origins(cell: Mapping[str, Any]) -> dict[str, str]:
    """From the resolved cell of a record, the methods that are not robustfl's own with where they come from.

    >>> origins({"methods": {"norm": {"name": "fbn"}, "defense": [{"name": "mine", "origin": "robustfl-mine 1.0"}]}})
    {'defense mine': 'robustfl-mine 1.0'}
    """
    found: dict[str, str] = {}
    for axis, methods in cell.get("methods", {}).items():
        for method in methods if isinstance(methods, list) else [methods]:
            if isinstance(method, Mapping) and method.get("origin"):
                found[f"{'evasion' if axis == 'evasions' else axis} {method['name']}"] = str(method["origin"])
    return found


def all_origins(identity: Any) -> set[str]:
    """Every origin in the methods of a resolved cell, those of wrapped methods and parts of methods among them.

    >>> sorted(all_origins({"attack": {"name": "opt", "inner": {"name": "mine", "origin": "mine.py 1a2b"}}}))
    ['mine.py 1a2b']
    """
    if isinstance(identity, Mapping):
        own = {str(identity["origin"])} if identity.get("origin") else set()
        return own.union(*map(all_origins, identity.values()))
    return set().union(*map(all_origins, identity)) if isinstance(identity, (list, tuple)) else set()
