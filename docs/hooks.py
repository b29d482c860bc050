"""Hooks of the documentation site's build: pages made from boards and classes, docstrings' examples as code."""

from __future__ import annotations

import functools
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
GENERATE = ROOT / "docs" / "generate.py"
PARTS = ("benchmark", "rest")
"""The parts of ``docs/generate.py``, each written by a process of its own."""
EXAMPLE = re.compile(r"^(?P<indent>[ \t]*)(?P<text>>>>(?:.*\n?)(?:^(?![ \t]*$).*\n?)*)", flags=re.MULTILINE)
SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
"""The script with which the plugin ``offline`` lets a page search that was opened from the disk."""
FROM_DISK = """<script>location.protocol === "file:" && document.write('""" + SHIM.replace("</", "<\\/") + "')</script>"
log = logging.getLogger("mkdocs.hooks.robustfl")
_scratch: list[tempfile.TemporaryDirectory[str]] = []


class Examples(griffe.Extension):
    """Doctests in docstrings as blocks of code; without it Markdown takes ``>>>`` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(
                lambda m: f"{m['indent']}```pycon\n{m['indent']}{m['text'].rstrip()}\n{m['indent']}```\n",
                obj.docstring.value,
            )


@functools.cache
def package() -> Path:
    """Lay out the package as it is imported: a new folder with links to the code folders of this checkout.

    Only an installation that is not editable has such a folder.
    """
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
    folder = _folder()
    top = folder / "robustfl"
    top.mkdir()
    for file in (ROOT / "robustfl").iterdir():
        (top / file.name).symlink_to(file)
    for name, place in known.items():
        (top / name.removeprefix("robustfl.")).symlink_to(ROOT / place)
    return folder


@functools.cache  # once for all builds of ``mkdocs serve``
def generated() -> Path:
    """Write what ``docs/generate.py`` writes into a new folder. Raises ``PluginError`` with its words if it fails."""
    folder = _folder()
    running = [
        subprocess.Popen([sys.executable, str(GENERATE), str(folder), part], stderr=subprocess.PIPE, text=True)
        for part in PARTS
    ]
    said = [process.communicate()[1].strip() for process in running]
    for process, words in zip(running, said, strict=True):
        if process.returncode:
            raise PluginError(f"docs/generate.py: {words}")
        if words:
            log.info("docs/generate.py: %s", words)
    return folder


@event_priority(100)  # before mkdocstrings reads it
def on_config(config: Any) -> Any:
    """Read docstrings from the code folders of this checkout. Raises ``PluginError`` if it is not installed."""
    if find_spec("robustfl") is None:
        raise PluginError("robustfl is not installed in this environment; run: pip install -e '.[docs]'")
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(package())]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from boards and classes; Markdown of a board's own site is no page."""
    made, apart = generated(), _downloads()
    for path in sorted(made.rglob("*")):
        if path.is_file() and path not in apart:
            files.append(File.generated(config, path.relative_to(made).as_posix(), abs_src_path=str(path)))
    return files


def on_post_page(output: str, **_: Any) -> str:
    """The page, which loads what lets its search work from the disk there alone: a site on a server fetches nothing."""
    return output.replace(SHIM, FROM_DISK)


def on_post_build(config: Any) -> None:
    """Copy the Markdown of a board's own site, which it offers to download."""
    for path in _downloads():
        shutil.copy(path, Path(config["site_dir"]) / path.relative_to(generated()))


def on_shutdown() -> None:
    """Remove what was written for the build."""
    for known in (package, generated):
        known.cache_clear()
    while _scratch:
        _scratch.pop().cleanup()


def _downloads() -> list[Path]:
    return sorted((generated() / "boards").rglob("*.md"))


def _folder() -> Path:
    """A new folder that is there until the build ends."""
    _scratch.append(tempfile.TemporaryDirectory(prefix="robustfl-docs-"))
    return Path(_scratch[-1].name)
