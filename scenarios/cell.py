"""A cell as the engine runs it: one experiment, fully resolved, frozen, and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from robustfl.algorithms.schedules import Schedule, constant, cosine, geometric, step
from robustfl.autobyz import named
from robustfl.engine import Settings
from robustfl.engine.precision import Precision
from robustfl.errors import UsageError, closest
from robustfl.parameters import python_numbers
from robustfl.specs import parse

from .methods import (
    LISTED,
    ROLES,
    SAME,
    TEXTS,
    Methods,
    at_users,
    canonical_method,
    canonical_methods,
    method,
    refuse_unsafe,
)

T = TypeVar("T")
LISTS = ("evasions", "domains", "domain_users", "forgetting")
"""Settings that are lists themselves."""
OF_DOMAINS = ("domain_share", "domain_users", "user_sizes", "across")
"""Settings that make no sense without domains."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_WHOLE = 2**63 - 1
"""The largest number of anything: beyond it indices overflow."""


@cache
def _kinds_of(cls: type[BaseModel], name: str) -> tuple[bool, bool]:
    """True if a setting may be a number; true if it may be a truth value."""
    annotation = cls.model_fields[name].annotation
    kinds = frozenset(get_args(annotation) or (annotation,))
    return not kinds.isdisjoint({int, float}), bool in kinds


def _typed(cls: type[BaseModel], name: str, value: Any) -> Any:
    """``value`` as it stands, if it is of the kind that the setting has: no text or truth for a number, and so on."""
    number, truth = _kinds_of(cls, name)
    if isinstance(value, str):
        refuse_unsafe(name, value)
    if (number and isinstance(value, (str, bool))) or (truth and type(value) in (str, int, float)):
        quotes = ", without quotes" if isinstance(value, str) else ""
        raise UsageError(f"{name}={value!r} must be {'true or false' if truth else 'a number'}{quotes}")
    if type(value) is int and abs(value) > _WHOLE:
        raise UsageError(f"{name}={'-' if value < 0 else ''}2^{abs(value).bit_length() - 1}… must be at most {_WHOLE}")
    return value


class LearningRate(Frozen):
    """``constant``: ``lr``. ``step``: ``values`` between ``milestones``. ``geometric``: ``lr · factor^round``.

    ``cosine``: ``lr · (1 + cos(π·round/rounds))/2``.
    """

    kind: Literal["constant", "step", "geometric", "cosine"] = "constant"
    lr: float = Field(default=0.1, gt=0, lt=2.0**63)
    values: tuple[float, ...] = ()
    milestones: tuple[int, ...] = ()
    factor: float = Field(default=1.0, gt=0, le=1)

    @field_validator("lr", "factor", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> Any:
        return _typed(cls, str(info.field_name), value)

    @field_validator("values", "milestones", mode="before")
    @classmethod
    def _number_lists(cls, value: Any, info: ValidationInfo) -> Any:
        for item in value if isinstance(value, (list, tuple)) else ():
            if type(item) not in (int, float) or abs(item) > _WHOLE:
                raise UsageError(f"schedule: {info.field_name} holds {item!r:.60}, which is no number below 2^63")
        return value

    @model_validator(mode="after")
    def _complete(self) -> LearningRate:
        if self.kind == "step":
            step(self.values, self.milestones)
            if any(value <= 0 for value in self.values):
                raise UsageError(f"schedule: values={list(self.values)} must all be > 0")
        elif self.values or self.milestones:
            raise UsageError(f"schedule: values and milestones belong to kind = 'step', not {self.kind!r}")
        if self.factor != 1.0 and self.kind != "geometric":
            raise UsageError(f"schedule: factor={self.factor:g} belongs to kind = 'geometric', not {self.kind!r}")
        if self.kind == "step" and self.lr != type(self).model_fields["lr"].default:
            raise UsageError(f"schedule: lr={self.lr:g} has no part in kind = 'step', whose rates are its values")
        return self

    def function(self, rounds: int) -> Schedule:
        """The rate as a function of the round, in a training of ``rounds``."""
        if self.kind == "step":
            return step(self.values, self.milestones)
        if self.kind == "cosine":
            return cosine(self.lr, rounds)
        return geometric(self.lr, self.factor) if self.kind == "geometric" else constant(self.lr)


class Cell(Frozen):
    """One experiment, fully resolved; methods are canonical specs such as ``"alie(z=1.5)"``.

    ``docs/scenarios.md`` says what every setting means.
    """

    dataset: str = "digits"
    partition: str = "iid"
    model: str = "digits-cnn"
    init: str = "random"
    norm: str = "naive-bn"
    algorithm: str = "dsgd"
    objective: str = "ce"
    attack: str = "none"
    defense: str = "mean"
    statistics_defense: str = SAME
    propagation: str = "none"
    domains: tuple[str, ...] = ()
    domain_users: tuple[int, ...] = ()
    domain_share: float = Field(1.0, gt=0, le=1)
    user_sizes: str = "equal"
    tests: Literal["common", "own"] = "common"
    imbalance: float = Field(1.0, ge=1, lt=2.0**63)
    at: str = "none"
    finetune: str = "none"
    train_evasion: str = "pgd"
    byzantine: Literal["any", "at", "st"] = "any"
    quota: bool = False
    attackers_data: Literal["own", "copied"] = "own"
    server_samples: int = Field(0, ge=0)
    branch: Literal["adversarial", "clean", "both"] = "both"
    across: bool = False
    representations: int = Field(0, ge=0)
    scaling: Literal["data", "unit", "none"] = "data"
    evasions: tuple[str, ...] = ("pgd",)
    clients: int = Field(10, ge=1)
    f: int = Field(0, ge=0)
    f_declared: int = Field(-1, ge=0, validate_default=False)
    participation: float = Field(1.0, gt=0, le=1)
    scope: Literal["update", "statistics", "both"] = "both"
    target: Literal["mean", "var", "both"] = "mean"
    rounds: int = Field(100, ge=1)
    stop: int | None = Field(None, ge=1)
    batch: int = Field(32, ge=1)
    schedule: LearningRate = LearningRate()
    flip: bool = False
    crop: int = Field(0, ge=0)
    rotate: float = Field(0.0, ge=0, le=180)
    validation: float = Field(0.0, ge=0, lt=1)
    select: Literal["last", "validation"] = "last"
    forgetting: bool | tuple[int, ...] = False
    evaluate_every: int = Field(0, ge=0)
    evaluate_ra: bool = False
    tail: int = Field(1, ge=1)
    ra_limit: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)
    dtype: Literal["float32", "float64"] = "float32"
    engine: Literal["fast", "reference"] = "fast"
    precision: Precision = "full"

    @field_validator(*TEXTS, mode="before")
    @classmethod
    def _canonical(cls, value: Any, info: ValidationInfo) -> str:
        if info.field_name == "attack" and (ensemble := named(value)) is not None:
            raise UsageError(
                f"attack={value!r} is {len(ensemble.members)} attacks, and a cell has one; write it in a scenario, "
                f"whose cells have one each: {', '.join(dict.fromkeys(m.attack for m in ensemble.members))}"
            )
        return canonical_method(str(info.field_name), value)

    @field_validator(*LISTED, mode="before")
    @classmethod
    def _canonical_lists(cls, value: Any, info: ValidationInfo) -> tuple[str, ...]:
        return canonical_methods(str(info.field_name), value)

    @field_validator("statistics_defense", mode="before")
    @classmethod
    def _canonical_statistics(cls, value: Any, info: Any) -> str:
        """``same`` also where the pipeline is spelled out: one experiment has one key."""
        rule = canonical_method("statistics_defense", value)
        return SAME if rule == info.data.get("defense") else rule

    @property
    def methods(self) -> Methods:
        """Everything that texts of this cell name, to ask for its facts."""
        return Methods.of(self, fresh=False)

    @property
    def statistics_rule(self) -> str:
        """The pipeline that merges statistics."""
        return self.defense if self.statistics_defense == SAME else self.statistics_defense

    @field_validator("*", mode="before")
    @classmethod
    def _kinds(cls, value: Any, info: ValidationInfo) -> Any:
        return value if info.field_name in TEXTS else _typed(cls, str(info.field_name), value)  # methods check theirs

    @field_validator("stop")
    @classmethod
    def _before_the_last(cls, value: int | None, info: Any) -> int | None:
        rounds = info.data.get("rounds")
        if value is not None and rounds is not None and value >= rounds:
            raise UsageError(f"stop={value} must be < {rounds}, the rounds; without it all of them are run")
        return value

    @field_validator("forgetting", mode="before")
    @classmethod
    def _rounds_of_forgetting(cls, value: Any, info: Any) -> bool | tuple[int, ...]:
        """In order; the last round alone is ``true``: one experiment has one key."""
        if isinstance(value, bool):
            return value
        rounds = info.data.get("stop") or info.data.get("rounds")
        listed = sorted(set(value)) if isinstance(value, (list, tuple)) and all(type(v) is int for v in value) else []
        if not listed or listed[0] < 1 or (rounds is not None and listed[-1] > rounds):
            last = "the last" if rounds is None else rounds
            raise UsageError(f"forgetting={value!r} must be true, false or a list of rounds from 1 to {last}")
        return True if listed == [rounds] else tuple(listed)

    @property
    def forgetting_rounds(self) -> frozenset[int]:
        """The rounds in which forgetting is measured."""
        if isinstance(self.forgetting, bool):
            return frozenset({self.end} if self.forgetting else ())
        return frozenset(self.forgetting)

    @field_validator("domain_users", mode="before")
    @classmethod
    def _canonical_users(cls, value: Any) -> tuple[int, ...]:
        return canonical_users(value)

    @model_validator(mode="after")
    def _domains_and_roles(self) -> Cell:
        if self.domains:
            if not self.domain_users and self.clients % len(self.domains):
                raise UsageError(
                    f"clients={self.clients} must be a multiple of the {len(self.domains)} domains, "
                    "which have equally many users unless domain_users says otherwise"
                )
            if self.dataset != self.domains[0] or self.partition != "iid":
                raise UsageError("domains take the place of dataset and partition; leave those two out")
            if self.attackers_data != "own":
                raise UsageError(f"attackers_data={self.attackers_data!r} is for a partition, and domains have none")
            for name in ("tests", "imbalance"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    why = "users of domains have test images of their own" if name == "tests" else "domains have none"
                    raise UsageError(f"{name}={_shown(getattr(self, name))} is for a partition; {why}")
        else:
            for name in sorted(self.model_fields_set.intersection(OF_DOMAINS)):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise UsageError(f"{name}={_shown(getattr(self, name))} belongs to domains, and there are none")
        _at_users(self.at, self.users)
        twice = [name for i, name in enumerate(self.evasions) if name in self.evasions[:i]]
        if twice:
            raise UsageError(f"evasions names {twice[0]} twice; robust accuracy is measured once under each")
        if self.participation * self.clients + 1e-9 < 1:
            raise UsageError(
                f"participation={self.participation:g} of {self.clients} clients is less than one client a round; "
                f"at least {1 / self.clients:.3g} is"
            )
        return self

    @property
    def users(self) -> tuple[int, ...]:
        """The number of users of every domain; one number where there are no domains."""
        domains = max(1, len(self.domains))
        return self.domain_users or (self.clients // domains,) * domains

    @property
    def owners(self) -> int:
        """The number of clients that the training samples are spread over."""
        return self.clients - (self.f if self.attackers_data == "copied" else 0)

    @property
    def end(self) -> int:
        """The rounds that are run."""
        return self.settings.end

    @property
    def participants(self) -> int:
        """Clients per round."""
        return self.settings.participants

    @property
    def settings(self) -> Settings:
        """The numbers of the cell as the engine takes them."""
        at, tuning = self.adversarial, method("finetune", self.finetune)
        pool = (k for k in range(self.clients) if (k in at) == (self.byzantine == "at"))
        return Settings(
            **{name: getattr(self, name) for name in _OF_THE_ENGINE},
            candidates=None if self.byzantine == "any" else tuple(pool),
            finetuning=None if tuning is None else tuning.of(self.rounds, self.clients, at),
        )

    @property
    def adversarial(self) -> frozenset[int]:
        """The users that train adversarially."""
        return frozenset() if self.at == "none" else _at_users(self.at, self.users)

    @model_validator(mode="before")
    @classmethod
    def _declared(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = python_numbers(data)
        if data.get("f_declared") is None:
            data = {**data, "f_declared": data.get("f", 0)}
        domains = data.get("domains")
        first = domains[0] if isinstance(domains, (list, tuple)) and domains else domains
        if isinstance(first, str) and "dataset" not in data:
            data = {**data, "dataset": canonical_method("domains", first)}
        users = data.get("domain_users")
        if users and _are_counts(users):
            data = {"clients": sum(users), **data}
            _check_users(users, domains, data["clients"])
        return data

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Cell:
        """A cell from plain values; raises ``UsageError`` naming the field, the value and what is allowed."""
        known = cls.model_fields
        for key in values:
            if key not in known:
                raise UsageError(f"no cell setting {key!r}; {meant(key)}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UsageError(first_problem(error)) from None


_OF_THE_ENGINE = [field.name for field in dataclasses.fields(Settings) if field.name in Cell.model_fields]
_BUT_THE_SEED = attrgetter(*(name for name in Cell.model_fields if name != "seed"))


def of_each(cells: Iterable[Cell], ask: Callable[[Cell], T]) -> list[T]:
    """The answers to ``ask``, which no seed may change: of cells that differ in it alone one is asked."""
    known: dict[tuple[Any, ...], T] = {}
    answers = []
    for cell in cells:
        kind = _BUT_THE_SEED(cell)
        if kind not in known:
            known[kind] = ask(cell)
        answers.append(known[kind])
    return answers


_at_users = lru_cache(1024)(at_users)


def _are_counts(value: Any) -> bool:
    """True for a list of whole numbers of users that a cell may have."""
    return isinstance(value, (list, tuple)) and all(type(v) is int and 1 <= v <= _WHOLE for v in value)


def _check_users(users: Sequence[int], domains: Any, clients: Any) -> None:
    """Hold numbers of users against the other settings as they were given: equal ones leave no trace in a cell."""
    if not domains:
        raise UsageError(f"domain_users={list(users)} belongs to domains, and there are none")
    if isinstance(domains, (list, tuple)) and len(users) != len(domains):
        raise UsageError(f"domain_users={list(users)} has {len(users)} numbers for {len(domains)} domains")
    if _are_counts([clients]) and clients != sum(users):
        raise UsageError(
            f"clients={clients} must be {sum(users)}, the sum of domain_users={list(users)}; or leave it out"
        )


def canonical_users(value: Any) -> tuple[int, ...]:
    """Numbers of users per domain; nothing where all are the same: one experiment has one key."""
    if not _are_counts(value):
        raise UsageError(f"domain_users={value!r} must be a list of numbers of users, one per domain, such as [5, 3]")
    return () if len(set(value)) < 2 else tuple(value)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def setting(field: str, value: Any) -> Any:
    """One plain setting of a cell, checked by itself: its kind, its range, its choices."""
    _typed(Cell, field, value)
    about = Cell.model_fields[field]
    kind: Any = Annotated[(about.annotation, field, *about.metadata)]
    try:
        found = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        words = error.errors()[0]["msg"]
        raise UsageError(f"{field}={value!r}: {words[:1].lower()}{words[1:]}") from None
    if field == "at" and parse(value)[0] not in ROLES:
        raise UsageError(f"at={value!r}: no such rule; {closest(value, ROLES)}")
    return found


def first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(p) for p in first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):
        return str(cause)
    if first["type"] == "extra_forbidden":
        known = list(LearningRate.model_fields)
        return f"no setting {where!r}; {closest(str(first['loc'][-1]), known)}"
    if first["type"] == "string_pattern_mismatch":
        allowed = "1 to 80 letters, digits, '.', '_' or '-', the first a letter or a digit"
        return f"{where}={first['input']!r} must be {allowed}"
    return f"{where}={first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def meant(name: str) -> str:
    """The end of a sentence about a cell setting that there is not: the one that was meant."""
    if name in _OPTIONS:
        return f"it is no part of a cell, but the option --{name} or {name}= of a call"
    return f"it is schedule.{name}" if name in LearningRate.model_fields else closest(name, Cell.model_fields)


_OPTIONS = ("device", "jobs", "out", "threads")
