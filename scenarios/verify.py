"""Run cells of a published board again and compare: ``robustfl.verify``."""

from __future__ import annotations

import random
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustfl.arguments import check_whole
from robustfl.errors import RobustflError, UsageError
from robustfl.origins import in_words, origins
from robustfl.parameters import python_numbers
from robustfl.records import CellResult, plain
from robustfl.registry import load_file, load_plugins
from robustfl.reports.published import TOLERANCE, Board, read_board
from robustfl.reports.published.agreement import agree, versions_apart
from robustfl.reports.store import RERUN

from .bench import Contestant, tuning_cells, validated
from .cell import Cell
from .expand import fingerprints, key_of, labels, resolve
from .isolated import ELSEWHERE, OTHER_VERSIONS, Job, NotMeasuredError, check_same, evaluating, settings_in_words
from .noop_settings import no_effect
from .plan import ResolvedCell
from .protocol import protocol_of
from .protocol_check import apart_from_protocol
from .refusals import refusal
from .run import run_cell, versions
from .run_options import RunOptions, check_threads, device_of, unheard

AGREES = ("identical", "within tolerance")
_SHARE = 3
DOUBTS = ("evaluation", "unreliable")
"""What a record says about its own numbers: certificates that must come out again."""
COSTS = ("traffic", "statistics")
"""What follows from a cell's settings alone, to the last digit, wherever a record says it."""


@dataclass(frozen=True)
class Check:
    """The outcome for one cell: its verdict, in what it differs, and the methods of another version."""

    key: str
    labels: dict[str, Any]
    verdict: str
    detail: str
    versions: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """True if the cell came out as published, within the tolerance."""
        return self.verdict in AGREES


@dataclass(frozen=True)
class Verification:
    """The findings about a board: ``file`` is what is wrong without running anything, ``checks`` the cells run again.

    Of the ``published`` cells of the board ``cells`` match, and ``chosen`` of these were to be run, drawn with the
    number ``sample``. ``claimed`` is the tolerance that the board claims. ``environment`` says in what this
    installation differs, ``versions`` which methods do, and ``missing``, where nothing was to be run, why cells could
    not be; a cell that is drawn says so by itself.
    """

    board: str
    tolerance: float
    claimed: float
    published: int
    cells: int
    chosen: int
    sample: int
    file: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def disagreeing(self) -> tuple[Check, ...]:
        """The cells that did not come out as published."""
        return tuple(check for check in self.checks if not check.agrees)

    @property
    def agrees(self) -> bool:
        """True if the board is accepted: a sound file, the same methods, and every cell that ran agrees."""
        return not (self.file or self.versions or self.missing or self.disagreeing)

    @property
    def undecided(self) -> bool:
        """True if nothing speaks against the board but cells that are not run: for want of data, or of its versions."""
        elsewhere = all(check.verdict in (ELSEWHERE, OTHER_VERSIONS) for check in self.disagreeing)
        return bool(self.disagreeing or self.missing or self.versions) and elsewhere and not self.file


def verify(
    board: str | Path,
    *,
    cells: int | None = 3,
    where: Mapping[str, str] | None = None,
    sample: int | None = None,
    tolerance: float = TOLERANCE,
    check_only: bool = False,
    plugins: tuple[str, ...] = (),
    device: str | None = None,
    threads: int | None = None,
    root: str | Path | None = None,
    isolated: bool = False,
    work: str | Path | None = None,
    prepare_only: bool = False,
    cell_minutes: float | None = None,
    on_start: Callable[[Verification], None] = unheard,
    on_cell: Callable[[Check], None] = unheard,
) -> Verification:
    """Check a published board's file, then run ``cells`` of its cells again (``None``: all of them) and compare.

    A third of the cells drawn are such as count in no worst case on their word alone, and of a board that follows the
    benchmark's protocol some trainings of its searches run as well, unless ``where`` keeps cells with some labels
    alone. ``sample`` is the number they are drawn with; ``device`` and ``threads`` are the board's own unless given.
    ``isolated`` trains and evaluates in processes apart (``scenarios/isolated.py``), in which alone plug-ins run: they
    exchange files in a folder ``work``, where what is done is not done again, and ``prepare_only`` writes there what
    they need; each is killed after ``cell_minutes``. Raises ``UsageError`` for arguments that cannot be.
    """
    cells, tolerance = python_numbers(cells), python_numbers(tolerance)
    _check_arguments(board, cells, sample, tolerance, device, threads)
    check_work(work, prepare_only, sample if isolated else None, cell_minutes if not isolated else None)
    load_plugins(only=() if isolated else None)  # those of isolated cells load in other processes
    for plugin in () if isolated else plugins:
        load_file(plugin)
    seed = secrets.randbelow(10**6) if sample is None else sample
    known, chosen = _looked_through(Path(board), dict(where or {}), cells, seed, tolerance, check_only, isolated)
    on_start(known)
    if check_only:
        return known
    with tempfile.TemporaryDirectory() as temporary:
        again = _Again(device, threads, root, plugins, Path(work or temporary) if isolated else None, cell_minutes)
        if prepare_only:
            again.prepare(chosen)
            return known
        checks = list[Check]()
        for one in chosen:
            checks.append(_again(one, tolerance, again))
            on_cell(checks[-1])
    versions = {*known.versions, *(words for check in checks for words in check.versions)}
    return replace(known, checks=tuple(checks), versions=tuple(sorted(versions)))


def _check_arguments(
    board: object, cells: object, sample: object, tolerance: object, device: str | None, threads: int | None
) -> None:
    """Raise ``UsageError`` for arguments of ``verify`` that are of another kind or out of range."""
    if not isinstance(board, (str, Path)):
        raise UsageError(f"verify: the board is a file's name, not {type(board).__name__}")
    for name, value, least in (("cells", cells, 1), ("sample", sample, None)):
        if value is not None:  # all cells, and any draw
            check_whole(value, name, "verify", least=least)
    if not isinstance(tolerance, (int, float)) or not 0 <= tolerance <= 1:
        raise UsageError(f"verify: tolerance={tolerance!r} must be a number in [0, 1], a difference of accuracies")
    if device is not None:
        device_of(device)
    if threads is not None:
        check_threads(threads)


def check_work(work: object, prepare_only: bool, sample: object, minutes: float | None = None) -> None:
    """Raise ``UsageError`` for a folder without a sample, which two calls must share, and for what is not isolated."""
    if minutes is not None:
        raise UsageError(f"cell_minutes={minutes:g} is for isolated cells (--isolated)")
    if work is None and prepare_only:
        raise UsageError("to prepare is to write into a folder: give work (--work)")
    if work is not None and sample is None:
        raise UsageError("work (--work) is for isolated cells (--isolated) of one draw: give sample (--sample)")


def _looked_through(
    board: Path, wanted: Mapping[str, str], cells: int | None, seed: int, tolerance: float, check_only: bool,
    isolated: bool,
) -> tuple[Verification, list[CellResult | Trial]]:  # fmt: skip
    """The findings without running anything, and what is drawn to run."""
    from robustfl.reports.loading import has_labels, matching  # with pandas, which no worker needs

    published, wrong = read_board(board)
    everything = published.records()
    strange = isolated and any(origins(r.cell) for r in everything)  # whose searches only their own code can follow
    apart = [] if strange else apart_from_protocol(published, everything)
    records = [r for r in everything if has_labels(r.labels, wanted)]
    if not everything:
        raise UsageError(f"{board}: this board holds no cells; there is nothing to verify")
    if not records:
        matching(everything, wanted, what="verify")  # says what is wrong with the labels
    trials = [] if apart or wanted or strange else trials_of(published)
    chosen: list[CellResult | Trial] = [*_drawn(records, cells, seed), *_few(trials, cells, seed)]
    apart_here = [_apart_here(r) for r in records]
    known = Verification(
        board=published.name,
        tolerance=tolerance,
        claimed=published.tolerance,
        published=len(published.cells),
        cells=len(records),
        chosen=0 if check_only else len(chosen),
        sample=seed,
        file=(*wrong, *apart),
        environment=tuple(_environment(published)),
        versions=tuple(sorted({words for differ, _ in apart_here for words in differ})),
        missing=tuple(sorted({words for _, lack in apart_here for words in lack})) if check_only else (),
    )
    return known, chosen


@dataclass(frozen=True)
class _Again:
    """Measures a cell again as its record says it ran, unless ``device`` and ``threads`` are given.

    Here, or with a ``folder`` in processes apart, which load the ``plugins`` and are killed after so many ``minutes``.
    """

    device: str | None
    threads: int | None
    root: str | Path | None
    plugins: tuple[str, ...]
    folder: Path | None
    minutes: float | None = None

    def run(self, cell: Cell, fingerprint: str, said: Mapping[str, Any], scenario: str = "") -> CellResult:
        """The record of a cell."""
        if self.folder is not None:
            resolved = ResolvedCell.of(cell, fingerprint)
            return self.job(resolved.key, plain(resolved.settings), said).result()
        device, threads = self._place(said)
        options = RunOptions(device=device, threads=threads, root=self.root)
        return run_cell(cell, scenario=scenario, fingerprint=fingerprint, options=options)

    def of(self, record: CellResult) -> CellResult:
        """The record of a board's cell. Raises ``RobustflError`` where it cannot be run, such as for want of data."""
        if self.folder is not None:
            return self.job(record.key, record.cell, record.certificates).result()
        cell = Cell.of(record.cell.get("cell", {}))
        fingerprint = fingerprints([cell], self.root)[cell]
        check_same(record.cell, ResolvedCell.of(cell, fingerprint), record.key)
        return self.run(cell, fingerprint, record.certificates, record.scenario)

    def prepare(self, chosen: Sequence[CellResult | Trial]) -> None:
        """Write what the training of cells needs; the training of searches has no foreign code, and waits."""
        for one in chosen:
            if isinstance(one, CellResult):
                self.job(one.key, one.cell, one.certificates).prepare()

    def job(self, key: str, resolved: Mapping[str, Any], said: Mapping[str, Any]) -> Job:
        """The cell as processes apart measure it."""
        assert self.folder is not None
        device, threads = self._place(said)
        return Job(self.folder / key, key, resolved, device, threads, self.plugins, self.root, self.minutes)

    def _place(self, said: Mapping[str, Any]) -> tuple[str, int]:
        claimed = said.get("threads")
        threads = self.threads or (claimed if type(claimed) is int else 1)
        return self.device or str(said.get("device") or "auto"), threads


# --- trainings of the searches of a benchmark's board ----------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A training of a contestant's search: its cell, and the validation accuracy that the board gives it."""

    cell: Cell
    said: float | None

    @property
    def labels(self) -> dict[str, Any]:
        """Its cell's, with a mark that it is of the tuning."""
        return {**labels(self.cell), "tuning": True}

    def check(self, tolerance: float, root: str | Path | None, run: Callable[..., CellResult]) -> tuple[str, str, str]:
        """Its key, the verdict, and in what it differs. Raises ``RobustflError`` where it cannot be run here."""
        fingerprint = fingerprints([self.cell], root)[self.cell]
        key = key_of(resolve(self.cell, fingerprint))
        record, told = run(self.cell, fingerprint, {}), f"validation accuracy in the search {_score(self.said)}"
        if record.status in RERUN:
            return key, "differs", f"{told} → failed: {str(record.reason).partition(chr(10))[0]}"
        found = validated(record)
        if self.said == found:
            return key, "identical", ""
        words = f"{told} → {_score(found)}"
        near = self.said is not None and found is not None and abs(self.said - found) <= tolerance + 1e-9
        return key, "within tolerance" if near else "differs", words


def trials_of(board: Board) -> list[Trial]:
    """Every training of the searches of a board that follows the protocol; none of a board that does not say so."""
    facts = (board.protocol or {}).get("benchmark")
    if facts is None:
        return []
    rules = protocol_of(facts["version"])
    tier = rules.tier(facts["tier"])
    chosen = [Contestant.named(name, entry) for name, entry in facts["contestants"].items()]
    cells = tuning_cells(tier, tier.scenario(facts["changed"]), chosen, rules)
    return [
        Trial(cell, tried["validation"][attack])
        for name, entry in facts["contestants"].items()
        for tried, own in zip(entry["search"], cells[name], strict=True)
        for attack, cell in own.items()
    ]


def _score(score: float | None) -> str:
    return "none" if score is None else f"{score:.4f}"


# --- what is drawn ---------------------------------------------------------------------------------------------------


def _drawn(records: Sequence[CellResult], cells: int | None, seed: int) -> list[CellResult]:
    """The cells to run: a third of them such as boards leave out of the worst case, if there are any, on their word."""
    if cells is None:
        return list(records)
    draw = random.Random(seed)
    doubtful = _left_out_of_the_worst(records)
    first = draw.sample(doubtful, min(cells // _SHARE, len(doubtful)))
    rest = [one for one in records if not any(one is known for known in first)]
    return first + draw.sample(rest, min(cells - len(first), len(rest)))


def _few(trials: Sequence[Trial], cells: int | None, seed: int) -> list[Trial]:
    """The trainings of searches to run beside so many cells: one for three of them, and at least one."""
    if cells is None:
        return list(trials)
    return random.Random(f"search {seed}").sample(trials, min(max(1, cells // _SHARE), len(trials)))


def _left_out_of_the_worst(records: Sequence[CellResult]) -> list[CellResult]:
    """Cells that count in no worst case because of what only running them can tell: refused, or without effect."""
    left_out = (r for r, idle in zip(records, _idle(records), strict=True) if r.status == "refused" or idle)
    return [r for r in left_out if not _explained(r)]


def _idle(records: Sequence[CellResult]) -> list[bool]:
    """Of every cell, if its record says that its attack had no effect: boards leave it out of the worst case."""
    from robustfl.reports.frame import frame
    from robustfl.reports.ranking import without_effect

    idle = {line["key"] for line in frame(records).to_dict("records") if without_effect(dict(line))} if records else ()
    return [r.key in idle for r in records]


def _explained(record: CellResult) -> bool:
    """True if a record says refused, or without effect, of a cell whose settings alone say the same."""
    try:
        cell = Cell.of(record.cell.get("cell", {}))
        return (refusal(cell) if record.status == "refused" else no_effect(cell)) is not None
    except RobustflError:
        return False


def _again(one: CellResult | Trial, tolerance: float, again: _Again) -> Check:
    """Run what was drawn: a cell, or a training of a search."""
    key = "" if isinstance(one, Trial) else one.key
    versions: tuple[str, ...] = ()
    try:
        if isinstance(one, Trial):
            key, verdict, detail = one.check(tolerance, again.root, again.run)
        else:
            verdict, detail = _compared(one, again.of(one), tolerance)
            theirs = {} if again.folder is None else evaluating(one.cell)
            detail = "; ".join([detail] * bool(detail) + [f"evaluated by {n} ({o})" for n, o in theirs.items()])
    except NotMeasuredError as error:
        verdict, detail = error.verdict, error.detail
        versions = (detail,) if verdict == OTHER_VERSIONS else ()
    except RobustflError as error:
        theirs = origins(one.cell) if isinstance(one, CellResult) and isinstance(error, UsageError) else {}
        first = str(error).partition("; known: ")[0]  # what is missing, not what there is
        verdict = ELSEWHERE
        detail = f"{first}; the cell used {in_words(theirs)}: see --plugin" if theirs else str(error)
    return Check(key, one.labels, verdict, detail, versions)


def _compared(record: CellResult, again: CellResult, tolerance: float) -> tuple[str, str]:
    """The verdict on a cell that came out ``again``, and in what it differs."""
    found, known = agree(record, again, tolerance=tolerance), record.certificates
    verdict = {"identical": "identical", "within": "within tolerance", "differs": "differs"}[found.verdict]
    detail = "" if found.verdict == "identical" else found.words().partition(": ")[2]
    told = [f"{n} {known.get(n)} → {again.certificates.get(n)}" for n in DOUBTS if _untold(n, record, again)]
    told += [f"{n} {_costs(record, n)} → {_costs(again, n)}" for n in COSTS if n in known and _untold(n, record, again)]
    told += _effect_apart(record, again)
    if told:
        verdict, detail = "differs", "; ".join([*([detail] if detail else []), *told])
    reason = f" ({(again.reason or '').strip().splitlines()[0]})" if again.status == "failed" and again.reason else ""
    return verdict, detail + reason


def _untold(name: str, published: CellResult, again: CellResult) -> bool:
    """True if two records of one outcome say different things under ``name``."""
    return published.status == again.status and published.certificates.get(name) != again.certificates.get(name)


def _costs(record: CellResult, name: str) -> str:
    said = record.certificates.get(name)
    return ", ".join(f"{n} {value}" for n, value in sorted(said.items())) if isinstance(said, Mapping) else str(said)


def _effect_apart(published: CellResult, again: CellResult) -> list[str]:
    """Words if only one of the records says that its attack had an effect: boards leave out what had none.

    A record that does not say what its attack moved counts as one with an effect.
    """
    if not (published.status == again.status == "done" and {"attack_shift", "no_effect"} & set(published.certificates)):
        return []
    words = ["no effect" if _idle([record])[0] else "an effect" for record in (published, again)]
    return [] if words[0] == words[1] else [f"the attack had {words[0]} → {words[1]}"]


def _apart_here(record: CellResult) -> tuple[list[str], list[str]]:
    """The packages installed in another version than the record names, and what is missing to know: nothing is run."""
    try:
        here = ResolvedCell.of(Cell.of(record.cell.get("cell", {})), str(record.cell.get("data", "")))
    except RobustflError as error:
        return [], [str(error)]
    found = versions_apart(record.cell.get("methods", {}), here.settings["methods"])
    if found or here.key == record.key:
        return found, []
    return [f"cell {record.key[:12]}: {words}" for words in settings_in_words(record.cell, here.settings)], []


def _environment(published: Any) -> list[str]:
    """In what this installation differs from the one the board declares, in words."""
    here = versions()
    declared: Mapping[str, list[str]] = published.environment.versions
    return [
        f"{n}: {', '.join(v)} declared, {here[n]} here" for n, v in declared.items() if n in here and here[n] not in v
    ]
