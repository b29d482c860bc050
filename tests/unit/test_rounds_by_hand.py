"""Runs written once more, user by user: augmented images, branches, fine-tuning, adversarial users, backdoors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from robustfl.engine import train
from robustfl.evaluation.accuracy import forgetting
from robustfl.randomness import numpy_stream, stream
from robustfl.records import CellResult
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

HIDDEN, BATCH, STEPS, LR, EPS, CLIP, AT = (11, 7), 16, 4, 0.5, 0.1, 0.4, (0, 3)
Statistics = dict[str, list[list[Tensor]]]  # of a branch, of a layer: mean and variance
Values = dict[str, Tensor]
COMMON: dict[str, Any] = {
    "model": f"mlp(hidden={HIDDEN})", "rounds": 4, "batch": BATCH, "dtype": "float64", "scaling": "unit",
    "algorithm": f"fedavg(local_steps={STEPS})", "schedule": {"kind": "constant", "lr": LR},
    "evasions": [f"pgd(steps=3, eps={EPS}, step=0.05, random_start=false)"], "evaluate_every": 2, "tail": 2,
    "validation": 0.3, "select": "validation", "train_evasion": f"pgd(steps=2, eps={EPS}, step=0.07)", "at": "none",
    "clients": 5, "evaluate_ra": True,
}  # fmt: skip
ONE = {"dataset": "digits(limit=260, test_limit=120)", "partition": "dirichlet(alpha=1, min_size=20)"}
TUNED = {**ONE, "at": f"users(ids={AT})", "finetune": "st(rounds=2, frozen=1)"}
STYLES = ("clean", "textured", "shifted")
CASES: dict[str, dict[str, Any]] = {
    "naive-bn": {
        **TUNED, "seed": 5, "objective": "at(weight=0.3)", "flip": True, "crop": 2, "rotate": 40.0,
        "forgetting": [1, 4],
    },
    "dual-bn(local=true)": {**TUNED, "objective": f"pnc(clip={CLIP}, warmup=1)", "propagation": "fedrbn", "flip": True},
    "silobn": {
        "domains": [f"digits-domain(style={style})" for style in STYLES], "domain_users": [1, 3, 2], "clients": 6,
        "domain_share": 0.1, "user_sizes": "dirichlet(alpha=1, least=30)", "across": True,
    },
}  # fmt: skip


def values_of(flat: Tensor, inputs: int) -> Values:
    sizes: dict[str, tuple[int, ...]] = {}
    for i, (a, b) in enumerate(pairwise((inputs, *HIDDEN, 10))):
        sizes |= {f"w{i}": (b, a), f"b{i}": (b,)} | ({f"g{i}": (b,), f"z{i}": (b,)} if i < len(HIDDEN) else {})
    parts = flat.split([math.prod(size) for size in sizes.values()])
    return {name: part.view(size).clone() for (name, size), part in zip(sizes.items(), parts, strict=True)}


def fresh() -> Statistics:
    return {b: [[torch.zeros(w).double(), torch.ones(w).double()] for w in HIDDEN] for b in ("clean", "other")}


def copied(statistics: Statistics) -> Statistics:
    return {branch: [list(pair) for pair in layers] for branch, layers in statistics.items()}


@dataclass
class Net:
    values: Values
    statistics: Statistics
    dual: bool = False

    def logits(self, x: Tensor, branch: str = "clean", *, training: bool = False) -> Tensor:
        h, v = (x.flatten(1) - 0.5) / 0.5, self.values
        for i, own in enumerate(self.statistics[branch if self.dual else "clean"]):
            h = F.linear(h, v[f"w{i}"], v[f"b{i}"])
            mean, variance = own
            if training:
                mean, variance = h.mean(0), h.var(0, correction=0)
                own[:] = 0.9 * own[0] + 0.1 * mean.detach(), 0.9 * own[1] + 0.1 * h.detach().var(0)
            h = (v[f"g{i}"] * (h - mean) / (variance + 1e-5).sqrt() + v[f"z{i}"]).relu()
        return F.linear(h, v["w2"], v["b2"])

    def right(self, x: Tensor, y: Tensor, branch: str) -> float:
        return float((self.logits(x, branch).argmax(1) == y).double().mean())

    def attacked(self, x: Tensor, y: Tensor, branch: str, start: Tensor, steps: int, step: float) -> Tensor:
        for _ in range(steps):
            at = start.clone().requires_grad_(True)
            loss = F.cross_entropy(self.logits(at, branch), y, reduction="sum")
            moved = at.detach() + step * torch.autograd.grad(loss, at)[0].sign()
            start = torch.minimum(torch.maximum(moved, x - EPS), x + EPS).clamp(0, 1)
        return start

    def robust(self, x: Tensor, y: Tensor, branch: str) -> float:
        return self.right(self.attacked(x, y, branch, x, 3, 0.05), y, branch)

    def hardened(self, x: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        noise = torch.empty_like(x).uniform_(-EPS, EPS, generator=draws)
        return self.attacked(x, y, "other", (x + noise).clamp(0, 1), 2, 0.07)


def augmented(x: Tensor, cell: Cell, draws: torch.Generator) -> Tensor:
    """Cut out of a frame of zeros, mirrored, turned counter-clockwise; in this order the draws say what of each."""
    count, _, height, width = x.shape
    mirrored = (torch.rand(count, generator=draws) < 0.5).tolist() if cell.flip else [False] * count
    corner = torch.zeros(2, count).int()
    if p := cell.crop:
        corner = torch.randint(0, 2 * p + 1, (2, count, 1), generator=draws)[..., 0]
    turns = cell.rotate * (2 * torch.rand(count, generator=draws) - 1).double() if cell.rotate else torch.zeros(count)
    made = []
    for image, mirror, (top, left), degrees in zip(x.numpy(), mirrored, corner.T.tolist(), turns.tolist(), strict=True):
        cut = np.pad(image, ((0, 0), (p, p), (p, p)))[:, top : top + height, left : left + width]
        cut = cut[:, :, ::-1] if mirror else cut
        turned, turn = np.zeros_like(cut), complex(np.exp(1j * np.radians(degrees)))
        for row, column in np.ndindex(height, width):
            source = complex(column - (width - 1) / 2, (height - 1) / 2 - row) / turn
            at = round((height - 1) / 2 - source.imag), round(source.real + (width - 1) / 2)
            if 0 <= at[0] < height and 0 <= at[1] < width:
                turned[:, row, column] = cut[:, at[0], at[1]]
        made.append(torch.from_numpy(turned))
    return torch.stack(made)


@dataclass
class Federation:
    cell: Cell
    x: Tensor
    y: Tensor
    parts: list[list[int]]
    shared: Values
    statistics: Statistics = field(default_factory=fresh)

    def __post_init__(self) -> None:
        norm = self.cell.norm
        self.dual, self.own = "dual" in norm, norm != "naive-bn"
        self.private = {n for n in self.shared if n[0] in "gz"} if self.dual else set[str]()
        self.users = [Net(dict(self.shared), fresh(), self.dual) for _ in self.parts]
        self.tested = "other" if self.dual else "clean"
        self.sent: dict[int, Net] = {}

    def model(self, k: int) -> Net:
        """What user ``k`` starts from, and is tested with."""
        values = {n: self.users[k].values[n] if n in self.private else v for n, v in self.shared.items()}
        return Net(values, copied(self.users[k].statistics if self.own else self.statistics), self.dual)

    def round(self, t: int) -> None:
        tuning = self.cell.finetune != "none" and t >= 2
        here = [k for k in range(len(self.parts)) if self.cell.finetune == "none" or (k in AT) != tuning]
        if self.dual:
            self.propagate()
        self.sent = {k: self.trained(k, t, {"w0", "b0", "g0", "z0"} if tuning else set()) for k in here}
        shares = {k: len(self.parts[k]) / sum(len(self.parts[j]) for j in here) for k in here}
        for k in here:
            self.users[k] = self.sent[k]
        means = {n: sum(s * self.sent[k].values[n] for k, s in shares.items()) for n in self.shared}
        self.shared = {n: v if n in self.private else torch.as_tensor(means[n]) for n, v in self.shared.items()}
        for branch, layers in self.statistics.items():
            for i, pair in enumerate(layers):
                rows = {k: self.sent[k].statistics[branch][i] for k in here}
                pair[:] = [torch.stack([s * rows[k][q] for k, s in shares.items()]).sum(0) for q in (0, 1)]

    def trained(self, k: int, t: int, held: set[str]) -> Net:
        net, part, draws = self.model(k), np.array(self.parts[k]), stream(self.cell.seed, "objective", k, t, 0)
        per_epoch = (len(part) - 2) // BATCH + 1  # a rest of one sample is left out
        for s in range(STEPS):
            epoch, place = divmod(t * STEPS + s, per_epoch)
            index = part[numpy_stream(self.cell.seed, "batch", k, epoch).permutation(len(part))][place * BATCH :][
                :BATCH
            ]
            x = augmented(self.x[index], self.cell, stream(self.cell.seed, "augment", k, t, s))
            gradient = self.gradient(net, x, self.y[index], k, t, draws)
            net.values = {n: v if n in held else v - LR * gradient[n] for n, v in net.values.items()}
        return net

    def gradient(self, net: Net, x: Tensor, y: Tensor, k: int, t: int, draws: torch.Generator) -> Values:
        here = Net({n: v.clone().requires_grad_(True) for n, v in net.values.items()}, net.statistics, self.dual)

        def of(loss: Tensor) -> Values:
            found = torch.autograd.grad(loss, list(here.values.values()), retain_graph=True)
            return dict(zip(here.values, found, strict=True))

        clean = F.cross_entropy(here.logits(x, training=True), y)
        if self.cell.at != "none" and k in AT:
            w, found = 0.5 if self.dual else 0.3, net.hardened(x, y, draws)
            return of((1 - w) * clean + w * F.cross_entropy(here.logits(found, "other", training=True), y))
        if not self.dual or t < 1:
            return of(clean)
        noisy = of(0.5 * F.cross_entropy(here.logits(x, "other"), y))
        length = math.sqrt(sum(float(v.square().sum()) for v in noisy.values()))
        return {n: v + min(1.0, CLIP / length) * noisy[n] for n, v in of(0.5 * clean).items()}

    def propagate(self) -> None:
        for k in set(range(len(self.users))) - set(AT):
            theirs = [self.users[j].statistics for j in AT]
            mine = [v for pair in self.users[k].statistics["clean"] for v in pair]
            alike = []
            for s in theirs:
                pairs = zip(mine, [v for pair in s["clean"] for v in pair], strict=True)
                alike.append(sum(float(F.cosine_similarity(a, b, dim=0)) for a, b in pairs) / len(mine))
            weights = torch.tensor(alike, dtype=torch.float64).div(0.01).softmax(0).tolist()
            for i, pair in enumerate(self.users[k].statistics["other"]):
                pair[:] = [sum(w * s["other"][i][q] for w, s in zip(weights, theirs, strict=True)) for q in (0, 1)]

    def models(self) -> list[Net]:
        if self.dual:
            self.propagate()
        return [self.model(k) for k in range(len(self.parts))]


def pixels(images: Tensor) -> Tensor:
    assert images.dtype == torch.uint8
    return torch.from_numpy(images.numpy() / 255.0).permute(0, 3, 1, 2)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", CASES)
def test_rounds_of_users_and_what_the_record_tells_of_them(norm: str) -> None:
    torch.set_num_threads(1)
    cell = Cell.of({**COMMON, **CASES[norm], "norm": norm})
    built = build(cell)
    e = built.experiment
    images, inputs = pixels(e.train.x), e.train.x[0].numel()
    ours = Federation(cell, images, e.train.y, [part.tolist() for part in e.parts], values_of(e.flat, inputs))
    *_, last = train(e)
    record = run_cell(cell, fingerprint="x")
    metrics, x, y, branch = record.metrics, pixels(built.test.x), built.test.y, ours.tested
    assert metrics is not None, record.reason
    users = range(cell.clients)
    tests = [part.tolist() for part in built.tests] or [list(range(len(y)))] * cell.clients
    seen: dict[int, list[tuple[float, float, float]]] = {}
    for t in range(cell.rounds):
        before = ours.model(0)
        ours.round(t)
        forgotten(ours, record, before, built.validation, t + 1)
        seen[t + 1] = [
            (net.right(x[i], y[i], branch), net.robust(x[i], y[i], branch), kept(ours, net, k, built.validation[k]))
            for k, (net, i) in enumerate(zip(ours.models(), tests, strict=True))
        ]
    theta = values_of(last.state.theta, inputs)
    for name in ours.shared.keys() - ours.private:
        torch.testing.assert_close(theta[name], ours.shared[name], rtol=1e-8, atol=1e-9)

    sa, ra, validated = ({t: sum(u[i] for u in each) / len(each) for t, each in seen.items()} for i in range(3))
    assert {point.round for point in record.curve} == {2, 3, 4}
    close([point.sa for point in record.curve], [sa[point.round] for point in record.curve])
    close([point.ra for point in record.curve], [ra[point.round] for point in record.curve])
    close([metrics.groups["tail"][m] for m in ("sa", "ra_worst")], [(of[3] + of[4]) / 2 for of in (sa, ra)])
    chosen = record.certificates["selection"]
    close([value for _, value in chosen["values"]], [validated[t] for t in (2, 3, 4)])
    best = chosen["round"]
    assert validated[best] == pytest.approx(max(validated[t] for t in (2, 3, 4)), abs=1e-12)
    close([metrics.groups["selected"][m] for m in ("sa", "ra_worst")], [sa[best], ra[best]])
    if cell.across:
        models = ours.models()
        for a, one in enumerate(cell.domains):
            for b, other in enumerate(cell.domains):
                theirs = [i for k in users if built.domain_of[k] == b for i in tests[k]]
                found = [models[k].right(x[theirs], y[theirs], branch) for k in users if built.domain_of[k] == a]
                close(metrics.groups[f"models of {one} on {other}"]["sa"], sum(found) / len(found))


def kept(ours: Federation, net: Net, k: int, index: Tensor) -> float:
    """The user's part of the value a round is selected by."""
    x, y = ours.x[index], ours.y[index]
    if ours.cell.at != "none" and k in AT:
        x = Net(net.values, net.statistics, net.dual).hardened(x, y, stream(ours.cell.seed, "selection", k))
    return net.right(x, y, ours.tested)


def forgotten(ours: Federation, record: CellResult, before: Net, data: tuple[Tensor, ...], round: int) -> None:
    if round not in ours.cell.forgetting_rounds:
        return
    told, here = record.certificates["forgetting"][str(round)], list(ours.sent)
    right = lambda net, d: net.right(ours.x[data[d]], ours.y[data[d]], "clean")  # noqa: E731
    close(told["matrix"], [[right(before, d) - right(ours.sent[m], d) for d in here] for m in here])
    assert told["clients"] == here


def test_data_of_nobody_is_not_forgotten() -> None:
    """A small client may have kept no sample for validation: its accuracy is NaN, and no mean is."""
    found = forgetting([0.5, math.nan, 0.75], [[1.0, math.nan, 0.5], [0.0, math.nan, 0.25], [0.25, math.nan, 1.0]])
    close(found.by_model, [0.25, 0.5, 0.25])
    close(found.by_dataset[::2], [0.375, 0.375])
    assert math.isnan(found.by_dataset[1])
    close(found.mean, 1 / 3)
    close(found.own, 1.0 - 0.25)


HIDDEN_HAND, CLIENTS, BATCH_HAND, ROUNDS, STEPS_HAND, EPS_HAND = 12, 6, 16, 3, 2, 0.1
SIZES = [(HIDDEN_HAND, 64), (HIDDEN_HAND,), (HIDDEN_HAND,), (HIDDEN_HAND,), (10, HIDDEN_HAND), (10,)]
SHAPES = [torch.Size(s) for s in SIZES]
AFFINE = torch.cat([torch.full((s.numel(),), place in (2, 3)) for place, s in enumerate(SHAPES)])
PRIVATE = {"fedbn": AFFINE, "singlenet": torch.ones_like(AFFINE)}
OWN_STATISTICS = ("fedbn", "silobn", "singlenet")
SMALL: dict[str, Any] = {
    "dataset": "digits(limit=300, test_limit=150)", "model": f"mlp(hidden=({HIDDEN_HAND},))", "clients": CLIENTS,
    "rounds": ROUNDS, "batch": BATCH_HAND, "dtype": "float64", "scaling": "unit",
    "algorithm": f"fedavg(local_steps={STEPS_HAND})",
    "partition": "dirichlet(alpha=1, min_size=20)",
    "evasions": [f"pgd(steps=3, eps={EPS_HAND}, step=0.05, random_start=false)"],
}  # fmt: skip
AT_HAND: dict[str, Any] = {
    "objective": "at(weight=0.3)", "at": "users(ids=(0, 2, 3))", "participation": 0.5,
    "train_evasion": f"pgd(steps=2, eps={EPS_HAND}, step=0.07)",
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
        start = torch.minimum(torch.maximum(moved, x - EPS_HAND), x + EPS_HAND).clamp(0, 1)
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


CASES_HAND = [
    *[(norm, AT_HAND) for norm in ("naive-bn", "silobn", "fedbn", "singlenet", "fbn", "fbn-hbn-repo")],
    *[(norm, {"attack": a, "f": 2}) for norm, a in (("fbn-hbn-repo", "dba(fraction=0.5)"), ("naive-bn", "edge-case"))],
]


@pytest.mark.parametrize(("norm", "more"), CASES_HAND, ids=[f"{n} {m.get('attack', 'AT')}" for n, m in CASES_HAND])
def test_users_who_train_adversarially_and_backdoors(norm: str, more: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    cell = Cell.of({**SMALL, **more, "norm": norm})
    built = build(cell)
    e, theta = built.experiment, built.experiment.flat.clone()
    *_, last = train(e)
    pixels = lambda data: torch.from_numpy(data.x.numpy() / 255.0).permute(0, 3, 1, 2)  # noqa: E731
    images, labels, private = pixels(e.train), e.train.y, PRIVATE.get(norm, torch.zeros_like(AFFINE))
    order = numpy_stream(0, "byzantine").permutation(CLIENTS).tolist()
    attackers, hardened = sorted(order[: cell.f]), {0, 2, 3} if more is AT_HAND else set()
    start = torch.zeros(HIDDEN_HAND).double(), torch.ones(HIDDEN_HAND).double()
    shared, own, models = start, [start] * CLIENTS, [theta] * CLIENTS
    for t in range(ROUNDS):
        here = list(range(CLIENTS))
        if more is AT_HAND:
            here = sorted(numpy_stream(0, "participation", t).permutation(CLIENTS).tolist()[: CLIENTS // 2])
        sent, local, values = [], [], []
        for k in here:
            scheme = Scheme(norm, *(own[k] if norm in OWN_STATISTICS else shared))
            w, part, draws = torch.where(private, models[k], theta), e.parts[k].numpy(), stream(0, "objective", k, t, 0)
            least = 1 if "fbn" in norm else 2  # batch normalization leaves out a rest of one sample
            per_epoch = (len(part) - least) // BATCH_HAND + 1
            values.append(0)
            for s in range(STEPS_HAND):
                epoch, place = divmod(t * STEPS_HAND + s, per_epoch)
                index = part[numpy_stream(0, "batch", k, epoch).permutation(len(part))]
                index = index[place * BATCH_HAND : (place + 1) * BATCH_HAND]
                x, y = images[index], labels[index]
                if k in attackers:
                    x, y = poisoned(cell.attack, x, y, attackers.index(k), stream(0, "poison", k, t, s))
                v = w.clone().requires_grad_(True)
                loss = F.cross_entropy(scheme.logits(v, x, training=True), y)
                values[-1] += len(y)
                if k in hardened:
                    noise = torch.empty_like(x).uniform_(-EPS_HAND, EPS_HAND, generator=draws)
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
