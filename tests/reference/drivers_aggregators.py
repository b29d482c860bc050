"""Golden cases of §4.1-4.16 (and the weighted mean of §1.2): rules and pre-aggregation steps."""

from __future__ import annotations

from typing import Any

import torch
from golden_cases import Arithmetic, Case

import robustfl
from robustfl.contracts import Context
from robustfl.defenses import Mixed, Stack
from robustfl.defenses.preaggregators import grouped
from robustfl.randomness import stream
from robustfl.registry import create

# What the files call a method -> its name here.
_NAMES = {
    "average": "mean",
    "weighted_average": "mean",
    "median": "median",
    "trimmed_mean": "trimmed-mean",
    "nnm": "nnm",
    "krum": "krum",
    "multikrum": "multi-krum",
    "geometric_median": "geometric-median",
    "centred_clipping": "centered-clipping",
    "meamed": "meamed",
    "mda": "mda",
    "bulyan": "bulyan",
    "bucketing": "bucketing",
    "fltrust": "fltrust",
    "static_clipping": "clipping",
    "clipping": "clipping",
    "arc": "arc",
    "caf": "caf",
    "signsgd_majority": "sign-majority",
    "dnc": "dnc",
}
_STEPS = {"nnm", "bucketing", "clipping", "arc"}
_PARAMETERS = {"T": "max_steps"}
_NOT_PARAMETERS = {"f"}


def pipeline_parts(name: str) -> list[str]:
    """The methods a case's name begins with: ``nnm_trimmed_mean_f2`` is ``["nnm", "trimmed-mean"]``."""
    fitting = [known for known in _NAMES if name == known or name.startswith(known + "_")]
    if not fitting:
        return []
    known = max(fitting, key=len)
    return [_NAMES[known], *pipeline_parts(name[len(known) + 1 :])]


def _parameters(case: Case, rule: str) -> dict[str, Any]:
    given = {_PARAMETERS.get(k, k): v for k, v in case.params.items() if k not in _NOT_PARAMETERS}
    if rule == "geometric-median":
        # A given number of steps is meant exactly; none given means until convergence.
        given = {"tol": 0.0, **given} if "max_steps" in given else {"max_steps": 100_000, **given}
    return given


def _rule(case: Case, on: Arithmetic) -> dict[str, Any]:
    parts = pipeline_parts(case.name)
    X, f = on.tensor(case.inputs["X"]), case.params.get("f", 0)
    if parts == ["bucketing"] and "permutation" in case.inputs:
        return _buckets(case, X, f)
    if parts[-1] in _STEPS:
        return _step(case, parts, X, f)
    pipeline = robustfl.defense("+".join(parts), **_parameters(case, parts[-1]))
    reference = on.tensor(case.inputs["server"]) if "server" in case.inputs else None
    weights = on.tensor(case.inputs["n_samples"]) if "n_samples" in case.inputs else None
    state = {"v": on.tensor(case.inputs["v0"])} if "v0" in case.inputs else {}
    generators = [stream(0, "golden", device=on.device) for _ in range(2)]
    y = pipeline(X, f=f, weights=weights, state=state, generator=generators[0], reference=reference)
    context = Context(state=state, generator=generators[1], reference=reference)
    facts = pipeline.run(X, f=f, context=context).facts
    found = {"y": y, **facts, "objective": torch.linalg.vector_norm(X - y, dim=1).sum()}
    if parts[-1] == "krum":
        found["index"] = facts["selected"][0]
    return found


def _step(case: Case, parts: list[str], X: torch.Tensor, f: int) -> dict[str, Any]:
    mixed = Mixed(Stack(X))
    for i, part in enumerate(parts):
        step = create("defense", part, **(_parameters(case, part) if i == len(parts) - 1 else {}))
        mixed = mixed.after(step, f=f, context=Context(generator=stream(0, "golden")))
    found: dict[str, Any] = {"Y": mixed.materialise()}
    if parts == ["arc"] and mixed.coefficients is not None:
        shortened = mixed.coefficients.diagonal() < 1
        length = torch.linalg.vector_norm(found["Y"], dim=1).double().cpu()
        found |= {"n_clipped": int(shortened.sum()), "threshold": float(length.max())}
    if parts == ["nnm"] and mixed.coefficients is not None:
        found["neighbours"] = [row.nonzero().flatten().tolist() for row in mixed.coefficients]
    return found


def _buckets(case: Case, X: torch.Tensor, f: int) -> dict[str, Any]:
    """The permutation is given: what the step does once it has drawn one."""
    step = create("defense", "bucketing", **{k: v for k, v in case.params.items() if k == "s"})
    order = torch.tensor([int(i) for i in case.inputs["permutation"]])
    return {"Y": Mixed(Stack(X), grouped(order, step.size(len(X), f))).materialise()}


def _krum_variants(case: Case, on: Arithmetic) -> dict[str, Any]:
    X, f = on.tensor(case.inputs["X"]), case.params["f"]
    found = {}
    for variant in case.expected:
        result = robustfl.defense("krum", variant=variant).run(X, f=f, context=Context())
        found[variant] = result.facts["selected"][0]
        assert torch.equal(result.vector, X[found[variant]])
    return found


_SECTIONS = {
    "1.2": ["weighted_average"],
    "4.1": ["average", "weighted_average"],
    "4.2": ["median"],
    "4.3": ["trimmed_mean"],
    "4.4": ["nnm"],
    "4.5": ["krum", "multikrum"],
    "4.6": ["geometric_median"],
    "4.7": ["centred_clipping"],
    "4.8": ["bucketing"],
    "4.9": ["meamed"],
    "4.10": ["mda"],
    "4.11": ["bulyan"],
    "4.12": ["fltrust"],
    "4.13": ["static_clipping", "clipping", "arc"],
    "4.14": ["caf"],
    "4.15": ["signsgd_majority"],
    "4.16": ["dnc"],
}
DRIVERS = {(spec, name): _rule for spec, names in _SECTIONS.items() for name in names}
DRIVERS["4.5", "krum_variants"] = _krum_variants
