"""Precision is a choice of the cell: part of its key, written down, and never left on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robustfl.errors import UsageError
from robustfl.federation.gradients import reference_gradients, shared_gradients
from robustfl.federation.precision import computing
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.scenarios import run
from robustfl.scenarios.expand import fingerprints, key_of, refusal, resolve
from robustfl.scenarios.spec import Cell
from robustfl.vectors import flatten_parameters, layout_of

TINY = {"model": "mlp(hidden=(8,))", "rounds": 1, "batch": 8, "evasions": ["fgsm"]}
PLACES = (torch.backends.cuda.matmul, torch.backends.cudnn)


@pytest.mark.parametrize(("precision", "on"), [("full", False), ("tf32", True), ("bf16", False)])
def test_products_are_as_the_cell_says_and_afterwards_as_before(
    precision: str, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_precision_tells_cells_apart_and_leaves_old_keys_alone() -> None:
    full, short = Cell.of(TINY), Cell.of({**TINY, "precision": "tf32"})
    assert key_of(resolve(full, "x")) != key_of(resolve(short, "x"))
    assert "precision" not in resolve(full, "x")["cell"]


@pytest.mark.parametrize("sizes", [(8, 8), (6, 10)], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", ["none", "naive-bn", "fbn", "gn"])
def test_both_engines_agree_in_bfloat16_and_are_as_far_from_float32(name: str, sizes: tuple[int, ...]) -> None:
    model = create("model", "digits-cnn")
    network = model.build(create("norm", name), shape=(1, 8, 8), classes=4)
    model.initialise(network, stream(0, "initialisation"))
    layout = layout_of(network)
    flatten_parameters(network, layout)
    network.train()
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)

    def gradients(way: Any, precision: Any) -> Any:
        out = torch.full((2, layout.d), float("nan"))
        streams = [stream(1, "dropout", k) for k in range(2)]
        with computing(network, precision):
            return out, way(network, layout, x, y, sizes, generators=streams, out=out)

    exact, full = gradients(reference_gradients, "full")
    (slow, first), (fast, second) = (gradients(way, "bf16") for way in (reference_gradients, shared_gradients))
    assert _off(fast, slow) < 3e-2
    errors = [_off(slow, exact), _off(fast, exact)]
    assert 1e-4 < min(errors) <= max(errors) < 2 * min(errors)
    for done in (first, second):
        assert done.reports.rows.dtype == done.losses.dtype == torch.float32
        torch.testing.assert_close(done.reports.rows, full.reports.rows, rtol=2e-2, atol=2e-2)
        assert torch.equal(done.reports.counts, full.reports.counts)
    assert torch.equal(gradients(reference_gradients, "full")[0], exact)  # nothing is left on


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
    assert short.metrics is not None
    assert full.metrics is not None
    assert short.metrics.loss != full.metrics.loss
    assert short.metrics.loss == pytest.approx(full.metrics.loss, rel=0.05)


def test_bfloat16_learns_as_well_as_float32() -> None:
    cells = [Cell.of({"rounds": 40, "evasions": [], "precision": p}) for p in ("full", "bf16")]
    full, short = (run.run_cell(cell, fingerprint=fingerprints([cell], None)[cell]).metrics for cell in cells)
    assert full is not None
    assert short is not None
    assert full.sa > 0.5
    assert abs(short.sa - full.sa) < 0.1


def test_bfloat16_does_not_go_with_float64() -> None:
    reason = refusal(Cell.of({**TINY, "precision": "bf16", "dtype": "float64"}))
    assert reason is not None
    assert "float64" in reason


@pytest.mark.parametrize(("given", "right"), [("bfloat16", "bf16"), ("tf23", "tf32")])
def test_unknown_precisions_are_told_the_nearest_right_one(given: str, right: str) -> None:
    with pytest.raises(UsageError, match=f"precision='{given}': did you mean .*'{right}'"):
        Cell.of({"precision": given})
