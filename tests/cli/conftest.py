"""Cells of the commands under test run in this very process: starting a worker costs more than a small cell."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from robustfl.cli.app import app


@pytest.fixture(autouse=True, scope="session")
def _no_jobs() -> Iterator[None]:
    """Let ``--jobs 0`` mean what it means for ``robustfl.grid``."""
    options = [p for command in app.commands.values() for p in command.params if p.name == "jobs"]
    with pytest.MonkeyPatch.context() as patch:
        for option in options:
            patch.setattr(option, "type", click.IntRange(0))
        yield
