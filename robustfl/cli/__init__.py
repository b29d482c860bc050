"""The command line: parse, call the library, print. Commands import what they need when they run."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

import click

from robustfl.cli.app import app
from robustfl.errors import RobustflError, UsageError

__all__ = ["app", "invoke", "main"]


def main() -> None:
    """The ``robustfl`` command. Exit code 2 for misuse, 1 for failure, 130 after Ctrl-C."""
    _leave(invoke(sys.argv[1:]))


def _leave(code: int) -> NoReturn:
    """End the process, also where a plug-in's thread never would."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
    if not others:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = app.main(args=arguments, prog_name="robustfl", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _stopped(arguments)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except UsageError as error:
        click.echo(f"Error: {error}", err=True)
        return 2
    except RobustflError as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return result if isinstance(result, int) else 0


def _stopped(arguments: list[str]) -> int:
    out = any(a == "--out" or a.startswith("--out=") for a in arguments)
    kept = (arguments[:1] == ["grid"] and "--dry-run" not in arguments) or (arguments[:1] == ["run"] and out)
    said = " Finished cells are kept; the same command goes on from here." if kept else ""
    click.echo(f"\nStopped.{said}", err=True)
    return 130
