"""Geometry of the site's drawings, in numbers; templates turn it into SVG, so that all text is escaped in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 320.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 30.0, 8.0, 8.0, 30.0
LOOKS = 8
"""So many line styles are told apart by colour and dashes; more repeat."""


@dataclass(frozen=True)
class Mark:
    """A point with what it says when pointed at."""

    x: float
    y: float
    title: str
    look: int = 0
    label: str = ""
    radius: float = 2.6


@dataclass(frozen=True)
class Line:
    """A polyline through ``points``, the text of SVG's attribute, and its marks."""

    name: str
    look: int
    points: str
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing: its heading, a sentence for those who cannot see it, its size, ticks (place, text), contents."""

    title: str
    summary: str
    x_label: str
    y_label: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT


Series = tuple[str, int, Sequence[tuple[float, float]]]
"""Name, look and points."""


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str, y_label: str, dots: bool = False, unit: str = ""
) -> Chart:
    """Lines of percentages over a number; ``unit`` is written before the number in what points say."""
    xs = sorted({x for _, _, points in series for x, _ in points})
    low, high = (xs[0], xs[-1]) if xs else (0.0, 1.0)
    lines = []
    for name, look, points in series:
        spots = [(_across(x, low, high), _down(y)) for x, y in points]
        told = tuple(
            Mark(px, py, f"{name}, {unit}{x:g}: {y:.1f} %", look)
            for (px, py), (x, y) in zip(spots, points, strict=True)
        )
        lines.append(Line(name, look, _path(spots), told if dots else told[-1:]))
    ends = "; ".join(f"{name} ends at {points[-1][1]:.1f} %" for name, _, points in series if points)
    ticks = xs if dots and len(xs) <= 8 else _round_ticks(low, high)
    return Chart(
        title=title,
        summary=f"{y_label} over {x_label}. {ends}.",
        x_label=x_label,
        y_label=y_label,
        x_ticks=tuple((_across(x, low, high), f"{x:g}") for x in ticks),
        y_ticks=_percent_ticks(),
        lines=tuple(lines),
    )


def scatter(
    title: str, points: Sequence[tuple[str, float, float]], *, x_label: str, y_label: str, front: Sequence[int]
) -> Chart:
    """Percentages against percentages; the places of ``points`` in ``front`` are joined and numbered."""
    width, height = 460.0, 300.0
    spots = [(_across(x, 0, 100, width), _down(y, height)) for _, x, y in points]
    numbers = {i: k for k, i in enumerate(front, 1)}
    marks = tuple(
        Mark(px, py, f"{name}: {x_label} {x:.1f} %, {y_label} {y:.1f} %", 0 if i in numbers else 7,
             str(numbers.get(i, "")), 4.5 if i in numbers else 3.0)
        for i, ((px, py), (name, x, y)) in enumerate(zip(spots, points, strict=True))
    )  # fmt: skip
    return Chart(
        title=title,
        summary=f"{y_label} against {x_label} of {len(points)} rows, {len(front)} of them not dominated.",
        x_label=x_label,
        y_label=y_label,
        x_ticks=tuple((_across(v, 0, 100, width), str(v)) for v in range(0, 101, 20)),
        y_ticks=_percent_ticks(height),
        lines=(Line("front", 0, _path([spots[i] for i in front])),) if len(front) > 1 else (),
        marks=marks,
        width=width,
        height=height,
    )


def bubbles(title: str, counts: Sequence[Sequence[int]]) -> Chart:
    """Who holds which labels: one disc per client and class, its area proportional to the number of samples."""
    clients, classes = len(counts), max(map(len, counts), default=1)
    pitch = max(4.0, min(16.0, 300.0 / max(clients, 1)))
    width, height = LEFT + RIGHT + pitch * clients, TOP + BOTTOM + pitch * classes
    largest = max((k for row in counts for k in row), default=1) or 1
    marks = tuple(
        Mark(round(LEFT + pitch * (i + 0.5), 1), round(height - BOTTOM - pitch * (c + 0.5), 1),
             f"client {i}, class {c}: {k}", 0, "", round(0.46 * pitch * math.sqrt(k / largest), 2))
        for i, row in enumerate(counts) for c, k in enumerate(row) if k
    )  # fmt: skip
    every = max(1, math.ceil(clients * 20 / max(width, 1)))
    rows = max(1, math.ceil(12 / pitch))
    return Chart(
        title=title,
        summary=f"{clients} clients, {classes} classes; the largest disc is {largest} samples.",
        x_label="client",
        y_label="class",
        x_ticks=tuple((LEFT + pitch * (i + 0.5), str(i)) for i in range(0, clients, every)),
        y_ticks=tuple((height - BOTTOM - pitch * (c + 0.5), str(c)) for c in range(0, classes, rows)),
        marks=marks,
        width=max(width, 120.0),
        height=height,
    )


def _across(x: float, low: float, high: float, width: float = WIDTH) -> float:
    share = 0.5 if high <= low else (x - low) / (high - low)
    return round(LEFT + share * (width - LEFT - RIGHT), 1)


def _down(percent: float, height: float = HEIGHT) -> float:
    return round(height - BOTTOM - percent / 100 * (height - TOP - BOTTOM), 1)


def _percent_ticks(height: float = HEIGHT) -> tuple[tuple[float, str], ...]:
    return tuple((_down(v, height), str(v)) for v in (0, 25, 50, 75, 100))


def _path(spots: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in spots)


def _round_ticks(low: float, high: float) -> list[float]:
    """At most about five round numbers between ``low`` and ``high``.

    >>> _round_ticks(0, 80)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    if high <= low:
        return [low]
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]
