"""Every command and example of the documentation runs as printed, page by page, from top to bottom.

A page's ``bash`` and ``python`` blocks and its files (blocks with a ``title``) share one empty folder. What needs a
machine or data that a test has not stands in a ``console`` block, or after ``<!-- not run: REASON -->``; what takes
long after ``<!-- run with: ARGUMENTS -->``, which are appended to the block's commands that train. What ``print(...)``
is said to print in a comment must come out. ``<!-- before: COMMAND -->`` makes what a page takes for granted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tracked import tracked

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"
NOTE = r"(?:<!-- (?P<how>not run|run with|exits): (?P<more>[^\n]*?) -->\n)?"
TITLE = r"(?: title=\"(?P<title>[^\"]+)\")?"
FENCE = re.compile(rf"^{NOTE}```(?P<language>\w+){TITLE}[^\n]*\n(?P<text>.*?)^```$", flags=re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    line: int
    language: str
    title: str | None
    how: str | None
    more: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    """The page's fenced blocks that a reader types or saves."""
    text = page.read_text(encoding="utf-8")
    found = [Block(text.count("\n", 0, m.start()) + 1, *m.group("language", "title", "how", "more", "text"))
             for m in FENCE.finditer(text)]  # fmt: skip
    return [b for b in found if b.how != "not run" and (b.title or b.language in ("bash", "python"))]


WRITTEN = tracked("docs/*.md")
PAGES = [p for p in WRITTEN if blocks(p)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONSAFEPATH": "1",
        "MPLBACKEND": "agg",
        "COLUMNS": "120",
    }
    python = ""
    for command in re.findall(r"<!-- before: (.*) -->", page.read_text(encoding="utf-8")):
        subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, timeout=900, check=True
        )
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
            continue
        if block.language == "python":
            python += block.text  # a page's examples go on from each other
            command = [sys.executable, "-c", python]
        else:
            command = ["bash", "-euo", "pipefail", "-c", shortened(block)]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        expected = int(block.more or 0) if block.how == "exits" else 0
        assert done.returncode == expected, f"{page.name}:{block.line}\n{block.text}\n{done.stdout}\n{done.stderr}"
        for shown in re.findall(r"^print\(.*\)  # (.+)$", block.text, flags=re.MULTILINE):
            assert shown in done.stdout, f"{page.name}:{block.line} printed {done.stdout}"


def shortened(block: Block) -> str:
    """The block's commands, those that train with the arguments that its note asks for."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.how == "run with":
        trains = re.compile(r"robustfl (?:grid|run|reproduce)\b")
        lines = [re.sub(r"\s+#.*$", "", ln) + f" {block.more}" if trains.match(ln) else ln for ln in lines]
    return "\n".join(lines)


def test_what_is_not_run_says_why() -> None:
    for page in WRITTEN:
        text = page.read_text(encoding="utf-8")
        told = re.findall(r"<!-- (?:not run|run with|exits|before): \S[^\n]* -->", text)
        assert len(told) == text.count("<!--"), page
