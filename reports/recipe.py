"""Recipes to run cells again: a scenario that expands to exactly them, and a command for one of them."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from robustfl.origins import origins
from robustfl.records import CellResult, canonical, completed

from .board import natural


def scenario_toml(results: Sequence[CellResult], *, name: str) -> str:
    """A scenario file whose cells are those of ``results``: every setting, axes as lists.

    Axes that determine each other advance together (``zip``); the others multiply if the records are their product,
    and otherwise all advance together.
    """
    cells = _settings(results)
    fields = sorted({f for cell in cells for f in cell})
    values = {f: _distinct([cell.get(f) for cell in cells]) for f in fields}
    axes = [f for f in fields if len(values[f]) > 1 and None not in values[f]]
    groups = _groups(axes, cells)
    rows = [_rows(g, cells) for g in groups]
    if math.prod(map(len, rows)) != len(_rows(axes, cells)):
        groups, rows = [axes], [_rows(axes, cells)]
    columns = {
        field: list(column)
        for group, found in zip(groups, rows, strict=True)
        for field, column in zip(group, zip(*found, strict=True), strict=True)
    }
    lines = [f"name = {_toml(name)}"]
    zipped = [g for g in groups if len(g) > 1]
    if zipped:
        lines.append(f"zip = {_toml(zipped)}")
    plug_ins = sorted({one for r in results for one in origins(r.cell).items()})
    lines += [f"# needs plug-in {_line(n)}: {_line(o)}" for n, o in plug_ins]
    lines += ["", "[cell]"]
    for field in fields:
        if field in columns:
            lines.append(f"{field} = {_toml(columns[field])}")
        elif len(values[field]) > 1:
            lines.append(f"# {field} differs and is unset in some cells, which TOML cannot say; run them apart")
        elif values[field][0] is not None:
            lines.append(f"{field} = {_toml(values[field][0])}")
    return "\n".join(lines) + "\n"


def _groups(axes: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The axes, those together of which each value of one belongs to one value of the other."""
    groups: list[list[str]] = []
    for axis in axes:
        for group in groups:
            if len(_rows([group[0]], cells)) == len(_rows([axis], cells)) == len(_rows([group[0], axis], cells)):
                group.append(axis)
                break
        else:
            groups.append([axis])
    return groups


def _rows(fields: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    return _distinct([[cell.get(f) for f in fields] for cell in cells])


def command(result: CellResult, results: Sequence[CellResult], *, file: str) -> str:
    """The shell command that runs ``result`` alone, from the scenario of all ``results`` in ``file``.

    Every axis of the scenario is fixed; axes that advance together stay equally long, one value each.
    """
    cells = _settings([result, *results])
    cell, others = cells[0], cells[1:]
    axes = [f for f in sorted(cell) if len(_distinct([other.get(f) for other in others])) > 1]
    settings = [f"--set {shlex.quote(f'{f}={_toml(cell[f])}')}" for f in axes if cell[f] is not None]
    return " ".join(["robustfl run", shlex.quote(file), *settings])


def _settings(results: Sequence[CellResult]) -> list[dict[str, Any]]:
    """The cells' settings, with those that came later and that another of them has."""
    cells = [dict(r.cell.get("cell", {})) for r in results]
    known = {name for cell in cells for name in cell}
    return [completed(cell, known) for cell in cells]


def _distinct(values: Sequence[Any]) -> list[Any]:
    return [v for _, v in sorted({canonical(v): v for v in values}.items(), key=lambda item: natural(item[0]))]


def _line(text: str) -> str:
    return " ".join(text.split())


def _toml(value: Any) -> str:
    """A JSON value as TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
