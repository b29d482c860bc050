"""Every registered defense keeps the common promises (STYLE 17)."""

from __future__ import annotations

import pytest
import torch

from robustfl.contracts import Aggregator, Context, Step
from robustfl.defenses import Pipeline
from robustfl.errors import Refused
from robustfl.papers import spelled_out
from robustfl.randomness import stream
from robustfl.registry import create, entries
from robustfl.testing import check

ENTRIES = [e for e in entries("defense") if not e.origin and issubclass(e.cls, (Step, Aggregator))]


def pipeline_of(name: str, rule: str = "median") -> Pipeline:
    method = create("defense", name)
    return Pipeline((method,), create("defense", rule)) if isinstance(method, Step) else Pipeline((), method)


@pytest.fixture(params=[e.name for e in ENTRIES])
def pipeline(request):
    return pipeline_of(request.param)


def stack(pipeline: Pipeline, f: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    n = max(pipeline.min_clients(f), 7)
    return torch.randn(n, 6, generator=stream(seed, "contract"), dtype=torch.float64).to(dtype)


def run(pipeline: Pipeline, X: torch.Tensor, f: int, *, scale: float = 1.0) -> torch.Tensor:
    """The aggregate with the generator and the server's own row of the contract."""
    reference = scale * torch.linspace(-1, 2, X.shape[1], dtype=X.dtype, device=X.device)
    return pipeline(X, f=f, generator=stream(1, "rule", device=X.device), reference=reference)


def test_it_keeps_every_law_of_the_suite(pipeline):
    assert {c.name: c.reason for c in check(pipeline.parts[0]) if not c.passed} == {}


LEAST = {
    "mean": lambda f: 1,
    "bulyan": lambda f: 4 * f + 3,
    "freqfed": lambda f: max(5, 2 * f + 1),
    "multi-metrics": lambda f: max(4, 2 * f + 1),
    **dict.fromkeys(("dnc", "fltrust", "foolsgold", "rflbat"), lambda f: f + 1),
    **dict.fromkeys(("gas", "krum", "multi-krum"), lambda f: 2 * f + 3),
}
"""Clients that a method needs, where a majority of honest ones is not the bound."""


@pytest.mark.parametrize("name", [e.name for e in ENTRIES])
def test_it_needs_as_many_clients_as_its_paper(name):
    method, least = create("defense", name), LEAST.get(name, lambda f: 2 * f + 1)
    assert [method.min_clients(f) for f in range(4)] == [least(f) for f in range(4)]


@pytest.mark.parametrize("spec", [
    "median(weighted=true)", "trimmed-mean(weighted=true)", "meamed(center=lower)", "krum(variant=nf)",
    "multi-krum(m=2)", "geometric-median(init=mean, max_steps=3)", "geometric-median(weighted=true)", "rfa(steps=9)",
    "centered-clipping(tau=1, L=3)", "foundationfl(rule=median, copied=nearest)", "gas(rule=median, p=2)",
    "gas(rule=geometric-median, p=3)", "rlr(theta=3)", "bucketing(s=2)", "clipping(c=0.5)", "multi-metrics(p=0.6)",
    "mean-of-medians(groups=1)", "huber(T=1)", "dnc(b=3, c=1.5)", "signguard(lower=0.5, upper=1.2)",
    "alignins(share=1, sign_bound=0.5)", "flame(noise=0)", "clipped-clustering(tau=1)", "foolsgold(kappa=0.5)",
    "monna(pivot=3)", "weak-dp(M=1, sigma=0)", "clustering(linkage=complete)", "auror(alpha=2, tau=0.3)",
    "caf(max_steps=5000)",
])  # fmt: skip
def test_with_other_parameters_too_it_does_what_its_reference_says(spec):
    (law,) = [c for c in check(create("defense", spec)) if c.name == "reference"]
    assert (law.passed, law.reason) == (True, "")


def test_rules_that_work_on_inner_products_and_columns_have_a_reference():
    """The others are written as their papers have them."""
    without = {e.name for e in ENTRIES if e.cls.reference in (Step.reference, Aggregator.reference)}
    assert without == {"deepsight", "flanders", "fldetector", "freqfed", "lasa"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_result_of_half_precision_is_finite_and_of_the_rows_kind(pipeline, dtype):
    for f in (0, 1, 2):
        X = stack(pipeline, f, dtype)
        out = run(pipeline, X, f)
        assert (out.dtype, out.device, out.shape) == (X.dtype, X.device, X.shape[1:])
        assert bool(torch.isfinite(out).all())


def test_what_declares_that_it_does_not_use_f_does_not_and_others_do(pipeline):
    """Of many rows in a few rounds on end: a rule with a memory may ask for f only later."""
    part = pipeline.parts[0]
    pipeline = pipeline_of(part.name, "mean")
    made: dict[int, list[torch.Tensor]] = {}
    for f in (1, 3):  # two apart: votes of an odd number of rows are never even
        state, made[f] = {}, []
        for trial in range(60 if part.uses_f else 4):
            X = torch.randn(15, 12, generator=stream(trial, "contract"), dtype=torch.float64)
            context = Context(generator=stream(1, "rule"), state=state, reference=X.mean(0))
            done = pipeline.run(X, f=f, context=context)
            state, made[f] = done.state if (trial + 1) % 4 else {}, [*made[f], done.vector]
            if part.uses_f and f == 3 and not torch.equal(made[1][trial], done.vector):
                return
    assert all(map(torch.equal, made[1], made[3])) != part.uses_f


def test_too_few_clients_are_refused(pipeline):
    need = pipeline.min_clients(2)
    if need > 1:
        with pytest.raises(Refused, match=f"at least {need} clients"):
            run(pipeline, torch.randn(need - 1, 3), 2)
    assert run(pipeline, torch.randn(max(need, 3), 3), 2).shape == (3,)  # f must be less than n


# Where a law does not hold, and why. An exception that turns out to hold fails, too.
BY_LENGTH = "what it does depends on how far rows are from the origin"
SHORTENED = "rows are shortened, towards the origin"
SIGNS = "the result is a vector of signs"
SPARSE = "small entries become zero"
A_RADIUS = "its radius is a length of its own"
EXCEPTIONS: dict[str, dict[str, str]] = {
    "permutation": {
        "bucketing": "who meets in a bucket goes by row number",
        "mean-of-medians": "who meets in a group goes by row number",
        "monna": "the trusted row has a number",
        "bulyan": "among few rows left two are each other's nearest and tie, and the lower index wins",
    },
    "translation": dict.fromkeys([
        "clipping", "arc", "centered-clipping", "cge", "fltrust", "foolsgold", "flame", "signguard", "sign-majority",
        "clipped-clustering", "clustering", "deepsight", "lasa", "rlr", "freqfed", "alignins", "multi-metrics",
        "weak-dp",
    ], BY_LENGTH),
    "scale": {"clipping": A_RADIUS, "centered-clipping": A_RADIUS, "weak-dp": A_RADIUS, "sign-majority": SIGNS},
    "duplicates": {
        "clipping": SHORTENED, "flame": "noise is added", "weak-dp": "noise is added",
        "fltrust": "the result is as long as the server's own row",
        "foolsgold": "copies are taken for one attacker", "lasa": SPARSE, "sign-majority": SIGNS,
    },
    "range": {
        **dict.fromkeys(
            ["alignins", "clipped-clustering", "deepsight", "clipping", "flame", "signguard", "weak-dp"], SHORTENED
        ),
        "fltrust": "rows get the length of the server's own", "lasa": SPARSE, "sign-majority": SIGNS,
    },
    "mean at f = 0": {
        **dict.fromkeys(["median", "geometric-median", "rfa"], "it takes the middle"),
        **dict.fromkeys(["clipped-clustering", "deepsight", "flame", "signguard", "weak-dp"], "it clips whatever f is"),
        **dict.fromkeys(["flare", "fltrust", "foolsgold"], "it weighs rows whatever f is"),
        "clipping": SHORTENED,
        "krum": "it takes one row",
        "huber": "far rows count less whatever f is",
        "foundationfl": "one row counts more often whatever f is",
        **dict.fromkeys(["clustering", "freqfed"], "it leaves a cluster out, whatever f is"),
        "alignins": "it clips, and leaves rows out, whatever f is",
        "multi-metrics": "it takes a share of the rows, whatever f is",
        "lasa": SPARSE,
        "sign-majority": SIGNS,
    },
}  # fmt: skip


def names(law: str) -> list:
    marks = {name: [pytest.mark.xfail(reason=why, strict=True)] for name, why in EXCEPTIONS[law].items()}
    return [pytest.param(e.name, marks=marks.get(e.name, [])) for e in ENTRIES]


def stacks(pipeline: Pipeline) -> list[torch.Tensor]:
    n = max(pipeline.min_clients(2), 11)
    return [torch.randn(n, 6, generator=stream(seed, "laws"), dtype=torch.float64) for seed in range(3)]


@pytest.mark.parametrize("name", names("permutation"))
def test_the_order_of_clients_does_not_matter(name):
    pipeline = pipeline_of(name)
    for X in stacks(pipeline):
        turn = torch.randperm(len(X), generator=stream(2, "turn"))
        torch.testing.assert_close(run(pipeline, X[turn], 2), run(pipeline, X, 2), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", names("translation"))
def test_translation_moves_the_result_along(name):
    pipeline = pipeline_of(name)
    for X in stacks(pipeline):
        shift = torch.linspace(-200, 300, 6, dtype=X.dtype)
        torch.testing.assert_close(run(pipeline, X + shift, 2), run(pipeline, X, 2) + shift, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("name", names("scale"))
def test_scaling_scales_the_result(name):
    pipeline = pipeline_of(name)
    for X in stacks(pipeline):
        expected = 1000 * run(pipeline, X, 2)
        torch.testing.assert_close(run(pipeline, 1000 * X, 2, scale=1000), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", names("duplicates"))
def test_identical_rows_are_returned(name):
    pipeline = pipeline_of(name)
    row = 3 * stack(pipeline, 2)[0]
    same = row.repeat(max(pipeline.min_clients(2), 7), 1)
    torch.testing.assert_close(run(pipeline, same, 2), row, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", names("range"))
def test_coordinates_stay_in_the_range_of_the_rows(name):
    pipeline = pipeline_of(name)
    for X in stacks(pipeline):
        X[:, 0] = 1.0
        out = run(pipeline, X, 2)
        assert bool(((out >= X.min(0).values - 1e-12) & (out <= X.max(0).values + 1e-12)).all())


@pytest.mark.parametrize("name", names("mean at f = 0"))
def test_without_declared_attackers_it_is_the_mean(name):
    pipeline = pipeline_of(name, "mean")
    X = stack(pipeline, 0)
    torch.testing.assert_close(run(pipeline, X, 0), X.mean(0), rtol=1e-12, atol=1e-12)


# These promise nothing for this, leave a known share of the row, or judge later rounds only.
MOVED = (
    "mean",
    "nnm",
    "bucketing",
    "rfa",
    "monna",
    "foolsgold",
    "rlr",
    "flanders",
    "fldetector",
    "clustering",
    "flare",
)


@pytest.mark.parametrize("name", [e.name for e in ENTRIES if e.name not in MOVED])
def test_a_huge_row_moves_it_little(name):
    """Everything that promises robustness at all survives one row a million times longer."""
    pipeline = pipeline_of(name)
    X = stack(pipeline, 2) + 1
    X[-1] *= 1e6
    assert float(run(pipeline, X, 2).norm()) < 100


# Papers that are not on arXiv.
ELSEWHERE = {"auror": "ACSAC 2016", "clustering": "ICASSP 2020", "flare": "AsiaCCS 2022", "dnc": "NDSS 2021"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_facts_are_stated_and_repr_evaluates_back(entry):
    assert ELSEWHERE.get(entry.name, "arXiv") in spelled_out(entry.cls.paper)
    assert entry.cls.__doc__
    method = entry.cls()
    assert eval(repr(method), {entry.cls.__name__: entry.cls}) == method
