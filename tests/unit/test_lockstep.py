"""FedTAN in the engine: one gradient of all batches, and what attackers of its exchanges do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustfl.contracts import NormLayer
from robustfl.engine import train
from robustfl.engine.clients import Clients
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell


def settings(**more: object) -> Cell:
    base = {"evasions": [], "clients": 5, "batch": 8, "rounds": 4, "dtype": "float64", "partition": "classes(k=4)"}
    return Cell.of({**base, "algorithm": "dsgd(momentum=0)", **more})


def test_second_phase_of_fedtan_ii_freezes_statistics_and_goes_on_training() -> None:
    cell = settings(norm="fedtan-ii(switch_round=2)", algorithm="fedavg(local_steps=2)")
    seen = [(r.state.theta.clone(), r.state.statistics.clone()) for r in train(build(cell).experiment)]
    assert not torch.equal(seen[0][1], seen[1][1])
    assert torch.equal(seen[1][1], seen[3][1])
    assert not torch.equal(seen[2][0], seen[3][0])


N, F, ROUNDS, LR, EPS, BETA = 6, 1, 3, 0.1, 1e-5, 0.1
Exchange = Callable[[str, Tensor], Tensor]


def rule(name: str, rows: np.ndarray[Any, Any], basis: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``median``, or ``trimmed-mean`` of nearest-neighbor means that are found on ``basis``."""
    if name == "median":
        return np.asarray(np.median(rows, axis=0))
    apart = ((basis[:, None] - basis[None]) ** 2).sum(-1)
    near = np.argsort(apart, axis=1, kind="stable")[:, : N - F]
    return np.asarray(np.sort(rows[near].mean(1), axis=0)[F : N - F].mean(0))


class Shared(torch.autograd.Function):
    """One layer's normalised outputs of all clients, with the server between them forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, seen: list[Any], *z: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        mean = exchange("mean", torch.stack([x.mean(0) for x in z]))
        variance = exchange("variance", torch.stack([((x - mean) ** 2).mean(0) for x in z]))
        ctx.exchange, r = exchange, (variance + EPS).rsqrt()
        ctx.save_for_backward(mean, r, *z)
        seen.append((mean, variance, sum(map(len, z))))
        return tuple((x - mean) * r for x in z)

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Any:  # type: ignore[override]
        mean, r, *z = ctx.saved_tensors
        by_variance = torch.stack([-0.5 * r**3 * (g * (x - mean)).sum(0) for g, x in zip(d, z, strict=True)])
        by_mean = torch.stack([-r * g.sum(0) for g in d])
        V, M = ctx.exchange("variance's gradient", by_variance), ctx.exchange("mean's gradient", by_mean)
        pairs = zip(d, z, strict=True)
        return None, None, *(r * g + 2 / len(x) * (x - mean) * V + M / len(x) for g, x in pairs)


@pytest.mark.parametrize("target", ["mean", "var", "both"])
@pytest.mark.parametrize("defense", ["median", "nnm+trimmed-mean"])
def test_fedtan_under_sign_flipping(defense: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    drawn = Clients.batches

    def noted(self: Clients, ids: Any, round: int, step: int) -> Any:
        x, y, sizes = drawn(self, ids, round, step)
        parts = zip(ids, x.split(sizes), y.split(sizes), strict=True)
        batches.update({(round, k): (a.clone(), b.clone()) for k, a, b in parts})
        return x, y, sizes

    monkeypatch.setattr(Clients, "batches", noted)
    cell = Cell.model_validate(
        {"model": "mlp(hidden=(7, 5))", "norm": "fedtan", "clients": N, "f": F, "rounds": ROUNDS, "batch": 9}
        | {"attack": "sf", "defense": defense, "target": target, "algorithm": "dsgd(momentum=0.6)", "dtype": "float64"}
        | {"schedule": {"lr": LR}, "evasions": (), "partition": "dirichlet(alpha=2)"}
    )
    e = build(cell).experiment
    theta = {name: p.detach().clone() for name, p in e.model.named_parameters()}
    byzantine = e.settings.byzantine()
    order = [k for k in range(N) if k not in byzantine] + sorted(byzantine)
    records = [(r.state.theta.clone(), r.state.statistics.clone()) for r in train(e)]

    leaves = [(name, m) for name, m in e.model.named_modules() if not list(m.children())]
    statistics = [(torch.zeros(k).double(), torch.ones(k).double()) for k in (7, 5)]
    momenta = {(k, name): torch.zeros_like(p) for k in range(N) for name, p in theta.items()}
    reached = ("mean", "variance") if target == "both" else ("mean",) if target == "mean" else ("variance",)

    def exchange(kind: str, rows: Tensor) -> Tensor:
        sent = rows.detach().numpy().copy()
        if kind.startswith(reached):
            sent[N - F :] = -sent[: N - F].mean(0)
            if kind == "variance":
                sent[N - F :] = sent[N - F :].clip(0)
        return torch.from_numpy(rule(defense, sent, sent))

    for t in range(ROUNDS):
        own = [{name: p.clone().requires_grad_() for name, p in theta.items()} for _ in order]
        h, seen = [batches[t, k][0] for k in order], list[Any]()
        for name, m in leaves:
            mine = [{k: w[f"{name}.{k}"] for k, _ in m.named_parameters()} for w in own]
            if isinstance(m, NormLayer):
                made = Shared.apply(exchange, seen, *h)
                h = [z * w["weight"] + w["bias"] for z, w in zip(made, mine, strict=True)]
            else:
                h = [torch.func.functional_call(m, w, (z,)) if w else m(z) for z, w in zip(h, mine, strict=True)]
        losses = [nn.functional.cross_entropy(z, batches[t, k][1]) for z, k in zip(h, order, strict=True)]
        sum(losses, torch.zeros(())).backward()
        for k, w in zip(order, own, strict=True):
            for name, p in w.items():
                momenta[k, name] = 0.6 * momenta[k, name] + 0.4 * p.grad
        sent = torch.stack([torch.cat([momenta[k, s.name].flatten() for s in e.layout.update]) for k in order]).numpy()
        sent[N - F :] = -sent[: N - F].mean(0)
        step = torch.from_numpy(rule(defense, sent, sent))
        for slot in e.layout.update:
            theta[slot.name] = theta[slot.name] - LR * step[slot.start : slot.stop].view_as(theta[slot.name])
        for i, (mean, variance, K) in enumerate(seen):
            moved = (
                (1 - BETA) * statistics[i][0] + BETA * mean,
                (1 - BETA) * statistics[i][1] + BETA * K / (K - 1) * variance,
            )
            rows = [np.repeat(own_.numpy()[None], N, axis=0) for own_ in moved]
            if target != "var":
                rows[0][N - F :] *= -1
            if target != "mean":
                rows[1][N - F :] = 0
            basis = np.concatenate(rows, axis=1)
            statistics[i] = (
                torch.from_numpy(rule(defense, rows[0], basis)),
                torch.from_numpy(rule(defense, rows[1], basis)),
            )
        found, served = records[t]
        for slot in e.layout.update:
            there = found[slot.start : slot.stop].view_as(theta[slot.name])
            torch.testing.assert_close(there, theta[slot.name], rtol=1e-9, atol=1e-12)
        for layer, (mean, variance) in zip(e.layout.layers, statistics, strict=True):
            torch.testing.assert_close(served[layer.mean], mean, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(served[layer.variance], variance, rtol=1e-9, atol=1e-12)
