"""The steps of the evasion attacks, each beside its equation."""

from __future__ import annotations

import copy
from collections.abc import Callable

import evasion_model
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import robustfl
from robustfl.attacks.evasion import checkpoints, fab_t, targeted_dlr
from robustfl.attacks.evasion.apgd import _Climb, climb
from robustfl.attacks.evasion.apgd_t import _loss
from robustfl.attacks.evasion.fab_t import _final_search
from robustfl.attacks.evasion.image_draws import Draws
from robustfl.attacks.evasion.points import Harvest
from robustfl.attacks.evasion.whitebox import frozen
from robustfl.randomness import stream


def linear(weight: list[list[float]], bias: list[float]) -> nn.Module:
    model = nn.Linear(len(weight[0]), len(weight)).double()
    model.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return model


# --- APGD ------------------------------------------------------------------------------------------------------------


def climb_of(
    rises: list[int], best: list[float], then: list[float], halved: list[bool], fooled: list[bool] | None = None
) -> _Climb:
    n = len(rises)
    images, here, top = torch.zeros(n, 1), torch.ones(n, 1), torch.tensor(best)
    return _Climb(
        place=torch.arange(n), origin=images, y=torch.zeros(n).long(), target=torch.zeros(n).long(), current=images,
        before=images, gradient=images, loss=torch.zeros(n), best=here, best_gradient=here, best_loss=top,
        best_at_checkpoint=torch.tensor(then), step=torch.full((n,), 0.4), rises=torch.tensor(rises),
        halved=torch.tensor(halved), fooled=torch.tensor(fooled or [False] * n),
    )  # fmt: skip


def test_the_step_is_halved_where_progress_stalls_and_goes_on_from_the_best() -> None:
    # Eight rises of eleven are too few, nine suffice; a best that stands still counts unless the step was just halved.
    now = climb_of([8, 9, 9, 9], [2.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [False, False, False, True])
    now.reconsider(11)
    assert now.halved.tolist() == [True, False, True, False]
    torch.testing.assert_close(now.step, torch.tensor([0.2, 0.4, 0.2, 0.4]))
    assert now.current.flatten().tolist() == [1.0, 0.0, 1.0, 0.0]
    assert now.loss.tolist() == [2.0, 0.0, 1.0, 0.0]
    assert now.rises.tolist() == [0, 0, 0, 0]
    assert now.best_at_checkpoint.tolist() == [2.0, 2.0, 1.0, 1.0]


def test_the_first_misclassified_iterate_is_the_best_for_good() -> None:
    now = climb_of([0] * 4, [2.0] * 4, [2.0] * 4, [False] * 4, fooled=[False, False, False, True])
    moved = torch.full((4, 1), 5.0)
    now.accept(moved, moved, torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.tensor([True, False, False, True]))
    assert now.best.flatten().tolist() == [5.0, 1.0, 5.0, 1.0]
    assert now.fooled.tolist() == [True, False, False, True]
    assert now.rises.tolist() == [1, 1, 1, 1]


def written_out(
    model: nn.Module,
    x: Tensor,
    y: int,
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    eps: float,
    norm: str,
    steps: int,
) -> Tensor:
    """Algorithm 1 of the paper for one image that is never misclassified: the iterate of the highest loss."""

    def project(z: Tensor) -> Tensor:
        if norm == "linf":
            return (x + (z - x).clamp(-eps, eps)).clamp(0, 1)
        return (x + (z - x) * min(1.0, eps / max(float((z - x).norm()), 1e-12))).clamp(0, 1)

    def at(z: Tensor) -> tuple[float, Tensor]:
        z = z.detach().requires_grad_(True)
        logits = model(z)
        assert int(logits.argmax(1)) == y
        value = loss(logits)
        (gradient,) = torch.autograd.grad(value.sum(), z)
        return float(value.detach()), gradient.sign() if norm == "linf" else gradient / gradient.norm()

    halts, eta, before = checkpoints(steps), 2 * eps, start
    iterates, points = [at(start)], [start]
    best, best_then, halved = 0, iterates[0][0], False
    rises = 0
    for k in range(1, steps + 1):
        ahead = project(points[-1] + eta * iterates[-1][1])
        if len(points) > 1:
            ahead = project(points[-1] + 0.75 * (ahead - points[-1]) + 0.25 * (points[-1] - before))
        before = points[-1]
        points.append(ahead)
        iterates.append(at(ahead))
        rises += iterates[-1][0] > iterates[-2][0]
        if iterates[-1][0] > iterates[best][0]:
            best = len(iterates) - 1
        if k in halts:
            stuck = not halved and iterates[best][0] == best_then
            halved = rises < 0.75 * (k - halts[halts.index(k) - 1]) or stuck
            best_then, rises = iterates[best][0], 0
            if halved:
                eta /= 2
                points.append(points[best])
                iterates.append(iterates[best])
                best = len(iterates) - 1
    return points[best]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "ratio"])
def test_auto_pgd_is_its_algorithm(norm: str, loss: str) -> None:
    model, x, y = evasion_model.trained()
    model, eps, steps = copy.deepcopy(model).double(), {"linf": 0.03, "l2": 0.15}[norm], 40
    with torch.no_grad():
        margins = model(x.double()).topk(2, dim=1).values.diff(dim=1).abs().squeeze(1)
    rows = torch.nonzero((margins > 8) & evasion_model.hits(model, x.double(), y)).flatten()[:4]
    x, y = x[rows].double(), y[rows]
    target = (y + 1) % 10
    pick: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "ce": lambda z, label, _: F.cross_entropy(z, label, reduction="none"),
        "ratio": targeted_dlr,
    }
    with frozen(model):
        found = climb(
            model, x, y, target, loss=pick[loss], eps=eps, norm=norm, steps=steps, draws=Draws(stream(4), len(x))
        )
        noise = torch.empty_like(x)
        noise = noise.uniform_(-1, 1, generator=stream(4)) if norm == "linf" else noise.normal_(generator=stream(4))
        for i in range(len(x)):
            length = noise[i].abs().max() if norm == "linf" else noise[i].norm()
            start = (x[i : i + 1] + eps * noise[i : i + 1] / length).clamp(0, 1)
            label, goal = y[i : i + 1], target[i : i + 1]
            one = lambda z, label=label, goal=goal: pick[loss](z, label, goal)  # noqa: E731
            expected = written_out(model, x[i : i + 1], int(y[i]), one, start, eps, norm, steps)
            torch.testing.assert_close(found[i : i + 1], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["apgd-t", "fab-t"])
def test_a_class_farther_away_is_aimed_at_when_the_nearest_is_out_of_reach(name: str) -> None:
    # Class 1 is the likeliest other one, but no pixel moves it; class 2 wins from 0.56 on.
    model = linear([[0.0], [0.0], [5.0]], [0.0, -0.1, -2.8])
    x, y = torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([0])
    for targets, fooled in ((1, False), (2, True)):
        found = robustfl.evasion(name, eps=0.1, steps=10, targets=targets).perturb(model, x, y)
        assert bool(model(found).argmax(1) != 0) == fooled


def test_the_targeted_loss_is_the_ratio_from_four_classes_on() -> None:
    z, y, t = torch.randn(3, 4, generator=stream(0)), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
    assert torch.equal(_loss(z, y, t), targeted_dlr(z, y, t))
    assert torch.equal(_loss(z[:, :3], y, y), -F.cross_entropy(z[:, :3], y, reduction="none"))


# --- FAB -------------------------------------------------------------------------------------------------------------


def test_a_step_of_fab_by_hand() -> None:
    # Class 1 begins where the first pixel falls below ½: δ = (-0.1, 0), δ_0 = (-0.3, 0), a = min(0.1/0.4, 0.1).
    model = linear([[1.0, 0.0], [-1.0, 0.0]], [0.0, 1.0])
    origin, current = torch.tensor([[0.8, 0.3]]).double(), torch.tensor([[0.6, 0.7]]).double()
    found = robustfl.evasion("fab-t", norm="l2")._step(model, origin, current, torch.tensor([0]), torch.tensor([1]))
    expected = 0.9 * torch.tensor([[0.6 - 0.105, 0.7]]) + 0.1 * torch.tensor([[0.8 - 0.315, 0.3]])
    torch.testing.assert_close(found, expected.double())


def test_misclassified_points_are_pulled_back_towards_the_image() -> None:
    seen: list[float] = []

    class Recording(nn.Module):
        """Class 0 above ½ in the first pixel."""

        def forward(self, x: Tensor) -> Tensor:
            seen.append(float(x[0, 0].detach()))
            return torch.stack([x[:, 0], 1 - x[:, 0]], 1)

    x, y = torch.tensor([[0.7]], dtype=torch.float64), torch.tensor([0])
    robustfl.evasion("fab-t", eps=0.01, steps=2)._towards(Recording(), x, y, torch.tensor([1]), x)
    # Asked: at the image (gradient); after the step to 0.7 - 1.05·0.2; and at 0.7 - 0.9·0.21 next.
    assert seen[:3] == pytest.approx([0.7, 0.49, 0.511])


def test_the_final_search_goes_to_the_boundary() -> None:
    model = linear([[1.0, 0.0], [-1.0, 0.0]], [0.0, 1.0])
    x, y = torch.tensor([[0.9, 0.1], [0.6, 0.2]]).double(), torch.tensor([0, 0])
    found = _final_search(model, x, torch.tensor([[0.1, 0.1], [0.4, 0.8]]).double(), y)
    assert bool((model(found).argmax(1) == 1).all())
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.1], [0.5, 0.5]]).double(), rtol=0, atol=1e-3)


def test_the_nearest_point_found_has_been_through_the_final_search() -> None:
    model = linear([[1.0, 0.0], [-1.0, 0.0]], [0.0, 1.0])
    x, y = torch.tensor([[0.9, 0.3]]).double(), torch.tensor([0])
    found = robustfl.evasion("fab-t", eps=0.01, eta=2.0, steps=1)._towards(model, x, y, torch.tensor([1]), x)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.3]]).double(), rtol=0, atol=1e-3)


def test_fab_starts_again_within_half_of_the_ball(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    starts: list[Tensor] = []

    def drawn(draws: object, x: Tensor, eps: float, norm: str) -> Tensor:
        asked.append(eps)
        return torch.full_like(x, eps)

    def towards(self: object, model: nn.Module, x: Tensor, y: Tensor, goal: Tensor, start: Tensor) -> Tensor:
        starts.append(start)
        return torch.full_like(x, torch.inf)

    attack = robustfl.evasion("fab-t", eps=0.2, steps=1, targets=1, restarts=3)
    monkeypatch.setattr(fab_t, "noise_on", drawn)
    monkeypatch.setattr(type(attack), "_towards", towards)
    x, model = torch.tensor([[[[0.5]], [[0.95]]]], dtype=torch.float64), nn.Flatten()
    attack.perturb(model, x, torch.tensor([1]), generator=torch.Generator().manual_seed(0))
    assert asked == [0.1, 0.1]
    assert [start.flatten().tolist() for start in starts] == [[0.5, 0.95], [0.6, 1.0], [0.6, 1.0]]


class Curved(nn.Module):
    """Class 0 where the square of the pixel exceeds ¼."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.square(), torch.full_like(x, 0.25)], 1)


def test_the_final_search_on_a_curve_by_hand() -> None:
    # Secants between 0.9 and 0.1: 0.34 is beyond the boundary, then between 0.9 and 0.34, and so on: ever nearer.
    outer, inner = 0.1, 0.9
    for _ in range(3):
        lower, upper = outer**2 - 0.25, inner**2 - 0.25
        middle = outer - 0.999 * lower * (inner - outer) / (upper - lower)
        outer, inner = (middle, inner) if middle**2 < 0.25 else (outer, middle)
    found = _final_search(Curved(), torch.tensor([[0.9]]).double(), torch.tensor([[0.1]]).double(), torch.tensor([0]))
    assert outer > 0.4
    assert float(found) == pytest.approx(outer)


# --- what is kept, and who is left -----------------------------------------------------------------------------------


def test_a_misclassified_image_is_kept_whatever_its_loss() -> None:
    x = torch.zeros(2, 3)
    # Rows: logits themselves. Unsure but right (loss 1.08), then wrong with the lower loss 0.71; then neither.
    unsure, wrong = torch.tensor([0.03, 0.0, 0.0]), torch.tensor([3.0, 3.05, 0.0])
    harvest = Harvest(nn.Identity(), x, torch.zeros(2).long(), Draws(stream(0), 2))
    harvest.offer(torch.stack([unsure, unsure]))
    harvest.offer(torch.stack([wrong, 2 * torch.eye(3)[0]]))
    torch.testing.assert_close(harvest.images, torch.stack([wrong, unsure]))
    assert harvest.rows.tolist() == [1]


@pytest.mark.parametrize(
    "spec", ["apgd-ce(eps=0.15, steps=20)", "fab-t(eps=0.15, steps=20, targets=1)", "square(eps=0.15, queries=100)"]
)
def test_images_leave_within_a_run_once_they_are_fooled(spec: str) -> None:
    sizes: list[int] = []

    class Counting(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            sizes.append(len(z))
            return z

    model, x, y = evasion_model.trained()
    attack = robustfl.evasion(spec)
    attack.perturb(nn.Sequential(Counting(), model).eval(), x[:100], y[:100])
    # The first forward asks who is classified right, the last ones belong to the final count.
    assert min(sizes[2:-2]) < 0.7 * sizes[1]


def test_the_library_variant_exchanges_rows_and_columns_of_the_first_candidates() -> None:
    seen: list[Tensor] = []

    class Recording(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return torch.tensor([[1.0, 0.0]]).expand(len(x), 2)

    x, y = torch.full((1, 1, 6, 6), 0.4), torch.tensor([0])
    probed = []
    for variant in ("paper", "advertorch"):
        seen.clear()
        robustfl.evasion("lsa", variant=variant, rounds=1).perturb(Recording(), x, y, generator=stream(1))
        probed.append((seen[1] != x).any(0)[0])  # after the question who is classified right
    assert int(probed[0].sum()) == 3
    assert torch.equal(probed[1], probed[0].T)
    assert not torch.equal(probed[1], probed[0])
