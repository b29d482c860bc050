"""``robustfl bench``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustfl.cli import options as shared
from robustfl.cli.boards import print_comparison
from robustfl.cli.grid import options_of, print_plan, run_shown
from robustfl.cli.options import PATH, Command, Word, given, load_plugins
from robustfl.cli.printing import as_json, console, print_board, say, table
from robustfl.errors import RobustflError, UsageError

if TYPE_CHECKING:
    from robustfl.records import CellResult
    from robustfl.reports.benchmark.data import Measured
    from robustfl.reports.benchmark.study import Study
    from robustfl.reports.board import Board
    from robustfl.reports.published import Board as Published
    from robustfl.scenarios import Results, RunOptions

_NO_PAGES = "the pages show accuracy under AutoByz, which --set attack took away"
STUDY, SITE, BEAT = "study-3", "site", "beat"

_TAKES = {
    BEAT: ("row", "attacks", "scope", "by", "sources", "board", "plugins"),
    SITE: ("sources", "page", "plugins"),
    STUDY: ("sources", "page"),
    "tier --dry-run": ("dry_run", "contestants", "settings", "plugins"),
    "tier --from": ("sources", "page", "plugins"),
    "tier --list": ("listing", "contestants", "settings", "plugins"),
    "tier": ("contestants", "settings", "plugins", "board", "page"),
}
"""What each form of the command takes beside the options that all have."""
_OPTIONS = {name: None for names in _TAKES.values() for name in names}


@click.command(cls=Command, short_help="Run the benchmark: tune every contestant alike, measure it under AutoByz.")
@click.argument("tier", type=Word(shared.BENCHMARKS), metavar="TIER")
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
@shared.DRY_RUN
@click.option("--set", "settings", multiple=True, metavar="A.B=C", help="Change the protocol; the board says so.")
@shared.STORES
@click.option("--board", type=PATH, help="Also write the board, with every search.")
@click.option("--page", type=PATH, help="Also write the pages of tier, study or site into this folder.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=PATH,
    help="Read this board, or this data of a study; run nothing. For the site: once per board.",
)
@shared.JOBS
@shared.THREADS
@shared.DEVICE
@shared.DATA_ROOT
@shared.plugins()
@shared.FORMAT
def bench(
    tier: str, row: str | None, *, attacks: tuple[str, ...], scope: str | None, by: str | None,
    contestants: tuple[str, ...], listing: bool, dry_run: bool, settings: tuple[str, ...], out: str,
    board: Path | None, page: Path | None, sources: tuple[Path, ...], plugins: tuple[str, ...], form: str, **how: Any,
) -> int:  # fmt: skip
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
    from robustfl.reports.store import refuse_board, refuse_store

    refuse_board(board)
    if page is not None:
        refuse_store("page", page)
    _refuse_options(tier, row, sources, dry_run=dry_run, listing=listing)
    options = options_of(**how)
    run = partial(run_shown, options=options, out=out, quiet=form == "json")
    load_plugins(plugins)
    if tier == BEAT:
        return _beat(row, sources, attacks, scope or "both", plugins, by or "", board=board, run=run, form=form)
    if tier == SITE:
        return _site(sources, page, form)
    if dry_run:
        return _dry_run(tier, contestants, settings, plugins, options, out=out, form=form)
    if tier == STUDY:
        return study(_studied(sources[0] if sources else None, run), page=page, form=form)
    if sources:
        return _from_board(tier, sources[0], page, form)
    if listing:
        return _list(tier, settings, contestants, form)
    return _run_tier(tier, run, contestants, settings, plugins, options, out=out, board=board, page=page, form=form)


def _refuse_options(tier: str, row: str | None, sources: tuple[Path, ...], *, dry_run: bool, listing: bool) -> None:
    """Raise ``UsageError`` for an option that was given where it means nothing, and for more than one board to read."""
    if row is not None and tier != BEAT:
        raise UsageError(f"bench {tier} takes no row ({row!r}); bench {BEAT} does, and --contestant names contestants")
    if len(sources) > 1 and tier != SITE:
        raise UsageError(
            f"bench {tier} takes one --from, not {len(sources)}; bench {SITE} takes the boards of all tiers"
        )
    if dry_run and tier == SITE:
        raise UsageError(f"bench {SITE} trains nothing; it takes no --dry-run")
    form = " --dry-run" if dry_run and tier != BEAT else ""
    if tier in _TAKES:
        taken = ("dry_run",) if form else _TAKES[tier]
    else:
        form = form or (" --from" if sources else " --list" if listing else "")
        taken = _TAKES[f"tier{form}"]
    if unused := given(*(name for name in _OPTIONS if name not in taken)):
        raise UsageError(f"bench {tier}{form} takes no {unused}")


def _run_tier(
    tier: str, run: Any, contestants: tuple[str, ...], settings: tuple[str, ...], plugins: tuple[str, ...],
    options: RunOptions, *, out: str, board: Path | None, page: Path | None, form: str,
) -> int:  # fmt: skip
    """Tune and measure the contestants of a tier, print the board, and write what was asked for."""
    from robustfl.reports.comparison import compare
    from robustfl.scenarios.bench import bench as engine
    from robustfl.scenarios.expand import asked
    from robustfl.scenarios.protocol import protocol, scenario_to_run

    chosen = protocol().tier(tier)
    if page is not None and asked(scenario_to_run(chosen, settings)) is None:
        raise UsageError(f"bench --page: {_NO_PAGES}; --board writes its board, `robustfl report --site` a site of it")
    found = engine(
        chosen, run, wanted=contestants, settings=settings, out=out, root=options.root, plugins=plugins,
        on_note=options.on_note,
    )  # fmt: skip
    _publish(found.results, board, page, form)
    if contestants and form != "json":  # in the published table of this tier, or what keeps them out
        say()
        print_comparison(compare(found.results.folder))
    return 1 if found.results.statuses.get("failed") or found.results.lost else 0


def _dry_run(
    tier: str, wanted: tuple[str, ...], settings: tuple[str, ...], plugins: tuple[str, ...], options: RunOptions, *,
    out: str, form: str,
) -> int:  # fmt: skip
    """Print the cells, refusals and hours of the tuning and of the final cells; 1 if cells could not be timed."""
    from robustfl.scenarios import Scenario
    from robustfl.scenarios.bench import planned_scenarios
    from robustfl.scenarios.protocol import protocol

    planned = (
        (Scenario.load(f"bench/{tier}"),) if tier == STUDY
        else planned_scenarios(protocol().tier(tier), wanted=wanted, settings=settings, plugins=plugins)
    )  # fmt: skip
    found = {scenario.name: print_plan(scenario, options, out=out, form=form) for scenario in planned}
    if form == "json":
        as_json({name: plan.as_dict() for name, plan in found.items()})
    elif len(planned) > 1:
        say("\nThe final cells are planned with every contestant's first configuration; the tuning may choose another.")
        say("Rows that are not told from the first may run more seeds.")
    return 1 if any(plan.untimed for plan in found.values()) else 0


def _list(name: str, settings: tuple[str, ...], wanted: tuple[str, ...], form: str) -> int:
    """Print the contestants of a tier, what they are told and what they try."""
    from robustfl.defenses import parse_pipeline
    from robustfl.scenarios.bench import configurations, contestants
    from robustfl.scenarios.protocol import protocol, scenario_to_run

    rules = protocol()
    tier = rules.tier(name)
    rows = []
    for contestant in contestants(scenario_to_run(tier, settings), wanted):
        tried = configurations(contestant, rules)
        rates = ", ".join(dict.fromkeys(f"{c['schedule']['lr']:g}" for c in tried))
        own = ", ".join(dict.fromkeys(c["defense"] for c in tried if c["defense"] != contestant.of("defense")))
        rows.append([contestant.name, parse_pipeline(contestant.of("defense")).knowledge, rates, own])
    if form == "json":
        names = ("contestant", "knowledge", "rates", "own")
        as_json([dict(zip(names, row, strict=True)) for row in rows])
        return 0
    title = f"Tier {tier.name} ({tier.title}), protocol version {rules.version}: {rules.budget} configurations each"
    console().print(table(["contestant", "is told", "learning rates", "own parameters"], rows, title=title))
    return 0


def _publish(results: Results, board: Path | None, page: Path | None, form: str) -> None:
    from robustfl.reports.loading import board_of
    from robustfl.reports.published import publish_described, write_board
    from robustfl.reports.store import Store

    store = Store(results.folder)
    published = publish_described(results.records(), store.description(), name=results.folder.name)
    written = [] if board is None else [write_board(published, board)]
    if "autobyz" in (published.protocol or {}):
        found = _measured(published, published.records())
        made = found.board
        written += [] if page is None else [_write_site([(found, board)], page)[0]]
    else:
        made = board_of(store, keys=results.keys)
    _print(made, written, form, full=f"robustfl report {results.folder}")


def _print(made: Board, written: Sequence[Path], form: str, *, full: str = "") -> None:
    """Print a leaderboard and the files that were written."""
    print_board(made, form, full=full)
    for file in written:
        say(f"  {file}", err=form == "json")


def _from_board(tier: str, source: Path, page: Path | None, form: str) -> int:
    """Print a tier's board, and write the site of it alone."""
    from robustfl.reports.published import sound_board

    read = sound_board(source)
    facts = _facts(read)
    if facts.get("tier") != tier:
        raise UsageError(f"{source}: no board of tier {tier} of the benchmark; its tier: {facts.get('tier', 'none')}")
    words = _unknown_version(facts)
    if words:
        raise UsageError(f"{source}: {words}")
    found = _followed(source, read)
    written = [] if page is None else _write_site([(found, source)], page)[:1]
    _print(found.board, written, form)
    return 0


def _beat(
    row: str | None, sources: tuple[Path, ...], attacks: tuple[str, ...], scope: str, plugins: tuple[str, ...],
    by: str, *, board: Path | None, run: Any, form: str,
) -> int:  # fmt: skip
    """Run attacks on one row of a board; print what they make of it, and write the board in which they count."""
    from robustfl.autobyz import TITLE
    from robustfl.reports.benchmark.data import lowered
    from robustfl.reports.frame import frame
    from robustfl.reports.published import sound_board, write_board
    from robustfl.reports.ranking import without_effect
    from robustfl.scenarios.beat import challenge, with_challenge

    if row is None or len(sources) != 1 or not attacks:
        raise UsageError(f"bench {BEAT} needs a row, --from BOARD and --attack ATTACK")
    read = sound_board(sources[0])
    contestant, scenario = challenge(read, row, attacks, scope=scope, plugins=plugins)
    before = _followed(sources[0], read)
    results = run(scenario)
    records = results.records()
    without = [r for r in records if r.status not in ("done", "diverged")]
    if without or results.lost:
        why = without[0].reason if without else "cells are lost"
        raise RobustflError(f"no number for every task and seed, so nothing is compared: {why}")
    if all(without_effect(line) for line in frame(records).to_dict("records")):
        raise UsageError(f"{', '.join(attacks)}: without effect, the honest mean stayed where it was in every cell")
    made = with_challenge(read, contestant, records, by=by)
    tasks = lowered(before, _measured(made, made.records()), contestant.name)
    lower = tasks[0].lower
    written = [write_board(made, board)] if board is not None and lower else []
    heads = ["task", TITLE, *tasks[0].under, "now"]
    rows = [[t.task, *(p.text() for p in (t.before, *t.under.values(), t.after))] for t in tasks]
    if form == "json":
        lines = [dict(zip(heads, row, strict=True)) for row in rows]
        as_json({"row": contestant.name, "lower": lower, "tasks": lines, "written": [str(f) for f in written]})
        return 0
    console().print(table(heads, rows, title=f"{contestant.name}: SA in %"))
    say(f"It {'goes lower' if lower else 'does not go lower, and no board is written'}.")
    for file in written:
        say(f"  {file}")
    return 0


def _site(sources: tuple[Path, ...], page: Path | None, form: str) -> int:
    """Write the site of the boards; of more than two, two are read at a time."""
    from joblib import Parallel, delayed

    if not sources or page is None:
        raise UsageError(f"bench {SITE} needs --page FOLDER and --from BOARD, once per board")
    read = Parallel(n_jobs=2 if len(sources) > 2 else 1)(delayed(_read)(source) for source in sources)
    shown = [(found, source) for found, source in zip(read, sources, strict=True) if not isinstance(found, str)]
    left_out = [found for found in read if isinstance(found, str)]
    if not shown:
        raise UsageError(f"bench {SITE}: no board to show; {'; '.join(left_out)}")
    written = _write_site(shown, page, left_out)
    if form == "json":
        as_json({"written": [str(file) for file in written], "left_out": left_out})
        return 0
    for words in left_out:
        say(f"not shown: {words}", err=True)
    say(f"{len(shown)} boards, {len(written)} files; the first page is {written[0]}")
    return 0


def _read(source: Path) -> Measured | str:
    """A board of the benchmark, or why it is not shown."""
    from robustfl.reports.published import sound_board

    read = sound_board(source)
    facts = _facts(read)
    if not facts:
        raise UsageError(f"{source}: no board of the benchmark; make one with `robustfl bench TIER --board FILE`")
    words = _unknown_version(facts)
    if words:
        return f"{source.name}, tier {facts.get('tier')}: {words}"
    return _followed(source, read)


def _facts(read: Published) -> Mapping[str, Any]:
    facts = (read.protocol or {}).get("benchmark")
    return facts if isinstance(facts, Mapping) else {}


def _unknown_version(facts: Mapping[str, Any]) -> str:
    """The refusal of a board of a version of the protocol that is not known here; empty for the others."""
    from robustfl.scenarios.protocol import protocol_of

    try:
        protocol_of(facts.get("version"))
    except UsageError as error:
        return str(error)
    return ""


def _followed(source: Path, read: Published) -> Measured:
    """What a board measured. Raises ``UsageError`` for one that does not follow the protocol it names."""
    from robustfl.scenarios.protocol_check import apart_from_protocol

    records = read.records()
    if apart := apart_from_protocol(read, records):
        raise UsageError(f"{source}: it does not follow its protocol: {apart[0]}")
    return _measured(read, records)


def _measured(read: Published, records: Sequence[CellResult]) -> Measured:
    from robustfl.reports.benchmark.data import measured
    from robustfl.scenarios.expand import default_labels

    return measured(read, records, default_labels())


def _write_site(boards: Sequence[tuple[Measured, Path | None]], page: Path, left_out: Sequence[str] = ()) -> list[Path]:
    from robustfl.reports.benchmark.pages import Shown, write_benchmark
    from robustfl.scenarios.protocol import protocol

    for found, file in boards:
        if found.board.autobyz is None:
            raise UsageError(f"{file}: {_NO_PAGES}")
    shown = [Shown(found, file) for found, file in boards]
    newest = protocol()
    tiers = {name: tier.title for name, tier in newest.tiers.items()}
    return write_benchmark(shown, page, version=newest.version, tiers=tiers, left_out=left_out)


def _studied(source: Path | None, run: Any) -> Study:
    """The data of the study, after what is missing of it has run; or of a file."""
    from robustfl.reports.benchmark.study import read_study, study_of
    from robustfl.scenarios import Scenario

    if source is not None:
        return read_study(source)
    return study_of(run(Scenario.load(f"bench/{STUDY}")).records())


def study(found: Study, *, page: Path | None, form: str) -> int:
    """Write the page of the study behind the newest AutoByz, with its data; 1 if the data say another choice."""
    from robustfl.autobyz import ensemble_of
    from robustfl.reports.benchmark.study import about, study_page
    from robustfl.reports.store import write_atomic

    of = about()
    ensemble = ensemble_of(of.version)
    choice = found.choose(of.required, of.limit)
    written = []
    if page is not None:
        written = [page / f"{STUDY}.csv", page / f"{STUDY}.md"]
        write_atomic(written[0], found.to_csv())
        write_atomic(written[1], study_page(found, choice, ensemble, of, STUDY))
    same = sorted(choice.members) == sorted(m.label for m in ensemble.members)
    if form == "json":
        as_json({
            "members": choice.members, "covered": choice.covered, "contestants": choice.total,
            "version": ensemble.version, "same": same, "written": [str(f) for f in written],
        })  # fmt: skip
    else:
        say(f"The data choose {', '.join(choice.members)}: {choice.covered} of {choice.total} contestants.")
        say(f"{'That is' if same else 'That is not'} AutoByz version {ensemble.version}.")
        for file in written:
            say(f"  {file}")
    return 0 if same else 1
