"""Pipelines of defenses, and the rules of the first papers on examples worked by hand."""

from __future__ import annotations

import itertools
import pickle
import warnings
from dataclasses import dataclass
from itertools import combinations

import pytest
import torch

import robustfl
from robustfl.contracts import Aggregator, Context, Step
from robustfl.defenses import Pipeline, parse_pipeline
from robustfl.defenses.aggregation import DefendedStatistics
from robustfl.defenses.rows import MixedRule
from robustfl.errors import Refused, UsageError
from robustfl.registry import create, entries

NAN, INF = float("nan"), float("inf")


def test_rows_of_any_shape_come_back_in_shape_and_dtype():
    X = torch.arange(24.0).reshape(4, 2, 3)
    assert robustfl.defense("median")(X, f=1).shape == (2, 3)
    assert robustfl.defense("median")(torch.tensor([1.0, 2.0, 9.0]), f=1).tolist() == 2.0
    assert robustfl.defense("nnm+median")(X.reshape(4, 6)[:, :0], f=1).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    # In half precision the sum of these overflows or rounds to a neighbor.
    X = torch.tensor([[2.0**15], [2.0**15], [2.0**15]], dtype=dtype)
    out = robustfl.defense("trimmed-mean")(X, f=0)
    assert out.dtype == dtype
    assert out.item() == 2.0**15


def test_rows_that_require_gradients_give_a_plain_tensor():
    X = torch.rand(3, 2, requires_grad=True)
    assert not robustfl.defense("nnm+median")(X, f=1).requires_grad


@pytest.mark.parametrize("entry", [e for e in entries("defense") if issubclass(e.cls, (Aggregator, Step))],
                         ids=lambda e: e.name)  # fmt: skip
def test_no_rule_takes_as_many_byzantine_clients_as_rows(entry):
    rule = robustfl.defense(entry.name if issubclass(entry.cls, Aggregator) else f"{entry.name}+mean")
    for f in (7, 100):
        with pytest.raises(Refused):
            rule(torch.ones(7, 2), f=f)
    with pytest.raises(UsageError, match="f=-1 must be an int ≥ 0"):
        rule(torch.ones(7, 2), f=-1)


def test_too_few_clients_are_refused_with_the_number_needed():
    with pytest.raises(Refused) as caught:
        robustfl.defense("krum")(torch.zeros(10, 2), f=4)
    assert str(caught.value) == "krum: f=4 needs at least 11 clients (2f + 3); these rows are 10."
    assert robustfl.defense("krum").refusal(11, 4) is None


@pytest.mark.parametrize(
    ("spec", "f", "needed"),
    [
        ("mean", 3, 1),
        ("median", 3, 7),
        ("krum", 0, 3),
        ("krum(variant=nf)", 3, 7),
        ("nnm+krum", 3, 9),
        ("multi-krum(m=12)", 3, 12),
        ("nnm+mean", 2, 5),
    ],
)
def test_least_number_of_clients(spec, f, needed):
    assert parse_pipeline(spec).min_clients(f) == needed


def test_a_row_too_long_for_distances_is_dropped_and_a_long_one_is_not():
    X = torch.tensor([[1e200], [1.0], [2.0], [3.0]], dtype=torch.float64)
    assert robustfl.defense("median")(X, f=1).item() == 2.0
    X = torch.tensor([[3e38, 3e38], [1.0, 1.0], [2.0, 2.0]])
    assert robustfl.defense("median").run(X, f=1, context=Context()).facts["dropped"] == 0


@pytest.mark.parametrize(
    "spec",
    ["arc+mean", "clipped-clustering", "flame(noise=0)", "foolsgold", "signguard", "alignins", "foundationfl", "lasa"],
)
def test_rows_whose_squares_are_zero_in_float32_are_judged_by_their_lengths(spec):
    X = torch.randn(11, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    X[-2:] *= 3
    made = robustfl.defense(spec)(X * 2.0**-90, f=2, generator=torch.Generator())
    expected = robustfl.defense(spec)(X, f=2, generator=torch.Generator())
    torch.testing.assert_close(made * 2.0**90, expected)


def test_more_broken_rows_than_f_are_told():
    X = torch.tensor([[NAN], [NAN], [1.0], [2.0], [4.0]])
    for f, told in ((1, True), (2, False)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert robustfl.defense("median")(X, f=f).item() == 2.0
        said = [f"median: 2 of 5 rows are not finite and were left out, more than f={f} may be Byzantine"]
        assert [str(w.message) for w in seen] == said * told


def test_nothing_left_or_too_little_left_is_an_error():
    with pytest.raises(Refused, match="none of the 2 rows has a finite length"):
        robustfl.defense("mean")(torch.full((2, 1), NAN), f=0)
    X = torch.tensor([[NAN], [NAN], [1.0], [2.0], [3.0]])
    with pytest.raises(Refused, match="krum: f=0 needs at least 3 clients"):
        robustfl.defense("krum")(X[:4], f=0)
    with pytest.warns(RuntimeWarning, match="more than f=0"):
        assert robustfl.defense("krum")(X, f=0).item() in (1.0, 2.0)


COLUMNS = ("mean", "median", "trimmed-mean", "meamed", "phocas")


@pytest.mark.parametrize("fault", ["none", "basis", "later"])
@pytest.mark.parametrize("step", ["", "nnm+", "clipping(c=2)+", "bucketing(s=2)+", "bucketing(s=2)+nnm+"])
def test_several_bases_are_mixed_as_each_of_them_alone(step, fault):
    for rule, alike in itertools.product((*COLUMNS, "geometric-median"), (True, False)):
        several_bases(rule, step, fault, alike)


def several_bases(rule, step, fault, alike):
    draw = torch.Generator().manual_seed(3)
    bases = [torch.randn(12, width, generator=draw, dtype=torch.float64) for width in (3, 1, 4)]
    stacks = [torch.randn(12, width, generator=draw, dtype=torch.float64) for width in (2, 5, 1)]
    if fault == "basis":
        bases[1][4] = NAN
    elif fault == "later":
        stacks[2][5] = torch.inf
    weights = [torch.rand(12, generator=draw).double() for _ in bases]
    weights = [weights[0].clone() for _ in bases] if alike else weights

    def defended():
        context = Context(generator=torch.Generator().manual_seed(0))
        return DefendedStatistics(parse_pipeline(step + rule), 2, context)

    one = defended()
    fixed = [one.mixed(basis, weights=own) for basis, own in zip(bases, weights, strict=True)]
    alone = [aggregate(rows) for aggregate, rows in zip(fixed, stacks, strict=True)]
    together = defended().each(bases, weights=weights)(stacks)
    assert [t.shape for t in together] == [(2,), (5,), (1,)]
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12, msg=lambda said: f"{rule}, {alike}: {said}")
    assert all(t.isfinite().all() for t in together)


def test_rules_by_columns_see_all_layers_at_once(monkeypatch):
    seen = []
    reduce = Pipeline._reduce
    monkeypatch.setattr(
        Pipeline, "_reduce", lambda self, rows, *rest: seen.append(rows.stack.shape) or reduce(self, rows, *rest)
    )
    bases = [torch.rand(5, 3), torch.rand(5, 1)]
    for spec, shapes in (("nnm+median", [(5, 4)]), ("mean", [(5, 4)]), ("rfa", [(5, 3), (5, 1)])):
        seen.clear()
        DefendedStatistics(parse_pipeline(spec), 1, Context()).each(bases)(bases)
        assert seen == shapes, spec


def test_mixed_does_not_read_state():
    state = {"v": torch.tensor([100.0])}
    aggregate = robustfl.defense("centered-clipping").mixed(torch.ones(3, 1), f=1, context=Context(state=state))
    assert aggregate(torch.ones(3, 1)).item() == 1.0


@dataclass(frozen=True)
class Pairs(Step):
    """A step that halves the number of rows."""

    def mix(self, gram, *, f, context):
        return torch.eye(len(gram) // 2, dtype=torch.float64).repeat_interleave(2, dim=1) / 2

    def min_clients(self, f):
        return 1

    def rows_after(self, n, f):
        return n // 2


@dataclass(frozen=True)
class Halve(Step):
    """A step whose coefficients do not sum to one and that needs lengths, not distances."""

    def mix(self, gram, *, f, context):
        return torch.diag(0.5 * (gram.diagonal() > 3).double())

    def min_clients(self, f):
        return 1


def test_steps_that_change_the_number_of_rows_count_in_refusals():
    rule = Pipeline((Pairs(),), create("defense", "median"))
    assert rule(torch.tensor([[0.0], [2.0], [4.0], [6.0], [8.0], [90.0]]), f=1).item() == 5.0
    assert rule.min_clients(1) == 6
    assert "leave 2 of them" in (rule.refusal(5, 1) or "")


@pytest.mark.parametrize("rule", ["krum(variant=nf)", "geometric-median", "centered-clipping(tau=2)", "mean", "median"])
def test_rules_agree_on_lazily_mixed_and_on_real_rows(rule):
    X = torch.randn(9, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 1
    steps = (Halve(), create("defense", "nnm"), Pairs())
    last = parse_pipeline(rule).aggregator
    rows = 0.5 * X * (X.square().sum(1, keepdim=True) > 3)
    near = (rows[:, None] - rows[None]).square().sum(-1).sort(dim=1, stable=True).indices[:, :8]
    rows = torch.stack([rows[k].mean(0) for k in near])[:8].reshape(4, 2, 3).mean(1)

    class NinePairs(Pairs):
        def mix(self, gram, *, f, context):
            made = torch.zeros(4, 9, dtype=torch.float64)
            made[:, :8] = torch.eye(4, dtype=torch.float64).repeat_interleave(2, dim=1) / 2
            return made

    lazy = Pipeline((*steps[:2], NinePairs()), last)(X, f=1)
    torch.testing.assert_close(lazy, parse_pipeline(rule)(rows, f=1), rtol=1e-9, atol=1e-9)


def test_parameters_go_to_the_last_part_and_describe_round_trips():
    rule = parse_pipeline("nnm + geometric-median(nu=1e-3)", max_steps=7)
    assert rule.describe() == "nnm+geometric-median(nu=0.001, max_steps=7)"
    assert parse_pipeline(rule.describe()) == rule
    assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize("how", ["never", "always"])
@pytest.mark.parametrize(
    ("dtype", "bad"), [(torch.float32, NAN), (torch.float32, INF), (torch.float64, -INF), (torch.float64, 1e160)]
)
@pytest.mark.parametrize(
    "spec",
    [
        "median",
        "nnm+median",
        "krum",
        "mean",
        "geometric-median",
        "cge",
        "phocas",
        "monna",
        "centered-clipping",
        "arc+mean",
        "clipping(c=9)+mean",
        "bucketing(s=2)+mean",
        "signguard",
        "dnc",
    ],
)
def test_a_row_broken_in_one_late_entry_is_dropped_like_one_broken_all_along(monkeypatch, spec, bad, how, dtype):
    monkeypatch.setenv("ROBUSTFL_NATIVE", how)
    X = torch.randn(12, 3_000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    rule = parse_pipeline(spec)
    expected = rule(torch.cat([X[:2], X[3:]]), f=1, generator=torch.Generator().manual_seed(1))
    X[2, 2_345] = bad
    made = rule.run(X, f=2, context=Context(generator=torch.Generator().manual_seed(1)))
    assert made.facts["dropped"] == 1
    assert made.facts["f"] == 1
    assert torch.equal(made.vector, expected)


def _isometric() -> list[str]:
    return [
        e.name
        for e in entries("defense")
        if issubclass(e.cls, MixedRule) and not e.origin and parse_pipeline(e.name).isometric
    ]


def test_the_rules_that_turn_with_their_rows_are_these():
    # Others depend on the axes (median, signs) or on more than the rows (a state, the server's own row).
    assert sorted(_isometric()) == [
        "cge", "geometric-median", "huber", "krum", "mda", "mean", "monna", "multi-krum", "rfa", "smea",
    ]  # fmt: skip


def test_rules_by_columns_are_these_and_do_not_see_other_columns():
    names = [e.name for e in entries("defense") if issubclass(e.cls, MixedRule) and not e.origin and e.cls.by_columns]
    assert sorted(names) == ["meamed", "mean", "median", "phocas", "trimmed-mean"]
    X = torch.randn(9, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for rule in map(parse_pipeline, names):
        assert rule.by_columns
        assert torch.equal(rule(X, f=2), torch.cat([rule(X[:, :2], f=2), rule(X[:, 2:], f=2)]))
    assert not parse_pipeline("nnm+median").by_columns


@pytest.mark.parametrize("step", ["", "nnm+", "clipping(c=20)+", "bucketing(s=2)+"])
@pytest.mark.parametrize("name", _isometric())
def test_a_rule_that_calls_itself_isometric_turns_with_its_rows(name, step):
    draw = torch.Generator().manual_seed(1)
    X = torch.randn(14, 17, generator=draw, dtype=torch.float64) + 1
    X[3] *= 20
    turn = torch.linalg.qr(torch.randn(17, 17, generator=draw, dtype=torch.float64)).Q
    rule = parse_pipeline(step + name)
    straight, turned = (rule(Y, f=1, generator=torch.Generator().manual_seed(0)) for Y in (X, X @ turn))
    torch.testing.assert_close(turned, straight @ turn, rtol=0, atol=1e-7)


def test_geometric_median_reports_convergence():
    X = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    facts = robustfl.defense("geometric-median").run(X, f=2, context=Context()).facts
    assert facts["converged"]
    assert not robustfl.defense("geometric-median(max_steps=1)").run(X, f=2, context=Context()).facts["converged"]


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
