"""Drives the cases of §4: ``inputs.X`` through a defense."""

from __future__ import annotations

import re
from typing import Any

import torch
from cases import Case, Mode, NotThereYet, need, undriven

import robustfl
from robustfl.contracts import Context, Step
from robustfl.registry import entries

# §4.8 and later: the rule, and whether X and f alone drive it.
LATER = {
    8: (("bucketing",), False),
    9: (("meamed",), True),
    10: (("mda",), True),
    11: (("bulyan",), True),
    12: (("fltrust",), False),
    13: (("arc", "clipping", "static-clipping"), False),
    14: (("caf",), True),
    15: (("sign-majority", "signsgd"), True),
    16: (("dnc",), False),
    18: (("fedrbn",), False),
}


def rule_name(words: str) -> str:
    """The pipeline a name speaks of: ``linear_search_foe_nnm_trimmed_mean`` to ``nnm+trimmed-mean``."""
    rules = {e.name.replace("-", "_"): e.name for e in entries("defense") if not issubclass(e.cls, Step)}
    rules |= {name.replace("-", "_"): name for names, _ in LATER.values() for name in names}
    rules |= {"average": "mean", "centred_clipping": "centered-clipping", "multikrum": "multi-krum"}
    longest_first = "|".join(sorted(rules, key=len, reverse=True))
    found = re.search(rf"(?P<steps>((nnm|bucketing)_)*)(?P<rule>{longest_first})", words)
    if found is None:
        raise NotThereYet(f"no rule that the name {words!r} speaks of is there yet")
    steps = [need("defense", step) for step in found["steps"].split("_") if step]
    return "+".join([*steps, need("defense", rules[found["rule"]])])


def run(case: Case, mode: Mode) -> dict[str, Any]:
    number = case.section[1]
    if number in LATER:
        return _later(case, mode, number)
    X, f = mode.tensor(case.inputs["X"]), case.params.get("f", 0)
    if number == 4:
        return _mixing(case, X, f)
    if number == 5:
        return _krum(case, X, f)
    if number == 6:
        return _geometric_median(case, X, f)
    if number == 7:
        params = {key: case.params[key] for key in ("tau", "L") if key in case.params}
        rule = robustfl.defense("centered-clipping", **params)
        state = {"v": mode.tensor(case.inputs["v0"])} if "v0" in case.inputs else {}
        return {"y": rule(X, f, state=state)}
    return {"y": robustfl.defense({1: "mean", 2: "median", 3: "trimmed-mean"}[number])(X, f)}


def weighted_mean(case: Case, mode: Mode) -> dict[str, Any]:
    """§1.2: the mean by numbers of samples."""
    weights = torch.tensor(case.inputs["n_samples"], dtype=torch.float64)
    return {"y": robustfl.defense("mean")(mode.tensor(case.inputs["X"]), weights=weights)}


def _mixing(case: Case, X: torch.Tensor, f: int) -> dict[str, Any]:
    if "y" in case.expected:
        return {"y": robustfl.defense(rule_name(case.name))(X, f)}
    step = robustfl.defense("nnm+mean").steps[0]
    rows = X.double() - X[0].double()
    mix = step.mix((rows @ rows.T).cpu(), f=f, context=Context())
    return {"Y": mix.to(X) @ X, "neighbours": [row.nonzero().flatten().tolist() for row in mix]}


def _krum(case: Case, X: torch.Tensor, f: int) -> dict[str, Any]:
    def selected(name: str, **params: Any) -> tuple[torch.Tensor, list[int]]:
        result = robustfl.defense(name, **params).run(X, f=f, context=Context())
        return result.vector, result.facts["selected"]

    variants = [key for key in case.expected if key in ("blanchard", "nf")]
    if variants:
        return {v: selected("krum", variant=v)[1][0] for v in variants}
    params = {key: case.params[key] for key in ("variant", "m") if key in case.params}
    if "m" in params or "multi" in case.name:
        y, chosen = selected("multi-krum", **params)
        return {"y": y, "selected": sorted(chosen)}
    y, chosen = selected("krum", **params)
    return {"y": y, "index": chosen[0]}


def _geometric_median(case: Case, X: torch.Tensor, f: int) -> dict[str, Any]:
    given = case.params
    params: dict[str, Any] = {key: given[key] for key in ("nu", "init", "tol") if key in given}
    if "T" in given:
        params |= {"max_steps": given["T"], "tol": 0.0}
    else:
        params["max_steps"] = 10_000
    y = robustfl.defense("geometric-median", **params)(X, f)
    return {"y": y, "objective": float((X.double() - y.double()).norm(dim=1).sum())}


def _later(case: Case, mode: Mode, number: int) -> dict[str, Any]:
    names, plain = LATER[number]
    if number == 13:
        names = ("arc",) if "arc" in case.name else ("clipping", "static-clipping")
    name = need("any", *names)
    if not plain or set(case.params) - {"f"}:
        return undriven(case)
    return {"y": robustfl.defense(name)(mode.tensor(case.inputs["X"]), case.params.get("f", 0))}
