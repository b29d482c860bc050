"""Checks, and the way laws are run: each in its own thread with a time limit, none stopping the others."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Generic, TypeVar, cast

from torch import Tensor

from robustfl.contracts import Method
from robustfl.errors import told
from robustfl.testing.guards import Broken, Differs, Hung, within
from robustfl.testing.state import kept_state
from robustfl.torch_settings import restored

LIMIT = 60.0
"""Seconds one law may take unless the caller says otherwise."""


@dataclass(frozen=True)
class Check:
    """One law and whether the method keeps it; ``reason`` says what was seen, or why the law does not apply.

    ``because`` names the broken law that explains what this one showed, or what kept it from being run (the files of a
    data set that are not here). Such a check counts as passed, so that one cause is one failure; mend the cause and
    check again.
    """

    name: str
    passed: bool
    reason: str = ""
    because: str = ""


M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Trial(ABC, Generic[M]):
    """A method under test, and a piece of work it can be given; ``kept`` is what it held before the first law."""

    method: M
    kept: dict[str, str] = dataclasses.field(default_factory=dict)

    @abstractmethod
    def outcome(self, method: M, case: int = 0) -> tuple[Tensor, ...]:
        """The results of ``method`` for work ``case`` (0 or 1) with generators made anew from a fixed seed."""

    def fresh(self) -> M:
        """The same method, constructed anew."""
        return cast(M, dataclasses.replace(cast(Any, self.method)))


@dataclass(frozen=True)
class Law:
    """A promise with a name; ``test`` raises ``Broken`` or returns a remark. ``waivable``: ``exempt`` may excuse it."""

    name: str
    says: str
    test: Callable[[Any], str | None]
    waivable: bool = False


@dataclass(frozen=True)
class _Finding:
    """A check with the kind of its failure: ``difference`` of two results, and where an error was raised."""

    check: Check
    difference: bool = False
    hung: bool = False


ROOTS = ("no global settings", "no global randomness", "no memory")
"""Laws whose breach makes results differ from call to call, and that can see it happen."""


def run(laws: Sequence[Law], trial: Trial[Any], *, limit: float = LIMIT) -> list[Check]:
    """Check every law, in order. After a failure of the first, or a hang, the others are not run."""
    findings: list[_Finding] = []
    cause = ""
    trial.kept.update(held(trial.method))
    for law in laws:
        reason = trial.method.exempt.get(law.name, "")
        if cause:
            findings.append(_Finding(Check(law.name, True, f"not run, because of {cause!r}", cause)))
        elif reason and law.waivable:
            findings.append(_Finding(Check(law.name, True, f"exempt: {reason}")))
        else:
            found = _one(law, trial, limit)
            if found.hung or (not findings and not found.check.passed):
                cause = law.name
            findings.append(found)
    checks = _one_failure_per_cause(findings)
    known = {law.name for law in laws if law.waivable}
    for name in sorted(set(trial.method.exempt) - known):
        checks.append(Check("exempt", False, f"{name!r} cannot be waived; exempt may name {', '.join(sorted(known))}"))
    return checks


def _one_failure_per_cause(findings: Sequence[_Finding]) -> list[Check]:
    """The checks, with every failure that another explains counted as that one's.

    The same words, and the same error from the same place, are one cause; so are results that differ from call to call
    and the law that says why they do.
    """
    first: dict[str, str] = {}
    for f in findings:
        if not f.check.passed:
            first.setdefault(f.check.reason, f.check.name)
    unsteady = _unsteady(findings)
    checks = []
    for f in findings:
        c = f.check
        cause = "" if c.passed else first[c.reason]
        if cause == c.name and f.difference and unsteady:
            cause = unsteady
        explained = cause not in ("", c.name)
        checks.append(Check(c.name, True, f"not decided, because of {cause!r}", cause) if explained else c)
    return checks


def _unsteady(findings: Sequence[_Finding]) -> str:
    """The law that says why results differ from call to call: one that saw it happen, else one that saw two results."""
    failed = {f.check.name: f.difference for f in findings if not f.check.passed}
    seen = [name for name in ROOTS if failed.get(name) is False]
    return next((name for name in (*seen, "deterministic", *reversed(ROOTS)) if name in failed), "")


def _one(law: Law, trial: Trial[Any], limit: float) -> _Finding:
    try:
        with restored():
            remark = within(limit, lambda: law.test(trial))
    except Hung:
        return _Finding(Check(law.name, False, f"still running after {limit:g} s"), hung=True)
    except Broken as broken:
        return _Finding(Check(law.name, False, str(broken)), difference=isinstance(broken, Differs))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return _Finding(Check(law.name, False, told(error) + _place(error) + _remedy(error, trial.method.kind)))
    return _Finding(Check(law.name, True, remark or ""))


def _place(error: BaseException) -> str:
    """Where an error that the method raised came from."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def _remedy(error: BaseException, kind: str) -> str:
    """What to do about errors whose text does not say it."""
    if isinstance(error, FrozenInstanceError):
        return "; nothing is kept on self: state goes in with the call and out with its result"
    if isinstance(error, KeyError) and kind == "algorithm":
        return "; the server's state holds what server_state(theta) returns at the start"
    if isinstance(error, KeyError) and kind == "defense":
        return "; a rule's state is empty in the first round: context.state.get(name, start)"
    return ""


def held(method: Method) -> dict[str, str]:
    """All that instance, class and module could remember something in."""
    return kept_state(type(method)) | {f"the instance's {name}": repr(value) for name, value in vars(method).items()}
