"""Runs of AT users and of backdoors, written once more as functions of θ, under several norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.federation import train
from robustfl.randomness import numpy_stream, stream
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

HIDDEN, CLIENTS, BATCH, ROUNDS, STEPS, EPS = 12, 6, 16, 3, 2, 0.1
SIZES = [(HIDDEN, 64), (HIDDEN,), (HIDDEN,), (HIDDEN,), (10, HIDDEN), (10,)]
SHAPES = [torch.Size(s) for s in SIZES]
AFFINE = torch.cat([torch.full((s.numel(),), place in (2, 3)) for place, s in enumerate(SHAPES)])
PRIVATE = {"fedbn": AFFINE, "singlenet": torch.ones_like(AFFINE)}
OWN_STATISTICS = ("fedbn", "silobn", "singlenet")
SMALL: dict[str, Any] = {
    "dataset": "digits(limit=300, test_limit=150)", "model": f"mlp(hidden=({HIDDEN},))", "clients": CLIENTS,
    "rounds": ROUNDS, "batch": BATCH, "dtype": "float64", "scaling": "unit",
    "algorithm": f"fedavg(local_steps={STEPS})",
    "partition": "dirichlet(alpha=1, min_size=20)",
    "evasions": [f"pgd(steps=3, eps={EPS}, step=0.05, random_start=false)"],
}  # fmt: skip
AT: dict[str, Any] = {
    "objective": "at(weight=0.3)", "at": "users(ids=(0, 2, 3))", "train_evasion": f"pgd(steps=2, eps={EPS}, step=0.07)",
    "participation": 0.5,
}  # fmt: skip


class Scheme:
    """The statistics that a client starts with, uses and sends."""

    def __init__(self, norm: str, mean: Tensor, variance: Tensor) -> None:
        self.norm, self.mean, self.variance = norm, mean, variance
        self.seen: list[Tensor] = []

    def logits(self, theta: Tensor, x: Tensor, *, training: bool = False) -> Tensor:
        w = [part.view(s) for part, s in zip(theta.split([s.numel() for s in SHAPES]), SHAPES, strict=True)]
        u = F.linear((x.flatten(1) - 0.5) / 0.5, w[0], w[1])
        mean, variance = self.mean, self.variance
        if training:
            self.seen.append(u.detach())
            if "fbn" not in self.norm:
                mean, variance = u.mean(0), u.var(0, correction=0)
                self.mean = 0.9 * self.mean + 0.1 * mean.detach()
                self.variance = 0.9 * self.variance + 0.1 * u.detach().var(0)
        return F.linear((w[2] * (u - mean) / (variance + 1e-5).sqrt() + w[3]).relu(), w[4], w[5])


def merged(
    norm: str, sent: list[Scheme], weights: list[float], m: Tensor, v: Tensor, values: list[int]
) -> tuple[Tensor, Tensor]:
    """The server's statistics after a round in which client ``k`` normalised ``values[k]`` images."""
    total = sum(values)
    if norm == "naive-bn":
        means, variances = ([getattr(s, n) for s in sent] for n in ("mean", "variance"))
        return averaged(weights, means), averaged(weights, variances)
    shares = [k / total for k in values]
    if norm == "fbn-hbn-repo":  # plain means over batches, and deviations from a mean that has hardly moved
        means = [torch.stack([u.mean(0) for u in s.seen]).mean(0) for s in sent]
        within = [torch.stack([u.var(0, correction=0) for u in s.seen]).mean(0) for s in sent]
        new = 0.9 * m + 0.1 * averaged(shares, means)
        spread = averaged(shares, [b + (a - new) ** 2 for a, b in zip(means, within, strict=True)])
        return new, 0.9 * v + 0.1 * spread * total / (total - 1)
    union = torch.cat([u for s in sent for u in s.seen])
    return 0.9 * m + 0.1 * union.mean(0), 0.9 * v + 0.1 * union.var(0)


def averaged(weights: list[float], parts: list[Tensor]) -> Tensor:
    return torch.stack([w * p for w, p in zip(weights, parts, strict=True)]).sum(0)


def pgd(net: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, start: Tensor, steps: int, step: float) -> Tensor:
    for _ in range(steps):
        start = start.clone().requires_grad_(True)
        (up,) = torch.autograd.grad(F.cross_entropy(net(start), y, reduction="sum"), start)
        moved = start.detach() + step * up.sign()
        start = torch.minimum(torch.maximum(moved, x - EPS), x + EPS).clamp(0, 1)
    return start


def bars(x: Tensor, which: range) -> Tensor:
    """DBA's bars of 3 pixels, two in a row, two pixels apart each way."""
    x = x.clone()
    for i in which:
        row, column = 3 * (i // 2), 5 * (i % 2)
        x[:, :, row, column : column + 3] = 1.0
    return x


def poisoned(attack: str, x: Tensor, y: Tensor, place: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    chosen = torch.randperm(len(y), generator=draws)[: math.ceil(len(y) / 2)]
    x, y = x.clone(), y.clone()
    x[chosen] = bars(x[chosen], range(place % 4, place % 4 + 1)) if "dba" in attack else 1 - x[chosen]
    y[chosen] = 0
    return x, y


CASES = [
    *[(norm, AT) for norm in ("naive-bn", "silobn", "fedbn", "singlenet", "fbn", "fbn-hbn-repo")],
    *[(norm, {"attack": a, "f": 2}) for norm, a in (("fbn-hbn-repo", "dba(fraction=0.5)"), ("naive-bn", "edge-case"))],
]


@pytest.mark.parametrize(("norm", "more"), CASES, ids=[f"{n} {m.get('attack', 'AT')}" for n, m in CASES])
def test_users_who_train_adversarially_and_backdoors(norm: str, more: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    cell = Cell.of({**SMALL, **more, "norm": norm})
    built = build(cell)
    e, theta = built.experiment, built.experiment.flat.clone()
    *_, last = train(e)
    pixels = lambda data: torch.from_numpy(data.x.numpy() / 255.0).permute(0, 3, 1, 2)  # noqa: E731
    images, labels, private = pixels(e.train), e.train.y, PRIVATE.get(norm, torch.zeros_like(AFFINE))
    order = numpy_stream(0, "byzantine").permutation(CLIENTS).tolist()
    attackers, hardened = sorted(order[: cell.f]), {0, 2, 3} if more is AT else set()
    start = torch.zeros(HIDDEN).double(), torch.ones(HIDDEN).double()
    shared, own, models = start, [start] * CLIENTS, [theta] * CLIENTS
    for t in range(ROUNDS):
        here = list(range(CLIENTS))
        if more is AT:
            here = sorted(numpy_stream(0, "participation", t).permutation(CLIENTS).tolist()[: CLIENTS // 2])
        sent, local, values = [], [], []
        for k in here:
            scheme = Scheme(norm, *(own[k] if norm in OWN_STATISTICS else shared))
            w, part, draws = torch.where(private, models[k], theta), e.parts[k].numpy(), stream(0, "objective", k, t, 0)
            least = 1 if "fbn" in norm else 2  # batch normalization leaves out a rest of one sample
            per_epoch = (len(part) - least) // BATCH + 1
            values.append(0)
            for s in range(STEPS):
                epoch, place = divmod(t * STEPS + s, per_epoch)
                index = part[numpy_stream(0, "batch", k, epoch).permutation(len(part))]
                index = index[place * BATCH : (place + 1) * BATCH]
                x, y = images[index], labels[index]
                if k in attackers:
                    x, y = poisoned(cell.attack, x, y, attackers.index(k), stream(0, "poison", k, t, s))
                v = w.clone().requires_grad_(True)
                loss = F.cross_entropy(scheme.logits(v, x, training=True), y)
                values[-1] += len(y)
                if k in hardened:
                    noise = torch.empty_like(x).uniform_(-EPS, EPS, generator=draws)
                    found = pgd(lambda z: scheme.logits(w, z), x, y, (x + noise).clamp(0, 1), 2, 0.07)  # noqa: B023
                    loss = 0.7 * loss + 0.3 * F.cross_entropy(scheme.logits(v, found, training=True), y)
                    values[-1] += len(y)
                w = w - 0.1 * torch.autograd.grad(loss, v)[0]
            models[k], own[k] = w, (scheme.mean, scheme.variance)
            sent.append(scheme)
            local.append(w)
        total = sum(len(e.parts[k]) for k in here)
        weights = [len(e.parts[k]) / total for k in here]
        theta = torch.where(private, theta, averaged(weights, local))
        if norm not in OWN_STATISTICS:
            shared = merged(norm, sent, weights, *shared, values)
    torch.testing.assert_close(last.state.theta[~private], theta[~private], rtol=1e-9, atol=1e-11)

    x, y, metrics = pixels(built.test), built.test.y, run_cell(cell, fingerprint="x").metrics
    assert metrics is not None
    users = range(CLIENTS) if norm in OWN_STATISTICS else [0]
    sa, ra = [], []
    for k in users:
        scheme = Scheme(norm, *(own[k] if norm in OWN_STATISTICS else shared))
        net = lambda z, k=k, scheme=scheme: scheme.logits(torch.where(private, models[k], theta), z)  # noqa: E731
        sa.append(float((net(x).argmax(1) == y).double().mean()))
        ra.append(float((net(pgd(net, x, y, x, 3, 0.05)).argmax(1) == y).double().mean()))
    assert metrics.sa == pytest.approx(sum(sa) / len(sa), abs=1e-12)
    assert list(metrics.ra.values()) == pytest.approx([sum(ra) / len(ra)], abs=1e-12)
    if cell.f:
        others = x[y != 0]
        triggered = bars(others, range(4)) if "dba" in cell.attack else 1 - others
        assert metrics.asr == pytest.approx(float((net(triggered).argmax(1) == 0).double().mean()), abs=1e-12)
