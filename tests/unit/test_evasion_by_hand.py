"""Attacks on inputs written once more, image by image, from the papers: ours, given the same draws, do the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import robustfl
from robustfl.randomness import stream

COUNT, CHANNELS, SIDE, CLASSES = 10, 2, 9, 5


@pytest.fixture(scope="module")
def images() -> tuple[nn.Module, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    layers = nn.Conv2d(CHANNELS, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(4 * SIDE**2, CLASSES)
    model = nn.Sequential(*layers).double().eval()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=draw, dtype=torch.float64) * (0.3 if p.dim() > 1 else 0.1)
    x = torch.rand(COUNT, CHANNELS, SIDE, SIDE, generator=draw, dtype=torch.float64)
    return model, x, model(x).argmax(1)


def uniform(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).uniform_(0, 1, generator=draw)


def logits(model: nn.Module, x: Tensor | np.ndarray) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.as_tensor(x).view(1, CHANNELS, SIDE, SIDE))[0]
    return found


def margin(model: nn.Module, x: Tensor | np.ndarray, y: int) -> float:
    z = logits(model, x).tolist()
    return float(z[y] - max(z[:y] + z[y + 1 :]))


def resisting(model: nn.Module, found: Tensor, y: Tensor) -> int:
    with torch.no_grad():
        return int((model(found).argmax(1) == y).sum())


def agrees(found: Tensor, expected: Tensor | np.ndarray) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected).view(found.shape), rtol=0, atol=1e-9)


Propose = Callable[[Tensor, int, list[float]], Tensor]


# --- Square ----------------------------------------------------------------------------------------------------------


def lowered(model: nn.Module, best: Tensor, y: int, u: list[Tensor], p: float, propose: Propose) -> Tensor:
    """Algorithm 1; whether an image is fooled is looked at every 16 queries, which draw ``u`` together."""
    lowest = margin(model, best, y)
    for query in range(16 * len(u)):
        if query % 16 == 0 and lowest < 0:
            break
        share = p if query <= 10 else p / 2 if query <= 50 else p / 4
        tried = propose(best, round(math.sqrt(share * SIDE**2)), u[query // 16][query % 16].tolist())
        now = margin(model, tried, y)
        if now < lowest:
            best, lowest = tried, now
    return best


def square(model: nn.Module, x: Tensor, y: int, eps: float, u0: Tensor, u: list[Tensor]) -> Tensor:
    """Algorithm 2 in 1."""
    start = x.clone()
    for c in range(CHANNELS):
        for column in range(SIDE):
            start[c, :, column] += eps if u0[c, column] >= 0.5 else -eps

    def recoloured(best: Tensor, side: int, u: list[float]) -> Tensor:
        side, (top, left, *colours) = max(1, side), u
        rows, columns = (slice(int(v * (SIDE - side + 1)), int(v * (SIDE - side + 1)) + side) for v in (top, left))
        tried = best.clone()
        for c in range(CHANNELS):
            moved = tried[c, rows, columns] + (2 * eps if colours[c] >= 0.5 else -2 * eps)
            here = x[c, rows, columns]
            tried[c, rows, columns] = torch.minimum(torch.maximum(moved, here - eps), here + eps).clamp(0, 1)
        return tried

    return lowered(model, start.clamp(0, 1), y, u, 0.8, recoloured)


def test_square_is_its_algorithm(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = images
    found = robustfl.evasion("square", eps=0.03, queries=65).perturb(model, x, y, generator=stream(5))
    draw = stream(5)
    start, blocks = uniform(draw, COUNT, CHANNELS, SIDE), [uniform(draw, COUNT, 16, 5 + CHANNELS) for _ in range(4)]
    for i in range(COUNT):
        own = [block[i, :, : 2 + CHANNELS] for block in blocks]
        agrees(found[i], square(model, x[i], int(y[i]), 0.03, start[i], own))
    assert 0 < resisting(model, found, y) < COUNT


def eta(height: int, width: int) -> Tensor:
    """Equation 2, rows and columns counted from 1."""
    n, made = max(height, width) // 2, torch.zeros(height, width).double()
    for r, s in np.ndindex(height, width):
        reach = n - max(abs(r + 1 - height // 2 - 1), abs(s + 1 - width // 2 - 1))
        made[r, s] = sum(1 / (n + 1 - k) ** 2 for k in range(reach + 1))
    return made


def update(side: int, flat: bool) -> Tensor:
    made = torch.cat([eta(side // 2, side), -eta(side - side // 2, side)])
    made = made / made.norm()
    return made.T if flat else made


def within(x: Tensor, move: Tensor, eps: float) -> Tensor:
    return (x + move * min(1.0, eps / max(float(move.norm()), 1e-300))).clamp(0, 1)


def tiled(x: Tensor, eps: float, u: Tensor) -> Tensor:
    """The start: 5 x 5 tiles in the middle, together of length ε."""
    side, move = SIDE // 5, torch.zeros_like(x)
    edge = (SIDE - 5 * side) // 2
    for i, j, c in np.ndindex(5, 5, CHANNELS):
        rows, columns = (slice(edge + at * side, edge + (at + 1) * side) for at in (i, j))
        move[c, rows, columns] = update(side, bool(u[CHANNELS, i, j] >= 0.5)) * (1 if u[c, i, j] >= 0.5 else -1)
    return within(x, move * eps / move.norm(), eps)


def moved(x: Tensor, best: Tensor, eps: float, side: int, u: list[float]) -> Tensor:
    """Algorithm 3: what windows 1 and 2 hold, and what is unused of ε, goes to window 1 in a new shape."""
    v, last = best - x, SIDE - side + 1
    (r1, s1, r2, s2), unused = (int(w * last) for w in u[:4]), eps**2 - float((best - x).square().sum())
    one, two = (slice(r1, r1 + side), slice(s1, s1 + side)), (slice(r2, r2 + side), slice(s2, s2 + side))
    for c in range(CHANNELS):
        new = update(side, u[4] >= 0.5) * (1 if u[5 + c] >= 0.5 else -1)
        new = new + v[c][one] / max(float(v[c][one].norm()), 1e-300)
        union = torch.zeros(SIDE, SIDE).bool()
        union[one] = union[two] = True
        available = math.sqrt(float(v[c][union].square().sum()) + max(unused, 0.0) / CHANNELS)
        v[c][two] = 0.0
        v[c][one] = new / new.norm() * available
    return within(x, v, eps)


def square_l2(model: nn.Module, x: Tensor, y: int, eps: float, u0: Tensor, u: list[Tensor]) -> Tensor:
    """Algorithm 3 in 1; a window is at least 3 wide, and odd."""

    def odd(best: Tensor, side: int, u: list[float]) -> Tensor:
        side = max(3, side)
        return moved(x, best, eps, side + (side % 2 == 0), u)

    return lowered(model, tiled(x, eps, u0), y, u, 0.3, odd)


def test_square_in_the_euclidean_ball_is_its_algorithm(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = images
    found = robustfl.evasion("square", norm="l2", eps=0.4, p=0.3, queries=65).perturb(model, x, y, generator=stream(5))
    draw = stream(5)
    start, blocks = uniform(draw, COUNT, CHANNELS + 1, 5, 5), [uniform(draw, COUNT, 16, 5 + CHANNELS) for _ in range(4)]
    for i in range(COUNT):
        agrees(found[i], square_l2(model, x[i], int(y[i]), 0.4, start[i], [block[i] for block in blocks]))
    assert 0 < resisting(model, found, y) < COUNT
    assert float((found - x).flatten(1).norm(dim=1).max()) <= 0.4 + 1e-12


# --- FAB -------------------------------------------------------------------------------------------------------------


def size(move: np.ndarray, norm: str) -> float:
    return float(np.abs(move).max() if norm == "linf" else np.sqrt((move**2).sum()))


def onto(x: np.ndarray, w: np.ndarray, value: float, norm: str) -> np.ndarray:
    """The least move within the box that takes ``value`` to 0, by bisection over its length."""
    up = -np.sign(value) * w
    room, speed = np.where(up > 0, 1 - x, x), np.abs(w) if norm == "l2" else 1.0
    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        short = np.abs(w) @ np.minimum(middle * speed, room) < abs(value)
        low, high = (middle, high) if short else (low, middle)
    return np.sign(up) * np.minimum(high * speed, room)


def towards(model: nn.Module, x0: np.ndarray, y: int, goal: int, norm: str, eps: float, steps: int) -> np.ndarray:
    """Algorithm 1 towards one class: the nearest misclassified point, after the final search if it is not within ε."""
    x, best, reach = x0.copy(), x0, math.inf
    for k in range(steps):
        variable = torch.tensor(x).view(1, CHANNELS, SIDE, SIDE).requires_grad_(True)
        lead = model(variable)[0][[goal, y]] @ torch.tensor([1.0, -1.0], dtype=torch.float64)
        w, value = torch.autograd.grad(lead, variable)[0].flatten().numpy(), float(lead.detach())
        near, far = onto(x, w, value, norm), onto(x0, w, value + w @ (x0 - x), norm)
        a = min(size(near, norm) / (size(near, norm) + size(far, norm)), 0.1)
        x = np.clip((1 - a) * (x + 1.05 * near) + a * (x0 + 1.05 * far), 0, 1)
        if margin(model, x, y) < 0:
            if size(x - x0, norm) < reach:
                reach, best = size(x - x0, norm), x
            x = x0 + 0.9 * (x - x0)
        if k % 5 == 4 and reach <= eps:
            return best
    if reach == math.inf:
        return x0
    inner, outer = x0, best
    for _ in range(3):
        inside, outside = margin(model, inner, y), margin(model, outer, y)
        middle = outer + 0.999 * outside / (outside - inside) * (inner - outer)
        inner, outer = (inner, middle) if margin(model, middle, y) < 0 else (middle, outer)
    return outer


def fab(model: nn.Module, x: Tensor, y: int, norm: str, eps: float, steps: int, targets: int) -> np.ndarray:
    """Class after class, likeliest first: what is found within ε, else the point of the highest cross-entropy."""
    x0, worst = x.flatten().numpy(), (-math.inf, x.flatten().numpy())
    likely = [c for c in logits(model, x).argsort(descending=True).tolist() if c != y]
    for goal in likely[:targets]:
        move = towards(model, x0, y, goal, norm, eps, steps) - x0
        within = np.clip(move, -eps, eps) if norm == "linf" else move * min(1, eps / max(size(move, norm), 1e-12))
        point = x0 + (move if size(move, norm) <= eps else within)
        if margin(model, point, y) < 0:
            return point
        loss = -float(logits(model, point).log_softmax(0)[y])
        worst = max(worst, (loss, point), key=lambda pair: pair[0])
    return worst[1]


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.004), ("l2", 0.04)])
def test_fab_is_its_algorithm(norm: str, eps: float, images: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = images
    attack = robustfl.evasion("fab-t", eps=eps, norm=norm, steps=10, targets=2)
    found = attack.perturb(model, x, y, generator=stream(5))
    for i in range(COUNT):
        agrees(found[i], fab(model, x[i], int(y[i]), norm, eps, 10, 2))
    assert 0 < resisting(model, found, y) < COUNT


# --- local search ----------------------------------------------------------------------------------------------------


def local_search(model: nn.Module, x: Tensor, y: int, keys: list[Tensor], t: int, d: int, most: int) -> np.ndarray:
    """Algorithm 3 in pixels from -½ to ½; ``keys`` order the candidates of every round."""
    x0 = (x - 0.5).flatten(1).numpy()
    now, nearest, reach = x0.copy(), x0, math.inf
    candidates = keys[0].argsort(descending=True)[: min(most, SIDE**2 // 10)].tolist()
    for order in keys[1:]:
        scores = []
        for pixel in candidates:
            lit = now.copy()
            lit[:, pixel] = np.clip(np.sign(lit[:, pixel]), -0.5, 0.5)
            scores.append(float(logits(model, lit + 0.5).softmax(0)[y]))
            if margin(model, lit + 0.5, y) < 0 and size(lit - x0, "l2") < reach:
                nearest, reach = lit, size(lit - x0, "l2")
        chosen = [candidates[k] for k in np.argsort(scores)[:t]]
        now = now.copy()
        now[:, chosen] *= 1.5
        now = now - (now > 0.5) + (now < -0.5)
        fooled = margin(model, now + 0.5, y) < 0
        if fooled and size(now - x0, "l2") < reach:
            nearest, reach = now, size(now - x0, "l2")
        if fooled:
            break
        around = {
            row * SIDE + column
            for pixel in chosen
            for row in range(pixel // SIDE - d, pixel // SIDE + d + 1)
            for column in range(pixel % SIDE - d, pixel % SIDE + d + 1)
            if 0 <= row < SIDE and 0 <= column < SIDE
        }
        candidates = sorted(around, key=lambda pixel: -float(order[pixel]))[:most]
    return (nearest if reach < math.inf else now) + 0.5


def test_the_local_search_is_its_algorithm(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = images
    attack = robustfl.evasion("lsa", rounds=4, candidates=12, distance=1, pixels=3)
    found, draw = attack.perturb(model, x, y, generator=stream(7)), stream(7)
    keys = [uniform(draw, COUNT, SIDE**2) for _ in range(5)]
    for i in range(COUNT):
        agrees(found[i], local_search(model, x[i], int(y[i]), [k[i] for k in keys], 3, 1, 12))
    assert 0 < resisting(model, found, y) < COUNT
