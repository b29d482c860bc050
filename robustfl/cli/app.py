"""The command group and its commands; ``--help`` imports neither torch nor pandas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from robustfl import __version__
from robustfl.cli.options import (
    CELLS,
    DATA_ROOT,
    DEVICE,
    EVERY_CELL,
    FORMAT,
    JOBS,
    KINDS,
    PREPARE,
    SAMPLE,
    STORES,
    THREADS,
    WORK,
    Finite,
    Folder,
    Word,
    plugins,
    presets,
    presets_and_files,
    scenario_options,
    tolerance,
    where,
)
from robustfl.cli.printing import only_ours

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
BENCHMARKS = ("d", "d-fedavg", "d-all", "m", "c", "p", "study-3", "study", "study-1", "heldout", "beat", "site")
TEMPLATES = (
    "attack", "defense", "stateful-defense", "norm", "evasion", "algorithm", "objective", "model", "dataset",
    "partition",
)  # fmt: skip
PATH = click.Path(path_type=Path)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the cells, refusals and an estimate; train nothing.")
PLOTS = ("curves", "heatmap", "breakdown", "pareto", "ranks", "forgetting", "labels", "bn-pca", "representations")


class _Command(click.Command):
    """A command whose standard output is its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a cell's setting written as an option is told how it is set."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not any(p.name == "settings" for p in self.params):
                raise
            from robustfl.scenarios import Cell

            setting = error.option_name.lstrip("-").replace("-", "_")
            if setting in Cell.model_fields:
                words = f"No such option: {error.option_name}; settings of a cell are set with --set {setting}=VALUE"
                raise click.NoSuchOption(error.option_name, words, ctx=error.ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        with only_ours():
            return super().invoke(ctx)


class _Commands(click.Group):
    command_class = _Command


def _from(module: str) -> Callable[[Callable[[], None]], Callable[..., int]]:
    """The function of the same name in a module of this folder, imported when its command runs."""

    def found(described: Callable[[], None]) -> Callable[..., int]:
        @functools.wraps(described)
        def command(**options: Any) -> int:
            code: int = getattr(import_module(f"robustfl.cli.{module}"), described.__name__)(**options)
            return code

        return command

    return found


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, message="robustfl %(version)s")
def app() -> None:
    """Measure how robust federated learning is: attacks × defenses × normalization, SA and RA.

    \b
    robustfl grid                       run the preset 'quickstart' and print its leaderboard
    robustfl grid my.toml --jobs 4      run your own scenario; again: only what is missing
    robustfl list attacks               what there is
    """


@app.command(short_help="Run every missing cell of a scenario; print the leaderboard.")
@click.argument("scenario", default="quickstart", shell_complete=presets_and_files)
@STORES
@JOBS
@click.option("--gpus", metavar="0,1", help="Spread cells over these GPUs.")
@click.option("--slots", type=click.IntRange(1), help="Cells at once on each GPU [default: by memory].")
@click.option("--cluster", metavar="tcp://HOST:PORT", help="Run cells on the workers of this dask scheduler.")
@click.option("--cell-minutes", type=Finite(0, min_open=True), help="Fail cells that take longer [default: no limit].")
@DRY_RUN
@scenario_options
@_from("grid")
def grid() -> None:
    """Run every missing cell of SCENARIO (a preset or a TOML file) and print the leaderboard.

    Interrupt it at any time: what is done stays, and the same command goes on from there, also within long cells.
    """


@app.command(short_help="Run one cell.")
@click.argument("scenario", required=False, shell_complete=presets_and_files)
@click.option("--out", type=Folder(), help="Also keep the record in this folder of stores.")
@scenario_options
@_from("run")
def run() -> None:
    """Run one cell: SCENARIO with every axis fixed by --set, or the defaults.

    \b
    robustfl run --set attack=alie --set f=3 --set defense=nnm+trimmed-mean --set norm=fbn
    """


@app.command(short_help="Print a leaderboard; write tables, figures, a web site, a board.")
@click.argument("store", type=PATH)
@click.option(
    "--out",
    type=PATH,
    help="Folder of the report [default: STORE/report, or report-… beside it with --where].",
)
@click.option("--site", type=PATH, help="Also write a web site into this folder.")
@click.option("--board", type=PATH, help="Also write a board that `verify` can check, e.g. board.json.gz.")
@click.option("--curves", is_flag=True, help="The board also holds the accuracies during training.")
@tolerance("What the board claims: by how much an accuracy may differ when a cell is run again.", default=None)
@click.option(
    "--statistic",
    type=click.Choice(("final", "tail", "selected", "validation")),
    help="Rank the last round, the mean of the last rounds, the round chosen on validation data, or the validation "
    "accuracy of that round [default: what each cell says with its setting 'select'].",
)
@click.option("--figures/--no-figures", default=True, show_default=True, help="Also draw figures.")
@where("Only these cells, e.g. rounds=5 or attack=alie.")
@click.option(
    "--compare",
    multiple=True,
    metavar="LABEL",
    help="Rank values of this label, too, instead of within each.",
)
@plugins("Load methods (their papers) from a file.")
@FORMAT
@_from("report")
def report() -> None:
    """Print the leaderboard of STORE (e.g. runs/quickstart) and write it as CSV, Markdown, LaTeX, JSON and figures.

    STORE may also be a published board, here and in `plot` and `diff`.

    \b
    robustfl report runs/quickstart --site site --board board.json.gz
    robustfl report board.json.gz --out report
    """


@app.command(short_help="Run cells of a published board again and compare.")
@click.argument("board", type=PATH)
@CELLS
@EVERY_CELL
@where("Only cells of this row, e.g. defense=krum.")
@SAMPLE
@tolerance("By how much an accuracy may differ here, whatever the board claims.", default=None)
@click.option("--check-only", is_flag=True, help="Check the file and the versions; run nothing.")
@click.option("--isolated", is_flag=True, help="Train without test data, evaluate without attacks and defenses.")
@WORK
@PREPARE
@plugins()
@click.option("--device", metavar="auto|cpu|cuda[:i]", help="Where to train [default: as the board says].")
@click.option("--threads", type=click.IntRange(1), help="Threads per cell [default: as the board says].")
@DATA_ROOT
@FORMAT
@_from("verify")
def verify() -> None:
    """Run cells of a published BOARD again and say which agree; 1 if one does not, or if the file was edited.

    \b
    robustfl verify board.json
    robustfl verify board.json --where defense=nnm+median --where norm=fbn --all
    robustfl verify board.json --isolated --plugin my_defense.py
    """


@app.command(short_help="Write a submission from a store, or check one.")
@click.argument("target", metavar="STORE|SUBMISSION", type=PATH)
@click.option("--check", "checks", is_flag=True, help="Check a submission instead of writing one.")
@click.option("--out", type=PATH, help="Folder of the submission  [default: submissions/NAME]")
@click.option("--name", help="What it is called  [default: the store's name]")
@plugins("A file that methods of the cells are from.")
@tolerance("By how much an accuracy may differ when a cell is run again.")
@click.option("--trust", is_flag=True, help="Run its code, in processes of its own: you have read it.")
@click.option("--against", type=PATH, help="The board it wants to join: its attacks and seeds.")
@CELLS
@EVERY_CELL
@SAMPLE
@WORK
@PREPARE
@DATA_ROOT
@FORMAT
@_from("submit")
def submit() -> None:
    """Write the results of STORE for others: a board, and the plug-ins it needs. --check looks at a SUBMISSION.

    \b
    robustfl submit runs/my-study --plugin my_defense.py
    robustfl submit --check submissions/my-study --trust
    """


@app.command(short_help="Measure the papers' tables and figures again; write claim beside measurement.")
@click.argument("target", required=False, metavar="[PAPER[/TABLE]]")
@click.option("--scale", default="reduced", show_default=True, metavar="paper|reduced", help="The protocol's size.")
@click.option("--list", "listing", is_flag=True, help="Print every table and figure with its state and time left.")
@click.option("--run/--no-run", default=True, show_default=True, help="Run what is missing before writing the page.")
@STORES
@click.option("--report", default="reproduction", show_default=True, type=PATH, help="Folder of the page.")
@click.option("--from", "boards", multiple=True, type=PATH, help="Read this board; run nothing.")
@click.option("--board", type=PATH, help="Also write the cells as one board.")
@JOBS
@THREADS
@DEVICE
@DATA_ROOT
@FORMAT
@_from("reproduce")
def reproduce() -> None:
    """Hold what a paper claims beside what robustfl measures: fbn, wsm, fedrbn, hbn, fedtan, or one TABLE of them.

    \b
    robustfl reproduce --list
    robustfl reproduce fedtan/figure6
    """


@app.command(short_help="Run the benchmark: tune every contestant alike, measure it under AutoByz.")
@click.argument("tier", type=Word(BENCHMARKS), metavar="TIER")
@click.argument("row", required=False, metavar="[ROW]")
@click.option("--attack", "attacks", multiple=True, metavar="SPEC", help="beat: an attack to run on the row.")
@click.option("--scope", metavar="both|update|statistics", help="beat: what it forges [default: both].")
@click.option("--by", metavar="NAME", help="beat: whom boards and pages name for it.")
@click.option(
    "--contestant",
    "contestants",
    multiple=True,
    metavar="DEFENSE[/NORM[/ALGORITHM]]",
    help="Only these, or others that the tier does not have [default: all of the tier].",
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
@_from("bench")
def bench() -> None:
    """Run a TIER of the benchmark: d (embedded digits), d-fedavg, d-all, m (MNIST), c (CIFAR-10), p (propagation).

    Every contestant tries equally many configurations on validation data, then runs under AutoByz. Beat runs attacks on
    one ROW of a board, DEFENSE/NORM[/ALGORITHM], and with --board writes the board in which they count. A study is what
    a version of AutoByz was chosen by (study-3: its version 3, study: 2, study-1: 1); it ends with 1 if its data choose
    another set. Heldout is a study of contestants that version 1 was not chosen by. The site is written from boards of
    all tiers.

    \b
    robustfl bench d --contestant nnm+median/fbn
    robustfl bench d --list
    robustfl bench beat nnm+median/fbn --from boards/d-core.json.gz --attack "alie(z=1.5, sign=1)"
    robustfl bench site --from bench-d.json --from bench-p.json --page pages
    """


@app.command(short_help="Join the stores or boards of several people.")
@click.argument("sources", nargs=-1, required=True, metavar="STORE STORE...", type=PATH)
@click.option("--out", required=True, type=PATH, help="Folder of the joined store, or a board file (.json, .json.gz).")
@click.option("--source", "names", multiple=True, metavar="NAME", help="Who measured; once per store, in order.")
@tolerance("By how much the accuracies of one cell may differ between stores.")
@FORMAT
@_from("merge")
def merge() -> None:
    """Join the stores, or published boards, of several people; 1 and nothing written if they contradict each other.

    \b
    robustfl merge runs/mine yours.json.gz --out runs/ours
    robustfl merge runs/mine yours.json.gz --out ours.json.gz
    robustfl merge old-board.json --out board.json.gz        # the board in the present format
    """


@app.command(short_help="Explain what differs between two cells or stores.")
@click.argument("first")
@click.argument("second")
@click.option("--timing", is_flag=True, help="Also show times and machines, which differ between any two runs.")
@click.option("--limit", default=40, show_default=True, type=click.IntRange(1), help="Lines per part.")
@FORMAT
@_from("diff")
def diff() -> None:
    """Explain what differs between two cells (STORE:KEY, or a record's file) or two stores; 1 if anything does.

    \b
    robustfl diff runs/quickstart:00af runs/quickstart:7c31
    robustfl diff runs/quickstart ../theirs/quickstart
    """


@app.command(short_help="Draw one kind of figure into a file.")
@click.argument("kind", type=Word(PLOTS), metavar="KIND")
@click.argument("store", type=PATH)
@click.option("--save", type=PATH, help="File, .pdf .png or .svg [default: KIND.pdf].")
@click.option("--metric", help="sa, ra, ... where the figure has one.")
@click.option("--width", type=click.Choice(["column", "page"]), help="For print: one column (3.4 in) or two (7 in).")
@click.option("--lines", type=click.Choice(["defense", "norm", "objective"]), help="What the panels of curves overlay.")
@where("Only these cells, e.g. attack=alie.")
@_from("plot")
def plot() -> None:
    """Draw one KIND of figure of STORE into a file; several figures get numbers.

    KIND: curves, heatmap, breakdown, pareto, ranks, forgetting, labels, bn-pca, representations.

    \b
    robustfl plot breakdown runs/my-study --metric sa --save breakdown.pdf
    """


@app.command(name="list", short_help="List methods and presets.")
@click.argument("kind", type=Word(KINDS), required=False, metavar="[KIND]")
@plugins()
@click.option("--markdown", is_flag=True, help="Print everything about robustfl's own methods as one page.")
@FORMAT
@_from("methods")
def list_methods() -> None:
    """List the methods of KIND, or of all kinds.

    KIND: attacks, evasions, defenses, norms, algorithms, objectives, models, datasets, partitions, presets.
    """


@app.command(short_help="Show what a method or preset is: parameters, paper.")
@click.argument("name", shell_complete=presets)
@plugins()
@FORMAT
@_from("methods")
def show() -> None:
    """Show a method or preset: what it does, its parameters with ranges and defaults, its paper."""


@app.command(short_help="Write a working plug-in package to start from.")
@click.argument("kind", type=Word(TEMPLATES))
@click.argument("name")
@click.option("--dir", "folder", default=".", show_default=True, type=PATH, help="Where.")
@_from("new")
def new() -> None:
    """Write a working plug-in package with one method of KIND called NAME, to start from.

    KIND: attack, defense, stateful-defense, norm, evasion, algorithm, objective, model, dataset, partition.

    \b
    robustfl new attack my-attack               # or: new stateful-defense my-rule, new model my-model, ...
    pip install -e robustfl-my-attack && robustfl check my-attack
    """


@app.command(short_help="Check methods against robustfl's contract.")
@click.argument("target", metavar="FILE-OR-NAME", type=click.Path())
@plugins()
@click.option("--limit", default=60.0, show_default=True, type=Finite(0, min_open=True), help="Seconds per law.")
@FORMAT
@_from("check")
def check() -> None:
    """Check the methods of a plug-in FILE, or those called NAME, against robustfl's contract; 1 if a law is broken.

    \b
    robustfl check my_attack.py
    robustfl check 'foe(eta=2)'
    """


@app.command(short_help="Check installation, devices and data sets; fetch data.")
@DATA_ROOT
@click.option("--fetch", multiple=True, metavar="DATASET", help="Download and decode a data set.")
@FORMAT
@_from("doctor")
def doctor() -> None:
    """Check the installation, devices, compiler and data sets; download data with --fetch."""
