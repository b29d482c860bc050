"""Write the pages of the documentation that are made from boards, data of studies, and classes.

``mkdocs build`` does it by itself (``docs/hooks.py``). ``python docs/generate.py FOLDER`` writes the same files below a
folder, to look at them; nothing of it is committed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # parts are written side by side
ROOT = Path(__file__).parents[1]
DOCS, BOARDS = ROOT / "docs", ROOT / "boards"
STUDY = "study-3"
GENERATED = (
    "methods.md",
    "benchmark/index.md", "benchmark/study-3.md", "benchmark/study-3.csv", "benchmark/[a-z].md",
    "benchmark/[a-z]-[0-9].md", "benchmark/boards/*",
    "evidence/index.md", "evidence/*.png",
    "boards/quickstart/*",
)  # fmt: skip
"""Patterns of the files, relative to ``docs``: what committed pages may link to beside committed files."""


def boards(pattern: str) -> list[Path]:
    """The boards of the repository with such names, by name. Ends the program where there are none."""
    found = sorted(BOARDS.glob(f"{pattern}.json*"), key=lambda path: path.name.split(".")[0])
    if not found:
        sys.exit(f"no board {pattern} in {BOARDS}; pages are made from them: build in a checkout of the repository")
    return found


def methods(folder: Path) -> None:
    """Write the page of all methods."""
    from robustfl.cli.facts import page

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "methods.md").write_text(page(), encoding="utf-8")


def benchmark(folder: Path) -> None:
    """Write the benchmark's front page and a page per board, with what people say of the boards."""
    out = folder / "benchmark"
    out.mkdir(parents=True, exist_ok=True)
    said = sorted((DOCS / "benchmark").glob("interpretation*.md"))
    for file in said:
        shutil.copy(file, out)
    made = _command("bench", "site", *_sources(boards("bench-*")), "--page", str(out), "--format", "json")
    if left_out := json.loads(made)["left_out"]:
        sys.exit(f"boards that are not shown: {'; '.join(left_out)}")
    for file in said:
        (out / file.name).unlink()


def study(folder: Path) -> None:
    """Write the page of the study behind AutoByz, and its data."""
    _command("bench", STUDY, "--from", str(BOARDS / f"{STUDY}.csv.gz"), "--page", str(folder / "benchmark"))


def evidence(folder: Path) -> None:
    """Write the page of the papers' claims beside measurements, and its plots."""
    from robustfl import __version__
    from robustfl.cli.reproduce import with_figures
    from robustfl.reports.published import sound_board
    from robustfl.reports.reproduction import Page, find_items
    from robustfl.reports.reproduction.page import to_markdown
    from robustfl.scenarios.reproduce import entry

    out = folder / "evidence"
    out.mkdir(parents=True, exist_ok=True)
    records = [record for path in boards("reproduction-*") for record in sound_board(path).records()]
    entries = tuple(entry(paper, item, "reduced", records=records) for paper, item in find_items(None))
    page = with_figures(Page(entries, __version__), out, ("png",))
    (out / "index.md").write_text(to_markdown(page), encoding="utf-8")


def example(folder: Path) -> None:
    """Write the site of the quickstart's board, and the board itself."""
    from robustfl.cli.boards import papers_of
    from robustfl.reports.loading import board_of, open_source
    from robustfl.reports.site.writing import write_site

    (file,) = boards("quickstart")
    source, out = open_source(file), folder / "boards" / "quickstart"
    records, described = source.load().results, source.description()
    write_site(board_of(source), records, out, description=described["description"], papers=papers_of(records, ()))
    shutil.copy(file, out / file.name.replace("quickstart.", "board."))


PARTS: dict[str, tuple[Callable[[Path], None], ...]] = {
    "benchmark": (benchmark,),
    "rest": (methods, study, example, evidence),
}
"""What can be written side by side, each by a process of its own."""


def _sources(paths: Iterable[Path]) -> list[str]:
    return [word for path in paths for word in ("--from", str(path))]


def _command(*arguments: str) -> str:
    """Run a command of robustfl in this process and return what it prints. Ends the program if it fails."""
    from robustfl.cli import invoke

    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = invoke(list(arguments))
    if code:
        sys.exit(f"robustfl {' '.join(arguments)} ended with {code}")
    return said.getvalue()


def main(folder: str, *names: str) -> None:
    """Write these parts, or all, into the folder."""
    for name in names or PARTS:
        for write in PARTS[name]:
            write(Path(folder))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-") or not {*sys.argv[2:]} <= {*PARTS}:
        sys.exit(f"python docs/generate.py FOLDER [{'|'.join(PARTS)} ...]")
    main(*sys.argv[1:])
