"""How many inputs, and how long one may take."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from inputs import Fuzz

SHORT = 60
SECONDS = 30


class HangError(KeyboardInterrupt):
    """One input took too long. An interrupt: nothing under test may swallow it."""


@pytest.fixture
def fuzz(pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fuzz]:
    """``fuzz(inputs, body)`` calls ``body`` on many of ``inputs``, in an empty folder; none may take long.

    A slow ``body`` gets a tenth of them.
    """
    monkeypatch.chdir(tmp_path)
    count = pytestconfig.getoption("inputs")

    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError(f"an input took more than {SECONDS} s of work")

    def fuzz(inputs: SearchStrategy[Any], body: Callable[[Any], None], *, slow: bool = False) -> None:
        examples = count or SHORT
        if slow:
            examples = max(1, examples // (10 if count else 4))

        @settings(
            max_examples=examples, deadline=None, database=None, derandomize=not count,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(inputs)
        def each(value: Any) -> None:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of work: a machine may be slow
            try:
                body(value)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)

        each()

    before = signal.signal(signal.SIGPROF, ring)
    yield fuzz
    signal.signal(signal.SIGPROF, before)
