"""The command line: parse, call the library, print. Commands import what they need when they run."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from robustfl.cli.app import app
from robustfl.cli.printing import flushed, give_up_output, say, take_output
from robustfl.errors import LONGEST, OldFormatWarning, RobustflError, Terminated, UsageError, reason
from robustfl.file_io import cut

__all__ = ["app", "invoke", "main"]


def main() -> None:
    """The ``robustfl`` command. Exit code 2 for misuse, 1 for failure, 130 after Ctrl-C, 143 after SIGTERM."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        take_output()
        code = flushed(invoke(sys.argv[1:]))
    except KeyboardInterrupt:
        code = _stopped([])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is too late now
    sys.exit(code)


def _terminate(number: int, frame: object) -> None:
    """End the process in order, as an interrupt does."""
    del frame
    signal.signal(number, signal.SIG_IGN)  # a second one would cut short what the first one set off
    raise Terminated(number)


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", OldFormatWarning)
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        return _invoked(arguments)


def _show_warning(show: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning that is meant for the user as a line of ours, another as Python does."""
    if issubclass(category, OldFormatWarning):
        say(f"note: {message}", err=True)
    else:
        show(message, category, *place)


def _invoked(arguments: list[str]) -> int:
    try:
        result = app.main(args=arguments, prog_name="robustfl", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # click takes the end of any file for that of standard input
            return _failed("a file ended too early", 1)
        return _stopped(arguments)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        say(cut(text.getvalue(), LONGEST), err=True, nl=False)
        return error.exit_code
    except UsageError as error:
        return _failed(error, 2)
    except RobustflError as error:
        return _failed(error, 1)
    except Terminated as error:
        return _failed("stopped by SIGTERM", error.status)
    except SystemExit as error:
        if "_ROBUSTFL_COMPLETE" in os.environ and error.code in (0, 1):
            return int(error.code or 0)  # a shell asked what there is, and click is done
        if type(sys.stdout).__module__.startswith("click."):  # it met a closed pipe, and took the streams' place
            give_up_output()
            return 1
        return _failed(f"sys.exit({error.code!r}) ended the command{_place(error)}", 1)
    except MemoryError as error:
        return _failed(f"out of memory{_place(error)}", 1)
    except BrokenPipeError:
        give_up_output()
        return 1
    except OSError as error:
        give_up_output()
        return _failed(reason(error) if error.filename is None else f"{error.filename}: {reason(error)}", 1)
    return result if isinstance(result, int) else 0


def _failed(why: object, code: int) -> int:
    say(f"Error: {why}", err=True)
    return code


def _place(error: BaseException) -> str:
    """Where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f", raised in {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _stopped(arguments: list[str]) -> int:
    command, given = next(iter(arguments), ""), {argument.partition("=")[0] for argument in arguments}
    if command == "run":
        keeps = "--out" in given
    else:
        keeps = command in ("grid", "bench", "reproduce") and not given & {"--dry-run", "--list", "--from", "--no-run"}
    said = " Finished cells are kept; the same command goes on from here." if keeps else ""
    say(f"\nStopped.{said}", err=True)
    return 130
