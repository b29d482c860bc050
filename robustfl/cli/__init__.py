"""The command line: parse, call the library, print. Commands import what they need when they run."""

from __future__ import annotations

import sys

import click

from robustfl.cli.app import app
from robustfl.errors import RobustflError, UsageError

__all__ = ["app", "invoke", "main"]


def main() -> None:
    """The ``robustfl`` command. Exit code 2 for misuse, 1 for failure, 130 after Ctrl-C."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = app.main(args=arguments, prog_name="robustfl", standalone_mode=False)
    except click.exceptions.Abort:
        return _stopped()
    except KeyboardInterrupt:
        return _stopped()
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


def _stopped() -> int:
    click.echo("\nStopped. Finished cells are kept; the same command goes on from here.", err=True)
    return 130
