"""What the command line does, in one call each: ``robustfl.run`` and ``robustfl.verify`` return, and print nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robustfl
from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.reports.published import publish, write_board
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario

SMALL = {"rounds": 2, "clients": 4, "model": "digits-cnn(hidden=8)", "evasions": [], "defense": "median"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[CellResult]:
    """Two cells that ran, under attack and not."""
    return [robustfl.run({**SMALL, "attack": attack, "f": 1}) for attack in ("none", "sf")]


@pytest.mark.parametrize("jobs", [None, 0])
def test_what_changes_nothing_is_a_warning_at_the_callers_line(jobs: int | None, tmp_path: Path) -> None:
    """The command line prints such words; in a library nobody would read them."""
    settings = {**SMALL, "rounds": 1, "branch": "clean"}
    scenario = Scenario.of({"name": "s", "cell": settings})
    heard: list[str] = []

    def call() -> object:
        return robustfl.run(settings) if jobs is None else robustfl.grid(scenario, out=tmp_path, jobs=jobs)

    with pytest.warns(UserWarning, match="branch = 'clean' changes nothing: naive-bn has no branches") as told:
        call()
    assert [Path(w.filename).name for w in told] == [Path(__file__).name]
    robustfl.run(settings, on_note=heard.append)  # and no Python warning, which here would be an error
    assert len(heard) == 1
    assert heard[0].startswith("warning: branch = 'clean' changes nothing")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CALLERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "another device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "deterministic": deterministic,
}


def settings_of_torch() -> tuple[object, ...]:
    return (
        torch.get_default_dtype(), torch.empty(0).device, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


@pytest.mark.parametrize("caller", CALLERS)
def test_a_cell_is_the_same_whatever_the_callers_torch_settings_which_stay(caller: str, records, tmp_path) -> None:
    with CALLERS[caller]():
        before = settings_of_torch()
        record = robustfl.run({**SMALL, "attack": "sf", "f": 1}, out=tmp_path, keep_model=True)
        model = robustfl.load_model(tmp_path / "run", record.key)
        assert settings_of_torch() == before
    assert (record.key, record.metrics) == (records[1].key, records[1].metrics)
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}


@pytest.mark.parametrize("caller", CALLERS)
def test_rules_and_attacks_compute_the_same_whatever_the_callers_torch_settings(caller: str) -> None:
    X = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))

    def made() -> list[torch.Tensor]:
        draws = {"generator": torch.Generator().manual_seed(0)}
        rules = ("mean", "krum", "nnm+trimmed-mean", "flame", "gas", "geometric-median")
        rows = [robustfl.forge(name, X, 2, **draws) for name in ("fang", "random", "min-max")]
        return [*(robustfl.defense(rule)(X, f=1, **draws) for rule in rules), *rows]

    wanted = made()
    with CALLERS[caller]():
        before = settings_of_torch()
        found = made()
        assert settings_of_torch() == before
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("caller", CALLERS)
def test_evaluate_finds_the_same_whatever_the_callers_torch_settings(caller: str) -> None:
    images, labels = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    wanted = robustfl.evaluate(model, (images, labels), evasions=["pgd(steps=2)", "square(queries=5)"])
    with CALLERS[caller]():
        found = robustfl.evaluate(model, (images, labels), evasions=["pgd(steps=2)", "square(queries=5)"])
    assert (found.sa, found.loss, found.ra) == (wanted.sa, wanted.loss, wanted.ra)


@pytest.fixture
def board(records: list[CellResult], tmp_path: Path) -> Path:
    return write_board(publish(records, name="ours"), tmp_path / "board.json")


def test_run_takes_settings_and_returns_the_record(records, tmp_path, capsys):
    rounds: list[tuple[int, int]] = []
    record = robustfl.run(
        {**SMALL, "attack": "sf", "f": 1}, out=tmp_path, on_round=lambda r, total, loss: rounds.append((r, total))
    )
    assert record.metrics == records[1].metrics
    assert record.status == "done"
    assert rounds == [(1, 2), (2, 2)]
    assert Store(tmp_path / "run").read(record.key).metrics == record.metrics
    assert capsys.readouterr() == ("", "")


def test_run_takes_a_preset_with_every_axis_fixed() -> None:
    scenario = robustfl.Scenario.load("quickstart", settings=[f"{k}={v!r}" for k, v in SMALL.items()])
    with pytest.raises(UsageError, match=r"run takes one cell.*attack: "):
        robustfl.run(scenario)
    with pytest.raises(UsageError, match="did you mean 'attack'"):
        robustfl.run({"attac": "sf"})


def test_a_refused_cell_is_a_record_with_the_reason() -> None:
    record = robustfl.run({**SMALL, "defense": "krum", "f": 1})
    assert (record.status, record.metrics) == ("refused", None)
    assert "krum: f=1 needs at least 5 clients" in str(record.reason)


def test_verify_returns_what_agrees_and_prints_nothing(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    found = robustfl.verify(board, cells=None, on_cell=lambda check: seen.append(check.verdict))
    assert found.agrees
    assert [check.verdict for check in found.checks] == seen == ["identical", "identical"]
    assert capsys.readouterr() == ("", "")


def test_verify_runs_only_what_is_asked_for(board: Path) -> None:
    only = robustfl.verify(board, cells=1, where={"attack": "sf"})
    assert [check.labels["attack"] for check in only.checks] == ["sf"]
    assert robustfl.verify(board, check_only=True).checks == ()
    with pytest.raises(UsageError, match="did you mean 'attack'"):
        robustfl.verify(board, where={"atack": "sf"})


@pytest.mark.parametrize("generator", [0, np.random.default_rng(0)])
def test_a_generator_that_is_not_torchs_is_told_how_to_get_one(generator: Any) -> None:
    rows = np.ones((8, 5))
    with pytest.raises(UsageError, match=r"flame: generator=.*randomness\.stream\(seed, 'defense'\)"):
        robustfl.defense("flame")(rows, f=1, generator=generator)
    with pytest.raises(UsageError, match=r"forge: generator=.*randomness\.stream\(seed, 'forge'\)"):
        robustfl.forge("gaussian", rows, f=1, generator=generator)


def test_lists_of_python_numbers_are_floats_and_counters_are_not() -> None:
    median = robustfl.defense("median")
    assert median([[1, 2], [3, 4.5], [5, 6]], f=1) == [3.0, 4.5]
    assert median([1, 2, 9], f=1) == 2.0
    assert robustfl.forge("sf", [[1, 2], [3, 4]], f=1) == [[-2.0, -3.0]]
    for counters in (np.ones((3, 2), int), torch.ones(3, 2).long(), [np.arange(2)] * 3, [[np.int64(1)]] * 3):
        with pytest.raises(UsageError, match=r"dtype .*int64; floating-point rows"):
            median(counters, f=1)
    with pytest.raises(UsageError, match="dtype bool"):
        median([[True, False]] * 3, f=1)


def test_f_is_any_whole_number() -> None:
    rows = np.arange(5.0)[:, None]
    assert robustfl.defense("median")(rows, f=np.int64(1)).tolist() == [2.0]
    assert robustfl.forge("sf", rows, f=np.int64(2)).shape == (2, 1)
    for wrong in (True, np.True_, 1.0, -1, np.int64(-1), np.ones(2), "1", None):
        with pytest.raises(UsageError, match=r"f=.* must be an int ≥ 0"):
            robustfl.defense("median")(rows, f=wrong)
        with pytest.raises(UsageError, match=r"f=.* must be an int ≥ 0"):
            robustfl.forge("sf", rows, f=wrong)


def test_the_page_about_ones_own_code_shows_what_works(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, space)
    assert space["forged"].shape == (2, 5)
    assert set(space["state"]) == {"v"}
    assert space["disagreeing"](board) == []
    assert capsys.readouterr().out.startswith("done 0.")


@pytest.mark.parametrize("rule", ["mean", "rfa", "median(weighted=true)", "geometric-median(weighted=true)"])
def test_weights_that_a_rule_reads_count(rule: str) -> None:
    rows, weigh = np.arange(14.0).reshape(7, 2) ** 2, robustfl.defense(rule)
    assert not np.allclose(weigh(rows, f=1), weigh(rows, f=1, weights=[1, 1, 1, 1, 1, 1, 9]))
