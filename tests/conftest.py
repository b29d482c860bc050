"""Options of the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        type=Path,
        default=Path(__file__).parent / "reference" / "golden",
        metavar="DIR",
        help="folder of golden cases (*.json, format 1) for tests/reference; default: those of the repository",
    )
