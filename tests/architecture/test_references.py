"""What a reader is sent to must be there: the repository and what it prints name no document that is not in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("robustfl", "attacks", "defenses", "scenarios", "reports", "docs", "tests")
TEXTS = {".py", ".pyi", ".c", ".toml", ".tmpl", ".md", ".html", ".js", ".css", ".json", ".tex", ".txt", ".cff", ".yml"}
# Notes that the code was written from; golden cases keep the numbers of their sections as data.
ABSENT = re.compile(r"\b(?:SPEC|ARCHITECTURE)\b|\bSTYLE\.md\b|\(§\d")
FILES = sorted(
    path
    for start in (*(ROOT / folder for folder in FOLDERS), *ROOT.glob("*.*"))
    for path in (start.rglob("*") if start.is_dir() else [start])
    if path.suffix in TEXTS and "golden" not in path.parts and path != Path(__file__).resolve()
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_is_named_that_is_not_in_the_repository(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = [f"line {text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in ABSENT.finditer(text)]
    assert found == []


def test_all_of_the_product_is_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in FILES}
    assert {
        "README.md",
        "attacks/byzantine/alie.py",
        "robustfl/cli/templates/attack.py.tmpl",
        "docs/plugins.md",
    } <= names
    assert len(names) > 400
