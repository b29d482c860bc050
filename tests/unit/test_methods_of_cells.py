"""The methods of a cell are read from their texts once, and typed from then on."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

from robustfl.autobyz import named
from robustfl.errors import UsageError
from robustfl.registry import load_plugins
from robustfl.scenarios import Cell, Scenario, expand, methods
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import of_each
from robustfl.scenarios.expand import key_of, resolve
from robustfl.scenarios.noop_settings import no_effect, noop_settings
from robustfl.scenarios.refusals import refusal

AXES: dict[str, Any] = {
    "attack": ["none", "alie"], "defense": ["nnm+median", "krum"], "norm": ["fbn", "hbn(lam=0.02)"], "f": [0, 1],
    "train_evasion": "fgsm", "evasions": ["pgd(steps=3)", "fgsm"], "statistics_defense": "median",
}  # fmt: skip


def test_a_plan_reads_every_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[tuple[str, str]] = Counter()
    made = methods._made

    def counted(setting: str, text: str) -> Any:
        read[setting, text] += 1
        return made(setting, text)

    load_plugins()  # every registration makes what was read before doubtful
    monkeypatch.setattr(methods, "_made", counted)
    methods._read.cache_clear()
    cells = expand(Scenario.of({"name": "s", "cell": AXES}))
    assert len({key_of(resolve(cell, "x")) for cell in cells if refusal(cell) is None}) == 16
    assert ("attack", "alie") in read
    assert ("evasions", "fgsm") in read
    assert set(read.values()) == {1}


def test_every_run_has_methods_of_its_own() -> None:
    """What a method keeps on itself reaches no other run."""
    cell = Cell.of({"dataset": "digits(limit=60, test_limit=20)", "model": "mlp", "clients": 3, "batch": 4})
    assert cell.methods.attack is cell.methods.attack
    one, other = (build(cell).experiment for _ in range(2))
    for name in ("attack", "algorithm", "norm", "objective", "defense", "evasion"):
        assert getattr(one, name) == getattr(other, name)
        assert getattr(one, name) is not getattr(other, name)
    assert one.attack is not cell.methods.attack


def test_cells_that_differ_in_a_seed_are_those_of_their_settings() -> None:
    """One of them is checked, and the others are like it."""
    cell = {"attack": ["none", "autobyz"], "f": 2, "batch": [8, 16], "seed": [3, 0, 7]}
    cells = expand(Scenario.of({"name": "x", "cell": cell}))
    autobyz = named("autobyz")
    assert [(c.batch, c.seed) for c in cells if c.attack == "none"] == [*product([8, 16], [3, 0, 7])]
    assert len(cells) == 2 * 3 * (1 + len(autobyz.members))
    assert all(c == Cell.of(c.model_dump()) for c in cells)


@pytest.mark.parametrize("seed", [True, -1, 1.5, "0"])
def test_every_seed_is_checked(seed: object) -> None:
    with pytest.raises(UsageError, match=f"seed={seed!r}"):
        expand(Scenario.of({"name": "x", "cell": {"seed": [0, 1, seed]}}))


def test_no_refusal_and_no_effect_depends_on_a_seed() -> None:
    axes = {
        "attack": ["none", "alie"],
        "f": [0, 2, 5],
        "participation": [0.3, 1.0],
        "seed": [0, 1, 2],
        "byzantine": "any",
    }
    cells = expand(Scenario.of({"name": "s", "cell": axes}))
    asked: list[Cell] = []
    assert of_each(cells, refusal) == [refusal(cell) for cell in cells]
    told = [(no_effect(cell), tuple(noop_settings(cell))) for cell in cells]
    assert of_each(cells, lambda cell: asked.append(cell) or (no_effect(cell), tuple(noop_settings(cell)))) == told
    assert len(asked) == len(cells) // 3
    assert any(reason for reason, _ in told)
