"""Check what somebody submits, from its form to its numbers: ``robustfl submit --check``.

Nothing of a bundle runs before everything that can be read has been read, and code of a bundle only where it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustfl.contracts import Method
from robustfl.defenses import Pipeline, Propagate
from robustfl.errors import RobustflError, UsageError, closest, told
from robustfl.origins import foreign
from robustfl.records import canonical
from robustfl.registry import Entry, describe, entries, load_file
from robustfl.reports.published import TOLERANCE, Board, read_board
from robustfl.reports.published.bundle import Bundle, read_bundle
from robustfl.testing import Check as Law
from robustfl.testing import check as laws_of

from .cell import Cell
from .execution import unheard
from .protocol_check import words_of
from .secrecy import Note, check_secrecy
from .verify import ELSEWHERE, Check, Verification, verify

_DIGITS = 32
"""The least digits of a SHA-256 that name a file's content: of 12 somebody makes two files in a minute."""


@dataclass(frozen=True)
class Finding:
    """The finding of one step of the check: ``passed`` is None where it could not be made."""

    step: str
    passed: bool | None
    words: str


@dataclass(frozen=True)
class Submission:
    """A bundle with everything found, step by step; the numbers are accepted or not as in ``verify``."""

    bundle: Bundle
    findings: tuple[Finding, ...]
    verification: Verification | None = None

    @property
    def refused(self) -> tuple[Finding, ...]:
        """The findings that speak against it."""
        return tuple(f for f in self.findings if f.passed is False)

    @property
    def undecided(self) -> tuple[Finding, ...]:
        """The steps that could not be made."""
        return tuple(f for f in self.findings if f.passed is None)

    @property
    def accepted(self) -> bool:
        """True if every step was made and nothing speaks against it."""
        return not (self.refused or self.undecided)


def check_submission(
    folder: str | Path,
    *,
    trust: Collection[str] = (),
    against: str | Path | None = None,
    cells: int | None = 3,
    sample: int | None = None,
    tolerance: float = TOLERANCE,
    root: str | Path | None = None,
    on_finding: Callable[[Finding], None] = unheard,
    on_cell: Callable[[Check], None] = unheard,
) -> Submission:
    """Check a bundle: its form, its plug-ins' contracts, some cells' numbers, and whether plug-ins see test data.

    What costs more comes later, and the first step that speaks against the bundle is the last.

    Code of a bundle runs in this process and can do what you can do. ``trust`` names what may: files of the bundle
    (``"plugins/mine.py"``, or with its SHA-256, ``"plugins/mine.py@1b2c…"``, that file and no
    later one) and requirements of installed plug-ins (``"mine==1.0"``), each by itself; without all of them nothing
    runs. ``against`` is a published board whose attacks and seeds the bundle has to have on the tasks they
    share. ``cells``, ``sample`` and ``tolerance`` are those of ``verify``. Raises ``UsageError`` for a folder that is
    no bundle, and for trust in what the bundle does not bring.
    """
    bundle = read_bundle(folder, against=None if against is None else _sound(against))
    trusted = {_named(given, bundle) for given in trust}
    found: list[Finding] = []

    def note(step: str, passed: bool | None, words: str) -> None:
        found.append(Finding(step, passed, words))
        on_finding(found[-1])

    brought: list[Entry] = []
    before: tuple[Callable[[], None], ...] = (
        lambda: _form(bundle, note),
        lambda: _trusted(bundle, trusted, note),
        lambda: brought.extend(_methods_of(bundle, note)),
        lambda: _contracts(brought, note, _kinds_of_cells(bundle)),
    )
    for step in before:
        step()
        if any(f.passed is False or f.step == "trust" for f in found):
            return Submission(bundle, tuple(found))
    board = bundle.folder / "board.json"
    verification = verify(board, cells=cells, sample=sample, tolerance=tolerance, root=root, on_cell=on_cell)
    _protocol(verification, bundle, note)
    _numbers(verification, note)
    if brought and verification.agrees:
        check_secrecy(bundle, verification.sample, root, note)
    return Submission(bundle, tuple(found), verification)


def _sound(path: str | Path) -> Board:
    board, wrong = read_board(path)
    if wrong:
        raise UsageError(f"against={str(path)!r}: {wrong[0]}")
    return board


def _form(bundle: Bundle, note: Note) -> None:
    for words in bundle.wrong:
        note("form", False, words)
    if not bundle.wrong:
        note("form", True, f"{len(bundle.board.cells)} cells, {len(bundle.manifest.files) + 1} files")


def _named(given: str, bundle: Bundle) -> str:
    """The code of the bundle that somebody trusts. Raises ``UsageError`` where it brings none, or another one."""
    name, at, digest = given.partition("@")
    if name not in bundle.foreign:
        raise UsageError(f"trust={given!r}: the bundle brings no such code; {closest(name, bundle.foreign)}")
    found = bundle.manifest.files.get(name, "")
    if at and found.startswith(digest.lower()) and len(digest) < _DIGITS:
        raise UsageError(f"trust={given!r}: {len(digest)} digits may be another file's, too; write {_DIGITS} at least")
    if at and not found.startswith(digest.lower()):
        raise UsageError(
            f"trust={given!r}: the bundle's {name} is another one, "
            + (f"its SHA-256 begins with {found[:12]}; read it" if found else "and has no digest: it is installed")
        )
    return name


def _trusted(bundle: Bundle, trust: Collection[str], note: Note) -> None:
    """Note the code that nobody has named: nothing of it runs."""
    for name in bundle.foreign:
        if name not in trust:
            content = bundle.manifest.files.get(name)
            exactly = f"{name}@{content}" if content else name
            note("trust", None, f"code of {name} is not run; read it, then name it with --trust {exactly}")


def _methods_of(bundle: Bundle, note: Note) -> list[Entry]:
    """The methods that the bundle's plug-ins register; each plug-in has at least one."""
    found: list[Entry] = []
    for name in sorted(bundle.manifest.plugins):
        try:
            made = load_file(bundle.folder / name)
        except (UsageError, RobustflError) as error:
            note("contract", False, f"{name}: {error}")
            continue
        if not made:
            note("contract", False, f"{name} registers no method")
        found += made
    for origin, requirement in sorted(bundle.manifest.packages.items()):
        made = [entry for entry in entries() if entry.origin == origin]
        if not made:
            note("contract", None, f"{requirement} is not installed here as the cells had it ({origin})")
        found += made
    return found


def _as_used(entry: Entry, cells: Sequence[Mapping[str, Any]]) -> dict[str, Method]:
    """A method that came with the bundle, with its defaults and as cells have it: a switch may change what it does."""
    made: dict[str, Method] = {f"{entry.kind} {entry.name}": entry.cls()}
    for cell in cells:
        try:
            methods = vars(Cell.of(cell).methods)
        except UsageError:  # such as one with a method of a package that is not here; later steps say so
            continue
        for method in _made_of(methods):
            if type(method) is entry.cls:
                made.setdefault(f"{entry.kind} {describe(method)}", method)
    return made


def _kinds_of_cells(bundle: Bundle) -> list[Mapping[str, Any]]:
    """The settings of one cell for every choice of methods from elsewhere in the bundle."""
    records = bundle.board.records()
    return list({canonical(list(foreign(r.cell.get("methods")))): r.cell["cell"] for r in records}.values())


def _made_of(value: Any) -> Iterator[Method]:
    """The methods in a cell's: parts of pipelines and of sequences, and what wrappers wrap."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, Method):
        yield value
        value = getattr(value, "inner", None), getattr(value, "parts", ())
    elif isinstance(value, Pipeline):
        value = value.parts
    elif isinstance(value, Propagate):
        value = value.propagation, value.rule
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _made_of(one)


def _contracts(brought: Sequence[Entry], note: Note, cells: Sequence[Mapping[str, Any]] = ()) -> None:
    """The contract suite on every method that came with the bundle, as the settings of its ``cells`` have it."""
    for entry in brought:
        who = f"{entry.kind} {entry.name}"
        broken: dict[str, list[Law]] = {}
        try:
            for each, method in _as_used(entry, cells).items():
                broken[each] = [c for c in laws_of(method) if not c.passed]
        except (TypeError, ValueError, SystemExit) as error:
            note("contract", False, f"{who} cannot be made: {told(error)}")
            continue
        for each, laws in broken.items():
            for law in laws:
                note("contract", False, f"{each}: {law.name}: {law.reason}")
        if not any(broken.values()):
            note("contract", True, f"{' and '.join(broken)} keeps the contract")


def _protocol(verification: Verification, bundle: Bundle, note: Note) -> None:
    """A sound file whose cells or searches are not those of its protocol, or that follows it."""
    for words in verification.file:
        note("protocol", False, words)
    if not verification.file and (words := words_of(bundle.board)):
        note("protocol", True, words)


def _numbers(verification: Verification, note: Note) -> None:
    for check in verification.checks:
        detail = f"{check.verdict}: {check.detail}" if check.detail else check.verdict
        if not check.agrees:
            note("numbers", None if check.verdict == ELSEWHERE else False, f"cell {check.key[:12]}: {detail}")
    agree = sum(check.agrees for check in verification.checks)
    if agree == len(verification.checks):
        note(
            "numbers", True, f"{agree} cells of {verification.cells} came out again (drawn with {verification.sample})"
        )
