"""The drawing of a tier: accuracy under AutoByz against time, and the contestants that nobody beats both ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from robustfl.autobyz import TITLE

from ..board import Row
from .data import Measured

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 46
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933")


def pareto_svg(it: Measured) -> str:
    """An SVG: seconds per round across, on a logarithmic scale, SA under AutoByz up; norms differ in colour."""
    norms = list(dict.fromkeys(it.of(r, "norm") for r in it.rows))
    times = [r.seconds_per_round or 1.0 for r in it.timed] or [1.0]
    low, high = math.log10(min(times)) - 0.05, math.log10(max(times)) + 0.05

    def spot(row: Row) -> tuple[float, float]:
        across = (math.log10(row.seconds_per_round or 1.0) - low) / (high - low)
        up = (row.worst.mean or 0.0) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up

    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(spot, it.pareto))
    drawn = [f'<polyline points="{joined}" fill="none" stroke="#777777" stroke-dasharray="5 3"/>']
    for row in it.timed:
        x, y = spot(row)
        colour, first = COLOURS[norms.index(it.of(row, "norm")) % len(COLOURS)], row in it.pareto
        told = f"{it.name(row)}: {100 * (row.worst.mean or 0.0):.1f} %, {1000 * (row.seconds_per_round or 0.0):.0f} ms"
        inside = colour if first else "#ffffff"
        look = f'r="{6 if first else 4}" fill="{inside}" stroke="{colour}" stroke-width="1.5"'
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" {look}><title>{escape(told)}</title></circle>')
    drawn += _numbers([*map(spot, it.pareto)])
    lines = [*_axes(10**low, 10**high, low, high), *drawn, *_legend(norms)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def _axes(first: float, last: float, low: float, high: float) -> list[str]:
    lines = []
    for percent in range(0, 101, 20):
        y = HEIGHT - BOTTOM - percent / 100 * (HEIGHT - TOP - BOTTOM)
        lines.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        lines.append(_text(LEFT - 8, y + 4, str(percent), anchor="end"))
    steps = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    inside = [s for s in steps if first <= s <= last]
    for seconds in inside if len(inside) > 1 else (first, last):
        x = LEFT + (math.log10(seconds) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        lines.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        lines.append(_text(x, HEIGHT - BOTTOM + 16, f"{1000 * seconds:.4g}", anchor="middle"))
    lines.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "time, ms a round", anchor="middle"))
    turned = f'transform="rotate(-90 14 {HEIGHT / 2:.0f})"'
    lines.append(f'<text x="14" y="{HEIGHT / 2:.0f}" text-anchor="middle" {turned}>SA under {TITLE}, %</text>')
    return lines


def _numbers(spots: Sequence[tuple[float, float]]) -> list[str]:
    """The numbers of points, each where no earlier number stands: above on the right, else below, or farther off."""
    taken: list[tuple[float, float]] = []
    for x, y in spots:
        places = [(x + 9, y - 6), (x + 9, y + 16), (x - 17, y - 6), (x - 17, y + 16), (x + 9, y - 20), (x + 9, y + 30)]
        clear = (p for p in places if all(abs(p[0] - u) > 14 or abs(p[1] - v) > 13 for u, v in taken))
        taken.append(next(clear, places[0]))
    return [_text(x, y, str(k), weight="bold") for k, (x, y) in enumerate(taken, 1)]


def _legend(norms: list[str]) -> list[str]:
    """The norms' colours in a line above the drawing, where no point is."""
    lines, x = [], LEFT + 6.0
    for k, norm in enumerate(norms):
        lines.append(f'<circle cx="{x:.1f}" cy="{TOP - 20}" r="4" fill="{COLOURS[k % len(COLOURS)]}"/>')
        lines.append(_text(x + 9, TOP - 16, norm))
        x += 34 + 6.5 * len(norm)
    return lines


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
