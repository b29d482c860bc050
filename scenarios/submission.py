"""Check what somebody submits, from its form to its numbers: ``robustfl submit --check``.

No code of a submission runs in this process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustfl.reports.published import sound_board
from robustfl.reports.published.submitting import BOARD, Submitted, read_submission

from .isolated import ELSEWHERE
from .protocol_check import words_of
from .run_options import unheard
from .verify import Verification, check_work, verify


@dataclass(frozen=True)
class Finding:
    """The finding of one step of the check: ``passed`` is None where it could not be made."""

    step: str
    passed: bool | None
    words: str


Note = Callable[[str, bool | None, str], None]


@dataclass(frozen=True)
class Submission:
    """A submission with everything found, step by step; the numbers are accepted or not as in ``verify``."""

    submitted: Submitted
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
    trust: bool = False,
    against: str | Path | None = None,
    sample: int | None = None,
    work: str | Path | None = None,
    prepare_only: bool = False,
    on_finding: Callable[[Finding], None] = unheard,
    **how: Any,
) -> Submission:
    """Check a submission: its form, its plug-ins' contracts and protocol, and some cells' numbers, measured apart.

    What costs more comes later, and the first step that speaks against the submission is the last. Its code runs in
    processes of its own, with the rights of who calls this, and only where ``trust`` says that somebody has read it;
    or with a folder ``work`` wherever these processes were run, such as in containers (``verify``). ``against`` is a
    published board whose attacks and seeds it has to have on the tasks they share. The other arguments are those of
    ``verify``. Raises ``UsageError`` for a folder that is no submission.
    """
    check_work(work, prepare_only, sample)
    found: list[Finding] = []
    submitted = read_submission(folder, against=None if against is None else sound_board(against))

    def note(step: str, passed: bool | None, words: str) -> None:
        found.append(Finding(step, passed, words))
        on_finding(found[-1])

    foreign = bool(submitted.plugins or submitted.packages)
    plugins = tuple(str(submitted.folder / name) for name in submitted.plugins) if trust else ()
    _form(submitted, foreign and not trust and work is None, note)
    if work is None and not any(f.passed is not True for f in found):
        _contracts(plugins, note)
    if any(f.passed is not True for f in found):
        return Submission(submitted, tuple(found))
    board = submitted.folder / BOARD
    if foreign and trust:
        _protocol(board, submitted, plugins, note)
    verification = verify(
        board, isolated=True, plugins=plugins, sample=sample, work=work, prepare_only=prepare_only, **how
    )
    if not foreign:
        _of_protocol(verification.file, submitted, note)
    _numbers(verification, note)
    return Submission(submitted, tuple(found), verification)


def _form(submitted: Submitted, untrusted: bool, note: Note) -> None:
    """Note what is wrong with the form of a submission, and that its code needs somebody's trust."""
    for words in submitted.wrong:
        note("form", False, words)
    if not submitted.wrong:
        note("form", True, f"{len(submitted.board.cells)} cells, {len(submitted.plugins)} plug-ins")
        if untrusted:
            code = [f"{name} (SHA-256 {digest})" for name, digest in submitted.plugins.items()] + [*submitted.packages]
            note("trust", None, f"not run before you have read it and say --trust: {', '.join(code)}")


def _command(*arguments: str) -> tuple[int, Any]:
    """The exit status of a command of robustfl's in a process of its own, and the JSON data it prints, if it does."""
    line = [sys.executable, "-m", "robustfl", *arguments, "--format", "json"]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, None


def _contracts(plugins: tuple[str, ...], note: Note) -> None:
    """The contract suite on the methods of every plug-in."""
    for plugin in plugins:
        name, (status, said) = Path(plugin).name, _command("check", plugin)
        broken = [(one, law) for one in said or () for law in one["checks"] if not law["passed"]]
        for one, law in broken:
            note("contract", False, f"{name}: {one['kind']} {one['name']}: {law['name']}: {law['reason']}")
        if not broken:
            words = "keeps the contract" if status == 0 else f"its check ended with {status}; what it said is above"
            note("contract", status == 0, f"{name} {words}")


def _protocol(board: Path, submitted: Submitted, plugins: tuple[str, ...], note: Note) -> None:
    """The protocol that the board says it follows, which takes the plug-ins to read."""
    options = [word for plugin in plugins for word in ("--plugin", plugin)]
    status, said = _command("verify", str(board), "--check-only", *options)
    if said is None:
        note("protocol", None, f"its check ended with {status}; what it said is above")
        return
    _of_protocol(said["file"], submitted, note)


def _of_protocol(wrong: Sequence[str], submitted: Submitted, note: Note) -> None:
    for words in wrong:
        note("protocol", False, words)
    if not wrong and (words := words_of(submitted.board)):
        note("protocol", True, words)


def _numbers(verification: Verification, note: Note) -> None:
    for check in verification.checks:
        detail = f"{check.verdict}: {check.detail}" if check.detail else check.verdict
        if not check.agrees:
            note("numbers", None if check.verdict == ELSEWHERE else False, f"cell {check.key[:12]}: {detail}")
    agree = [check for check in verification.checks if check.agrees]
    if agree and len(agree) == len(verification.checks):
        words = f"{len(agree)} cells of {verification.cells} came out again, drawn with {verification.sample}"
        note("numbers", True, "; ".join([words, *sorted({check.detail for check in agree if check.detail})]))
    if not verification.checks:
        note("numbers", None, f"{verification.chosen} cells are prepared for training and evaluation elsewhere")
