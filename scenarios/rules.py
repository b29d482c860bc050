"""Settings that are a word or a rule with parameters, such as ``user_sizes = "dirichlet(alpha=1)"``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from robustfl.data import DirichletSizes
from robustfl.errors import UsageError, closest
from robustfl.parameters import reject_unknown
from robustfl.registry import describe, parse

RULES: Mapping[str, tuple[str, type]] = {"user_sizes": ("equal", DirichletSizes)}
"""Per setting the word for doing nothing of the kind, and the rule there is beside it."""


def rule_of(setting: str, spec: Any) -> Any:
    """The rule that a setting names, or None for its plain word. Raises ``UsageError``."""
    plain, kind = RULES[setting]
    name = kind.name  # type: ignore[attr-defined]
    if not isinstance(spec, str):
        raise UsageError(f"{setting}={spec!r} must be {plain!r} or a rule such as '{name}(...)'")
    if spec.strip() == plain:
        return None
    found, params = parse(spec)
    if found != name:
        raise UsageError(f"{setting}={spec!r}: no such rule; {closest(found, (plain, name))}")
    fields = dataclasses.fields(kind)
    reject_unknown(f"{setting}={spec!r}", params, [f.name for f in fields])
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in params:
            raise UsageError(f"{setting}={spec!r}: parameter {field.name!r} is required")
    return kind(**params)


def canonical_rule(setting: str, spec: Any) -> str:
    """The shortest text of the rule: equal rules get equal text."""
    rule = rule_of(setting, spec)
    return RULES[setting][0] if rule is None else describe(rule)
