"""Drives the cases of §2: layers, reports and merges of normalization schemes."""

from __future__ import annotations

from typing import Any

import torch
from cases import Case, Mode, need, undriven
from drivers_aggregators import rule_name
from torch import nn

import robustfl
from robustfl.contracts import Context, Norm, StatisticsSlices
from robustfl.federation.statistics import DefendedStatistics, PlainMean, begin, collect
from robustfl.vectors import layout_of, write_statistics

LATER = {3: "fixbn", 5: "fedbn", 6: "silobn", 8: "fedtan", 9: "fedtan", 10: "fedtan", 12: "hbn", 13: "fedfn", 14: "fedwon"}


def run(case: Case, mode: Mode) -> dict[str, Any]:
    number = case.section[1]
    if number in (1, 2) and "client_run_mean" in case.inputs:
        return _robust_merge(case, mode)
    if number == 2:
        return _fbn(case, mode)
    if number == 1:
        return _batch_norm(case, mode)
    if number == 4:
        return {"y": _layer(_instance_of_group_norm(case), case, mode)(mode.tensor(case.inputs["x"]))}
    need("any", LATER.get(number, f"of §2.{number}"))
    return undriven(case)


def _layer(norm: Norm, case: Case, mode: Mode, channels: int | None = None) -> nn.Module:
    """The scheme's layer in the numbers of the mode, with the case's scale and shift if it has them."""
    layer = norm.layer(channels or torch.tensor(case.inputs["x"]).shape[1]).to(dtype=mode.dtype, device=mode.device)
    with torch.no_grad():
        for name, keys in (("weight", ("gamma",)), ("bias", ("zeta", "beta"))):
            for key in keys:
                if key in case.inputs:
                    getattr(layer, name).copy_(mode.tensor(case.inputs[key]))
    return layer


def _instance_of_group_norm(case: Case) -> Norm:
    eps = {"eps": case.params["eps"]} if "eps" in case.params else {}
    if "layer" in case.name:
        return robustfl.norm("ln", **eps)
    if "instance" in case.name:
        return robustfl.norm("in", **eps)
    return robustfl.norm("gn", groups=case.params["groups"], **eps)


class _Rounds:
    """A layer and its server over several rounds, as the engine runs them."""

    def __init__(self, norm: Norm, layer: nn.Module, mode: Mode) -> None:
        self._norm, self._network = norm, nn.Sequential(layer)
        self._layout = layout_of(self._network)
        self._previous = self._layout.initial_statistics(mode.tensor(0.0))

    def round(self, batches: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        """What the clients' layers put out, the messages ``[n 2C]`` and the server's new statistics ``[2C]``."""
        sizes = tuple(len(batch) for batch in batches)
        write_statistics(self._network, self._layout, self._previous)
        begin(self._network, sizes)
        with torch.no_grad():
            out = self._network(torch.cat(batches))
        reports = collect(self._network, self._layout, clients=len(batches))
        layers, weights = self._layout.layers, reports.counts[:, 0].double()
        messages = self._norm.messages(reports, self._previous, layers)
        self._previous = self._norm.merge(messages, reports.counts, self._previous, layers, PlainMean(weights))
        return list(out.split(sizes)), messages, self._previous


def _fbn(case: Case, mode: Mode) -> dict[str, Any]:
    rounds = [r["U"] for r in case.inputs["rounds"]] if "rounds" in case.inputs else [case.inputs["X"]]
    batches = [[mode.tensor(u) for u in one] for one in rounds]
    assert (case.params.get("init_mean", 0.0), case.params.get("init_var", 1.0)) == (0.0, 1.0)
    settings = {"momentum": case.params["beta"]} | ({"eps": case.params["eps"]} if "eps" in case.params else {})
    C = batches[0][0].shape[1]
    schemes = {key: robustfl.norm(key, **settings) for key in ("fbn", "centralised-bn", "naive-bn")}
    servers = {key: _Rounds(norm, _layer(norm, case, mode, C), mode) for key, norm in schemes.items()}
    results = []
    for one in batches:
        normalised, messages, server = servers["fbn"].round(one)
        result = {
            "normalised": [y.tolist() for y in normalised],
            "client_run_mean": messages[:, :C],
            "client_run_var": messages[:, C:],
            "server_mean": server[:C],
            "server_var": server[C:],
        }
        for key, short in (("centralised-bn", "centralised"), ("naive-bn", "naive")):
            merged = servers[key].round(one)[2]
            result |= {f"{short}_mean": merged[:C], f"{short}_var": merged[C:]}
        results.append(result)
    return {"rounds": results} if "rounds" in case.inputs else results[0]


def _robust_merge(case: Case, mode: Mode) -> dict[str, Any]:
    """Received running statistics merged under every rule the case names."""
    means, variances = mode.tensor(case.inputs["client_run_mean"]), mode.tensor(case.inputs["client_run_var"])
    n, C = means.shape
    layers = [StatisticsSlices("layer", slice(0, C), slice(C, 2 * C))]
    messages = torch.cat([means, variances], dim=1)
    values = case.params["K"]  # of every client, or one by one
    counts = torch.tensor([values] * n if isinstance(values, int) else values, device=mode.device)[:, None]
    norm = robustfl.norm("fbn", momentum=case.params["beta"])
    results = {}
    for words in case.expected:
        defense = robustfl.defense(rule_name(words))
        server = DefendedStatistics(defense, case.params["f"], Context())
        merged = norm.merge(messages, counts, torch.zeros_like(messages[0]), layers, server)
        results[words] = {"mean": merged[:C], "var": merged[C:]}
    return results


def _batch_norm(case: Case, mode: Mode) -> dict[str, Any]:
    x = mode.tensor(case.inputs["x"])
    norm = robustfl.norm("naive-bn", momentum=case.params["momentum"], eps=case.params["eps"])
    (y,), _, statistics = _Rounds(norm, _layer(norm, case, mode), mode).round([x])
    C = x.shape[1]
    return {"y": y, "running_mean": statistics[:C], "running_var": statistics[C:]}
