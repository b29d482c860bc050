"""Laws, trials of methods, and the way laws are run: each with a time limit, none stopping the others."""

from __future__ import annotations

import dataclasses
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustfl.contracts import Aggregated, Forged
from robustfl.errors import RobustflError, told
from robustfl.results import received
from robustfl.torch_settings import restored

LIMIT = 60.0
"""Seconds one law may take unless the caller says otherwise."""
DOUBLE = torch.empty(0, dtype=torch.float64)


class Broken(AssertionError):
    """A law is broken; the message says what was seen."""


class Hung(Exception):
    """The work did not end in time."""


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


@dataclass(frozen=True)
class Law:
    """A promise with a name; ``test``, whose docstring says it, raises ``Broken`` or returns a remark.

    ``waivable``: ``exempt`` may excuse it. ``stops``: the laws after it make sense only if it holds.
    """

    name: str
    test: Callable[[Trial], str | None]
    waivable: bool = False
    stops: bool = False

    @property
    def says(self) -> str:
        """The promise in a sentence."""
        return (self.test.__doc__ or "").strip()


@dataclass(frozen=True)
class Suite:
    """The laws of a kind, and the work that its methods are given.

    ``work(method, ask, case, like)`` calls the method's members in dtype and on the device of ``like``, each through
    ``ask(member, run, likes, shown, own=False)``, which returns what ``run()`` made: tensors like ``likes``, of the
    tensors ``shown`` by name, and with ``own`` in memory of their own. Cases 0 and 1 are ordinary; ``more`` names those
    from 2 on and says if they may be refused. ``lacks`` says which inputs of a method are None.
    """

    laws: tuple[Law, ...]
    work: Callable[..., Any]
    more: Mapping[str, bool] = field(default_factory=dict)
    lacks: Callable[[Any], str] = lambda _: ""


@dataclass(frozen=True)
class Trial:
    """A method under test; ``before`` is what it held before the first law, ``root`` where files of data are."""

    method: Any
    suite: Suite
    before: Mapping[str, str]
    root: Any = None

    def outcome(
        self, method: Any = None, case: int = 0, like: Tensor = DOUBLE, *, form: bool = False, inputs: bool = False
    ) -> tuple[Tensor, ...]:
        """All results of one piece of work, with generators made anew; of a new instance unless one is given.

        Raises ``Broken`` for results of another ``form`` than asked for, and for ``inputs`` that are written to.
        """
        found: list[Tensor] = []
        chosen = dataclasses.replace(self.method) if method is None else method

        def ask(
            member: str, run: Callable[[], Any], likes: Sequence[Tensor], shown: Mapping[str, Any], own: bool = False
        ) -> Any:
            with _untouched(shown) if inputs else nullcontext():
                made = run()
            parts = _tensors(made, member)
            for part, wanted in zip(parts, likes, strict=False) if form else ():
                received(part, wanted, chosen, f"{member}()")
            places = {t.untyped_storage().data_ptr() for t in shown.values() if t is not None}
            made_here = parts[: len(likes)] if inputs and own else []
            if any(part.numel() and part.untyped_storage().data_ptr() in places for part in made_here):
                raise Broken(f"{member}() returned memory it was shown, and its caller may write to it; return a clone")
            found.extend(parts)
            return made

        self.suite.work(chosen, ask, case, like)
        return tuple(found)


def just(member: str, run: Callable[[], Any], *rest: Any, own: bool = False) -> Any:
    """Call without looking at anything: the ``ask`` of laws that look at results themselves."""
    del member, rest, own
    return run()


def _tensors(made: Any, member: str) -> list[Tensor]:
    """The tensors of a result: of pairs, of states by name, of arrays; None is what clients need not keep."""
    if isinstance(made, (Forged, Aggregated)):
        made = (made.rows if isinstance(made, Forged) else made.vector, made.state)
    if isinstance(made, Mapping):
        made = tuple(made[name] for name in sorted(made))
    if isinstance(made, (tuple, list)):
        return [part for each in made if each is not None for part in _tensors(each, member)]
    if isinstance(made, np.ndarray):
        made = torch.from_numpy(np.array(made))
    if not isinstance(made, Tensor):
        raise Broken(f"{member}() returned {type(made).__name__} where a tensor is needed")
    return [made]


@contextmanager
def _untouched(shown: Mapping[str, Tensor | None]) -> Iterator[None]:
    before = {k: (t, t.clone(), t._version, t.requires_grad) for k, t in shown.items() if t is not None}
    yield
    for name, (tensor, copy, version, required) in before.items():
        if tensor.requires_grad != required:
            raise Broken(f"{name} was made to require a gradient; work on x.detach().clone()")
        if tensor.shape != copy.shape or not torch.equal(tensor, copy) or tensor._version != version:
            raise Broken(f"{name} was written to; work on a copy (use x + y, not x += y)")


def within(limit: float, work: Callable[[], Any]) -> Any:
    """The result of ``work``, or its error; raises ``Hung`` after ``limit`` seconds, and leaves the work alone."""
    found: list[tuple[Any, BaseException | None]] = []

    def body() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:  # handed to the caller, whatever it is
            found.append((None, error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(limit)
    if not found:
        raise Hung(f"still running after {limit:g} s")
    result, error = found[0]
    if error is not None:
        raise error
    return result


def run(laws: Sequence[Law], trial: Trial, *, limit: float = LIMIT) -> list[Check]:
    """Check every law, in order. One cause is one failure: the same words of two laws are one.

    After a failure of a law that ``stops``, or one that does not end, the others are not run.
    """
    checks: list[Check] = []
    cause, first, exempt = "", dict[str, str](), trial.method.exempt
    for law in laws:
        if cause:
            checks.append(Check(law.name, True, f"not run, because of {cause!r}", cause))
        elif law.waivable and exempt.get(law.name):
            checks.append(Check(law.name, True, f"exempt: {exempt[law.name]}"))
        else:
            check, ended = _one(law, trial, limit)
            same = law.name if check.passed else first.setdefault(check.reason, law.name)
            if same != law.name:
                check = Check(law.name, True, f"not decided, because of {same!r}", same)
            elif not ended or (law.stops and not check.passed):
                cause = law.name
            checks.append(check)
    known = {law.name for law in laws if law.waivable}
    for name in sorted({*exempt} - known):
        checks.append(Check("exempt", False, f"{name!r} cannot be waived; exempt may name {', '.join(sorted(known))}"))
    return checks


def _one(law: Law, trial: Trial, limit: float) -> tuple[Check, bool]:
    """The check of a law, and whether it ended in time."""
    try:
        with restored():
            remark = within(limit, lambda: law.test(trial))
    except (Broken, Hung) as error:
        return Check(law.name, False, str(error)), isinstance(error, Broken)
    except RobustflError as error:  # of the engine's own checks, which say what is wanted
        return Check(law.name, False, str(error)), True
    except (Exception, SystemExit) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Check(law.name, False, f"{told(error)} ({at.filename}:{at.lineno}){_remedy(error, trial)}"), True
    return Check(law.name, True, remark or ""), True


def _remedy(error: BaseException, trial: Trial) -> str:
    """What to do about errors whose text does not say it."""
    if isinstance(error, (AttributeError, TypeError)) and "NoneType" in str(error):
        return trial.suite.lacks(trial.method)
    if isinstance(error, FrozenInstanceError):
        return "; nothing is kept on self: state goes in with the call and out with its result"
    if isinstance(error, KeyError) and trial.method.kind == "algorithm":
        return "; the server's state holds what server_state(theta) returns at the start"
    if isinstance(error, KeyError) and trial.method.kind == "defense":
        return "; a rule's state is empty in the first round: context.state.get(name, start)"
    return ""
