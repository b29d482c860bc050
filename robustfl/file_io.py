"""Input from outside: files that are read whole and within bounds, texts that are safe to show. No torch here."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LARGEST_FILE = 512 * 2**20
"""Bytes of a record, board or scenario: some thousand times what any grid has written."""

LARGEST_NUMBER = 2**1000
"""Whole numbers beyond it are no floats."""

LONGEST_REASON = 20_000
"""Characters of why a cell failed."""

_GZIP = b"\x1f\x8b"
_NO_CODE = {"site-packages", "dist-packages", "node_modules", "__pycache__"}

METHOD_NAME = re.compile(r"[a-z0-9][a-z0-9.\-]*")

_OBEYED = "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control signs but line ends and tabs
_TURNED = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what turns or breaks writing
_HALVES = "\ud800-\udfff"  # lone surrogates
_UNSAFE = re.compile(f"[{_OBEYED}{_TURNED}{_HALVES}]")
_UNSAFE_OR_LINES = re.compile(f"[{_OBEYED}{_TURNED}{_HALVES}\n\t]")


def read_file(path: str | Path) -> bytes:
    """The content of a regular file; a pipe, a device or a file beyond ``LARGEST_FILE`` is an ``OSError`` at once."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(21, "is a folder")
        if not stat.S_ISREG(about.st_mode):
            raise OSError(22, "is no regular file")
        if about.st_size > LARGEST_FILE:
            raise OSError(27, f"has {about.st_size} bytes, more than the {LARGEST_FILE} that are read")
        return file.read(LARGEST_FILE)


def read_json(path: str | Path) -> Any:
    """The JSON data of a file, compressed by gzip if its name ends in ``.gz``.

    Raises ``OSError`` if it cannot be read, and ``ValueError`` that says why otherwise.

    ``NaN``, ``Infinity`` and whole numbers that are no floats are none, and a name may stand once in a table: else two
    readers see two things.
    """
    content = read_file(path)
    if Path(path).suffix == ".gz":
        content = _decompressed(content)
    elif content.startswith(_GZIP):
        raise ValueError("compressed by gzip, which its name does not say: let it end in .json.gz")
    try:
        return json.loads(content, parse_constant=_no_json, parse_int=_whole, object_pairs_hook=_table)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except _Said as error:
        raise ValueError(str(error)) from None
    except ValueError:  # also whole numbers of thousands of digits
        raise ValueError("truncated or corrupt (not JSON)") from None


def _decompressed(content: bytes) -> bytes:
    if not content.startswith(_GZIP):
        raise ValueError("not compressed by gzip, though its name ends in .gz: rename it, or compress it")
    stream = zlib.decompressobj(wbits=31)
    try:
        data = stream.decompress(content, LARGEST_FILE)
    except zlib.error:
        raise ValueError("truncated or corrupt (its gzip data cannot be decompressed)") from None
    if stream.unconsumed_tail:
        raise ValueError(f"has more than the {LARGEST_FILE} bytes that are read, once decompressed")
    if not stream.eof or stream.unused_data:
        raise ValueError("truncated or corrupt (its gzip data have no end, or something follows them)")
    return data


class _Said(ValueError):
    """A fault in JSON data that has words of its own."""


def _no_json(constant: str) -> object:
    raise _Said(f"corrupt (not JSON: {constant} is no number there)")


def _whole(digits: str) -> int:
    number = int(digits)
    if abs(number) > LARGEST_NUMBER:
        raise _Said(f"corrupt (it holds a whole number of {len(digits)} digits)")
    return number


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Said(f"corrupt (it says {shown(twice)!r} twice)")
    return made


def parse_toml(text: str) -> dict[str, Any]:
    """The data of a TOML text. Raises ``ValueError`` in words for everything that is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, tomllib.TOMLDecodeError):
            raise
        raise ValueError(f"it holds a number of more than {sys.get_int_max_str_digits()} digits") from None


def unsafe(text: str, *, lines: bool = False) -> bool:
    """True if a text holds what a terminal would obey or cannot print; line ends and tabs count unless ``lines``."""
    return not text.isprintable() and (_UNSAFE if lines else _UNSAFE_OR_LINES).search(text) is not None


def shown(text: str) -> str:
    r"""``text`` with what a terminal would obey or cannot print written out; line ends and tabs stay.

    >>> print(shown("a\x1b[2Kb"))
    a\x1b[2Kb
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and its end where it has more than ``most`` characters.

    >>> cut("a" * 90, 60)
    'aaaaaaaaaa... cut: 70 characters ...aaaaaaaaaa'
    """
    kept = (most - 40) // 2  # what is cut is never cut again
    return text if len(text) <= most else f"{text[:kept]}... cut: {len(text) - 2 * kept} characters ...{text[-kept:]}"


def unsafe_texts(value: Any, path: str = "", *, depth: int = 3) -> Iterator[tuple[str, str]]:
    """Every text in nested JSON data, names included, that is ``unsafe`` or has several lines, with its path.

    Down to ``depth``, parts without any are told by one look at the text that they make.
    """
    if depth > 0 and (text := json.dumps(value, ensure_ascii=False)).isprintable() and "\\" not in text:
        return
    if isinstance(value, str):
        if unsafe(value):
            yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if unsafe(str(key)):
                yield path, str(key)
            yield from unsafe_texts(inner, f"{path}.{key}" if path else str(key), depth=depth - 1)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from unsafe_texts(inner, f"{path}[{i}]", depth=depth - 1)


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk a folder as ``os.walk`` does, without entering hidden folders, caches, and environments inside it."""
    for here, folders, files in os.walk(folder):
        yield Path(here), list(folders), files
        inside = [name for name in folders if not name.startswith(".") and name not in _NO_CODE]
        folders[:] = [name for name in inside if not Path(here, name, "pyvenv.cfg").exists()]


def python_files(folder: Path) -> list[Path]:
    """The Python files of a package's folder, sorted; none of an environment that lies in it."""
    return sorted(here / name for here, _, files in walk(folder) for name in files if name.endswith(".py"))
