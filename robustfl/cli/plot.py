"""``robustfl plot``."""

from __future__ import annotations

from pathlib import Path

from robustfl.cli.printing import say


def plot(
    *, kind: str, store: Path, save: Path | None, metric: str | None, where: dict[str, str], width: str | None,
    lines: str | None,
) -> int:  # fmt: skip
    """Draw one kind of figure and name the files."""
    from robustfl.reports.figures.plots import plot as draw

    files = draw(
        store, kind, save or Path(f"{kind}.pdf"), metric=metric, where=where, width=width, lines=lines,
        on_problem=lambda words: say(f"not counted: {words}", err=True),
        on_caption=lambda words: say(f"caption: {words}", err=True),
    )  # fmt: skip
    for file in files:
        say(str(file))
    return 0
