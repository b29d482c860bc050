"""``robustfl plot``."""

from __future__ import annotations

from pathlib import Path

import click

from robustfl.cli.verify import conditions


def plot(*, kind: str, store: Path, save: Path | None, metric: str | None, where: tuple[str, ...]) -> int:
    """Draw one kind of figure and name the files."""
    from robustfl.reports.plots import plot as draw

    for file in draw(store, kind, save or Path(f"{kind}.pdf"), metric=metric, where=conditions(where)):
        click.echo(str(file))
    return 0
