"""Scenario files and ``--set`` texts: a clear error or cells, nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from inputs import Fuzz, cells, document, plain, scenarios, specs, toml, words

from robustfl.errors import RobustflError
from robustfl.scenarios import Scenario, expand
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import key_of, labels, resolve
from robustfl.scenarios.refusals import refusal
from robustfl.scenarios.spec import apply_settings

pytestmark = pytest.mark.fuzz
FILE = Path("s.toml")


def looked_at(scenario: Scenario) -> None:
    """Everything that happens to a scenario before data are loaded."""
    for cell in expand(scenario)[:20]:
        refusal(cell)
        assert Cell.of(cell.model_dump()) == cell
        key_of(resolve(cell, "0"))
        labels(cell)


def loaded(text: str, *settings: str) -> None:
    FILE.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(RobustflError):
        looked_at(Scenario.load("./s.toml", settings=settings))
    assert [str(p) for p in Path().iterdir()] == ["s.toml"]


def test_scenarios(fuzz: Fuzz) -> None:
    fuzz(scenarios(), lambda data: loaded(document(data)))


def test_cells(fuzz: Fuzz) -> None:
    fuzz(cells(), lambda data: loaded(document({"cell": data})))


def test_texts(fuzz: Fuzz) -> None:
    fuzz(st.text(max_size=80), loaded)


def test_settings(fuzz: Fuzz) -> None:
    keys = st.sampled_from([*Cell.model_fields, "cell.rounds", "schedule.lr", "attack.z", "defense.f", "scale", "name"])
    values = st.one_of(specs, plain.map(lambda v: toml(v) if v is not None else ""), words)
    texts = st.one_of(words, st.builds("{}={}".format, keys, values), st.builds("{}.{}={}".format, keys, words, values))

    def body(settings: list[str]) -> None:
        base: dict[str, Any] = {"name": "run", "cell": {"attack": ["none", "alie"]}, "scales": {"a": {"rounds": 2}}}
        with contextlib.suppress(RobustflError):
            looked_at(apply_settings(base, settings))

    fuzz(st.lists(texts, min_size=1, max_size=3), body)
