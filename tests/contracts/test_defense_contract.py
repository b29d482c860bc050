"""Every registered defense keeps the common promises (STYLE 17)."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from robustfl.contracts import Aggregated, Context, Step
from robustfl.defenses import Pipeline
from robustfl.errors import Refused
from robustfl.randomness import stream
from robustfl.registry import entries

ENTRIES = [e for e in entries("defense") if not e.origin]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def required(cls: type) -> bool:
    return any(f.default is dataclasses.MISSING for f in dataclasses.fields(cls))


@pytest.fixture(params=[e for e in ENTRIES if not required(e.cls)], ids=lambda e: e.name)
def pipeline(request):
    method = request.param.cls()
    if isinstance(method, Step):
        return Pipeline((method,), next(e.cls() for e in ENTRIES if e.name == "median"))
    return Pipeline((), method)


def stack(pipeline: Pipeline, f: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    n = max(pipeline.min_clients(f), 7)
    return torch.randn(n, 6, generator=stream(0, "contract"), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("f", [0, 1, 2])
def test_result_is_finite_and_of_the_rows_kind(pipeline, dtype, device, f):
    X = stack(pipeline, f, dtype).to(device)
    out = pipeline(X, f=f, generator=stream(1, "rule", device=device))
    assert (out.dtype, out.device, out.shape) == (X.dtype, X.device, X.shape[1:])
    assert bool(torch.isfinite(out).all())


def test_float32_agrees_with_float64(pipeline):
    X = stack(pipeline, 2, torch.float32)
    out = pipeline(X, f=2, generator=stream(1, "rule"))
    exact = pipeline(X.double(), f=2, generator=stream(1, "rule"))
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


def test_rows_are_not_written_to(pipeline):
    X = stack(pipeline, 1)
    before = X.clone()
    out = pipeline(X, f=1, generator=stream(1, "rule"))
    out.add_(1)
    assert torch.equal(X, before)


def test_same_generator_same_result(pipeline):
    X = stack(pipeline, 1)
    once, twice = (pipeline(X, f=1, generator=stream(1, "rule")) for _ in range(2))
    assert torch.equal(once, twice)


def test_too_few_clients_are_refused(pipeline):
    need = pipeline.min_clients(2)
    if need > 1:
        with pytest.raises(Refused, match=f"at least {need} clients"):
            pipeline(torch.randn(need - 1, 3), f=2)
    assert pipeline(torch.randn(need, 3), f=2).shape == (3,)


def test_state_goes_in_and_out(pipeline):
    X = stack(pipeline, 1)
    first = pipeline.run(X, f=1, context=Context(generator=stream(1, "rule")))
    assert isinstance(first, Aggregated)
    state = {k: v.clone() for k, v in first.state.items()}
    second = pipeline.run(X, f=1, context=Context(generator=stream(1, "rule"), state=first.state))
    assert all(torch.equal(first.state[k], state[k]) for k in state)
    assert second.state.keys() == state.keys()


def test_without_attackers_it_does_no_harm(pipeline):
    """Rows that scatter around a centre far from zero give something near that centre."""
    n = max(pipeline.min_clients(2), 9)
    X = 5 + 0.01 * torch.randn(n, 6, generator=stream(0, "calm"), dtype=torch.float64)
    assert float((pipeline(X, f=2, generator=stream(1, "rule")) - 5).abs().max()) < 0.05


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_facts_are_stated(entry):
    assert "arXiv" in entry.cls.paper
    assert entry.cls.spec.startswith("§4")
    assert entry.cls.__doc__


@pytest.mark.parametrize("entry", [e for e in ENTRIES if not required(e.cls)], ids=lambda e: e.name)
def test_repr_evaluates_back(entry):
    method = entry.cls()
    assert eval(repr(method), {entry.cls.__name__: entry.cls}) == method
