"""Golden cases of §2.1-2.4 and 4.17: normalization layers, what clients report, how the server merges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from drivers_aggregators import pipeline_parts
from golden_cases import Arithmetic, Case

import robustfl
from robustfl.contracts import Context, Norm, StatisticsSlices
from robustfl.defenses.aggregation import DefendedStatistics
from robustfl.engine.statistics import begin, collect
from robustfl.layout import layout_of, read_statistics, write_statistics


@dataclass(frozen=True)
class _Round:
    outputs: tuple[torch.Tensor, ...]
    messages: torch.Tensor
    server: torch.Tensor


class _Federation:
    """Clients with one normalization layer, and the server's plain mean weighted by values."""

    def __init__(self, norm: Norm, like: torch.Tensor, *, affine: tuple[torch.Tensor, ...] = ()) -> None:
        self.norm = norm
        self.network = torch.nn.Sequential(norm.layer(like.shape[1])).to(like).train()
        for parameter, value in zip(self.network[0].parameters(), affine, strict=bool(affine)):
            parameter.data.copy_(value)
        self.layout = layout_of(self.network)

    def round(self, batches: list[torch.Tensor]) -> _Round:
        x, sizes = torch.cat(batches), tuple(len(batch) for batch in batches)
        before = read_statistics(self.network, self.layout, x)
        begin(self.network, sizes)
        outputs = self.network(x).detach().split(sizes)
        reports = collect(self.network, self.layout)
        messages = self.norm.messages(reports, before, self.layout.layers)
        weights = torch.tensor(sizes, dtype=torch.float64, device=x.device)
        mean = DefendedStatistics(robustfl.defense("mean"), 0, Context(weights=weights))
        after = self.norm.merge(messages, reports.counts, before, self.layout.layers, mean)
        write_statistics(self.network, self.layout, after)
        return _Round(outputs, messages, after)

    def start(self, mean: float, variance: float) -> None:
        row = self.layout.initial_statistics(self.network[0].weight.detach())
        write_statistics(self.network, self.layout, mean + (variance - mean) * row)


def _halves(row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = row.chunk(2, dim=-1)
    return first, second


def _rounds(case: Case, on: Arithmetic) -> dict[str, Any]:
    """FBN next to one machine's batch normalization and to naive averaging, on the same inputs."""
    batches = [[on.tensor(batch) for batch in one["U"]] for one in case.inputs["rounds"]]
    affine = (on.tensor(case.inputs["gamma"]), on.tensor(case.inputs["zeta"]))
    settings = {"momentum": case.params["beta"], "eps": case.params["eps"]}
    schemes = {
        name: _Federation(robustfl.norm(scheme, **settings), batches[0][0], affine=affine)
        for name, scheme in (("server", "fbn"), ("centralised", "centralised-bn"), ("naive", "naive-bn"))
    }
    for federation in schemes.values():
        federation.start(case.params.get("init_mean", 0.0), case.params.get("init_var", 1.0))
    found = []
    for one in batches:
        done = {name: federation.round(one) for name, federation in schemes.items()}
        entry: dict[str, Any] = {"normalised": [part.tolist() for part in done["server"].outputs]}
        entry["client_run_mean"], entry["client_run_var"] = _halves(done["server"].messages)
        for name in schemes:
            entry[f"{name}_mean"], entry[f"{name}_var"] = _halves(done[name].server)
        found.append(entry)
    return {"rounds": found}


def _one_round(case: Case, on: Arithmetic) -> dict[str, Any]:
    batches = [on.tensor(batch) for batch in case.inputs["X"]]
    norm = robustfl.norm("fbn", momentum=case.params["beta"], eps=case.params.get("eps", 1e-5))
    mean, variance = _halves(_Federation(norm, batches[0]).round(batches).server)
    return {"server_mean": mean, "server_var": variance}


def _robust_server(case: Case, on: Arithmetic) -> dict[str, Any]:
    means, variances = on.tensor(case.inputs["client_run_mean"]), on.tensor(case.inputs["client_run_var"])
    n, width = means.shape
    rows = torch.cat([means, variances], dim=1)
    counts = torch.full((n, 1), case.params["K"], device=on.device)  # K is the number of values of each client
    layers = (StatisticsSlices("layer", slice(0, width), slice(width, 2 * width)),)
    norm, previous = robustfl.norm("fbn", momentum=case.params["beta"]), torch.zeros_like(rows[0])
    found = {}
    for name in case.expected:
        rule = robustfl.defense("+".join(pipeline_parts(name)))
        defense = DefendedStatistics(rule, case.params["f"], Context())
        mean, variance = _halves(norm.merge(rows, counts, previous, layers, defense))
        found[name] = {"mean": mean, "var": variance}
    return found


def _per_sample(case: Case, on: Arithmetic) -> dict[str, Any]:
    x, eps = on.tensor(case.inputs["x"]), case.params["eps"]
    groups = case.params["groups"]
    norms = {"group": {"name": "gn", "groups": groups}, "layer": {"name": "ln"}, "instance": {"name": "in"}}
    norm = robustfl.norm(**norms[case.name.split("_")[0]], eps=eps)
    found = norm.layer(x.shape[1]).to(x)(x)
    same = robustfl.norm("gn", groups=groups, eps=eps).layer(x.shape[1]).to(x)(x)
    torch.testing.assert_close(found, same)
    return {"y": found}


def _batch_norm(case: Case, on: Arithmetic) -> dict[str, Any]:
    x = on.tensor(case.inputs["x"])
    norm = robustfl.norm("naive-bn", momentum=case.params["momentum"], eps=case.params["eps"])
    federation = _Federation(norm, x)
    federation.start(*case.params["init"])
    done = federation.round([x])
    mean, variance = _halves(done.server)
    return {"y": done.outputs[0], "running_mean": mean, "running_var": variance}


DRIVERS = {
    ("2.1", "batch_norm"): _batch_norm,
    ("2.2", "equal_batches"): _rounds,
    ("2.2", "unequal_batches"): _rounds,
    ("2.2", "conv"): _one_round,
    ("2.2/4.17", "robust_server"): _robust_server,
    ("2.4", "group_norm"): _per_sample,
    ("2.4", "layer_norm"): _per_sample,
    ("2.4", "instance_norm"): _per_sample,
}
