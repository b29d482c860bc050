"""The command group; ``--help`` imports neither torch nor pandas."""

from __future__ import annotations

from typing import Any

import click

from robustfl import __version__
from robustfl.cli.boards import compare, diff, merge, plot, report
from robustfl.cli.check import check
from robustfl.cli.doctor import doctor
from robustfl.cli.grid import grid, run
from robustfl.cli.methods import list_methods, show
from robustfl.cli.new import new
from robustfl.cli.options import (
    BENCHMARKS,
    DATA_ROOT,
    DEVICE,
    DRY_RUN,
    FORMAT,
    JOBS,
    PATH,
    STORES,
    THREADS,
    Command,
    Word,
    plugins,
)  # fmt: skip
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


@app.command(cls=Command, short_help="Run the benchmark: tune every contestant alike, measure it under AutoByz.")
@click.argument("tier", type=Word(BENCHMARKS), metavar="TIER")
@click.argument("row", required=False, metavar="[ROW]")
@click.option("--attack", "attacks", multiple=True, metavar="ATTACK", help="beat: an attack to run on the row.")
@click.option("--scope", metavar="both|update|statistics", help="beat: what it forges [default: both].")
@click.option("--by", metavar="NAME", help="beat: whom boards and pages name for it.")
@click.option(
    "--contestant",
    "--row",
    "contestants",
    multiple=True,
    metavar="DEFENSE[/NORM[/ALGORITHM]]",
    help="Only these, or others that the tier does not have [default: all of the tier]; where they stand in the "
    "published table is printed, too.",
)
@click.option("--list", "listing", is_flag=True, help="Print the tier's contestants and what each tries; run nothing.")
@DRY_RUN
@click.option("--set", "settings", multiple=True, metavar="A.B=C", help="Change the protocol; the board says so.")
@STORES
@click.option("--board", type=PATH, help="Also write the board, with every search.")
@click.option("--page", type=PATH, help="Also write the pages of tier, study or site into this folder.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=PATH,
    help="Read this board, or this data of a study; run nothing. For the site: once per board.",
)
@JOBS
@THREADS
@DEVICE
@DATA_ROOT
@plugins()
@FORMAT
def bench(**options: Any) -> int:
    """Run a TIER of the benchmark: d (embedded digits), d-fedavg, d-all, m (MNIST), c (CIFAR-10), p (propagation).

    Every contestant tries equally many configurations on validation data, then runs under AutoByz. Beat runs attacks on
    one ROW of a board, DEFENSE/NORM[/ALGORITHM], and with --board writes the board in which they count. Study-3 is what
    AutoByz version 3 was chosen by; it ends with 1 if its data choose another set. The site is written from boards of
    all tiers.

    \b
    robustfl bench d --contestant nnm+median/fbn
    robustfl bench d --list
    robustfl bench beat nnm+median/fbn --from boards/d-core.json.gz --attack "alie(z=1.5, sign=1)"
    robustfl bench site --from bench-d.json --from bench-p.json --page pages
    """
    from robustfl.cli.bench import bench as command

    return command(**options)


for command in (
    grid, run, report, verify, submit, reproduce, compare, merge, diff, plot, list_methods, show, new, check, doctor,
):  # fmt: skip
    app.add_command(command)
