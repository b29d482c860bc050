"""Errors a user can act on. Every message names the thing, its value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from robustfl.file_io import cut

LONGEST = 2_000
"""Characters of a message: beyond them, the middle of the value that it names is left out."""


class RobustflError(Exception):
    """Base of all errors robustfl raises on purpose."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(cut(arg, LONGEST) if isinstance(arg, str) else arg for arg in args))


class UsageError(RobustflError, ValueError):
    """Something the caller wrote is wrong: an unknown name, a value out of range. Exit code 2."""


class Refused(RobustflError, ValueError):
    """A combination that makes no sense, such as too few clients for ``f``; the cell is recorded as *refused*."""


class DataMissing(UsageError):
    """A data set is not on disk and cannot be fetched; the message names the folder and the command."""


class FileMissing(DataMissing):
    """A file that a parameter names is not there: a slip of whoever wrote the name."""


class StoreError(RobustflError):
    """A result folder or file cannot be read or written."""


class OldFormatWarning(UserWarning):
    """A file of an earlier format was read; the message says how to convert it."""


class ClusterError(RobustflError):
    """The scheduler or a worker of a cluster cannot be used; finished cells are stored."""


class Diverged(RobustflError):
    """Training left the finite numbers; the cell is recorded as *diverged*."""

    def __init__(self, round: int, what: str) -> None:
        super().__init__(f"{what} became non-finite in round {round}")
        self.round = round
        self.what = what

    def __reduce__(self) -> tuple[type[Diverged], tuple[int, str]]:
        return (Diverged, (self.round, self.what))


class RowsLost(Refused):
    """So many rows are not finite that a rule is not defined for the others."""


class Terminated(SystemExit):
    """A signal asked the process to end, which it does in order; no plug-in's ``sys.exit``."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.status = 128 + number


def told(error: BaseException) -> str:
    """The class and the text of an error; a plug-in's may have none.

    >>> told(KeyError("x"))
    "KeyError: 'x'"
    """
    try:
        text = str(error)
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    except Exception as another:
        return f"{type(error).__name__}, whose text cannot be made ({type(another).__name__})"


def reason(error: BaseException) -> str:
    """The text of an error of another library, or its class where it has none; of the system's errors their meaning.

    >>> reason(FileNotFoundError(2, "No such file", "x")), reason(EOFError())
    ('No such file', 'EOFError')
    """
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def near(name: str, known: Iterable[str]) -> str:
    """Ends an error message that has named what is known: the close matches of ``name``, or nothing."""
    spelt = {k.lower(): k for k in sorted(set(known), reverse=True)}
    found = [spelt[k] for k in difflib.get_close_matches(name.lower(), sorted(spelt), n=3, cutoff=0.55)]
    return "did you mean " + " or ".join(repr(n) for n in found) + "?" if found else ""


def closest(name: str, known: Iterable[str]) -> str:
    """Ends an error message: the close matches of ``name`` among ``known``, or all of them if none is close."""
    names = sorted(set(known))
    return near(name, names) or ("known: " + ", ".join(names) if names else "none is known")


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of the names, at ``most`` so many, and the number of the others.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
