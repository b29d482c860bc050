"""The benchmark's site: a front page and a page per board in Markdown, from the boards alone.

The same boards and words give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robustfl.errors import UsageError

from ..published.files import write_board
from ..store import write_atomic
from .data import Measured
from .front import front_page
from .tier import tier_page

MARK = "---\n# Written by `robustfl bench site` from the boards: do not edit.\nhide: [toc]\n---\n\n"
"""The beginning of every page, for mkdocs and people."""
READING = "interpretation"
"""What people say of the boards, by hand: a file of this name becomes part of the front page, one with a tier's page
behind a dash, as ``interpretation-d-2.md``, part of that page."""


@dataclass(frozen=True)
class Shown:
    """A board to show, and the file that it was read from, if any: the site offers a copy of it."""

    measured: Measured
    source: Path | None = None


def write_benchmark(
    boards: Sequence[Shown], folder: Path, *, version: int, tiers: Mapping[str, str], left_out: Sequence[str] = ()
) -> list[Path]:
    """Write the site of these boards into ``folder``, the front page first; returns the files.

    ``version`` is the protocol's newest: boards of earlier ones stand in the archive. ``tiers`` are all that there are,
    with what they are about; ``left_out`` is what is said of boards that are not shown. Boards of one tier that changed
    the protocol in different ways stand side by side, in the order given. Raises ``UsageError`` for two of one tier
    that changed it alike.
    """
    shown = _numbered(sorted(boards, key=lambda b: [*tiers].index(b.measured.tier)))
    found = [b.measured for b in shown]
    reading = _said(folder, READING)
    pages = {"index.md": front_page(found, version=version, tiers=tiers, left_out=left_out, reading=reading)}
    for it in found:
        pages[f"{it.page}.md"] = tier_page(it, reading=_said(folder, f"{READING}-{it.page}"))
    for name, text in pages.items():
        write_atomic(folder / name, MARK + text)
    written = [folder / name for name in pages]
    return written + [_download(board, folder / "boards" / board.measured.file) for board in shown]


def _download(board: Shown, path: Path) -> Path:
    """Write the board's file: a copy of the one it was read from, where there is one."""
    if board.source is None:
        return write_board(board.measured.published, path)
    write_atomic(path, board.source.read_bytes())
    return path


def _said(folder: Path, name: str) -> str:
    """The words of people in a file of the folder; empty without one."""
    file = folder / f"{name}.md"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _numbered(boards: Sequence[Shown]) -> list[Shown]:
    """The boards, those of one tier counted, each with the suffix of its file."""
    made: list[Shown] = []
    for board in boards:
        it = board.measured
        own = [b.measured for b in made if b.measured.tier == it.tier]
        for other in own:
            if sorted(other.facts["changed"]) == sorted(it.facts["changed"]):
                digests = " and ".join(b.published.digest[:12] for b in (other, it))
                raise UsageError(
                    f"bench site: two boards of tier {it.tier} that changed the protocol alike ({digests}): give the "
                    "one to show"
                )
        zipped = board.source is not None and board.source.name.endswith(".gz")
        number, suffix = len(own) + 1, ".json.gz" if zipped else ".json"
        known = (number, suffix) == (it.number, it.suffix)
        made.append(board if known else replace(board, measured=replace(it, number=number, suffix=suffix)))
    return made
