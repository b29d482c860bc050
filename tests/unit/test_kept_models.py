"""A trained model leaves with its record, is the one that was tested, and is not taken for another."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import robustfl
from robustfl import registry
from robustfl.cli import invoke
from robustfl.contracts import Aggregator, Model
from robustfl.errors import RobustflError, StoreError, UsageError
from robustfl.records import CellResult
from robustfl.reports.published import publish, write_board
from robustfl.reports.store import Store
from robustfl.scenarios import kept_models, measuring
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.kept_models import load_model, model_path

SMALL: dict[str, Any] = {
    "model": "mlp(hidden=(8,))", "norm": "fbn", "clients": 5, "f": 1, "attack": "sf", "defense": "median", "rounds": 2,
    "batch": 16, "evasions": ["fgsm(eps=0.05)"],
}  # fmt: skip
LOCAL = {"algorithm": "fedavg(local_steps=2)"}


def kept(out: Path, **more: Any) -> CellResult:
    return robustfl.run({**SMALL, **more}, out=out, keep_model=True, device="cpu")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"norm": "gn", "dtype": "float64", "scaling": "unit"},
        {"norm": "hbn", **LOCAL},
        {"norm": "fedavg-alg2", **LOCAL},
    ],
    ids=lambda more: more.get("norm", "fbn"),
)
def test_the_model_is_as_accurate_as_its_record_says(tmp_path: Path, more: dict[str, Any]) -> None:
    record = kept(tmp_path, **more)
    model = robustfl.load_model(tmp_path / "run", record.key[:8])
    assert not model.training
    found = robustfl.evaluate(model, "digits", evasions=SMALL["evasions"])
    assert found.sa == record.metrics.sa
    assert found.ra == record.metrics.ra
    assert next(model.parameters()).dtype == getattr(torch, more.get("dtype", "float32"))
    x = torch.rand(2, 1, 8, 8, dtype=next(model.parameters()).dtype, requires_grad=True)
    model(x).sum().backward()  # anybody can attack it
    assert float(x.grad.abs().sum()) > 0  # type: ignore[union-attr]


def test_every_honest_user_has_a_model_of_its_own(tmp_path: Path) -> None:
    record = kept(tmp_path, norm="fedbn", **LOCAL)
    byzantine = build(Cell.of({**SMALL, "norm": "fedbn", **LOCAL})).experiment.byzantine
    honest = [k for k in range(5) if k not in byzantine]
    models = {k: load_model(tmp_path / "run", record.key, user=k) for k in honest}
    found = [robustfl.evaluate(model, "digits", evasions=[]).sa for model in models.values()]
    assert sum(found) / 4 == pytest.approx(record.metrics.sa, abs=1e-12)
    assert not torch.equal(models[honest[0]](torch.ones(1, 1, 8, 8)), models[honest[1]](torch.ones(1, 1, 8, 8)))
    for user, why in [
        (None, "models of their own; give user="),
        (next(iter(byzantine)), "no honest user"),
        (9, "user=9"),
    ]:
        with pytest.raises(UsageError, match=why):
            load_model(tmp_path / "run", record.key, user=user)


def test_models_with_branches_are_tested_through_the_chosen_one(tmp_path: Path) -> None:
    settings = {
        **LOCAL, "norm": "dual-bn", "objective": "at", "at": "ratio(rho=0.5)", "attack": "none", "f": 0,
        "train_evasion": "pgd(eps=0.1, steps=1)", "evasions": [], "defense": "mean",
    }  # fmt: skip
    record = kept(tmp_path, **settings)
    assert record.metrics is not None, record.reason
    assert robustfl.evaluate(load_model(tmp_path / "run", record.key), "digits", evasions=[]).sa == record.metrics.sa


def test_a_board_has_its_models_beside_it_and_the_form_of_the_file_is_open(tmp_path: Path) -> None:
    record = kept(tmp_path)
    write_board(publish([record], name="one"), tmp_path / "run" / "board.json")
    model = load_model(tmp_path / "run" / "board.json", record.key)
    with np.load(model_path(tmp_path / "run", record.key), allow_pickle=False) as file:
        for name, parameter in model.named_parameters():
            assert np.array_equal(file[name], parameter.detach().numpy())
    write_board(publish([record], name="one"), tmp_path / "board.json")
    with pytest.raises(UsageError, match="put the folder 'models' of the store there"):
        load_model(tmp_path / "board.json", record.key)


def test_what_is_missing_or_changed_is_said(tmp_path: Path) -> None:
    record = kept(tmp_path)
    store, path = tmp_path / "run", model_path(tmp_path / "run", record.key)
    with pytest.raises(UsageError, match="has no cell"):
        load_model(store, "0" * 32)
    with pytest.raises(UsageError, match="has no cell"):
        load_model(store, record.key[:5])  # too short to stand for a key
    with np.load(path) as file:
        arrays = dict(file)
    name = next(n for n in arrays if n.endswith("weight"))
    np.savez(path, **{**arrays, name: arrays[name] + 1e-6})
    with pytest.raises(StoreError, match="digest is another"):
        load_model(store, record.key)
    np.savez(path, **arrays)
    load_model(store, record.key)  # packed anew, the same content
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(StoreError, match="torn, or no model"):
        load_model(store, record.key)
    np.savez(path, evil=np.array([object()], dtype=object))
    with pytest.raises(StoreError, match="torn, or no model"):
        load_model(store, record.key)
    path.unlink()
    with pytest.raises(UsageError, match="no file"):
        load_model(store, record.key)
    without = robustfl.run(SMALL, out=tmp_path / "bare", device="cpu")
    with pytest.raises(UsageError, match="has kept no model; run it with --keep-model"):
        load_model(tmp_path / "bare" / "run", without.key)


def test_another_version_of_the_network_is_not_filled_with_its_values(tmp_path: Path) -> None:
    record = kept(tmp_path)
    store = Store(tmp_path / "run")
    file = store.path(record.key)
    data = json.loads(file.read_text())
    data["cell"]["methods"]["model"]["version"] += 1
    file.write_text(json.dumps(data))
    with pytest.raises(StoreError, match="its settings have the key"):
        load_model(store.folder, record.key)


@pytest.mark.usefixtures("clean_registry")
def test_a_model_of_a_plug_in_that_is_not_here_names_the_plug_in(tmp_path: Path) -> None:
    @registry.register("one-layer")
    @dataclass(frozen=True)
    class OneLayer(Model):
        def build(self, norm: Any, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

    record = kept(tmp_path, model="one-layer", norm="none")
    assert record.status == "done", record.reason
    del registry._entries["model"]["one-layer"]
    with pytest.raises(UsageError, match=r"unknown model 'one-layer'.*used model one-layer \(.+\): first robust"):
        load_model(tmp_path / "run", record.key)


@pytest.mark.usefixtures("clean_registry")
def test_a_network_that_is_built_otherwise_now_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a plug-in that was changed since, under its old version or a new one."""
    layers: list[nn.Module] = [nn.Linear(64, 8), nn.Linear(8, 10)]

    @dataclass(frozen=True)
    class Changed(Model):
        """Some layers."""

        def build(self, norm: Any, *, shape: Any, classes: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), *copy.deepcopy(layers))

    registry.register("changed-since")(Changed)
    record = kept(tmp_path, model="changed-since", norm="none")
    folder = tmp_path / "run"
    load_model(folder, record.key)
    for now, words in (
        ([nn.Linear(64, 8), nn.Linear(8, 10, bias=False)], r"differs from the stored one in 1\.2\.bias$"),
        ([nn.Linear(64, 10)], r"differs from the stored one in 1\.2\.bias, 1\.2\.weight$"),
        ([nn.Linear(64, 5), nn.Linear(5, 10)], r"1\.1\.weight has shape \(8, 64\), here \(5, 64\)"),
    ):
        layers[:] = now
        with pytest.raises(RobustflError, match=words):
            load_model(folder, record.key)
    registry._entries["model"].pop("changed-since")
    words = r"unknown model 'changed-since'.*model changed-since \(test_kept_models.*load_file\(its file\), or install"
    with pytest.raises(UsageError, match=words):
        load_model(folder, record.key)
    registry.register("changed-since", version=2)(Changed)
    with pytest.raises(UsageError, match=r"another version: model changed-since: version 1 published, 2 installed"):
        load_model(folder, record.key)


def test_a_grid_keeps_models_and_says_where_it_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def two(seeds: list[int], keep: bool) -> list[str]:
        notes: list[str] = []
        scenario = robustfl.Scenario.of({"name": "two", "cell": {**SMALL, "evasions": [], "seed": seeds}})
        robustfl.grid(scenario, out=tmp_path, jobs=0, device="cpu", keep_model=keep, on_note=notes.append)
        return notes

    assert two([0], False) == []
    assert "1 stored cells have no model" in two([0, 1], True)[0]
    assert len(list((tmp_path / "two" / "models").glob("*.npz"))) == 1
    with pytest.raises(UsageError, match="does not go with cluster="):
        robustfl.grid("quickstart", out=tmp_path, keep_model=True, cluster="tcp://127.0.0.1:1")
    assert invoke(["run", "--keep-model", "--set", "rounds=1"]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_model_that_cannot_be_written_stops_the_grid_and_is_no_fault_of_the_cell(tmp_path, monkeypatch):
    scenario = robustfl.Scenario.of({"name": "two", "cell": {**SMALL, "evasions": [], "seed": [0, 1]}})
    tried: list[object] = []

    def full(store: object, *rest: object) -> None:
        tried.append(store)
        raise StoreError("cannot write a.npz in models: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "keep_model", full)
        with pytest.raises(StoreError, match="No space left"):
            robustfl.grid(scenario, out=tmp_path, jobs=0, device="cpu", keep_model=True)
    assert len(tried) == 1
    assert not Store(tmp_path / "two").keys()
    robustfl.grid(scenario, out=tmp_path, jobs=0, device="cpu", keep_model=True)
    assert len(list((tmp_path / "two" / "models").glob("*.npz"))) == 2


def test_a_refused_cell_lacks_no_model(tmp_path: Path) -> None:
    notes: list[str] = []
    scenario = robustfl.Scenario.of({"name": "two", "cell": {**SMALL, "evasions": [], "defense": ["median", "bulyan"]}})
    for _ in range(2):
        found = robustfl.grid(scenario, out=tmp_path, jobs=0, device="cpu", keep_model=True, on_note=notes.append)
    assert found.statuses == {"done": 1, "refused": 1}
    assert not [note for note in notes if "no model" in note]


def test_a_key_that_is_cut_short_and_a_file_of_another_cell_are_told(tmp_path, monkeypatch):
    one, other = kept(tmp_path, rounds=1, evasions=[]), kept(tmp_path, rounds=1, evasions=[], seed=1)
    store = Store(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(kept_models, "_SHORTEST", 0)
        with pytest.raises(UsageError, match=r"key='' is the beginning of 2 cells of .*; give more"):
            load_model(store.folder, "")
    store.commit(one.model_copy(update={"certificates": {**one.certificates, "model": other.certificates["model"]}}))
    model_path(store.folder, one.key).write_bytes(model_path(store.folder, other.key).read_bytes())
    with pytest.raises(StoreError, match="a model of another cell"):
        load_model(store.folder, one.key)
    board = write_board(publish([other], name="one"), store.folder / "board.json")
    load_model(board, other.key)
    board.write_text(board.read_text().replace('"one"', '"two"'))
    with pytest.raises(StoreError, match="edited after it was written"):
        load_model(board, other.key)


@pytest.mark.usefixtures("clean_registry")
def test_a_network_needs_only_its_model_and_norm(tmp_path: Path) -> None:
    @registry.register("first-row")
    @dataclass(frozen=True)
    class FirstRow(Aggregator):
        def aggregate(self, X: Tensor, *, f: int, context: Any) -> Tensor:
            return X[0].clone()

        def min_clients(self, f: int) -> int:
            return 1

    record = kept(tmp_path, defense="first-row", attack="none", f=0)
    assert record.status == "done", record.reason
    del registry._entries["defense"]["first-row"]
    registry._changed()
    model = load_model(tmp_path / "run", record.key)
    assert robustfl.evaluate(model, "digits", evasions=[]).sa == record.metrics.sa
