"""Options and limits of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        metavar="DIR",
        default=None,
        help="run tests/reference on the golden files of DIR (default: tests/reference/golden)",
    )
