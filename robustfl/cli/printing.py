"""Printing, shared by all commands."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from robustfl.file_io import shown
from robustfl.records import plain

if TYPE_CHECKING:
    from robustfl.reports.board import Board

_streams: dict[str, TextIO] = {}


class _Console(Console):
    """A console to which texts from outside are only texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(shown(part.text), part.style)

    def on_broken_pipe(self) -> None:
        """Leave it to whoever runs the command; rich would end the process here."""
        raise BrokenPipeError


def console(*, err: bool = False) -> Console:
    """A console for this terminal; where output is none as wide as ``COLUMNS`` says, or enough for a leaderboard."""
    file = sys.stderr if err else _output()
    made = _Console(file=file, highlight=False)
    if not made.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        given = columns.isascii() and columns.isdigit() and 0 < int(columns) < 100_000
        made = _Console(file=file, highlight=False, width=int(columns) if given else 160, no_color=True)
    return made


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print one text, whatever it holds, to standard output or standard error."""
    click.echo(shown(str(text)), file=sys.stderr if err else _output(), nl=nl)


def as_json(value: Any) -> None:
    """Print ``value`` as JSON."""
    say(json.dumps(plain(value), indent=2, ensure_ascii=False))


# --- the streams -----------------------------------------------------------------------------------------------------


def _output() -> TextIO:
    return _streams.get("out", sys.stdout)


@contextlib.contextmanager
def only_ours() -> Iterator[None]:
    """Within, standard output holds what robustfl prints and nothing else: methods print to standard error."""
    before = dict(_streams)
    _streams["out"] = _output()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _streams.clear()
        _streams.update(before)


def take_output() -> None:
    """Let worker processes and compiled code print to standard error, too; ``?`` is any letter a terminal lacks."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or not a file
        encoding, terminal = sys.stdout.encoding, sys.stdout.isatty()
        handle = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        sys.stdout = open(handle, "w", encoding=encoding, errors="replace", buffering=1 if terminal else -1)  # noqa: SIM115
        sys.stderr.reconfigure(errors="replace")  # type: ignore[union-attr]


def flushed(code: int) -> int:
    """The exit code, once everything printed has arrived; 1 and a word if it cannot."""
    try:
        if sys.stdout is not None:  # closed
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        give_up_output()
        if code == 0 and not isinstance(error, BrokenPipeError):
            say(f"Error: standard output: {getattr(error, 'strerror', None) or error}", err=True)
        return code or 1
    return code


def give_up_output() -> None:
    """Let what is left unwritten go nowhere: a full disk or a closed pipe is told once."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), _output().fileno())


# --- what is printed -------------------------------------------------------------------------------------------------


def print_board(board: Board, form: str, *, full: str) -> None:
    """Print a leaderboard as tables or JSON; ``full`` says where everything is that does not fit a table."""
    from robustfl.reports.tables import to_json
    from robustfl.reports.terminal import terminal

    if form == "json":
        say(to_json(board))
        return
    screen = console()
    for block in terminal(board, full=full):
        screen.print(block)


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
