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
    parser.addoption(
        "--kills", type=int, metavar="N", default=12, help="kill the grids of tests/survival so often (default: 12)"
    )
    parser.addoption(
        "--inputs", type=int, metavar="N", default=0, help="inputs of each kind in tests/fuzz (default: a few)"
    )
