"""Every command and example of the documentation runs as printed, page by page, from top to bottom.

A page's ``bash`` and ``python`` blocks and its files (blocks with a ``title``) share one empty folder. What needs a
machine or data that a test has not stands in a ``console`` block, or after ``<!-- not run: REASON -->``; what takes long
after ``<!-- run with: ARGUMENTS -->``, which are appended to the block's ``robustfl grid`` and ``run`` commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(
    r"^(?:<!-- (?P<how>not run|run with|exits): (?P<more>[^\n]*?) -->\n)?```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<text>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    line: int
    language: str
    title: str
    how: str
    more: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, m.start()) + 1, m["language"], m["title"] or "", m["how"] or "", m["more"] or "", m["text"])
        for m in FENCE.finditer(text)
    ]  # fmt: skip


def wanted(block: Block) -> bool:
    return block.how != "not run" and bool(block.title or block.language in ("bash", "python"))


PAGES = [p for p in sorted(DOCS.rglob("*.md")) if p.name != "methods.md" and any(wanted(b) for b in blocks(p))]


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
    for block in blocks(page):
        if not wanted(block):
            continue
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
        expected = int(block.more) if block.how == "exits" else 0
        assert done.returncode == expected, f"{page.name}:{block.line}\n{block.text}\n{done.stdout}\n{done.stderr}"


def shortened(block: Block) -> str:
    if block.how != "run with":
        return block.text
    lines = block.text.replace("\\\n", " ").splitlines()
    return "\n".join(re.sub(r"(\s+#.*)?$", f" {block.more}", ln, count=1) if re.match(r"robustfl (grid|run|reproduce)\b", ln) else ln
                     for ln in lines)  # fmt: skip


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(DOCS)))
def test_what_is_not_run_says_why(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"<!-- (?:not run|run with|exits): \S[^\n]* -->", text)) == len(re.findall(r"<!--", text))
