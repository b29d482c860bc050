"""The columns of printed tables, and the names of methods there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustfl.errors import UsageError, closest, reason
from robustfl.file_io import parse_toml
from robustfl.records import CellResult
from robustfl.specs import split_outside

from .grouping import NO_ATTACK

METHODS = ("dataset", "model", "norm", "algorithm", "objective", "attack", "defense", "propagation")
"""Labels whose values speak for themselves."""
RENAMED = (*METHODS, "statistics_defense")
"""Labels whose values are shown under the names that a reader gives them."""
GROUPS = {"labels": "label", "attacks": "attack", "costs": "cost"}
"""Names for several columns at once, with the kind of these columns."""


@dataclass(frozen=True)
class Display:
    """The columns of printed tables in their order (none: all), those left out, and names in the place of labels.

    With ``all_pairs`` ranges of ranks are of all pairs of rows, else of every row against the first.
    """

    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    all_pairs: bool = False

    def chosen(self, kinds: Mapping[str, str]) -> tuple[str, ...]:
        """The columns to print, of those that there are with their kinds. Raises ``UsageError`` for any other."""
        dropped = self._of("drop", self.drop, kinds)
        wanted = self._of("columns", self.columns, kinds) if self.columns else tuple(kinds)
        left = tuple(name for name in wanted if name not in dropped)
        if not left:
            raise UsageError("columns, drop: no column is left")
        return left

    def _of(self, option: str, given: Sequence[str], kinds: Mapping[str, str]) -> tuple[str, ...]:
        known: dict[str, tuple[str, ...]] = {self.head(name): (name,) for name in kinds}
        known |= {name: (name,) for name in kinds}
        known |= {group: tuple(n for n, kind in kinds.items() if kind == of) for group, of in GROUPS.items()}
        found: dict[str, None] = {}
        for one in given:
            name = one if one in known else self.names.get(one, one)
            if name not in known:
                raise UsageError(f"{option}: there is no column {one!r}; {closest(one, known)}")
            found |= dict.fromkeys(known[name])
        return tuple(found)

    def unused(self, results: Sequence[CellResult], columns: Collection[str]) -> tuple[str, ...]:
        """The names given to what is neither a column nor a method of these records."""
        methods = {r.labels.get(label) for r in results for label in RENAMED}
        return tuple(name for name in self.names if name not in methods and name not in columns)

    def head(self, name: str) -> str:
        return self.names.get(name, name)


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that a text names, with commas between them.

    >>> columns_of("defense, foe(eta=10, x=1), worst case")
    ('defense', 'foe(eta=10, x=1)', 'worst case')
    """
    return tuple(part.strip() for part in split_outside(text, ",") if part.strip())


def read_names(path: str | Path) -> dict[str, str]:
    """Names from a TOML file, ``"foe(eta=10)" = "FoE"``. Raises ``UsageError`` for any other file."""
    try:
        found = parse_toml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"names={str(path)!r} cannot be read: {reason(error)}") from None
    for name, shown in found.items():
        if not isinstance(shown, str) or not shown.strip():
            raise UsageError(f'names={str(path)!r}: {name!r} = {shown!r} must be a text; write "{name}" = "…"')
    return found


def renamed(results: Sequence[CellResult], names: Mapping[str, str]) -> tuple[CellResult, ...]:
    """The records with their methods under these names. Raises ``UsageError`` where two would have one name."""
    if not names:
        return tuple(results)
    for label in RENAMED:
        shown: dict[str, str] = {}
        for value in sorted({str(r.labels.get(label)) for r in results}):
            if (other := shown.setdefault(_name(value, names), value)) != value:
                raise UsageError(f"names: {other!r} and {value!r} would both be {_name(value, names)!r}")
    return tuple(r.model_copy(update={"labels": renamed_labels(r.labels, names)}) for r in results)


def renamed_labels(labels: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {k: _name(v, names) if k in RENAMED and isinstance(v, str) else v for k, v in labels.items()}


def _name(value: str, names: Mapping[str, str]) -> str:
    """The name of a method; no attack keeps its own, which only its column's heading changes."""
    return value if value == NO_ATTACK else names.get(value, value)
