"""What a check is, and how laws are run: each in its own thread with a time limit, none stopping the others."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from torch import Tensor

from robustfl.contracts import Method
from robustfl.errors import told
from robustfl.surroundings import kept
from robustfl.testing.guards import Broken, Hung, within
from robustfl.watch import kept_state

LIMIT = 60.0
"""Seconds one law may take unless the caller says otherwise."""


@dataclass(frozen=True)
class Check:
    """One law and whether the method keeps it; ``reason`` says what was seen, or why the law does not apply."""

    name: str
    passed: bool
    reason: str = ""


M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Trial(ABC, Generic[M]):
    """A method under test, and a piece of work it can be given; ``kept`` is what it held before the first law."""

    method: M
    kept: dict[str, str] = dataclasses.field(default_factory=dict)

    @abstractmethod
    def outcome(self, method: M, case: int = 0) -> tuple[Tensor, ...]:
        """What ``method`` makes of work ``case`` (0 or 1) with generators made anew from a fixed seed."""

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


def run(laws: Sequence[Law], trial: Trial[Any], *, limit: float = LIMIT) -> list[Check]:
    """Every law's check, in order. After a failure of the first, or a hang, the others are not run."""
    checks: list[Check] = []
    stop = ""
    trial.kept.update(held(trial.method))
    for law in laws:
        reason = trial.method.exempt.get(law.name, "")
        if stop:
            check = Check(law.name, False, stop)
        elif reason and law.waivable:
            check = Check(law.name, True, f"exempt: {reason}")
        else:
            check, hung = _one(law, trial, limit)
            if hung or (not checks and not check.passed):
                stop = f"not run, because of {law.name!r}"
        checks.append(check)
    known = {law.name for law in laws if law.waivable}
    for name in sorted(set(trial.method.exempt) - known):
        checks.append(Check("exempt", False, f"{name!r} cannot be waived; exempt may name {', '.join(sorted(known))}"))
    return checks


def _one(law: Law, trial: Trial[Any], limit: float) -> tuple[Check, bool]:
    try:
        with kept():
            remark = within(limit, lambda: law.test(trial))
    except Hung:
        return Check(law.name, False, f"still running after {limit:g} s"), True
    except Broken as broken:
        return Check(law.name, False, str(broken)), False
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Check(law.name, False, told(error) + _place(error)), False
    return Check(law.name, True, remark or ""), False


def _place(error: BaseException) -> str:
    """Where an error that the method raised came from."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def held(method: Method) -> dict[str, str]:
    """All that instance, class and module could remember something in."""
    return kept_state(type(method)) | {f"the instance's {name}": repr(value) for name, value in vars(method).items()}
