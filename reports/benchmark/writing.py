"""The benchmark's site: every tier, contestant and method as a page of Markdown, from the boards alone.

The same boards, history and words give the same bytes. Pages of contestants and methods that no board has any more are
removed; nothing else in the folder is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robustfl.errors import UsageError

from ..contestants import slug_of
from ..published.files import write_board
from ..store import write_atomic
from .contestant import contestant_page
from .data import Measured
from .drawing import pareto_svg
from .front import front_page
from .history import entry_of, history_page, read_history, write_history
from .method import AboutOf, method_pages
from .tier import tier_page

MARK = "---\n# Written by `robustfl bench site` from the boards: do not edit.\nhide: [toc]\n---\n\n"
"""The beginning of every page, for mkdocs and people; only files that begin with it are ever removed."""
READING = "interpretation"
"""What people say of the boards, by hand: a file of this name becomes part of the front page, one with a tier's page
behind a dash, as ``interpretation-d-2.md``, part of that page."""


@dataclass(frozen=True)
class Shown:
    """A board to show, since a date, as it stands in a commit; both only count where the history does not know it."""

    measured: Measured
    date: str
    commit: str = ""


def write_benchmark(
    boards: Sequence[Shown],
    folder: Path,
    *,
    tiers: Mapping[str, str],
    about: AboutOf,
    left_out: Sequence[str] = (),
) -> list[Path]:
    """Write the site of these boards into ``folder``, the front page first; returns the files.

    ``tiers`` are all that there are, with what they are about; ``about`` says what a method is; ``left_out`` is what is
    said of boards that are not shown. Boards of one tier that changed the protocol in different ways stand side by
    side, in the order given. Raises ``UsageError`` for two of one tier that changed it alike.
    """
    shown = _numbered(sorted(boards, key=lambda b: [*tiers].index(b.measured.tier)))
    found = [b.measured for b in shown]
    history = read_history(folder / "history.json")
    for board in shown:
        history = history.with_entry(entry_of(board.measured, date=board.date, commit=board.commit))
    entries = {entry.digest: entry for entry in history.boards}
    front = front_page(found, entries, tiers=tiers, left_out=left_out, reading=_said(folder, READING))
    pages = {"index.md": front}
    for it in found:
        said = _said(folder, f"{READING}-{it.page}")
        pages[f"{it.page}.md"] = tier_page(it, entries[it.published.digest], reading=said)
        pages[f"{it.page}-pareto.svg"] = pareto_svg(it)
        pages |= {f"{it.page}/{slug_of(row.labels)}.md": contestant_page(it, row) for row in it.rows}
    pages |= method_pages(found, about)
    pages["history.md"] = history_page(history, [it.published.digest for it in found])
    written = []
    for name, text in pages.items():
        write_atomic(folder / name, MARK + text if name.endswith(".md") else text)
        written.append(folder / name)
    written += [write_board(it.published, folder / "boards" / it.file) for it in found]
    write_history(history, folder / "history.json")
    _sweep(folder, {folder / name for name in pages}, tiers)
    return [*written, folder / "history.json"]


def _said(folder: Path, name: str) -> str:
    """The words of people in a file of the folder; empty without one."""
    file = folder / f"{name}.md"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _numbered(boards: Sequence[Shown]) -> list[Shown]:
    """The boards, those of one tier counted; sorted by tier."""
    made: list[Shown] = []
    for board in boards:
        it = board.measured
        own = [b.measured for b in made if b.measured.tier == it.tier]
        for other in own:
            if sorted(other.facts["changed"]) == sorted(it.facts["changed"]):
                digests = " and ".join(b.published.digest[:12] for b in (other, it))
                raise UsageError(
                    f"bench site: two boards of tier {it.tier} that changed the protocol alike ({digests}): give the "
                    "one to show; the history keeps what was shown before"
                )
        made.append(replace(board, measured=replace(it, number=len(own) + 1)) if own else board)
    return made


def _sweep(folder: Path, kept: set[Path], tiers: Mapping[str, str]) -> None:
    """Remove the pages of contestants and methods that no board has any more, and of boards beside a tier's first."""
    folders = [folder / "methods", *(folder / name for name in tiers)]
    beside = [page for name in tiers for page in folder.glob(f"{name}-[0-9]*") if page.suffix in ("", ".md")]
    folders += [page for page in beside if page.is_dir()]
    old = {file for each in folders for file in each.glob("*.md")} | {page for page in beside if page.is_file()}
    for file in old - kept:
        if file.read_bytes().startswith(MARK.encode()):
            file.unlink()
