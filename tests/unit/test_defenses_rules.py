"""The rules on examples worked by hand, their laws and their robustness constants."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import robustfl
from robustfl.contracts import Context
from robustfl.defenses import Mixed, Pipeline, Stack, parse_pipeline
from robustfl.registry import create

RULES = [
    "mean",
    "median",
    "trimmed-mean",
    "krum(variant=nf)",
    "multi-krum(variant=nf)",
    "geometric-median",
    "nnm+median",
    "nnm+trimmed-mean",
    "nnm+geometric-median",
]


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("spec", "rows", "f", "expected"),
    [
        ("mean", (0, 1, 5), 1, 2.0),
        ("median", (5, 0, 1), 1, 1.0),
        ("median", (9, 1, 3, 0), 1, 2.0),
        ("trimmed-mean", (100, 1, 2, 3, -50), 1, 2.0),
        # Scores with n-f-2 = 2 neighbors: 0: 1+4, 1: 1+1, 2: 1+4, 5: 9+16, 99: large.
        ("krum", (0, 1, 2, 5, 99), 1, 1.0),
        # With n-f-1 = 3 neighbors the 5 counts: 1: 1+1+16, 2: 1+4+9.
        ("krum(variant=nf)", (0, 1, 2, 5, 99), 1, 2.0),
        ("multi-krum(m=3)", (0, 1, 2, 5, 99), 1, 1.0),
        ("multi-krum", (0, 1, 2, 5, 99), 1, 2.0),
        # Three neighbors each: rows become 1, 1, 1, 8/3 and 106/3.
        ("nnm+median", (0, 1, 2, 5, 99), 2, 1.0),
        # From 0: differences 0.5, 1, 90 clipped to 1.
        ("centered-clipping(tau=1)", (0.5, 1, 90), 1, 2.5 / 3),
        # Again from 5/6: -1/3, 1/6, 1.
        ("centered-clipping(tau=1, L=2)", (0.5, 1, 90), 1, 2.5 / 3 + (-1 / 3 + 1 / 6 + 1) / 3),
        # One step from zero: weights 1/0.5, 1/1, 1/2.
        ("geometric-median(init=zero, max_steps=1)", (0.5, 1, 2), 1, 3 / 3.5),
    ],
)
def test_worked_example(spec, rows, f, expected):
    assert robustfl.defense(spec)(column(*rows), f=f).item() == pytest.approx(expected, abs=1e-12)


def test_mean_uses_sample_weights():
    assert robustfl.defense("mean")(column(0, 4), f=0, weights=[3, 1]).item() == 1.0


def test_nnm_prefers_the_lower_index_among_equally_near_rows():
    mixed = Mixed(Stack(column(0, -1, 1))).after(create("defense", "nnm"), f=1, context=Context())
    assert mixed.materialise().flatten().tolist() == [-0.5, -0.5, 0.5]


def test_krum_returns_the_row_itself_and_the_first_of_equals():
    X = torch.rand(7, 5, generator=torch.Generator().manual_seed(0))
    X[5] = X[2]
    result = robustfl.defense("krum").run(X, f=1, context=Context())
    assert torch.equal(result.vector, X[result.facts["selected"][0]])
    assert result.facts["selected"][0] != 5


def test_centered_clipping_continues_from_its_state():
    rule = robustfl.defense("centered-clipping(tau=1)")
    first = rule.run(column(3, 3, 3), f=1, context=Context())
    second = rule.run(column(3, 3, 3), f=1, context=Context(state=first.state))
    assert (first.vector.item(), second.vector.item()) == (1.0, 2.0)


def test_geometric_median_reports_convergence():
    X = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    facts = robustfl.defense("geometric-median").run(X, f=2, context=Context()).facts
    assert facts["converged"]
    assert not robustfl.defense("geometric-median(max_steps=1)").run(X, f=2, context=Context()).facts["converged"]


@pytest.mark.parametrize("start", ["median", "zero", "mean"])
def test_geometric_median_is_where_unit_vectors_balance(start):
    # In 20 dimensions the median of 9 rows is none of them.
    X = torch.randn(9, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 100
    away = X - robustfl.defense("geometric-median", init=start)(X, f=3)
    assert float((away / away.norm(dim=1, keepdim=True)).sum(0).norm()) < 1e-6


stacks = st.tuples(st.integers(3, 8), st.integers(1, 4), st.integers(0, 2**32)).map(
    lambda t: torch.randn(t[0], t[1], generator=torch.Generator().manual_seed(t[2]), dtype=torch.float64)
)
quick = settings(max_examples=15, deadline=None, derandomize=True)


def _f(X: torch.Tensor) -> int:
    return (len(X) - 1) // 2


@pytest.mark.parametrize("spec", [*RULES, "centered-clipping(tau=1)"])
@quick
@given(X=stacks, seed=st.integers(0, 1000))
def test_the_order_of_clients_does_not_matter(spec, X, seed):
    # Two clients alone have each other as nearest: Krum's scores tie, and the lower index wins by definition.
    assume("krum" not in spec or len(X) > 3)
    rule, turn = parse_pipeline(spec), torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(rule(X[turn], f=_f(X)), rule(X, f=_f(X)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", RULES)
@quick
@given(X=stacks, shift=st.floats(-1e3, 1e3))
def test_translation_moves_the_result_along(spec, X, shift):
    rule = parse_pipeline(spec)
    torch.testing.assert_close(rule(X + shift, f=_f(X)), rule(X, f=_f(X)) + shift, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("spec", [r for r in RULES if "geometric" not in r] + ["geometric-median(nu=1e-15)"])
@quick
@given(X=stacks, scale=st.floats(1e-3, 1e3))
def test_scaling_scales_the_result(spec, X, scale):
    rule = parse_pipeline(spec)
    torch.testing.assert_close(rule(scale * X, f=_f(X)), scale * rule(X, f=_f(X)), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("spec", RULES)
def test_identical_rows_are_returned(spec):
    row = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(robustfl.defense(spec)(row.repeat(7, 1), f=3), row, rtol=1e-12, atol=0)


@pytest.mark.parametrize("spec", ["median", "trimmed-mean", "nnm+median", "nnm+trimmed-mean"])
@quick
@given(X=stacks)
def test_coordinates_stay_in_the_range_of_the_rows(spec, X):
    out = parse_pipeline(spec)(X, f=_f(X))
    assert bool(((out >= X.min(0).values - 1e-12) & (out <= X.max(0).values + 1e-12)).all())


@pytest.mark.parametrize(
    "spec", ["trimmed-mean", "multi-krum", "nnm+median", "nnm+krum", "nnm+geometric-median", "nnm+trimmed-mean"]
)
def test_without_byzantine_clients_the_result_is_the_mean(spec):
    X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(robustfl.defense(spec)(X, f=0), X.mean(0), rtol=1e-12, atol=1e-12)


def _hard_inputs(n: int, f: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(n * 10 + f)
    heavy = torch.randn(n, 3, generator=g, dtype=torch.float64) / torch.rand(n, 1, generator=g, dtype=torch.float64)
    colluding = torch.randn(n, 3, generator=g, dtype=torch.float64)
    colluding[:f] = colluding[f:].mean(0) - 1.5 * colluding[f:].std(0)
    degenerate = 1e-9 * torch.randn(n, 3, generator=g, dtype=torch.float64)
    degenerate[:f] = 1.0
    return [heavy, colluding, degenerate]


def _kappa(spec: str, n: int, f: int) -> float:
    r = f / (n - 2 * f)
    plain = {"trimmed-mean": 6 * r * (1 + r), "krum(variant=nf)": 6 * (1 + r)}
    step, _, rule = spec.rpartition("+")
    kappa = plain.get(rule, 4 * (1 + r) ** 2)
    return 8 * f / (n - f) * (kappa + 1) if step else kappa


@pytest.mark.parametrize("n", range(3, 8))
@pytest.mark.parametrize(
    "spec",
    [
        step + rule
        for step in ("", "nnm+")
        # The bound is that of the exact geometric median: nothing may be smoothed at the scale of the inputs.
        for rule in ("median", "trimmed-mean", "geometric-median(nu=1e-14)", "krum(variant=nf)")
    ],
)
def test_f_kappa_robustness_on_every_honest_subset(spec, n):
    rule = parse_pipeline(spec)
    for f in range(1, (n - 1) // 2 + 1):
        for X in _hard_inputs(n, f):
            result = rule(X, f=f)
            for subset in combinations(range(n), n - f):
                honest = X[list(subset)]
                spread = (honest - honest.mean(0)).square().sum(1).mean()
                error = (result - honest.mean(0)).square().sum()
                assert float(error) <= _kappa(spec, n, f) * float(spread) * (1 + 1e-9) + 1e-24


def test_nnm_has_the_right_neighbors_among_many_close_rows():
    X = 1e4 + torch.randn(30, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-4
    true = (X[:, None] - X[None]).square().sum(-1).sort(dim=1, stable=True).indices[:, :20]
    expected = torch.stack([X[neighbors].mean(0) for neighbors in true])
    mixed = Mixed(Stack(X)).after(create("defense", "nnm"), f=10, context=Context()).materialise()
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-10)


def test_pipelines_are_values():
    assert parse_pipeline("nnm+krum(variant=nf)") == parse_pipeline("nnm+krum", variant="nf")
    assert isinstance(robustfl.defense("mean"), Pipeline)
