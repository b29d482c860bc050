"""The methods of a cell, read from their texts here and nowhere else."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from robustfl import autobyz
from robustfl.contracts import Algorithm, Attack, Dataset, Evasion, Model, Norm, Objective, Partition
from robustfl.data import DirichletSizes, dataset_from_spec
from robustfl.defenses import Pipeline, Propagate, parse_pipeline, parse_propagation
from robustfl.engine import FineTuning
from robustfl.errors import UsageError, closest
from robustfl.file_io import unsafe
from robustfl.models import Weights
from robustfl.parameters import check, check_given, param
from robustfl.registry import create, describe, identity, lookup, until_changed
from robustfl.specs import parse


@dataclass(frozen=True)
class StUsers:
    """Fine-tuning by ST users: AT users train first, among themselves; the last rounds belong to the others.

    For ``rounds`` rounds only ST users take part, with the model that AT users have made in all rounds before, and
    leave its first ``frozen`` layers as they are: convolutions and linear layers in the network's order, each with
    the scales and shifts after it. Running statistics move in all layers, as they do in the released code of FedRBN,
    whose ``AT_iters`` and ``freeze_n_layer`` this follows; the paper's text on it was not at hand.
    """

    name: ClassVar[str] = "st"

    rounds: int = param(ge=1, doc="rounds of ST users alone, the last ones")
    frozen: int = param(0, ge=0, doc="layers, from the input, that keep their weights")

    def __post_init__(self) -> None:
        check(self)

    def of(self, rounds: int, clients: int, at: frozenset[int]) -> FineTuning:
        """The fine-tuning in a training of ``rounds`` rounds with the AT users ``at``."""
        return FineTuning(rounds - self.rounds, frozenset(range(clients)) - at, self.frozen)


Rule = type[StUsers] | type[Weights] | type[DirichletSizes]
RULES: Mapping[str, tuple[str, Rule]] = {
    "finetune": ("none", StUsers), "init": ("random", Weights), "user_sizes": ("equal", DirichletSizes),
}  # fmt: skip
"""Per setting the word for doing nothing of the kind, and the rule there is beside it."""


METHODS = ("dataset", "partition", "model", "norm", "algorithm", "objective", "attack", "defense")
PIPELINES = ("defense", "statistics_defense")
LISTED = {"domains": "dataset", "evasions": "evasion"}
"""Settings that list methods of a kind."""
SAME = "same"
"""What ``statistics_defense`` says where the defense of updates defends the statistics too."""
_WORDS = {"statistics_defense": SAME, "propagation": "none"} | {name: word for name, (word, _) in RULES.items()}
"""What a setting says where it names nothing."""
_BESIDE = {"attack": autobyz.NAME, **_WORDS}
"""Words that may stand in the place of a method's name, as answers to one that is misspelt."""
_FORMS = {
    "statistics_defense": "'same' or a pipeline such as 'nnm+median'",
    "train_evasion": "a spec such as 'pgd(eps=8/255)'",
    "propagation": "a spec such as 'fedrbn' or 'fedrbn+trimmed-mean'",
    "domains": "a list of data sets such as ['mnist', 'usps']",
    "evasions": "a list of specs such as ['pgd(eps=8/255)']",
} | {name: f"{word!r} or a rule such as '{rule.name}(...)'" for name, (word, rule) in RULES.items()}
TEXTS = (*METHODS, "train_evasion", "propagation", *RULES)
"""Settings whose text is read by itself; that of ``statistics_defense`` is compared with the defense's, too."""


@dataclass(frozen=True)
class Methods:
    """Everything that a cell names by text, under the names of its settings; None where it says so in a word."""

    dataset: Dataset
    domains: tuple[Dataset, ...]
    partition: Partition
    model: Model
    norm: Norm
    algorithm: Algorithm
    objective: Objective
    attack: Attack
    defense: Pipeline
    statistics_defense: Pipeline | None
    propagation: Propagate | None
    train_evasion: Evasion
    evasions: tuple[Evasion, ...]
    finetune: StUsers | None
    init: Weights | None
    user_sizes: DirichletSizes | None

    @classmethod
    def of(cls, settings: object, *, fresh: bool) -> Methods:
        """The methods of a cell; ``fresh`` ones for a run, which may keep things on them, else those that all share."""
        texts = _texts(settings)
        return cls(*_read_all(texts, _made)) if fresh else _shared(texts)

    @property
    def statistics_rule(self) -> Pipeline:
        """The pipeline that merges statistics."""
        return self.statistics_defense or self.defense

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """Where the images come from: the domains, or the one data set."""
        return self.domains or (self.dataset,)


_NAMES = tuple(field.name for field in dataclasses.fields(Methods))
_texts = operator.attrgetter(*_NAMES)


def _read_all(texts: tuple[Any, ...], read: Callable[[str, str], Any]) -> Iterator[Any]:
    for name, text in zip(_NAMES, texts, strict=True):
        yield tuple(read(name, item) for item in text) if name in LISTED else read(name, text)


@until_changed
def _shared(texts: tuple[Any, ...]) -> Methods:
    """One value for all cells of a grid that name the same methods."""
    return Methods(*_read_all(texts, method))


def method(setting: str, text: str) -> Any:
    """The method, pipeline or rule that a setting names, to ask for its facts; None for a word such as ``"none"``.

    Raises ``UsageError``.
    """
    return _read(setting, text)[0]


@until_changed
def identified(setting: str, text: str) -> Any:
    """The part in a cell's key of the method that a setting names: one identity, or a list of those of its rules.

    The same value for the same text, so not to be changed. Raises ``UsageError``.
    """
    made = _read(setting, text)[0]
    if isinstance(made, Propagate):
        return [identity(part) for part in (made.propagation, *made.rule.parts)]
    return [identity(part) for part in made.parts] if isinstance(made, Pipeline) else identity(made)


def canonical_method(setting: str, text: Any) -> str:
    """The shortest text of the method that ``text`` names; equal methods get equal text. Raises ``UsageError``."""
    if not isinstance(text, str):
        form = _FORMS.get(setting, "a method spec such as 'name' or 'name(a=1)'")
        raise UsageError(f"{setting}={text!r} must be {form}")
    try:
        return _read(setting, text)[1]
    except UsageError as error:
        if setting not in str(error):
            error.args = (f"{setting}: {error}",)
        raise


def refuse_unsafe(setting: str, text: str) -> None:
    """Raise ``UsageError`` for a text with control characters."""
    if unsafe(text):
        raise UsageError(f"{setting}={text!r} holds control characters")


def canonical_methods(setting: str, texts: Any) -> tuple[str, ...]:
    """The shortest texts of methods in a list, or of one alone. Raises ``UsageError``."""
    items = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{setting}={texts!r} must be {_FORMS[setting]}")
    return tuple(canonical_method(setting, item) for item in items)


@until_changed
def _read(setting: str, text: str) -> tuple[Any, str]:
    """The method a text names, and its shortest text."""
    refuse_unsafe(setting, text)
    made = _made(setting, text)
    if made is None:
        return None, _WORDS[setting]
    return made, made.describe() if isinstance(made, (Pipeline, Propagate)) else describe(made)


def _made(setting: str, text: str) -> Any:
    if setting in _WORDS and text.strip() == _WORDS[setting]:
        return None
    if setting in RULES:
        return _rule(setting, text)
    if setting in _BESIDE and "+" not in text:
        lookup("attack" if setting == "attack" else "defense", parse(text)[0], beside=[_BESIDE[setting]])
    if setting in PIPELINES:
        return parse_pipeline(text)
    if setting == "propagation":
        return parse_propagation(text)
    kind = "evasion" if setting == "train_evasion" else LISTED.get(setting, setting)
    return dataset_from_spec(text) if kind == "dataset" else create(kind, text)


def _rule(setting: str, spec: str) -> StUsers | Weights | DirichletSizes:
    """The rule that a setting names. Raises ``UsageError``."""
    plain, kind = RULES[setting]
    found, params = parse(spec)
    if found != kind.name:
        raise UsageError(f"{setting}={spec!r}: no such rule; {closest(found, (plain, kind.name))}")
    check_given(f"{setting}={spec!r}", kind, params)
    return kind(**params)


# --- which users train adversarially ----------------------------------------------------------------------------------

ROLES: dict[str, tuple[str, ...]] = {
    "none": (),
    "all": (),
    "ratio": ("rho", "domains"),
    "domains": ("first",),
    "users": ("ids",),
}

_MOST_CLIENTS = 10**7


def at_users(rule: str, users: Sequence[int]) -> frozenset[int]:
    """The AT users among the clients, of which ``users`` gives the number in every domain, in order.

    ``none``; ``all``; ``ratio(rho=ρ)``: the first ⌊ρU⌋ of each domain's U users, in the first ``domains`` domains if
    given; ``domains(first=D)``: everybody in the first D domains; ``users(ids=(0, 3))``: these. Raises ``UsageError``.

    >>> sorted(at_users("ratio(rho=0.5)", [4, 2]))
    [0, 1, 4]
    """
    clients, domains = sum(users), len(users)
    name, params = parse(rule)
    if name not in ROLES:
        raise UsageError(f"at={rule!r}: no such rule; {closest(name, ROLES)}")
    for key in params:
        if key not in ROLES[name]:
            allowed = ", ".join(ROLES[name]) or "nothing"
            raise UsageError(f"at={rule!r}: {name!r} takes {allowed}, not {key!r}")
    if name == "none":
        return frozenset()
    if clients > _MOST_CLIENTS:
        raise UsageError(f"at={rule!r} of clients={clients}: at most {_MOST_CLIENTS} can be told apart")
    if name == "all":
        return frozenset(range(clients))
    if name == "users":
        return _listed_users(rule, params.get("ids"), clients)
    first = params.get("first" if name == "domains" else "domains", domains if name == "ratio" else None)
    if not isinstance(first, int) or isinstance(first, bool) or not 1 <= first <= domains:
        raise UsageError(f"at={rule!r}: {first!r} domains; there are {domains}, so 1 to {domains} are allowed")
    rho = params.get("rho", 1.0 if name == "domains" else None)
    if not isinstance(rho, (int, float)) or isinstance(rho, bool) or not 0 < rho <= 1:
        raise UsageError(f"at={rule!r}: rho={rho!r} must be a number in (0, 1]")
    most = max(users[:first])
    if int(rho * most + 1e-9) == 0:
        raise UsageError(
            f"at={rule!r}: rho={rho} of {most} users per domain is nobody; at least {1 / most:.3g} is needed"
        )
    starts = [sum(users[:d]) for d in range(first)]
    return frozenset(start + u for start, n in zip(starts, users, strict=False) for u in range(int(rho * n + 1e-9)))


def _listed_users(rule: str, ids: object, clients: int) -> frozenset[int]:
    listed = [ids] if isinstance(ids, int) else ids
    if not isinstance(listed, (list, tuple)) or not listed:
        raise UsageError(f"at={rule!r}: write users(ids=(0, 3))")
    for k in listed:
        if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k < clients:
            raise UsageError(f"at={rule!r}: there is no user {k!r}; users are 0 to {clients - 1}")
    return frozenset(listed)
