"""Public docstrings name the thing or the action: none begins with What, Whether or How."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tracked import ROOT, product_modules

QUESTION = re.compile(r"(What|Whether|How)\b")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def public(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a module or class and of what is public in it, with their names."""
    assert isinstance(node, (ast.Module, *DEFINITIONS))
    yield name, ast.get_docstring(node) or ""
    if isinstance(node, (ast.Module, ast.ClassDef)):
        for child in node.body:
            if isinstance(child, DEFINITIONS) and not child.name.startswith("_"):
                yield from public(child, f"{name}.{child.name}")


def questions(text: str, name: str) -> list[str]:
    return [f"{where}: {doc.splitlines()[0]}" for where, doc in public(ast.parse(text), name) if QUESTION.match(doc)]


def test_no_public_docstring_is_a_question() -> None:
    files = product_modules()
    assert len(files) > 200
    found = [q for path in files for q in questions(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))]
    assert found == [], "say what it is or does: " + "\n".join(found)


def test_a_question_is_found_in_modules_classes_and_methods_and_private_ones_are_left_alone() -> None:
    lines = [
        '"""How."""',
        "class A:",
        '  """Whether."""',
        "  def b(self):",
        '    """What."""',
        "  def _c(self):",
        '    """What."""',
    ]
    text = "\n".join(lines)
    assert questions(text, "m") == ["m: How.", "m.A: Whether.", "m.A.b: What."]
