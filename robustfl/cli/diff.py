"""``robustfl diff``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from robustfl.cli.printing import as_json, console, say, table


def diff(*, first: str, second: str, timing: bool, limit: int, form: str) -> int:
    """Print what differs between two cells or two stores; 1 if anything but timing and environment does."""
    from robustfl.reports.published.diff import CellDiff
    from robustfl.reports.published.diff import diff as compare

    found, sources = compare(first, second)
    for source in sources:
        for problem in source.problems:
            say(f"not counted: {problem}", err=True)
    if form == "json":
        as_json({"same": found.same, **dataclasses.asdict(found)})
    elif isinstance(found, CellDiff):
        heads = [found.first[:12], found.second[:12]] if found.first != found.second else [first, second]
        _cells(found, heads, timing=timing, limit=limit)
    else:
        _stores(found, limit=limit)
    return 0 if found.same else 1


def _cells(found: Any, heads: list[str], *, timing: bool, limit: int) -> None:
    parts = ["settings", "outcome", "certificates", "environment", *(["timing"] if timing else [])]
    shown = [(p, getattr(found, p)) for p in parts if getattr(found, p)]
    if not shown:
        say("The cells are the same.")
    for part, differences in shown:
        _table(part, [[path, _short(a), _short(b)] for path, a, b in differences], heads, limit)


def _stores(found: Any, *, limit: int) -> None:
    only = f"{found.only_first} only in {found.first}, {found.only_second} only in {found.second}"
    say(f"{found.common} cells in both, {only}.")
    if found.same:
        say("The stores hold the same cells with the same results.")
    rows = [[name, ", ".join(a) or "–", ", ".join(b) or "–"] for name, a, b in found.axes]
    _table("values only one has", rows, [found.first, found.second], limit)
    for title, name, counted in (
        ("cells that would be the same but for", "setting", found.explained),
        ("cells measured in another environment", "difference", found.environment),
    ):
        rows = [
            [f"{count}", "; ".join(f"{p}: {_short(a)} → {_short(b)}" for p, a, b in differences)]
            for differences, count in counted
        ]
        _table(title, rows, ["cells", name], limit, first=None)
    _table(
        "other results", [[key[:12], name, words] for key, name, words in found.results], ["", "first → second"], limit
    )


def _table(
    title: str, rows: Sequence[list[str]], columns: list[str], limit: int, *, first: str | None = ""
) -> None:  # fmt: skip
    if not rows:
        return
    heads = columns if first is None else [first, *columns]
    console().print(table(heads, list(rows[:limit]), title=f"\n{title}"))
    if len(rows) > limit:
        say(f"… and {len(rows) - limit} more; --limit shows them")


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= 70 else text[:67] + "…"
