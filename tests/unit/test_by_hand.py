"""Whole rounds written once more, from the formulas alone, with torch's own layers: the engine must do the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.engine import Experiment, State, train
from robustfl.randomness import numpy_stream
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

HIDDEN, CLIENTS, BATCH, ROUNDS = 20, 6, 16, 4
UNEQUAL: dict[str, Any] = {
    "dataset": "digits(limit=300)", "model": f"mlp(hidden=({HIDDEN},))", "norm": "naive-bn", "evasions": [],
    "clients": CLIENTS, "batch": BATCH, "rounds": ROUNDS, "dtype": "float64", "participation": 0.5,
    "partition": "dirichlet(alpha=0.5, min_size=17)",
}  # fmt: skip


def engine(cell: Cell) -> tuple[Experiment, Tensor, State]:
    torch.set_num_threads(1)
    e = build(cell).experiment
    initial, last = e.flat.clone(), None
    for record in train(e):
        last = record.state
    assert last is not None
    return e, initial, last


def images(e: Experiment) -> Tensor:
    return e.model[0](torch.from_numpy(e.train.x.numpy() / 255.0).permute(0, 3, 1, 2)).flatten(1)


class Network:
    """One hidden layer with torch's own normalization, and its state as vectors."""

    def __init__(self, inputs: int, norm: str) -> None:
        self.norm = {"naive-bn": nn.BatchNorm1d(HIDDEN), "gn": nn.GroupNorm(2, HIDDEN)}[norm]
        self.body = nn.Sequential(nn.Linear(inputs, HIDDEN), self.norm, nn.ReLU()).double()
        self.head = nn.Linear(HIDDEN, 10).double()
        self.parameters = [*self.body.parameters(), *self.head.parameters()]

    def load(self, theta: Tensor) -> None:
        start = 0
        for p in self.parameters:
            p.data.copy_(theta[start : start + p.numel()].view_as(p))
            start += p.numel()

    def theta(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def statistics(self) -> Tensor:
        found = [b.double() for b in (getattr(self.norm, n, None) for n in ("running_mean", "running_var"))
                 if b is not None]  # fmt: skip
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)

    def load_statistics(self, row: Tensor) -> None:
        if len(row):
            self.norm.running_mean.copy_(row[:HIDDEN])
            self.norm.running_var.copy_(row[HIDDEN:])

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.parameters)])


def batches_per_epoch(samples: int, least: int) -> int:
    rest = samples % BATCH
    return math.ceil((samples - rest if 0 < rest < least else samples) / BATCH)


def chosen(e: Experiment, client: int, step: int, per_epoch: int) -> np.ndarray:
    epoch, place = divmod(step, per_epoch)
    part = e.parts[client].numpy()
    order = numpy_stream(0, "batch", client, epoch).permutation(len(part))
    return part[order][place * BATCH : (place + 1) * BATCH]


def present(round: int) -> list[int]:
    return sorted(numpy_stream(0, "participation", round).permutation(CLIENTS).tolist()[: CLIENTS // 2])


def rounds_of_averaging(
    e: Experiment, initial: Tensor, *, method: str, epochs: int = 1, steps: int = 0, momentum: float = 0.0,
    decay: float = 0.0, clip: float = math.inf, uniform: bool = False, wsm: bool = False, norm: str = "naive-bn",
    rate: Callable[[int], float] = lambda t: 0.1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """θ and running statistics after all rounds of ``method``, a member of FedAvg's family."""
    x, y, net = images(e), e.train.y, Network(images(e).shape[1], norm)
    net.load(initial)
    theta, statistics = initial.clone(), net.statistics()
    first, second = torch.zeros_like(theta), torch.full_like(theta, 1e-6)
    variate, variates = torch.zeros_like(theta), torch.zeros(CLIENTS, len(theta), dtype=torch.float64)
    previous: dict[int, Tensor] = {}
    for t in range(ROUNDS):
        updates, rows, sizes, differences, counts = [], [], [], [], []
        received = theta + 0.85 * first if method == "fedacg" else theta
        for k in present(t):
            per_epoch = batches_per_epoch(len(e.parts[k]), 2 if norm == "naive-bn" else 1)
            tau, buffer = steps or epochs * per_epoch, None
            prior = torch.bincount(y[e.parts[k]], minlength=10).double() / len(e.parts[k])
            net.load(received)
            net.load_statistics(statistics)
            pair = 2 if method == "fedmeta" else 1
            tau = pair * math.ceil(tau / pair)
            for step in range(0, tau, pair):
                batch = chosen(e, k, t * tau + step, per_epoch)
                here = net.theta()
                frozen = []
                for other in (received, previous.get(k, received)) if method == "moon" else ():
                    net.load(other)
                    frozen.append(net.body(x[batch]).detach())
                    net.load(here)

                def gradient(batch: np.ndarray = batch, frozen: list[Tensor] = frozen, prior: Tensor = prior) -> Tensor:
                    h = net.body(x[batch])
                    z = net.head(h)
                    loss = F.cross_entropy(z, y[batch])
                    if wsm:
                        loss = ((z.exp() * prior).sum(1).log() - z[range(len(z)), y[batch]]).mean()
                    if frozen:
                        near, away = (torch.exp(F.cosine_similarity(h, other) / 0.5) for other in frozen)
                        loss = loss - torch.log(near / (near + away)).mean()
                    return net.gradient(loss)

                g = gradient()
                if method == "fedsam":
                    kept = net.statistics()
                    net.load(here + 0.1 * g / (g.norm() + 1e-12))
                    g = gradient()
                    net.load_statistics(kept)
                if method == "fedmeta":
                    net.load(here - 0.02 * g)
                    g = gradient(chosen(e, k, t * tau + step + 1, per_epoch))
                if method == "fedprox":
                    g = g + 0.3 * (here - received)
                if method == "fedprox-unsquared" and step:
                    g = g + 0.15 * (here - received) / (here - received).norm()
                if method == "fedacg":
                    g = g + 2e-3 * (here - received)
                if method == "scaffold":
                    g = g - variates[k] + variate
                g = g * min(1.0, clip / float(g.norm())) + decay * here
                buffer = g if buffer is None else momentum * buffer + g
                net.load(here - rate(t) * buffer)
            updates.append(net.theta() - received)
            if method == "fednova":
                counts.append(float(sum(momentum**i for j in range(tau) for i in range(j + 1))))
                updates[-1] = updates[-1] / counts[-1]
            rows.append(net.statistics())
            sizes.append(1 if uniform else len(e.parts[k]))
            previous[k] = net.theta()
            if method == "scaffold":
                differences.append(-variate - updates[-1] / (tau * rate(t)))
                variates[k] += differences[-1]
        p = torch.tensor(sizes, dtype=torch.float64)
        p /= p.sum()
        mean = p @ torch.stack(updates)
        statistics = p @ torch.stack(rows)
        if method in ("fedavgm", "fedacg"):
            first = {"fedavgm": 0.9, "fedacg": 0.85}[method] * first + mean
            theta = theta + first
        elif method == "fednova":
            theta = theta + float(p @ torch.tensor(counts, dtype=torch.float64)) * mean
        elif method == "fedadam":
            first, second = 0.9 * first + 0.1 * mean, 0.99 * second + 0.01 * mean**2
            theta = theta + 0.01 * first / (second.sqrt() + 1e-3)
        else:
            theta = theta + mean
        if differences:
            variate = variate + len(differences) / CLIENTS * torch.stack(differences).mean(0)
    return theta, statistics


GEOMETRIC = {"schedule": {"kind": "geometric", "lr": 0.1, "factor": 0.9}}
STEP = {"schedule": {"kind": "step", "values": [0.2, 0.05], "milestones": [2]}}
FULL = "fedavg(epochs=2, momentum=0.9, weight_decay=0.01, clip_norm=1)"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"algorithm": FULL, **GEOMETRIC},
         {"method": "fedavg", "epochs": 2, "momentum": 0.9, "decay": 0.01, "clip": 1, "rate": lambda t: 0.1 * 0.9**t}),
        ({"algorithm": "fedavg(local_steps=3)", **STEP},
         {"method": "fedavg", "steps": 3, "rate": lambda t: 0.2 if t < 2 else 0.05}),
        ({"algorithm": "fedavg(weighting=uniform)"}, {"method": "fedavg", "uniform": True}),
        ({"algorithm": "fedavg", "objective": "wsm", "norm": "gn", "validation": 0.1},
         {"method": "fedavg", "wsm": True, "norm": "gn"}),
        ({"algorithm": "fedprox(mu=0.3)"}, {"method": "fedprox"}),
        ({"algorithm": "fedprox(mu=0.3, clip_norm=0.3)"}, {"method": "fedprox", "clip": 0.3}),
        ({"algorithm": "fedprox(mu=0.3, legacy_unsquared=true)"}, {"method": "fedprox-unsquared"}),
        ({"algorithm": "fedavgm"}, {"method": "fedavgm"}),
        ({"algorithm": "fednova(epochs=2)"}, {"method": "fednova", "epochs": 2}),
        ({"algorithm": "fednova(epochs=2, momentum=0.6, weighting=uniform)"},
         {"method": "fednova", "epochs": 2, "momentum": 0.6, "uniform": True}),
        ({"algorithm": "fedadam"}, {"method": "fedadam"}),
        ({"algorithm": "fedacg"}, {"method": "fedacg"}),
        ({"algorithm": "fedsam"}, {"method": "fedsam"}),
        ({"algorithm": "fedmeta"}, {"method": "fedmeta"}),
        ({"algorithm": "moon", "norm": "gn"}, {"method": "moon", "norm": "gn"}),
        ({"algorithm": "scaffold(epochs=2)", "norm": "gn"},
         {"method": "scaffold", "epochs": 2, "uniform": True, "norm": "gn"}),
    ],
    ids=lambda v: str(v.get("algorithm", "")) if isinstance(v, dict) else None,
)  # fmt: skip
def test_rounds_of_unequal_clients_who_come_and_go(settings: dict[str, Any], told: dict[str, Any]) -> None:
    e, initial, state = engine(Cell.of({**UNEQUAL, **settings}))
    theta, statistics = rounds_of_averaging(e, initial, **told)
    torch.testing.assert_close(state.theta, theta, rtol=0, atol=1e-11)
    torch.testing.assert_close(state.statistics, statistics, rtol=0, atol=1e-11)


def test_scaffold_with_users_who_replay_their_batches_under_climbing_noise() -> None:
    settings = {"algorithm": "scaffold(epochs=2)", "norm": "gn", "at": "users(ids=(0, 1, 2))"}
    objective = "free-at(replays_per_batch=3, eps=0.05, step=0.04)"
    e, theta, state = engine(Cell.of({**UNEQUAL, **settings, "objective": objective}))
    pixels, y, net = torch.from_numpy(e.train.x.numpy() / 255.0).permute(0, 3, 1, 2), e.train.y, Network(64, "gn")
    variate, variates = torch.zeros_like(theta), torch.zeros(CLIENTS, len(theta), dtype=torch.float64)
    for t in range(ROUNDS):
        updates, differences = [], []
        for k in present(t):
            per_epoch, replays = batches_per_epoch(len(e.parts[k]), 1), 3 if k in (0, 1, 2) else 1
            batches, noise = 2 * per_epoch, torch.zeros(BATCH, *pixels.shape[1:], dtype=torch.float64)
            net.load(theta)
            for step in range(batches * replays):
                batch = chosen(e, k, t * batches + step // replays, per_epoch)
                part = noise[: len(batch)]
                inputs = (pixels[batch] + part).clamp(0, 1).requires_grad_(True)
                loss = F.cross_entropy(net.head(net.body(e.model[0](inputs).flatten(1))), y[batch])
                (up,) = torch.autograd.grad(loss, inputs, retain_graph=True)
                if replays > 1:
                    noise[: len(batch)] = (part + 0.04 * up.sign()).clamp(-0.05, 0.05)
                net.load(net.theta() - 0.1 * (net.gradient(loss) - variates[k] + variate))
            updates.append(net.theta() - theta)
            differences.append(-variate - updates[-1] / (batches * replays * 0.1))
            variates[k] += differences[-1]
        theta = theta + torch.stack(updates).mean(0)
        variate = variate + len(differences) / CLIENTS * torch.stack(differences).mean(0)
    torch.testing.assert_close(state.theta, theta, rtol=0, atol=1e-11)


def test_a_server_with_data_trains_from_the_model_it_hands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"algorithm": "fedacg(local_steps=1)", "norm": "gn", "defense": "fltrust", "server_samples": 20}
    e = build(Cell.of({**UNEQUAL, **settings, "batch": 20})).experiment
    rule, seen = type(e.defense.aggregator), []
    original = rule.reduce

    def noted(self: Any, *rows: Any, f: int, context: Any) -> Any:
        seen.append(context.reference.clone())
        return original(self, *rows, f=f, context=context)

    monkeypatch.setattr(rule, "reduce", noted)
    x, y, net = images(e), e.train.y, Network(64, "gn")
    received = e.flat.clone()
    for record, reference in zip(train(e), seen, strict=False):
        net.load(received)
        step = -0.1 * net.gradient(F.cross_entropy(net.head(net.body(x[e.root])), y[e.root]))
        torch.testing.assert_close(reference, step, rtol=0, atol=1e-11)
        received = record.state.theta + 0.85 * record.state.server["momentum"]
    assert len(seen) == ROUNDS


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedtan_is_the_gradient_of_the_weighted_loss_whoever_is_how_large(weighting: str) -> None:
    """``Σp_i g_i = ∇Σp_i L_i`` with the weights of the server, also where the last batch of an epoch is short."""
    settings = {"participation": 1.0, "norm": "fedtan", "algorithm": f"fedavg(local_steps=1, weighting={weighting})"}
    e, theta, state = engine(Cell.of({**UNEQUAL, **settings, "rounds": 6}))
    x, y, net = images(e), e.train.y, Network(images(e).shape[1], "naive-bn")
    sizes = torch.tensor([len(part) if weighting == "samples" else 1 for part in e.parts], dtype=torch.float64)
    p = sizes / sizes.sum()
    short, statistics = 0, net.statistics()
    for t in range(6):
        batches = [chosen(e, k, t, batches_per_epoch(len(e.parts[k]), 2)) for k in range(CLIENTS)]
        short += len({len(b) for b in batches}) > 1
        net.load(theta)
        z = [net.body[0](x[b]) for b in batches]
        mean = sum(q * u.mean(0) for q, u in zip(p, z, strict=True))
        variance = sum(q * (u - mean).square().mean(0) for q, u in zip(p, z, strict=True))
        total = sum(len(b) for b in batches)
        statistics = 0.9 * statistics + 0.1 * torch.cat([mean, variance * total / (total - 1)]).detach()
        u = [(v - mean) / (variance + 1e-5).sqrt() * net.norm.weight + net.norm.bias for v in z]
        losses = [F.cross_entropy(net.head(v.relu()), y[b]) for v, b in zip(u, batches, strict=True)]
        theta = theta - 0.1 * net.gradient(sum(q * loss for q, loss in zip(p, losses, strict=True)))
    assert short
    torch.testing.assert_close(state.theta, theta, rtol=0, atol=1e-11)
    torch.testing.assert_close(state.statistics, statistics, rtol=0, atol=1e-11)


# --- robust DSGD with FBN under attack -------------------------------------------------------------------------------


def trimmed_mean(rows: Tensor, f: int) -> Tensor:
    return rows.sort(0).values[f : len(rows) - f].mean(0)


def nearest_neighbours(basis: Tensor, f: int) -> Tensor:
    squares = (basis[:, None] - basis).square().sum(2)
    mixing = torch.zeros_like(squares)
    for row, distances in zip(mixing, squares, strict=True):
        row[distances.sort(stable=True).indices[: len(basis) - f]] = 1 / (len(basis) - f)
    return mixing


@pytest.mark.parametrize("attack", ["foe(eta=3)", "label-flip"])
@pytest.mark.parametrize(
    ("momentum", "settings"),
    [
        (0.9, {}),
        (0.9, {"scope": "statistics", "target": "both", "engine": "reference"}),
        (0.0, {"scope": "statistics", "target": "var"}),
        (0.5, {"scope": "update", "f_declared": 3}),
        (0.9, {"participation": 0.8, "engine": "reference"}),
    ],
)
def test_robust_training_under_attack(attack: str, momentum: float, settings: dict[str, Any]) -> None:
    cell = Cell.of({
        **UNEQUAL, "norm": "fbn", "algorithm": f"dsgd(momentum={momentum})", "clients": 9, "f": 2, "attack": attack,
        "defense": "nnm+trimmed-mean", "partition": "gamma(gamma=0.3)", "participation": 1.0, **settings,
    })  # fmt: skip
    e, theta, state = engine(cell)
    x, beta, f = images(e), 0.1, cell.f_declared
    net = Network(x.shape[1], "naive-bn")
    byzantine = numpy_stream(0, "byzantine").permutation(9).tolist()[:2]
    momenta = torch.zeros(9, len(theta), dtype=torch.float64)
    m, v = torch.zeros(HIDDEN, dtype=torch.float64), torch.ones(HIDDEN, dtype=torch.float64)
    forges, drawn = attack != "label-flip", int(cell.participation * 9 + 1e-9)
    for t in range(ROUNDS):
        ids = numpy_stream(0, "participation", t).permutation(9).tolist()[:drawn] if drawn < 9 else range(9)
        ids = sorted(ids, key=lambda k: (k in byzantine, k))
        h, K = sum(k not in byzantine for k in ids), BATCH * len(ids)
        means, variances = [], []
        for k in ids:
            batch = chosen(e, k, t, len(e.parts[k]) // BATCH)
            y = 9 - e.train.y[batch] if k in byzantine and not forges else e.train.y[batch]
            net.load(theta)
            u = net.body[0](x[batch])
            logits = net.head(((u - m) / (v + 1e-5).sqrt() * net.norm.weight + net.norm.bias).relu())
            momenta[k] = momentum * momenta[k] + (1 - momentum) * net.gradient(F.cross_entropy(logits, y))
            means.append((1 - beta) * m + beta * u.detach().mean(0))
            variances.append((1 - beta) * v + beta * K / (K - 1) * u.detach().var(0, correction=0))
        G, M, V = momenta[ids].clone(), torch.stack(means), torch.stack(variances)
        if forges and cell.scope != "statistics":
            G[h:] = -2 * G[:h].mean(0)
        if forges and cell.scope != "update":
            M[h:] = M[:h].mean(0) * (-2 if cell.target != "var" else 1)
            V[h:] = 0 if cell.target != "mean" else V[:h].mean(0)  # the server's own rule for a negative variance
        theta = theta - 0.1 * trimmed_mean(nearest_neighbours(G, f) @ G, f)
        mixing = nearest_neighbours(torch.cat([M, V], 1), f)
        m = trimmed_mean(mixing @ M, f)
        spread = trimmed_mean(mixing @ (M - m).square(), f)
        v = trimmed_mean(mixing @ V, f) + K / ((K - 1) * beta) * spread
    torch.testing.assert_close(state.theta, theta, rtol=0, atol=1e-11)
    torch.testing.assert_close(state.statistics, torch.cat([m, v]), rtol=0, atol=1e-11)
