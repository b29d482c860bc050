"""Reading a JSON document of a published form: everything that can be wrong with it is said in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from robustfl.errors import StoreError, UsageError, reason
from robustfl.outside import read_json, shown, unsafe, unsafe_texts

Form = TypeVar("Form", bound=BaseModel)


def read_document(path: Path, form: type[Form], *, schema: tuple[str, int], none: str) -> Form:
    """The document at ``path``, whose ``format`` and ``schema_version`` are those of ``schema``; else as ``read_data``.

    Raises ``UsageError`` for anything but such a document.
    """
    data = read_data(path, format=schema[0], none=none)
    if data.get("schema_version") != schema[1]:
        raise UsageError(f"{path}: schema {data.get('schema_version')!r}; this robustfl reads {schema[1]}")
    try:
        return form.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"{path}: {first_fault(error)}") from None


def read_data(
    path: Path, *, format: str, none: str, lines: Callable[[str], bool] = lambda where: False
) -> dict[str, Any]:
    """The JSON table at ``path`` that says ``format``.

    ``none`` is said of a file that holds no such table; ``lines`` names the places whose texts may have several
    lines. Raises ``UsageError`` for anything but such a table, ``StoreError`` for a file that cannot be read, and
    ``FileNotFoundError``, ``NotADirectoryError`` or ``IsADirectoryError`` where there is no file.
    """
    try:
        data = read_json(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    said = next((where for where, text in unsafe_texts(data) if unsafe(text, lines=lines(where))), None)
    if said is not None:
        raise UsageError(f"{path}: {shown(said)} holds control characters")
    if not isinstance(data, dict) or data.get("format") != format:
        raise UsageError(f"{path}: {none}")
    return data


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong, with its place and a number out of range: ``cells.0.key: Field required``."""
    first = error.errors()[0]
    value = f", not {first['input']!r}" if first["type"].startswith(("greater_than", "less_than")) else ""
    return shown(f"{'.'.join(map(str, first['loc']))}: {first['msg']}{value}")
