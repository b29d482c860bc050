"""``robustfl plot``."""

from __future__ import annotations

from pathlib import Path

import click

from robustfl.cli.verify import conditions


def plot(*, kind: str, store: Path, save: Path | None, metric: str | None, where: tuple[str, ...]) -> int:
    """Draw one kind of figure and name the files."""
    from robustfl.reports.plots import plot as draw

    files = draw(
        store, kind, save or Path(f"{kind}.pdf"), metric=metric, where=conditions(where),
        on_problem=lambda words: click.echo(f"not counted: {words}", err=True),
    )  # fmt: skip
    for file in files:
        click.echo(str(file))
    return 0
