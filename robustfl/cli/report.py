"""``robustfl report``."""

from __future__ import annotations

from pathlib import Path

import click

from robustfl.cli.printing import console


def report(*, store: Path, out: Path | None, figures: bool, form: str) -> int:
    """Write a store's report and print its leaderboard."""
    from robustfl.reports import load_board
    from robustfl.reports import report as write
    from robustfl.reports.writers import terminal, to_json

    files = write(store, out, figures=figures)
    board = load_board(store)
    if form == "json":
        click.echo(to_json(board))
        return 0
    screen = console()
    for block in terminal(board):
        screen.print(block)
    click.echo("\nWritten:")
    for file in files:
        click.echo(f"  {file}")
    return 0
