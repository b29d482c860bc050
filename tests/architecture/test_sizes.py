"""Functions fit a screen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.tracked import ROOT, product_modules, tracked

LONGEST = 50


def too_long(text: str, name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST:
                yield f"{name}:{node.lineno} {node.name} has {lines} lines"


def test_no_function_is_longer_than_a_screen() -> None:
    files = product_modules()
    assert len(files) > 100
    found = [said for path in files for said in too_long(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))]
    assert found == []


def test_a_long_function_is_found() -> None:
    text = "class A:\n  def b(self):\n" + "    pass\n" * LONGEST + "def c():\n" + "  pass\n" * (LONGEST - 1)
    assert list(too_long(text, "m")) == ["m:2 b has 51 lines"]


def test_the_engines_room_stays_small() -> None:
    files = [path for path in tracked("robustfl/engine") if path.suffix == ".py"]
    assert len(files) > 10
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 2_680


@pytest.mark.parametrize("room", ["benchmarks", "reproductions"])
def test_what_is_not_product_stays_small(room: str) -> None:
    lines = sum(len(path.read_bytes().splitlines()) for path in tracked(room) if path.suffix == ".py")
    assert 0 < lines <= 1_600
