"""Options that several commands have, and the types of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from robustfl.cli.printing import only_ours, say
from robustfl.errors import UsageError, near

F = TypeVar("F", bound=Callable[..., Any])
KINDS = (
    "attacks", "evasions", "defenses", "norms", "algorithms", "objectives", "models", "datasets", "partitions",
    "presets",
)  # fmt: skip


BENCHMARKS = ("d", "d-fedavg", "d-all", "m", "c", "p", "study-3", "beat", "site")
TEMPLATES = (
    "attack", "defense", "stateful-defense", "norm", "evasion", "algorithm", "objective", "model", "dataset",
    "partition",
)  # fmt: skip
PLOTS = ("curves", "heatmap", "breakdown", "pareto", "ranks", "forgetting", "labels", "bn-pca", "representations")
PATH = click.Path(path_type=Path)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the cells, refusals and an estimate; train nothing.")


class Command(click.Command):
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


class Folder(click.Path):
    """A folder that is there or can be made."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if file := next(filter(os.path.isfile, Path(value).parents), None):
            self.fail(f"{value!r} cannot be a folder: {str(file)!r} is a file.", param, ctx)
        return super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A number in a range; ``nan`` and ``inf`` are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


if TYPE_CHECKING:
    _Kind = click.ParamType[str]
else:  # older versions of click have no generic types
    _Kind = click.ParamType


class Word(_Kind):
    """One of some words; an error names the nearest."""

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word itself."""
        if value not in self.words:
            hint = near(str(value), self.words)
            self.fail(f"{value!r} is none of {', '.join(self.words)}{hint and f'; {hint}'}", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words that go on from what is typed."""
        del ctx, param
        return matching(incomplete, self.words)


def matching(incomplete: str, options: Iterable[str]) -> list[CompletionItem]:
    """Options that begin with what is typed, for the shell's completion."""
    return [CompletionItem(option) for option in sorted(options) if option.startswith(incomplete)]


def presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets that begin with what is typed; found without importing ``robustfl.scenarios``, and with it torch."""
    del ctx, param
    spec = find_spec("robustfl.scenarios")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).with_name("presets")
    return matching(incomplete, (f.relative_to(folder).with_suffix("").as_posix() for f in folder.rglob("*.toml")))


def presets_and_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets that begin with what is typed, and files."""
    return [*presets(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


FORMAT = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="What to print."
)
DATA_ROOT = click.option(
    "--data-root", "root", type=click.Path(), help="Data folder [default: $ROBUSTFL_DATA or the user cache]."
)
STORES = click.option("--out", default="runs", show_default=True, type=Folder(), help="Folder of the result stores.")
DEVICE = click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:i]", help="Where to train."
)
THREADS = click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads per cell.")
JOBS = click.option("--jobs", type=click.IntRange(1), help="Worker processes [default: one per core].")
CELLS = click.option("--cells", type=click.IntRange(1), help="How many cells to run again.  [default: 3]")
EVERY_CELL = click.option("--all", "everything", is_flag=True, help="Run every cell again.")
SAMPLE = click.option(
    "--sample", type=click.IntRange(0), help="Seed of the draw of cells [default: another one every time]."
)
CELL_MINUTES = click.option(
    "--cell-minutes", type=Finite(0, min_open=True), help="Fail cells that take longer [default: no limit]."
)
WORK = click.option("--work", type=Folder(), help="Keep here what isolated processes exchange, and go on from it.")
PREPARE = click.option("--prepare", "prepare_only", is_flag=True, help="Only write into --work what training needs.")


def given(*names: str) -> str:
    """The first of these parameters that the command line has, as it is written there; empty for none."""
    ctx = click.get_current_context()
    source, typed = ctx.get_parameter_source, ParameterSource.COMMANDLINE
    written = {p.name: p.opts[0] for p in ctx.command.params if p.name and source(p.name) is typed}
    return next((written[name] for name in names if name in written), "")


def plugins(words: str = "Load methods from a Python file.") -> Callable[[F], F]:
    """``--plugin FILE``, as often as wanted; ``words`` say what the command does with it."""
    return click.option("--plugin", "plugins", multiple=True, type=click.Path(), help=words)


def load_plugins(plugins: tuple[str, ...]) -> None:
    """Load the files of ``--plugin``, with a warning for one without a method; it may extend robustfl in other ways."""
    from robustfl.registry import load_file

    for plugin in plugins:
        if not load_file(plugin):
            say(f"warning: plug-in {plugin!r}: no method has @register(name) in it", err=True)


def where(words: str) -> Callable[[F], F]:
    """``--where LABEL=VALUE``, as often as wanted; the command gets a mapping."""
    return click.option("--where", multiple=True, metavar="LABEL=VALUE", callback=_conditions, help=words)


def _conditions(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """``("defense=krum",)`` as a mapping. Raises ``UsageError`` for anything that is no label=value."""
    del ctx, param
    found = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--where {item!r} must have the form label=value")
        if name.strip() in found:
            raise UsageError(f"--where names {name.strip()!r} twice, and a cell has one value of it")
        found[name.strip()] = value.strip()
    return found


def tolerance(words: str, *, default: float | None = 0.01) -> Callable[[F], F]:
    """``--tolerance``: a difference of accuracies, in [0, 1]; with default None it can be told whether it was given."""
    return click.option(
        "--tolerance", default=default, show_default=default is not None, type=Finite(0, 1),
        help=words if default is not None else f"{words}  [default: 0.01]",
    )  # fmt: skip


def scenario_options(command: F) -> F:
    """The options of the commands that train the cells of a scenario."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="A.B=C", help="Change a setting, e.g. rounds=10."),
        plugins(),
        DEVICE,
        click.option(
            "--checkpoint-minutes",
            default=5.0,
            show_default=True,
            type=Finite(0),
            help="How often a running cell keeps what it needs to go on; 0: never.",
        ),
        click.option("--keep-model", is_flag=True, help="Keep the trained model of every cell beside its record."),
        THREADS,
        DATA_ROOT,
        click.option(
            "--track", multiple=True, metavar="tensorboard", help="Follow cells in TensorBoard while they run."
        ),
        click.option(
            "--state-memory", default="4GiB", show_default=True, help="What clients keep beyond it lies in $TMPDIR."
        ),
        FORMAT,
    ):
        command = option(command)
    return command
