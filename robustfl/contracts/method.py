"""The base of every method: a frozen dataclass with a name, a version and facts."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

from robustfl import parameters


class Method(ABC):  # noqa: B024 - what is abstract differs by kind
    """A registered method. Sub-classes are ``@dataclass(frozen=True)`` leaves; ``@register`` sets name and version."""

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    version: ClassVar[int] = 0
    paper: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    exempt: ClassVar[Mapping[str, str]] = {}  # laws of robustfl.testing that do not hold on purpose, with the reason

    def __post_init__(self) -> None:
        parameters.check(self)

    @classmethod
    def _fault(cls) -> str:
        """What is wrong with the class, for which it is refused when it is registered, or nothing."""
        return ""
