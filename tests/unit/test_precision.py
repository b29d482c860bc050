"""Precision is a choice of the cell: part of its key, written down, and never left on."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from robustfl.contracts import BranchedLayer, NormLayer, StatisticsLayer
from robustfl.engine.precision import computing
from robustfl.engine.statistics import begin, lockstep
from robustfl.layer_kinds import TABLE
from robustfl.layout import Layout, flatten_parameters, layout_of
from robustfl.norms.lockstep import KINDS
from robustfl.norms.normalizer_free import FeatureNorm
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.scenarios import run
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import fingerprints
from tests.passes import plain_gradients, shared_gradients

TINY = {"model": "mlp(hidden=(8,))", "rounds": 1, "batch": 8, "evasions": ["fgsm"]}
PLACES = (torch.backends.cuda.matmul, torch.backends.cudnn)


@pytest.mark.parametrize(("precision", "on"), [("full", False), ("tf32", True), ("bf16", False)])
def test_products_are_as_the_cell_says_and_afterwards_as_before(precision, on, monkeypatch):
    seen: list[bool] = []
    original = run.build

    def build(*args: Any, **rest: Any) -> Any:
        seen.extend(place.allow_tf32 for place in PLACES)
        return original(*args, **rest)

    monkeypatch.setattr(run, "build", build)
    before = [place.allow_tf32 for place in PLACES]
    cell = Cell.of({**TINY, "precision": precision})
    record = run.run_cell(cell, fingerprint=fingerprints([cell], None)[cell])
    assert seen == [on, on]
    assert [place.allow_tf32 for place in PLACES] == before
    assert record.status == "done"
    assert record.certificates["precision"] == precision


def _network(norm: str) -> tuple[nn.Module, Layout]:
    model, scheme = create("model", "digits-cnn"), create("norm", norm)
    network = model.build(scheme, shape=(1, 8, 8), classes=4)
    model.initialise(network, stream(0, "initialisation"))
    scheme.adapt(network)
    layout = layout_of(network)
    flatten_parameters(network, layout)
    return network.train(), layout


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 1, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)


@pytest.mark.parametrize("sizes", [(8, 8), (6, 10)], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    "name", ["none", "naive-bn", "fbn", "gn", "ln", "fixbn", "dual-bn", "fedtan", "centralised-bn", "fedfn"]
)
def test_both_engines_agree_in_bfloat16_and_are_as_far_from_float32(name: str, sizes: tuple[int, ...]) -> None:
    network, layout = _network(name)
    x, y = _batch()

    def gradients(way: Any, precision: Any) -> Any:
        out = torch.full((2, layout.d), float("nan"))
        streams = [stream(1, "dropout", k) for k in range(2)]
        with computing(network, precision):
            return out, way(network, layout, x, y, sizes, generators=streams, out=out)

    exact, full = gradients(plain_gradients, "full")
    (slow, first), (fast, second) = (gradients(way, "bf16") for way in (plain_gradients, shared_gradients))
    assert _off(fast, slow) < 3e-2
    errors = [_off(slow, exact), _off(fast, exact)]
    assert 1e-4 < min(errors) <= max(errors) < 2 * min(errors)
    for done in (first, second):
        assert done.reports.rows.dtype == done.losses.dtype == torch.float32
        torch.testing.assert_close(done.reports.rows, full.reports.rows, rtol=2e-2, atol=2e-2)
        assert torch.equal(done.reports.counts, full.reports.counts)
    assert torch.equal(gradients(plain_gradients, "full")[0], exact)  # nothing is left on


def test_lock_step_in_bfloat16_still_gives_the_gradient_of_one_machine() -> None:
    shares, (x, y), seen = torch.tensor([6.0, 10.0]) / 16, _batch(), []

    def reducer(kind: str, rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows.dtype)
        return shares @ rows

    found = []
    for name in ("fedtan", "centralised-bn"):
        network, layout = _network(name)
        for precision in ("bf16", "full"):
            out = torch.full((2, layout.d), float("nan"))
            with lockstep(network, reducer), computing(network, precision):
                shared_gradients(network, layout, x, y, (6, 10), out=out)
            found.append(shares @ out)
    short, full, merged, _ = found
    assert _off(short, merged) < 1e-2 < _off(short, full) < 1e-1
    assert len(seen) == 2 * 2 * len(KINDS)  # precisions, layers
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize(
    "name",
    ["naive-bn", "fbn", "fixbn", "dual-bn", "hbn", "fedtan", "centralised-bn", "fbn-hbn-repo", "gn", "ln"],
)
def test_normalization_layers_compute_and_report_in_float32(name: str) -> None:
    network, _ = _network(name)
    twin, (x, y) = copy.deepcopy(network), _batch()
    seen: dict[str, tuple[Any, Any]] = {}

    def keep(path: str, layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        del layer
        seen[path] = (inputs[0].detach(), output.detach())

    begin(network, (16,))
    begin(twin, (16,))
    with computing(network, "bf16"):
        for path, layer in network.named_modules():
            if isinstance(layer, NormLayer) and not isinstance(layer, BranchedLayer):
                layer.register_forward_hook(partial(keep, path))
        nn.functional.cross_entropy(network(x), y).backward()
    assert len(seen) == 2
    for path, (given, made) in seen.items():
        layer, again = network.get_submodule(path), twin.get_submodule(path)
        assert given.dtype == made.dtype == torch.float32
        assert torch.equal(again(given), made)
        if isinstance(layer, StatisticsLayer) and isinstance(again, StatisticsLayer):
            for mine, exact in zip(layer.report(), again.report(), strict=True):
                assert mine.dtype == exact.dtype
                assert torch.equal(mine, exact)


def test_feature_normalization_gives_unit_length_to_float32() -> None:
    network, _ = _network("fedfn")
    lengths: list[torch.Tensor] = []
    sphere = next(m for m in network.modules() if isinstance(m, FeatureNorm))
    sphere.register_forward_hook(lambda module, inputs, output: lengths.append(output.norm(dim=1)))
    with computing(network, "bf16"):
        network(_batch()[0])
    torch.testing.assert_close(lengths[0], torch.ones(16))  # the dtype too


def _off(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(
    "rest",
    [{}, {"engine": "reference"}, {"algorithm": "fedavg"}, {"algorithm": "moon"}, {"at": "all", "objective": "at"}],
    ids=["fast", "reference", "local steps", "contrast", "adversarial"],
)
def test_cells_train_in_bfloat16(rest: dict[str, Any]) -> None:
    cells = [Cell.of({**TINY, "rounds": 2, **rest, "precision": p}) for p in ("full", "bf16")]
    full, short = (run.run_cell(cell, fingerprint=fingerprints([cell], None)[cell]) for cell in cells)
    assert short.status == full.status == "done", short.reason
    assert short.certificates["precision"] == "bf16"
    assert not short.certificates["warnings"]
    assert short.metrics.loss != full.metrics.loss
    assert short.metrics.loss == pytest.approx(full.metrics.loss, rel=0.05)


SCHEMES: dict[str, dict[str, Any]] = {
    "fedrbn": {"norm": "dual-bn(local=true)", "at": "ratio(rho=0.5)", "objective": "at", "algorithm": "fedavg",
               "propagation": "fedrbn"},
    "hbn, as released": {"norm": "hbn(stats_mode=repo)", "algorithm": "fedavg"},
    "hbn, one step": {"norm": "hbn", "algorithm": "dsgd"},
    "fedtan, one step": {"norm": "fedtan", "algorithm": "dsgd"},
    "fedtan, attacked": {"norm": "fedtan", "algorithm": "fedavg", "f": 1, "attack": "alie", "defense": "median"},
    "fedtan-ii": {"norm": "fedtan-ii(switch_round=1)", "algorithm": "fedavg"},
    "centralised-bn": {"norm": "centralised-bn", "algorithm": "dsgd"},
    "fedwon": {"norm": "fedwon(gain=true, clip=0.01)", "algorithm": "fedavg"},
    "fedfn": {"norm": "fedfn", "algorithm": "fedavg"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_trains_in_bfloat16_by_either_engine(name: str) -> None:
    common = {"model": "digits-cnn", "clients": 4, "rounds": 2, "batch": 64, "evasions": [], **SCHEMES[name]}
    choices = [{}, {"precision": "bf16"}, {"precision": "bf16", "engine": "reference"}]
    cells = [Cell.of({**common, **choice}) for choice in choices]
    records = [run.run_cell(cell, fingerprint=fingerprints([cell], None)[cell]) for cell in cells]
    assert [record.status for record in records] == ["done"] * 3, records[-1].reason
    full, fast, slow = (record.metrics.loss for record in records if record.metrics is not None)
    assert fast != full
    assert fast == pytest.approx(full, rel=0.05)
    assert fast == pytest.approx(slow, rel=2 * torch.finfo(torch.bfloat16).eps)  # sums in another order, step by step


@pytest.mark.parametrize("sizes", [(257, 257), (257, 259)])
def test_gradients_of_biases_are_summed_in_float32_where_products_are_in_bfloat16(sizes: tuple[int, int]) -> None:
    """bfloat16 has neither 257 nor 259."""
    layer, rows = nn.Linear(1, 1), {"weight": torch.ones(2, 1, 1), "bias": torch.zeros(2, 1, requires_grad=True)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = TABLE[nn.Linear].shared(layer, torch.ones(sum(sizes), 1), rows, sizes)
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert rows["bias"].grad.flatten().tolist() == list(sizes)


def test_what_the_shared_pass_cannot_do_is_said_in_bfloat16_too() -> None:
    cell = Cell.of({**TINY, "model": "digits-cnn", "norm": "fedwon(clip=0.01)", "precision": "bf16"})
    (warning,) = run.run_cell(cell, fingerprint=fingerprints([cell], None)[cell]).certificates["warnings"]
    assert "one after another" in warning
    assert "hook" in warning
