"""What a reader is sent to must be there: the repository and what it prints name no document that is not in it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tracked import ROOT, tracked

TEXTS = {".py", ".pyi", ".c", ".toml", ".tmpl", ".md", ".html", ".js", ".css", ".json", ".tex", ".txt", ".cff", ".yml"}
DATA = {"boards", "golden"}
# Notes that the code was written from; golden cases keep the numbers of their sections as data.
ABSENT = re.compile(r"\b(?:SPEC|ARCHITECTURE)\b|\bSTYLE\.md\b|\(§\d")


def texts() -> list[Path]:
    found = [path for path in tracked() if path.suffix in TEXTS and DATA.isdisjoint(path.parts)]
    return [path for path in found if path != Path(__file__).resolve()]


def named(text: str) -> list[str]:
    return [f"line {text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in ABSENT.finditer(text)]


def test_no_document_is_named_that_is_not_in_the_repository() -> None:
    found = {str(path.relative_to(ROOT)): named(path.read_text(encoding="utf-8")) for path in texts()}
    assert {name: said for name, said in found.items() if said} == {}


def test_a_name_is_found() -> None:
    assert named("\nsee SPEC, STYLE.md or Krum (§3)") == ["line 2: SPEC", "line 2: STYLE.md", "line 2: (§3"]


def test_all_of_the_product_is_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in texts()}
    wanted = {"README.md", "attacks/byzantine/alie.py", "robustfl/cli/templates/attack.py.tmpl", "docs/plugins.md"}
    assert wanted <= names
    assert len(names) > 400
