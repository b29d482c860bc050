"""What the README shows works as printed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch

import robustfl
from robustfl.scenarios import Scenario, expand

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    found = [b for b in re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL) if containing in b]
    assert len(found) == 1
    return str(found[0])


def test_the_scenario_expands() -> None:
    cells = expand(Scenario.of(tomllib.loads(block("toml", "my-study"))))
    assert len({c.attack for c in cells}) == 5
    assert not any(c.norm == "gn" and c.defense == "krum" for c in cells)


def test_the_attack_works_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from robustfl.cli import invoke

    monkeypatch.chdir(tmp_path)
    Path("my_attack.py").write_text(block("python", "ReversedMedian"), encoding="utf-8")
    line = next(part for part in block("bash", "--plugin my_attack.py").splitlines())
    arguments = [a.strip("'") for a in re.findall(r"'[^']*'|\S+", line)][1:]
    small = ["rounds=1", "seed=0", "norm=fbn", "defense=median", "partition.gamma=0.5", "model=mlp"]
    assert invoke([*arguments, *(a for s in small for a in ("--set", s)), "--jobs", "0"]) == 0
    assert len(list(Path("runs/mine/cells").iterdir())) == 2
    honest = torch.tensor([[1.0], [2.0], [9.0]])
    assert torch.equal(robustfl.forge("reversed-median", honest, f=2, scale=2.0), torch.tensor([[-4.0], [-4.0]]))


def test_every_setting_of_a_cell_is_documented_with_its_default() -> None:
    from robustfl.scenarios import Cell

    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", text, flags=re.MULTILINE))
    documented = {name: default for names, default in rows.items() for name in re.findall(r"`(\w+)`", names)}
    assert set(documented) == set(Cell.model_fields)
    for name in ("clients", "rounds", "batch", "participation", "scope", "target", "dtype", "engine", "dataset"):
        assert documented[name].strip("` ") == str(Cell.model_fields[name].default), name
