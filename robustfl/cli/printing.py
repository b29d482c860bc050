"""What commands share when they print."""

from __future__ import annotations

import json
import os
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from robustfl.records import plain


def console(*, err: bool = False) -> Console:
    """A console for this terminal; where output is none as wide as ``COLUMNS`` says, or enough for a leaderboard."""
    made = Console(stderr=err, highlight=False)
    if not made.is_terminal:
        made = Console(stderr=err, highlight=False, width=_piped_width(), no_color=True)
    return made


def _piped_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and 0 < int(columns) < 100_000 else 160


def as_json(value: Any) -> None:
    """Print ``value`` as JSON."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def table(columns: list[str], rows: list[list[Any]], *, title: str | None = None) -> Table:
    """A plain table; cells are text, never markup. Without any name there is no line of headings."""
    from rich.text import Text

    made = Table(
        title=title, title_justify="left", show_header=any(columns), box=None,
        header_style="bold", pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return made


def percent(value: float | None) -> str:
    """An accuracy in percent."""
    return "–" if value is None else f"{100 * value:.1f}"


def seconds(value: float) -> str:
    """A duration a person reads at a glance."""
    if 0 < value < 1:
        return "< 1 s"
    if value < 90:
        return f"{value:.0f} s"
    if value < 5400:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"
