"""``robustfl report``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from robustfl.cli.printing import print_board, say
from robustfl.origins import named_methods
from robustfl.records import CellResult


def report(
    *, store: Path, out: Path | None, site: Path | None, board: Path | None, curves: bool, tolerance: float | None,
    figures: bool, plugins: tuple[str, ...], where: dict[str, str], compare: tuple[str, ...], statistic: str | None,
    form: str,
) -> int:  # fmt: skip
    """Write a store's report, site and board, and print its leaderboard."""
    from robustfl.reports.writing import publish_store

    papers = (lambda results: papers_of(results, plugins)) if site is not None else None
    made = publish_store(
        store, out, figures=figures, site=site, board=board, curves=curves, tolerance=tolerance, papers=papers,
        where=where, compare=compare, statistic=statistic,
        on_board=lambda found, folder: print_board(found, form, full=str(folder / "leaderboard.csv")),
    )  # fmt: skip
    if form == "json":
        return 0
    say("\nWritten:")
    drawn = [file for file in made.files if file.suffix in (".png", ".pdf")]
    for file in made.files:
        if file not in drawn:
            say(f"  {file}")
    if drawn:
        say(f"  {len(drawn)} figures (*.png, *.pdf) in {drawn[0].parent}")
    if made.site:
        say(f"  {made.site[0]} and {len(made.site) - 1} more files; open it in a browser")
    return 0


def papers_of(results: Iterable[CellResult], plugins: tuple[str, ...]) -> dict[str, str]:
    """The line ``paper`` of every method the records name and this installation knows, by ``"defense nnm"``."""
    from robustfl.registry import entries, load_file

    for plugin in plugins:
        load_file(plugin)
    named = {str(method["name"]) for record in results for _, method in named_methods(record.cell)}
    return {f"{e.kind} {e.name}": e.cls.paper for e in entries() if e.name in named and e.cls.paper}
