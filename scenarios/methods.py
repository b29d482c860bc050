"""The methods of a cell, read from their texts here and nowhere else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from robustfl.contracts import Algorithm, Attack, Dataset, Evasion, Model, Norm, Objective, Partition
from robustfl.data import DirichletSizes, dataset_from_spec
from robustfl.defenses import Pipeline, Propagate, parse_pipeline, parse_propagation
from robustfl.errors import UsageError
from robustfl.models import Weights
from robustfl.registry import create, describe, generation

from .rules import RULES, StUsers, rule_of

METHODS = ("dataset", "partition", "model", "norm", "algorithm", "objective", "attack", "defense")
PIPELINES = ("defense", "statistics_defense")
LISTED = {"domains": "dataset", "evasions": "evasion"}
"""Settings that list methods of a kind."""
SAME = "same"
"""What ``statistics_defense`` says where the defense of updates defends the statistics too."""
_WORDS = {"statistics_defense": SAME, "propagation": "none"} | {name: word for name, (word, _) in RULES.items()}
"""What a setting says where it names nothing."""
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
        read = _made if fresh else method

        def found(name: str, value: Any) -> Any:
            return tuple(read(name, text) for text in value) if name in LISTED else read(name, value)

        return cls(**{f.name: found(f.name, getattr(settings, f.name)) for f in dataclasses.fields(cls)})

    @property
    def statistics_rule(self) -> Pipeline:
        """The pipeline that merges statistics."""
        return self.statistics_defense or self.defense

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """Where the images come from: the domains, or the one data set."""
        return self.domains or (self.dataset,)


def method(setting: str, text: str) -> Any:
    """The method, pipeline or rule that a setting names, to ask for its facts; None for a word such as ``"none"``.

    Raises ``UsageError``.
    """
    return _read(setting, text, generation())[0]


def canonical_method(setting: str, text: Any) -> str:
    """The shortest text of the method that ``text`` names; equal methods get equal text. Raises ``UsageError``."""
    if not isinstance(text, str):
        form = _FORMS.get(setting, "a method spec such as 'name' or 'name(a=1)'")
        raise UsageError(f"{setting}={text!r} must be {form}")
    return _read(setting, text, generation())[1]


def canonical_methods(setting: str, texts: Any) -> tuple[str, ...]:
    """The shortest texts of methods in a list, or of one alone. Raises ``UsageError``."""
    items = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{setting}={texts!r} must be {_FORMS[setting]}")
    return tuple(canonical_method(setting, item) for item in items)


@lru_cache(4096)
def _read(setting: str, text: str, since: int) -> tuple[Any, str]:
    """What a text names, and its shortest text."""
    del since
    made = _made(setting, text)
    if made is None:
        return None, _WORDS[setting]
    return made, made.describe() if isinstance(made, (Pipeline, Propagate)) else describe(made)


def _made(setting: str, text: str) -> Any:
    if setting in _WORDS and text.strip() == _WORDS[setting]:
        return None
    if setting in RULES:
        return rule_of(setting, text)
    if setting in PIPELINES:
        return parse_pipeline(text)
    if setting == "propagation":
        return parse_propagation(text)
    kind = "evasion" if setting == "train_evasion" else LISTED.get(setting, setting)
    return dataset_from_spec(text) if kind == "dataset" else create(kind, text)
