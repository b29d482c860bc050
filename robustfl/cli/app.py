"""The command group; ``--help`` imports neither torch nor pandas."""

from __future__ import annotations

import click

from robustfl import __version__
from robustfl.cli.bench import bench
from robustfl.cli.boards import compare, diff, merge, plot, report
from robustfl.cli.check import check
from robustfl.cli.doctor import doctor
from robustfl.cli.grid import grid, run
from robustfl.cli.methods import list_methods, show
from robustfl.cli.new import new
from robustfl.cli.reproduce import reproduce
from robustfl.cli.verify import submit, verify

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_SETTINGS)
@click.version_option(__version__, message="robustfl %(version)s")
def app() -> None:
    """Measure how robust federated learning is: attacks × defenses × normalization, SA and RA.

    \b
    robustfl grid                       run the preset 'quickstart' and print its leaderboard
    robustfl grid my.toml --jobs 4      run your own scenario; again: only what is missing
    robustfl list attacks               what there is
    """


for command in (
    bench, grid, run, report, verify, submit, reproduce, compare, merge, diff, plot, list_methods, show, new, check,
    doctor,
):  # fmt: skip
    app.add_command(command)
