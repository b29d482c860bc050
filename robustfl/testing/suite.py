"""Laws, methods on trial, and how laws are run: each with a time limit, none stopping the others."""

from __future__ import annotations

import dataclasses
import inspect
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import FrozenInstanceError, dataclass, field
from types import MappingProxyType
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


def demand(holds: object, message: str) -> None:
    """Raise ``Broken`` with the message unless the condition holds."""
    if not holds:
        raise Broken(message)


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
    """The laws of a kind, and the ``work`` that its methods are given: calls of their members through ``Calls``.

    Cases 0 and 1 of the work are ordinary; ``more`` names those from 2 on and says if they may be refused. ``lacks``
    says which inputs of a method are None.
    """

    laws: tuple[Law, ...]
    work: Callable[[Calls], Any]
    more: Mapping[str, bool] = field(default_factory=dict)
    lacks: Callable[[Any], str] = lambda _: ""


@dataclass(frozen=True)
class Trial:
    """A method under test; ``before`` is what it held before the first law, ``root`` where files of data are."""

    method: Any
    suite: Suite
    before: Mapping[str, str]
    root: Any = None

    def outcome(self, case: int = 0, *, renew: bool = True, **how: Any) -> tuple[Tensor, ...]:
        """All results of one piece of work with generators made anew, of a new instance if ``renew``."""
        calls = Calls(dataclasses.replace(self.method) if renew else self.method, case, root=self.root, **how)
        self.suite.work(calls)
        return tuple(calls.found)


@dataclass(frozen=True)
class Calls:
    """Calls of a method's members with inputs in dtype and on the device of ``like``; ``found`` is what they return.

    With ``form`` results must be tensors like those ``wanted``. With ``inputs`` no tensor among the arguments, or what
    they hold, or ``also``, may be written to, and with ``own`` results have memory of their own.
    """

    method: Any
    case: int = 0
    like: Tensor = DOUBLE
    form: bool = False
    inputs: bool = False
    root: Any = None
    found: list[Tensor] = field(default_factory=list)

    def __call__(
        self, member: Callable[..., Any], *args: Any, wanted: Sequence[Tensor] = (), own: bool = False,
        also: Mapping[str, Tensor] = MappingProxyType({}), **options: Any,
    ) -> Any:  # fmt: skip
        shown = dict(also)
        for argument, value in (
            inspect.signature(member).bind(*args, **options).arguments.items() if self.inputs else ()
        ):
            shown |= _tensors_in(argument, value)
        before = {name: (t.clone(), t._version, t.requires_grad) for name, t in shown.items() if self.inputs}
        made = member(*args, **options)
        for name, (copy, version, required) in before.items():
            as_before = shown[name].requires_grad == required
            demand(as_before, f"{name} was made to require a gradient; work on x.detach().clone()")
            as_before = torch.equal(shown[name], copy) and shown[name]._version == version
            demand(as_before, f"{name} was written to; work on a copy (use x + y, not x += y)")
        parts = _tensors_of(made, member.__name__)
        for part, like in zip(parts, wanted, strict=False) if self.form else ():
            received(part, like, self.method, f"{member.__name__}()")
        places = {t.untyped_storage().data_ptr() for t in shown.values()} if self.inputs and own else set()
        shared = any(t.untyped_storage().data_ptr() in places for t in parts[: len(wanted)] if t.numel())
        what = f"{member.__name__}() returned memory it was shown"
        demand(not shared, f"{what}, and its caller may write to it; return a clone")
        self.found.extend(parts)
        return made


def _tensors_in(name: str, value: Any) -> dict[str, Tensor]:
    """The tensors of an argument by name: itself, an array's, those of its fields or entries."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        return {name: value}
    parts: dict[str, Any] = {}
    if dataclasses.is_dataclass(value):
        parts = {f"{name}.{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        parts = {f"{name}[{key!r}]": each for key, each in value.items()}
    return {inner: tensor for part, each in parts.items() for inner, tensor in _tensors_in(part, each).items()}


def _tensors_of(made: Any, member: str) -> list[Tensor]:
    """The tensors of a result: of pairs, of states by name, of arrays; None is what clients need not keep."""
    if isinstance(made, (Forged, Aggregated)):
        made = (made.rows if isinstance(made, Forged) else made.vector, made.state)
    if isinstance(made, Mapping):
        made = tuple(made[name] for name in sorted(made))
    if isinstance(made, (tuple, list)):
        return [part for each in made if each is not None for part in _tensors_of(each, member)]
    if isinstance(made, np.ndarray):
        made = torch.from_numpy(np.array(made))
    demand(isinstance(made, Tensor), f"{member}() returned {type(made).__name__} where a tensor is needed")
    return [made]


def within(limit: float, work: Callable[[], Any]) -> Any:
    """The result of ``work``, or its error; raises ``Hung`` after ``limit`` seconds, and leaves the work alone."""
    found = Future[Any]()

    def body() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # handed to the caller, whatever it is
            found.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    if not wait([found], limit).done:
        raise Hung(f"still running after {limit:g} s")
    return found.result()


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
    try:
        with restored():
            return Check(law.name, True, within(limit, lambda: law.test(trial)) or ""), True
    except (Broken, Hung, RobustflError) as error:  # the engine's own checks say what is wanted
        return Check(law.name, False, str(error)), not isinstance(error, Hung)
    except (Exception, SystemExit) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Check(law.name, False, f"{told(error)} ({at.filename}:{at.lineno}){_remedy(error, trial)}"), True


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
