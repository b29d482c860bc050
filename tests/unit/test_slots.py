"""Cells on several GPUs, with GPUs that are only pretended."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from robustfl import gradients
from robustfl.errors import UsageError
from robustfl.scenarios import RunOptions, Scenario, grid, memory, plan, run
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import expand, fingerprints
from robustfl.scenarios.run_options import device_of, unheard

TINY = {"model": "mlp(hidden=(8,))", "rounds": 1, "batch": 8, "evasions": ["fgsm"], "seed": [0, 1, 2]}
engine = importlib.import_module("robustfl.scenarios.grid")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ((8 << 30) // (index + 1), 8 << 30))


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("gpus", "told"), [((0, 2), "no GPU 2; this machine has 0, 1"), ((-1,), "no GPU -1"),
                                            ((0, 0), "each GPU once"), ((), "each GPU once")])  # fmt: skip
def test_gpus_that_are_not_there(gpus: tuple[int, ...], told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        grid(Scenario.of({"name": "x", "cell": TINY}), out=tmp_path, gpus=gpus)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["tpu", "meta", "cuda:01", "cuda:9999999999", "cuda:٣", "cuda:999"])
def test_a_device_that_nobody_can_mean_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"device '{name}': "):
        device_of(name)
    assert device_of(torch.device("cpu")) == device_of("cpu")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("other", [{"jobs": 2}, {"jobs": 0}, {"device": "cpu"}, {"cluster": "tcp://host:1"}])
def test_gpus_and_another_say(other: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not go with gpus="):
        grid(Scenario.of({"name": "x"}), out=tmp_path, gpus=[0], **other)


@pytest.mark.usefixtures("two_gpus")
def test_slots_follow_from_the_free_memory_of_the_fullest_gpu() -> None:
    assert memory.slots_on((0,), 1 << 30) == 7
    assert memory.slots_on((0, 1), 1 << 30) == 3
    assert memory.slots_on((1,), 100 << 30) == 1
    assert memory.slots_on((0,), 1) == 16


def test_the_estimate_grows_with_what_a_cell_holds() -> None:
    def of(**more: Any) -> int:
        return memory.memory_of([Cell.of({"model": "mlp(hidden=(64,))", "clients": 4, **more})]) - memory._CONTEXT

    d = build(Cell.of({"model": "mlp(hidden=(64,))"})).experiment.layout.d
    assert of(clients=8) - of() > 4 * 2.5 * d * 4
    assert of(algorithm="dsgd(momentum=0.9)") - of(algorithm="dsgd(momentum=0)") == 4 * d * 4
    assert of(dtype="float64") > of()


@pytest.mark.usefixtures("two_gpus")
def test_every_gpu_has_as_many_workers_as_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def workers(tasks: Any, devices: list[str], **settings: Any) -> Iterator[Any]:
        seen.extend(devices)
        yield from ((task, task("cpu", unheard)) for task in tasks)

    monkeypatch.setattr(engine, "run_in_workers", workers)
    found = grid(Scenario.of({"name": "x", "cell": {**TINY, "seed": 0}}), out=tmp_path, gpus=[1, 0], slots=2)
    assert (sorted(seen), found.statuses) == (["cuda:0", "cuda:0", "cuda:1", "cuda:1"], {"done": 1})


def test_a_cell_runs_on_the_device_of_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (task,) = engine._tasks(plan(Scenario.of({"name": "x", "cell": {**TINY, "seed": 0}}), out=tmp_path), RunOptions())
    assert "device 'cuda:1': this machine has 0" in str(task("cuda:1", unheard))


def test_a_full_device_fails_the_cell_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **rest: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(run, "build", full)
    (cell,) = expand(Scenario.of({"name": "x", "cell": {**TINY, "seed": 0}}))
    record = run.run_cell(cell, fingerprint=fingerprints([cell], None)[cell])
    assert record.status == "failed"
    said = "MemoryError: out of memory: CUDA out of memory. Tried to allocate 9 GiB; run fewer cells"
    assert str(record.reason).startswith(said)


@pytest.mark.parametrize(("free", "most"), [(1 << 30, 306_000), (2 * 3 * (102 + 3 * 8 * 14) * 4, 3), (0, 1)])
def test_clients_take_turns_where_a_gpu_does_not_hold_them_all(
    free: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """102 gradients and eight samples with 14 numbers each per client, in half of the free memory; at least one."""
    monkeypatch.setattr(gradients, "free_memory", lambda device: free)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Linear(8, 6))
    on_gpu = torch.empty(1, device="meta")
    assert gradients.at_once(network, 102, 1, 8, on_gpu, alike=True) == pytest.approx(most, rel=0.01)


def test_clients_with_models_of_their_own_take_the_room_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "free_memory", lambda device: 2 * 3 * (8 * 102 + 3 * 8 * 14) * 4)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Linear(8, 6))
    assert gradients.at_once(network, 102, 1, 8, torch.empty(1, device="meta"), alike=False) == 3


def test_what_torch_holds_in_reserve_and_does_not_use_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {f"{name}_bytes": {"all": {"current": held}} for name, held in (("reserved", 70), ("allocated", 30))}
    for name, told in (("memory_stats_as_nested_dict", held), ("mem_get_info", (500, 1000))):
        monkeypatch.setattr(torch.cuda, name, lambda device, told=told: told)
    assert gradients.free_memory(torch.device("cuda")) == 540
