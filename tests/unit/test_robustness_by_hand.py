"""FedRBN's whole run written once more with plain tensors: user steps, propagation, server, and what is measured."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.federation import train
from robustfl.randomness import numpy_stream
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

HIDDEN, CLIENTS, BATCH, ROUNDS, EPS = 12, 6, 16, 3, 0.1
AT, LAM, CLIP, TEMPERATURE = (0, 2, 5), 0.4, 0.05, 0.1
SETTINGS: dict[str, Any] = {
    "dataset": "digits(limit=300, test_limit=120)", "model": f"mlp(hidden=({HIDDEN},))", "dtype": "float64",
    "norm": "dual-bn(local=true)", "clients": CLIENTS, "batch": BATCH, "rounds": ROUNDS, "at": f"users(ids={AT})",
    "algorithm": "fedavg", "objective": f"pnc(lam={LAM}, clip={CLIP}, warmup=1)", "propagation": "fedrbn",
    "partition": "dirichlet(alpha=0.5, min_size=17)", "scaling": "unit", "participation": 0.5,
    "train_evasion": f"fgsm(eps={EPS})", "evasions": [f"fgsm(eps={EPS})", f"fgsm(eps={2 * EPS})"],
}  # fmt: skip

User = dict[str, Tensor]
"""Scale, shift, and by branch the running mean and variance."""


def network(shared: list[Tensor], user: User, x: Tensor, branch: str, mode: str) -> Tensor:
    """Logits; ``train`` normalises with the batch and moves the branch, ``frozen`` and ``eval`` use the branch."""
    u = F.linear((x.flatten(1) - 0.5) / 0.5, shared[0], shared[1])
    mean, variance = user[f"{branch} mean"], user[f"{branch} variance"]
    if mode == "train":
        mean, variance = u.mean(0), u.var(0, correction=0)
        user[f"{branch} mean"] = 0.9 * user[f"{branch} mean"] + 0.1 * mean.detach()
        user[f"{branch} variance"] = 0.9 * user[f"{branch} variance"] + 0.1 * u.var(0).detach()
    y = user["scale"] * (u - mean) / (variance + 1e-5).sqrt() + user["shift"]
    return F.linear(y.relu(), shared[2], shared[3])


def crafted(shared: list[Tensor], user: User, x: Tensor, y: Tensor, branch: str, eps: float) -> Tensor:
    x = x.clone().requires_grad_(True)
    (up,) = torch.autograd.grad(F.cross_entropy(network(shared, user, x, branch, "eval"), y, reduction="sum"), x)
    return (x.detach() + eps * up.sign()).clamp(0, 1)


def step(shared: list[Tensor], user: User, x: Tensor, y: Tensor, *, adversarial: bool, warm: bool) -> None:
    """One step of SGD at 0.1 of all that a user trains, in place."""
    trained = [t.requires_grad_(True) for t in (*shared, user["scale"], user["shift"])]
    clean = F.cross_entropy(network(shared, user, x, "clean", "train"), y)
    if adversarial:
        noisy = crafted(shared, user, x, y, "adversarial", EPS)
        loss = 0.5 * clean + 0.5 * F.cross_entropy(network(shared, user, noisy, "adversarial", "train"), y)
        gradients = torch.autograd.grad(loss, trained)
    elif warm:
        gradients = torch.autograd.grad(clean, trained)
    else:
        second = torch.autograd.grad(
            LAM * F.cross_entropy(network(shared, user, x, "adversarial", "frozen"), y), trained
        )
        length = torch.cat([g.flatten() for g in second]).norm()
        assert float(length) > CLIP
        first = torch.autograd.grad((1 - LAM) * clean, trained)
        gradients = tuple(a + b * (CLIP / length) for a, b in zip(first, second, strict=True))
    with torch.no_grad():
        for t, g in zip(trained, gradients, strict=True):
            t.sub_(0.1 * g).requires_grad_(False)


def propagated(users: list[User]) -> list[User]:
    """Every ST user with the adversarial statistics of AT users, by how alike their clean ones are."""
    found = copy.deepcopy(users)
    for k in set(range(CLIENTS)) - set(AT):
        alike = torch.stack([
            sum(torch.dot(users[j][n], users[k][n]) / (users[j][n].norm() * users[k][n].norm()).clamp(min=1e-16)
                for n in ("clean mean", "clean variance")) / 2
            for j in AT
        ])  # fmt: skip
        shares = (alike / TEMPERATURE).exp() / (alike / TEMPERATURE).exp().sum()
        for n in ("adversarial mean", "adversarial variance"):
            found[k][n] = sum(share * users[j][n] for share, j in zip(shares, AT, strict=True))
    return found


def accuracies(shared: list[Tensor], users: list[User], x: Tensor, y: Tensor, branch: str) -> dict[str, list[Tensor]]:
    """By measure the hits of every user's own network on the whole test set."""
    found: dict[str, list[Tensor]] = {}
    for user in users:
        for name, eps in (("sa", 0.0), (f"fgsm(eps={EPS})", EPS), (f"fgsm(eps={2 * EPS})", 2 * EPS)):
            seen = crafted(shared, user, x, y, branch, eps) if eps else x
            found.setdefault(name, []).append(network(shared, user, seen, branch, "eval").argmax(1) == y)
    return found


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def mean(hits: list[Tensor]) -> float:
    return float(torch.stack([h.double().mean() for h in hits]).mean())


@pytest.mark.parametrize("when", ["round", "test"])
def test_fedrbn_with_several_at_users_who_come_and_go(when: str) -> None:
    torch.set_num_threads(1)
    cell = Cell.of({**SETTINGS, "propagation": f"fedrbn(temperature={TEMPERATURE}, when={when})"})
    built = build(cell)
    e, test = built.experiment, built.test
    sizes = [(HIDDEN, 64), (HIDDEN,), (HIDDEN,), (HIDDEN,), (10, HIDDEN), (10,)]
    split = [
        t.view(s).clone() for t, s in zip(e.flat.split([torch.Size(s).numel() for s in sizes]), sizes, strict=True)
    ]
    shared, affine = [split[0], split[1], split[4], split[5]], split[2:4]
    x, y = torch.from_numpy(e.train.x.numpy() / 255.0).permute(0, 3, 1, 2), e.train.y
    zero, one = torch.zeros(HIDDEN, dtype=torch.float64), torch.ones(HIDDEN, dtype=torch.float64)
    users = [
        {"scale": affine[0].clone(), "shift": affine[1].clone(), "clean mean": zero, "adversarial mean": zero,
         "clean variance": one, "adversarial variance": one} for _ in range(CLIENTS)
    ]  # fmt: skip
    for t in range(ROUNDS):
        if when == "round":
            users = propagated(users)
        here = sorted(numpy_stream(0, "participation", t).permutation(CLIENTS).tolist()[: CLIENTS // 2])
        local, weights = [], []
        for k in here:
            part, own = e.parts[k].numpy(), [w.clone() for w in shared]
            kept = len(part) - (1 if len(part) % BATCH == 1 else 0)  # a batch of one has no variance
            order = part[numpy_stream(0, "batch", k, t).permutation(len(part))][:kept]
            for start in range(0, kept, BATCH):
                index = torch.from_numpy(order[start : start + BATCH])
                step(own, users[k], x[index], y[index], adversarial=k in AT, warm=t < 1)
            local.append(own)
            weights.append(len(part))
        total = sum(weights)
        shared = [sum(n / total * w for n, w in zip(weights, each, strict=True)) for each in zip(*local, strict=True)]

    *_, last = train(e)
    assert last.state.personal is not None
    weights_of = torch.cat([torch.ones(a.numel()) * (i not in (2, 3)) for i, a in enumerate(split)]).bool()
    close(last.state.theta[weights_of], torch.cat([w.flatten() for w in shared]))
    for layer in e.layout.layers:
        for part, name in ((layer.mean, "mean"), (layer.variance, "variance")):
            close(last.state.personal.statistics[:, part], torch.stack([u[f"{layer.branch} {name}"] for u in users]))
    users = propagated(users)
    images = torch.from_numpy(test.x.numpy() / 255.0).permute(0, 3, 1, 2)
    expected = {b: accuracies(shared, users, images, test.y, b) for b in ("adversarial", "clean")}
    found = run_cell(cell, fingerprint="x").metrics
    assert found is not None
    by_hand = expected["adversarial"]
    assert found.sa == pytest.approx(mean(by_hand["sa"]), abs=1e-12)
    assert found.ra == pytest.approx({s: mean(h) for s, h in by_hand.items() if s != "sa"}, abs=1e-12)
    resisting = [a & b for a, b in zip(*(by_hand[s] for s in cell.evasions), strict=True)]
    assert found.ra_worst == pytest.approx(mean(resisting), abs=1e-12)
    assert found.per_user.keys() == by_hand.keys()
    for s, hits in by_hand.items():
        assert found.per_user[s] == pytest.approx([mean([h]) for h in hits])
    for role, members in (("AT users", AT), ("ST users", (1, 3, 4))):
        assert found.groups[role] == pytest.approx({s: mean([h[k] for k in members]) for s, h in by_hand.items()})
    clean = {s: mean(h) for s, h in expected["clean"].items()}
    assert found.groups["branch clean"] == pytest.approx(clean)
    assert found.groups["branch min"] == pytest.approx({s: min(clean[s], mean(h)) for s, h in by_hand.items()})
    assert abs(found.sa - clean["sa"]) > 0.01
