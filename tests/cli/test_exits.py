"""Commands that a plug-in or a library tries to end by itself fail and say where."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_plugins import FORGE, PLUGIN

from robustfl.cli import app, invoke
from robustfl.registry import _entries, load_plugins

pytestmark = pytest.mark.slow

TINY = [
    "rounds=1", "f=1", "clients=4", "batch=4", "evasions=[]", "norm=none", "defense=mean", "model=mlp(hidden=(4,))",
    "seed=0", "partition=iid",
]  # fmt: skip
"""Of the default preset one cell."""


def settings(name: str) -> list[str]:
    return [w for setting in [*TINY, f"attack={name}"] for w in ("--set", setting)]


def write(name: str, body: str, folder: Path, *, after: str = "") -> None:
    text = PLUGIN.format(name=name, base=FORGE[0], method=FORGE[1], body=body)
    (folder / "hostile.py").write_text(f"{text}\n{after}\n", encoding="utf-8")


@pytest.mark.parametrize("end", ["import sys; sys.exit(0)", "raise MemoryError"])
def test_a_dry_run_of_a_method_that_gives_up_names_it_and_fails(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"gives-up-{len(end)}"
    write(name, end, tmp_path)
    monkeypatch.chdir(tmp_path)
    load_plugins()
    monkeypatch.setitem(_entries, "attack", dict(_entries["attack"]))
    assert invoke(["grid", "--dry-run", *settings(name), "--plugin", "hostile.py"]) == 1
    said = capsys.readouterr().out
    assert "could not be timed, and cells like it will not run here" in said
    assert f"[attack {name} (hostile.py " in said


def test_an_exit_that_nobody_catches_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(*args: object, **kwargs: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(app.commands["list"], "callback", leave)
    assert invoke(["list"]) == 1
    assert f"sys.exit(0) ended the command, raised in {__file__}" in capsys.readouterr().err
