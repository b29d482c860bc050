"""Names and room in figures: line breaks, panel headings, the order of defenses, margins."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .board import natural

if TYPE_CHECKING:
    from matplotlib.layout_engine import LayoutEngine


def wrapped(name: str, width: float = 24) -> str:
    """A long method name broken after ``+``, ``(`` or ``,`` into lines of about ``width`` letters."""
    lines = [""]
    for part in re.findall(r"[^+,(· ]*[+,(·]?\s*", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines if line.strip())


def panel_title(norm: str, block: str, inches: float) -> str:
    """The heading of a panel that is so many inches wide: on one line if it fits."""
    letters = 12 * inches
    parts = [p for p in (norm, block) if p]
    one = " · ".join(parts)
    return one if len(one) <= letters else "\n".join(wrapped(p, letters) for p in parts)


def longest(names: Iterable[str]) -> int:
    """The letters of the longest line among ``names``."""
    return max((len(line) for name in names for line in name.splitlines()), default=0)


def roomy(width: float, *, between: float = 0.02) -> LayoutEngine:
    """A layout for a figure ``width`` inches wide that keeps labels, which it measures a little short, off the edge."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    edge = 0.12 / width
    return ConstrainedLayoutEngine(rect=(edge, 0, 1 - 2 * edge, 1), wspace=between)


def simple_first(defense: str) -> tuple[bool, int, Any]:
    """A sort key: the plain mean, then single rules, then pipelines."""
    return defense != "mean", defense.count("+"), natural(defense)
