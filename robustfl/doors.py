"""Checks of what members of plug-ins from elsewhere return, made where they return it.

robustfl's own methods are held to their contracts by tests, and cost nothing here. A value of another kind is an error
that names the method, the member and what is wanted, instead of one of torch's some steps later, or of none at all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import (
    Aggregated,
    Arrays,
    Attack,
    Context,
    Forged,
    Method,
    Norm,
    StatisticsLayer,
    StatisticsPass,
    Tag,
    View,
)
from robustfl.contracts.training import Asked
from robustfl.errors import RobustflError, UsageError, reason, told
from robustfl.surroundings import kept


@dataclass(frozen=True)
class Call:
    """A call of a member: the method, and its arguments by place and by name."""

    method: Any
    by_place: tuple[Any, ...]
    named: Mapping[str, Any]

    def shown(self, place: int, name: str) -> Any:
        """An argument that may be given by place or by name."""
        return self.by_place[place] if len(self.by_place) > place else self.named[name]


Rule = Callable[[Any, Call], "str | None"]
"""What is wanted instead of the result of a call; ``None`` if it is right."""
TWO_THINGS = (
    "made two things of the same input and draws; its randomness must come from the generator that it is given, or one "
    "key would have two numbers"
)
_ROUNDING = 1e-6
_OWN_NOTES = "notes"
"""The field of a ``Task`` that its objective may write to."""


def guard(cls: type[Method], origin_of: Callable[[Method], str]) -> None:
    """Look at what the members that ``cls`` and its bases from elsewhere override return, from now on.

    ``origin_of`` says where a method comes from, for messages. Facts that are values of the class are looked at here:
    raises ``UsageError`` for a wrong one.
    """

    def who(method: Method) -> str:
        origin = origin_of(method)
        return f"{method.kind} {method.name!r}" + (f" ({origin})" if origin else "")

    rules = _RULES.get(cls.kind, {})
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] == "robustfl" or not issubclass(owner, Method):
            continue
        own: list[str] = [field.name for field in fields(owner)] if is_dataclass(owner) else []
        for name, rule in rules.items():
            value = vars(owner).get(name)
            if isinstance(value, property) and isinstance(value.fget, FunctionType) and _foreign(value.fget):
                setattr(owner, name, property(_guarded(value.fget, name, rule, who), doc=value.__doc__))
            elif isinstance(value, FunctionType) and _foreign(value):
                setattr(owner, name, _guarded(value, f"{name}()", rule, who))
            elif name in _FACTS and name in vars(owner) and not hasattr(value, "__get__") and name not in own:
                wanted = rule(value, Call(owner, (), {}))
                if wanted is not None:
                    raise UsageError(f"{cls.kind} class {owner.__name__}: {name} is {said(value)}; {wanted}")


_open: list[None] = []


@contextmanager
def opened() -> Iterator[None]:
    """Within, whatever members return comes through: to laws that have words of their own for it."""
    _open.append(None)
    try:
        yield
    finally:
        _open.pop()


def bare(function: FunctionType) -> FunctionType:
    """The function as its author wrote it."""
    found: FunctionType = vars(function).get("__bare__", function)
    return found


def _foreign(function: FunctionType) -> bool:
    return "__bare__" not in vars(function) and (function.__module__ or "").partition(".")[0] != "robustfl"


def _guarded(function: FunctionType, member: str, rule: Rule, who: Callable[[Method], str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def looked_at(self: Method, *args: Any, **kwargs: Any) -> Any:
        shown = list(_shown((*args, *kwargs.values())))
        before = [(tensor._version, tensor.requires_grad) for tensor in shown]
        eager = not torch.compiler.is_compiling()
        contents = _Contents(member, args, kwargs) if member in _KEPT and eager else None
        draws = _Draws.of(member, Call(self, args, kwargs)) if member in _REPEATED and eager and not _open else None
        try:
            made = function(self, *args, **kwargs)
        except (AttributeError, TypeError) as error:
            if _open or not (lack := absent(error, self, (*args, *kwargs.values()))):
                raise
            raise RobustflError(f"{who(self)}: {member}: {told(error)}; {lack}") from error
        if _open:
            return made
        unseen = contents is not None and contents.put_back()
        if unseen or before != [(tensor._version, tensor.requires_grad) for tensor in shown]:
            raise RobustflError(f"{who(self)}: {member} wrote to what it was shown; it must work on a copy")
        wanted = rule(made, Call(self, args, kwargs))
        if wanted is not None:
            kind = UsageError if member in _FACTS else RobustflError
            raise kind(f"{who(self)}: {member} returned {said(made)}; {wanted}")
        if draws is not None and not draws.again(made, lambda: function(self, *args, **kwargs)):
            raise RobustflError(f"{who(self)}: {member} {TWO_THINGS}")
        return made

    vars(looked_at)["__bare__"] = function
    return looked_at


def held(view: View) -> str:
    """The fields of a view that an attack gets, in words."""
    always = ("channel", "round", "state")
    return ", ".join(f.name for f in fields(view) if f.name not in always and getattr(view, f.name) is not None)


def absent(error: Exception, method: Method, given: tuple[Any, ...]) -> str:
    """The fields that the view or the context of a call does not hold, where that may be the error; else empty."""
    if "NoneType" not in str(error):
        return ""
    for value in given:
        if isinstance(value, View):
            return f"with knowledge={getattr(method, 'knowledge', '')!r} the view holds {held(value)} only"
        if isinstance(value, Context):
            gone = (f.name for f in fields(value) if getattr(value, f.name) is None)
            return f"the context has no {', no '.join(gone)} here"
    return ""


def _shown(values: tuple[Any, ...]) -> Iterator[Tensor]:
    """The tensors among arguments, in tables and in views and the like, that are not to be written to."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from (held for held in value.values() if isinstance(held, Tensor))
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _shown(tuple(getattr(value, f.name) for f in fields(value) if f.name != _OWN_NOTES))


_KEPT = frozenset({
    "aggregate()", "backward()", "broadcast()", "constrain()", "local()", "merge()", "messages()", "mix()", "perturb()",
    "poison()", "server()", "server_state()", "server_step()", "split()", "weights()",
})  # fmt: skip
"""Members whose arguments are compared by content: ``.data`` and ``.numpy()`` write without a trace in the version."""


class _Contents:
    """What a member is shown, as it was before: tensors, arrays of labels, and the model that an evasion attacks.

    The rows of a rule are left out: it sees a copy of these, which is compared where it is made.
    """

    def __init__(self, member: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        values = (*(args[1:] if member in ("aggregate()", "mix()") else args), *kwargs.values())
        models = [value for value in values if isinstance(value, nn.Module)] if member == "perturb()" else []
        tensors = [*_shown(values), *(t for model in models for t in (*model.parameters(), *model.buffers()))]
        self._tensors = [(t.detach(), t.detach().clone()) for t in tensors if _holds_numbers(t)]
        self._arrays = [(value, value.copy()) for value in values if isinstance(value, np.ndarray)]

    def put_back(self) -> bool:
        """True if some content is another now; it is as before then."""
        tensors = [(now, old) for now, old in self._tensors if not torch.equal(_bytes(now), _bytes(old))]
        arrays = [(now, old) for now, old in self._arrays if not np.array_equal(now, old)]
        for tensor, content in tensors:
            tensor.copy_(content)
        for array, labels in arrays:
            array[...] = labels
        return bool(tensors or arrays)


_REPEATED = frozenset({"aggregate()", "forge()", "mix()"})
"""Members that are called twice in rounds 1, 2, 4, 8 …: what they make follows from what they are shown and draw."""
_APART = 1e-4


@dataclass(frozen=True)
class _Draws:
    """A generator as a call found it, and its state then; the rows that a rule was shown, and their content then."""

    generator: torch.Generator | None
    state: Tensor | None
    rows: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, member: str, call: Call) -> _Draws | None:
        """The draws of a call that is to be made twice; ``None`` of others."""
        forges = member == "forge()"
        given = call.shown(0, "view") if forges else call.shown(2, "context")
        if (given.round + 1).bit_count() != 1:
            return None
        generator = call.shown(1, "generator") if forges else given.generator
        rows = None if forges else call.shown(0, "X" if member == "aggregate()" else "gram")
        state = None if generator is None else generator.get_state()
        return cls(generator, state, None if rows is None else (rows, rows.clone()))

    def again(self, made: Any, call: Callable[[], Any]) -> bool:
        """True if the call makes about the same once more. All is left as the first one left it.

        Of a rule that wrote to its rows it is not asked: where its copy of them is made there are words for that.
        """
        if self.rows is not None and not torch.equal(*map(_bytes, self.rows)):
            return True
        after = None if self.generator is None else self.generator.get_state()
        try:
            with kept():
                if self.generator is not None and self.state is not None:
                    self.generator.set_state(self.state)
                return _alike(made, call())
        finally:
            if self.generator is not None and after is not None:
                self.generator.set_state(after)


def _alike(once: Any, again: Any) -> bool:
    """True if two results hold the same tensors but for the rounding of sums in another order."""
    first, second = _results(once), _results(again)
    alike = [a.shape == b.shape and _near(a.double(), b.double()) for a, b in zip(first, second, strict=False)]
    return type(once) is type(again) and len(first) == len(second) and all(alike)


def _results(made: Any) -> list[Tensor]:
    """The tensors of a result; those of no kind that is wanted are the engine's to refuse."""
    main = made.vector if isinstance(made, Aggregated) else made.rows if isinstance(made, Forged) else made
    state = made.state if isinstance(made, (Aggregated, Forged)) else {}
    return [part for part in (main, *(state[name] for name in sorted(state))) if isinstance(part, Tensor)]


def _near(a: Tensor, b: Tensor) -> bool:
    sound = torch.isfinite(a) & torch.isfinite(b)
    if not torch.equal(a[~sound].nan_to_num(), b[~sound].nan_to_num()):
        return False
    a, b = a[sound], b[sound]
    return float(torch.linalg.vector_norm(a - b)) <= _APART * float(torch.linalg.vector_norm(a))


def _holds_numbers(tensor: Tensor) -> bool:
    """True for tensors whose numbers can be looked at: dense, of a device that has some, outside transformations."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.device.type != "meta"
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def said(made: Any) -> str:
    """A value in few words: of tensors and arrays their form.

    >>> said(torch.ones(2, 3)), said(None), said((1, None))
    ('a tensor (2, 3) of torch.float32', 'None', '(int, NoneType)')
    """
    if isinstance(made, Tensor):
        forms = [str(made.layout)] if made.layout != torch.strided else []
        forms += [f"on {made.device}"] if made.device.type == "meta" else []
        forms += ["that requires a gradient"] if made.requires_grad else []
        return " ".join([f"a tensor {tuple(made.shape)} of {made.dtype}", *forms])
    if isinstance(made, np.ndarray):
        return f"an array {made.shape} of {made.dtype}"
    if isinstance(made, (tuple, list)):
        words = ", ".join(type(part).__name__ for part in made[:4])
        return f"({words}{', …' if len(made) > 4 else ''})" if isinstance(made, tuple) else f"a list of {len(made)}"
    return repr(made) if isinstance(made, (str, int, float, bool, type(None))) else f"a {type(made).__name__}"


def reported(layer: StatisticsLayer) -> tuple[Tensor, Tensor, Tensor]:
    """The report of a layer, in the form that all have. Raises ``RobustflError`` naming the layer otherwise."""
    made: object = layer.report()
    if isinstance(made, tuple) and len(made) == 3 and all(isinstance(part, Tensor) for part in made):
        mean, variance, counts = made
        right = mean.dim() == 2 and mean.shape == variance.shape
        right = right and mean.dtype == variance.dtype == layer.running_mean.dtype
        whole = counts.shape == mean.shape[:1] and counts.device.type == "cpu"
        whole = whole and (torch.compiler.is_compiling() or not bool(((counts < 0) | (counts % 1 != 0)).any()))
        if right and whole and not (mean.requires_grad or variance.requires_grad):
            return mean, variance, counts
    raise RobustflError(
        f"{type(layer).__name__}.report() returned {said(made)}; mean [n C] and variance [n C] that require no "
        "gradient are wanted, and the values per channel [n], whole numbers on the CPU"
        + (f" (not {', '.join(map(said, made))})" if isinstance(made, tuple) else "")
    )


# --- single values ---------------------------------------------------------------------------------------------------


def _is(right: Callable[[Any], bool], words: str) -> Rule:
    """A result for which ``right`` holds; ``words`` say what is wanted."""
    return lambda made, call: None if right(made) else words


def _whole(least: int, words: str) -> Rule:
    return _is(lambda made: type(made) is int and made >= least, f"{words}, a whole number ≥ {least}, is wanted")


_truth = _is(lambda made: type(made) is bool, "True or False is wanted")
_refusal = _is(
    lambda made: made is None or (isinstance(made, str) and bool(made.strip())),
    "the reason as a text, or None where nothing is refused, is wanted",
)
_requests = _is(
    lambda made: isinstance(made, (set, frozenset)) and made <= set(get_args(Asked)),
    f"a set is wanted, of {', '.join(get_args(Asked))}",
)
_private = _is(
    lambda made: isinstance(made, (set, frozenset)) and all(isinstance(tag, Tag) for tag in made),
    "a set of robustfl.contracts.Tag is wanted, such as frozenset({Tag.AFFINE})",
)
_target = _is(
    lambda made: made is None or (type(made) is int and made >= 0),
    "the number of a class, or None without a trigger, is wanted",
)
_fingerprint = _is(
    lambda made: isinstance(made, str) and made != "" and made.isprintable() and made == made.strip(),
    "a digest of the content, one line of text, is wanted",
)
_statistics_pass = _is(
    lambda made: made is None or (isinstance(made, StatisticsPass) and _in_range(made)),
    "a StatisticsPass is wanted (samples ≥ 1 or None, tolerance ≥ 0, refreshes none, participants or all), or None",
)


def _in_range(made: StatisticsPass) -> bool:
    samples = made.samples is None or (type(made.samples) is int and made.samples >= 1)
    return samples and made.refreshes in ("none", "participants", "all") and 0 <= made.tolerance < math.inf


def _inner(made: Any, call: Call) -> str | None:
    right = made is None or (isinstance(made, Attack) and made is not call.method)
    return None if right else "the attack that it wraps, or None, is wanted"


OURS = (
    "attack_shift", "byzantine", "certificates", "defense_shift", "device", "dropped", "equal_samples", "evaluation",
    "forgetting", "model", "no_effect", "precision", "processes", "ra_samples", "statistics", "statistics_shift",
    "test_samples", "threads", "traffic", "trainable", "unreliable", "versions", "warnings",
)  # fmt: skip
"""What only the engine knows of a cell: a method that says it of itself would be believed."""


def _certificate(made: Any, call: Call) -> str | None:
    del call
    if not isinstance(made, Mapping):
        return "a mapping from names to numbers is wanted, {} if there are none"
    ours = sorted(set(map(str, made)) & set(OURS))
    if ours:
        return f"{ours[0]!r} is measured and not claimed; give the number another name"
    right = all(isinstance(name, str) and type(value) in (int, float) for name, value in made.items())
    return None if right else "a mapping from names to numbers (int or float) is wanted"


# --- tensors ---------------------------------------------------------------------------------------------------------


def _dense(made: Any) -> bool:
    return isinstance(made, Tensor) and made.layout == torch.strided and not made.requires_grad


def _like(what: str, like: Callable[[Call], Any]) -> Rule:
    """A plain tensor of the form of one that was shown."""

    def rule(made: Any, call: Call) -> str | None:
        shown = like(call)
        right = _dense(made) and (made.shape, made.dtype, made.device) == (shown.shape, shown.dtype, shown.device)
        return None if right else f"{what}, {said(shown)} that requires no gradient, is wanted"

    return rule


def _argument(place: int, name: str) -> Callable[[Call], Any]:
    return lambda call: call.shown(place, name)


def _sent(what: str) -> Rule:
    """Rows or a vector, whose form the engine looks at, alone or with a state."""

    def rule(made: Any, call: Call) -> str | None:
        kind = Forged if call.method.kind == "attack" else Aggregated
        main = made if not isinstance(made, kind) else made.rows if isinstance(made, Forged) else made.vector
        if isinstance(main, Tensor) and not _dense(main):
            return f"{what} as a dense tensor that requires no gradient is wanted; return it with .detach()"
        if not isinstance(made, kind):
            return None
        if not _is_state(made.state):
            return f"the state of a {kind.__name__} is a mapping from names to tensors that require no gradient"
        facts = made.facts if isinstance(made, Aggregated) else {}
        if not isinstance(facts, Mapping):
            return "the facts of an Aggregated are a mapping from names to values"
        ours = sorted(set(map(str, facts)) & set(OURS))
        return f"{ours[0]!r} is measured and not claimed; give the fact another name" if ours else None

    return rule


def _is_state(state: Any) -> bool:
    return isinstance(state, Mapping) and all(isinstance(n, str) and _dense(v) for n, v in state.items())


def _mix(made: Any, call: Call) -> str | None:
    gram = call.shown(0, "gram")
    n, shape = len(gram), (call.method.rows_after(len(gram), call.named["f"]), len(gram))
    right = _dense(made) and tuple(made.shape) == shape and made.is_floating_point() and made.device == gram.device
    if right and bool(torch.isfinite(made).all()):
        return None
    return f"finite coefficients {shape} (rows_after(n, f), n) for {n} rows are wanted"


def _pixels(made: Tensor) -> bool:
    """True for finite values in [0, 1]; an empty batch has no others."""
    return bool(((made >= -_ROUNDING) & (made <= 1 + _ROUNDING)).all())


def _images(what: str, like: Callable[[Call], Any]) -> Rule:
    form = _like(what, like)

    def rule(made: Any, call: Call) -> str | None:
        wanted = form(made, call)
        if wanted is None and not _pixels(made):
            lack = "its entries are not finite" if not bool(torch.isfinite(made).all()) else "pixels lie in [0, 1]"
            return f"{what} is wanted, and {lack}"
        return wanted

    return rule


def _poison(made: Any, call: Call) -> str | None:
    if not isinstance(made, tuple) or len(made) != 2:
        return "a pair is wanted: the images and their labels"
    x, y, classes = call.shown(0, "x"), call.shown(1, "y"), call.named["classes"]
    for part, like, what in ((made[0], x, "images"), (made[1], y, "labels")):
        if not (_dense(part) and (part.shape, part.dtype, part.device) == (like.shape, like.dtype, like.device)):
            return f"{what} as {said(like)} are wanted, not {said(part)}"
    if not _pixels(made[0]):
        return "pixels are finite and lie in [0, 1]"
    right = bool(((made[1] >= 0) & (made[1] < classes)).all())
    return None if right else f"labels lie from 0 to {classes - 1}"


def _local(made: Any, call: Call) -> str | None:
    if not isinstance(made, tuple) or len(made) != 2:
        return None  # the engine says so
    kept = made[1]
    if any(isinstance(part, Tensor) and not _dense(part) for part in made):
        return "tensors that require no gradient are wanted; return them with .detach()"
    if (kept is not None) != call.method.remembers:
        words = "is True, so what clients keep is wanted" if call.method.remembers else "is False, so it would be lost"
        return f"with what clients keep {'missing' if kept is None else 'beside the messages'}: remembers {words}"
    return None


def _server_state(made: Any, call: Call) -> str | None:
    theta = call.shown(0, "theta")
    right = isinstance(made, dict) and all(
        isinstance(name, str) and _dense(value) and (value.shape, value.dtype) == (theta.shape, theta.dtype)
        for name, value in made.items()
    )
    return None if right else f"a dict from names to tensors is wanted, each like theta: {said(theta)}"


def _server_step(made: Any, call: Call) -> str | None:
    if not isinstance(made, tuple) or len(made) != 2:
        return None  # the engine says so
    work = call.shown(0, "work")
    if not isinstance(made[0], Tensor) or made[0].shape != work.theta.shape:
        return None  # the engine says so
    if not _dense(made[0]):
        return "the model as a tensor that requires no gradient is wanted"
    if not isinstance(made[1], Mapping) or set(made[1]) != set(work.state):
        names = ", ".join(sorted(work.state)) or "nothing"
        return f"the model and the state of server_state(theta), with {names} in it, are wanted"
    wrong = [
        n for n, v in made[1].items() if not _dense(v) or (v.shape, v.dtype) != (work.theta.shape, work.theta.dtype)
    ]
    return f"state[{wrong[0]!r}] is {said(made[1][wrong[0]])}, and not like theta" if wrong else None


_backward = _is(
    lambda made: _dense(made) and made.shape == () and made.is_floating_point(),
    "the mean loss of the batch, a tensor () that requires no gradient, is wanted",
)


def _per_sample(made: Any, call: Call) -> str | None:
    logits, y = call.shown(0, "logits"), call.shown(1, "y")
    right = isinstance(made, Tensor) and (made.shape, made.dtype) == (y.shape, logits.dtype)
    if right and (made.requires_grad or not logits.requires_grad):
        return None
    return (
        f"one loss per sample is wanted, {tuple(y.shape)} of {logits.dtype}, through which gradients reach the logits"
    )


def _shares(made: Any, call: Call) -> str | None:
    sources = call.shown(0, "sources")
    right = _dense(made) and made.shape == sources.shape[:1] and made.dtype == sources.dtype
    if right and bool((made >= 0).all()) and abs(float(made.sum()) - 1) < 1e-4:
        return None
    return f"weights ({len(sources)},) of {sources.dtype} are wanted, at least 0, that sum to one"


# --- networks and data -----------------------------------------------------------------------------------------------


def _layer(made: Any, call: Call) -> str | None:
    if not isinstance(made, nn.Module):
        return "a module is wanted"
    if name := unheard(made):
        return (
            f"nobody asks {name} for its running statistics; a robustfl.contracts.StatisticsLayer reports them, as "
            "robustfl.norms.layers.OwnBatchNorm does"
        )
    sends = type(call.method).merge is not Norm.merge
    has = any(isinstance(m, StatisticsLayer) for m in made.modules())
    if sends and not has:
        return "the scheme overrides merge, so a layer with statistics is wanted (robustfl.contracts.StatisticsLayer)"
    if has and not (sends or {Tag.MEAN, Tag.VARIANCE} & set(call.method.private)):
        return (
            "nobody merges what its layers report, and models would be tested with mean 0 and variance 1: override "
            "merge, or name Tag.MEAN and Tag.VARIANCE in private"
        )
    return None


def _network(made: Any, call: Call) -> str | None:
    shape, classes = call.named["shape"], call.named["classes"]
    if not isinstance(made, nn.Module):
        return "a module is wanted"
    parameters = list(made.parameters())
    if not parameters or any(not p.requires_grad or p.device.type == "meta" for p in parameters):
        return "a network with parameters that can be trained is wanted"
    if name := unheard(made):
        return f"nobody asks {name} for its running statistics; make normalization layers with norm.layer"
    training, like = made.training, parameters[0]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = made.eval()(torch.zeros((2, *shape), dtype=like.dtype, device=like.device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return (
            f"a network that takes images [b, {', '.join(map(str, shape))}] is wanted ({reason(error).splitlines()[0]})"
        )
    finally:
        made.train(training)
    right = isinstance(logits, Tensor) and tuple(logits.shape) == (2, classes)
    return None if right else f"logits [b, {classes}] are wanted, and of two images it makes {said(logits)}"


def _initialised(made: Any, call: Call) -> str | None:
    del made
    for name, parameter in call.shown(0, "network").named_parameters():
        if not parameter.requires_grad or not bool(torch.isfinite(parameter).all()):
            return f"finite parameters that can be trained are wanted, and {name} has others"
    return None


def unheard(made: nn.Module) -> str:
    """The type of a layer whose running statistics nobody asks for; empty without one."""
    with_statistics = (m for m in made.modules() if isinstance(getattr(m, "running_mean", None), Tensor))
    return next((type(m).__name__ for m in with_statistics if not isinstance(m, StatisticsLayer)), "")


def _split(made: Any, call: Call) -> str | None:
    labels, clients = call.shown(0, "labels"), call.named["clients"]
    if not isinstance(made, list) or len(made) != clients:
        return f"a list of {clients} index arrays, one per client, is wanted"
    for k, part in enumerate(made):
        if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "iu":
            return f"an array [m] of whole numbers is wanted for client {k}, not {said(part)}"
        if len(part) and (part.min() < 0 or part.max() >= len(labels)):
            return f"indices of client {k} reach from {part.min()} to {part.max()}; there are {len(labels)} samples"
    every = np.concatenate(made)
    return None if len(np.unique(every)) == len(every) else "parts must not overlap: a sample is given out twice"


def _arrays(made: Any, call: Call) -> str | None:
    if not isinstance(made, Arrays):
        return "robustfl.contracts.Arrays is wanted"
    if type(made.classes) is not int or made.classes < 2:
        return f"classes={made.classes!r} is no number of classes ≥ 2"
    for part in ("train", "test"):
        x, y = getattr(made, f"{part}_x"), getattr(made, f"{part}_y")
        if not isinstance(x, np.ndarray) or x.ndim != 4 or 0 in x.shape or x.dtype not in (np.uint8, np.float32):
            return f"{part}_x is {said(x)}; images [N H W C] of uint8, or of float32 in [0, 1], are wanted"
        if not isinstance(y, np.ndarray) or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            return f"{part}_y is {said(y)}; {len(x)} whole numbers are wanted, one per image"
        if int(y.min()) < 0 or int(y.max()) >= made.classes:
            return f"{part}_y reaches from {y.min()} to {y.max()}; labels lie from 0 to {made.classes - 1}"
        if x.dtype == np.float32 and not (float(x.min()) >= 0 and float(x.max()) <= 1):
            return f"{part}_x reaches from {x.min()} to {x.max()}; pixels lie in [0, 1]"
    if made.train_x.shape[1:] != made.test_x.shape[1:]:
        return f"train images are {made.train_x.shape[1:]}, test images {made.test_x.shape[1:]}"
    return _of_one_fingerprint(made, call)


def _of_one_fingerprint(made: Any, call: Call) -> str | None:
    root, download = call.shown(0, "root"), call.named.get("download", True)
    with opened():  # it may load the arrays to tell it
        digest = call.method.fingerprint(Path(root), download=download)
    if made.fingerprint == digest:
        return None
    return f"fingerprint() says {digest!r}, and these arrays {made.fingerprint!r}; cells are keyed by it, so both agree"


_RULES: dict[str, dict[str, Rule]] = {
    "attack": {
        "forge": _sent("the rows [f d]"),
        "certificate": _certificate,
        "poison": _poison,
        "constrain": _like("a gradient", _argument(0, "gradient")),
        "trigger": _images("stamped images", _argument(0, "x")),
        "target": _target,
        "inner": _inner,
        "sees_own": _truth,
    },
    "evasion": {"perturb": _images("x_adv", _argument(1, "x"))},
    "defense": {
        "aggregate": _sent("the aggregate [d]"),
        "mix": _mix,
        "min_clients": _whole(0, "the least number of clients"),
        "rows_after": _whole(0, "the number of rows"),
        "refuses": _refusal,
        "weighted": _truth,
        "weights": _shares,
        "every_round": _truth,
        "compares": _truth,
    },
    "norm": {
        "layer": _layer,
        "private": _private,
        "frozen": _truth,
        "statistics_pass": _statistics_pass,
        "messages": _like("what honest clients send", lambda call: call.shown(0, "reports").rows),
        "merge": _like("the server's new statistics", _argument(2, "previous")),
    },
    "algorithm": {
        "steps": _whole(1, "the number of batches"),
        "asks": _requests,
        "weighted": _truth,
        "remembers": _truth,
        "local": _local,
        "server": _like("the new model", _argument(0, "theta")),
        "broadcast": _like("the model that clients receive", _argument(0, "theta")),
        "server_state": _server_state,
        "server_step": _server_step,
    },
    "objective": {
        "replays": _whole(1, "the number of steps on a batch"),
        "plain": _truth,
        "backward": _backward,
        "per_sample": _per_sample,
    },
    "partition": {"split": _split},
    "dataset": {"load": _arrays, "fingerprint": _fingerprint},
    "model": {"build": _network, "initialise": _initialised},
}
_FACTS = frozenset({
    "target", "inner", "sees_own", "min_clients()", "rows_after()", "refuses()", "weighted", "every_round", "private",
    "compares", "frozen()", "statistics_pass", "steps()", "asks", "remembers", "replays", "plain", "fingerprint()",
    "certificate()",
})  # fmt: skip
"""Members that say something of the method itself, before anything is computed."""
