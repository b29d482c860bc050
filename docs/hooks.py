"""Hooks of the documentation site's build: docstrings' examples as code, boards of the repository among the pages."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import griffe
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

BOARDS = Path(__file__).parents[1] / "reports" / "examples"
EXAMPLE = re.compile(r"^(?P<indent>[ \t]*)(?P<text>>>>(?:.*\n?)(?:^(?![ \t]*$).*\n?)*)", flags=re.MULTILINE)


class Examples(griffe.Extension):
    """Doctests in docstrings as blocks of code; without it Markdown takes ``>>>`` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(
                lambda m: f"{m['indent']}```pycon\n{m['indent']}{m['text'].rstrip()}\n{m['indent']}```\n",
                obj.docstring.value,
            )


def _fenced(example: re.Match[str]) -> str:
    margin = example["indent"]
    return f"{margin}```pycon\n{margin}{example['text'].rstrip()}\n{margin}```\n"


@event_priority(100)  # before mkdocstrings reads it
def on_config(config: Any) -> Any:
    """Read docstrings from the installed package (``pip install .``), of which this folder holds the rooms apart."""
    where = str(distribution("robustfl").locate_file(""))
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [where]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add every example board's site as ``boards/NAME``."""
    for path in sorted(BOARDS.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            name = f"boards/{path.relative_to(BOARDS).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
