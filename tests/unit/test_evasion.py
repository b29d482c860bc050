"""FGSM, PGD, MIA and Auto-PGD: the ball, the gradient, targets, steps, and the released Digits pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable

import evasion_model
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import robustfl
from robustfl.attacks.evasion import PGD, checkpoints, fab_t, targeted_dlr
from robustfl.attacks.evasion.apgd import _Climb, _loss, climb
from robustfl.attacks.evasion.balls import Draws, noise_in
from robustfl.attacks.evasion.losses import aim
from robustfl.attacks.evasion.points import Harvest
from robustfl.attacks.evasion.whitebox import frozen
from robustfl.randomness import stream


def test_a_zero_gradient_moves_nothing() -> None:
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.tensor([[0.5, 0.5]])
    assert torch.equal(robustfl.evasion("fgsm", eps=0.1).perturb(model, x, torch.tensor([0])), x)


def test_the_step_follows_the_radius_unless_it_is_given() -> None:
    def size(**params: object) -> float:
        attack = robustfl.evasion("pgd", **params)
        assert isinstance(attack, PGD)
        return attack.step_size

    assert size() == pytest.approx(2 / 255)
    assert size(eps=0.1) == pytest.approx(0.025)
    assert size(eps=0.1, step=0.01) == 0.01
    assert size(eps="8/255", steps=7, step_rule="released") == pytest.approx(10 / 255 / 7)
    assert size(eps="32/255", steps=1, step_rule="released") == pytest.approx(36 / 255)


# --- L2 --------------------------------------------------------------------------------------------------------------


def two_classes() -> nn.Module:
    """Logits are the two pixels."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    return model


@pytest.mark.parametrize("spec", ["fgsm", "pgd(steps=1, step=0.1, random_start=false)", "mia(steps=1, step=0.1)"])
def test_a_euclidean_step_goes_along_the_gradient(spec: str) -> None:
    found = robustfl.evasion(spec, eps=0.1, norm="l2").perturb(
        two_classes(), torch.tensor([[0.5, 0.5]]), torch.tensor([0])
    )
    torch.testing.assert_close(found, torch.tensor([[0.5 - 0.1 / 2**0.5, 0.5 + 0.1 / 2**0.5]]))


def test_random_starts_fill_the_ball_evenly() -> None:
    x = torch.zeros(4000, 3)
    euclidean = noise_in(Draws(stream(0), 4000), x, 2.0, "l2").norm(dim=1)
    assert float(euclidean.max()) <= 2.0
    # A share r³ of the ball lies within a share r of its radius.
    assert float((euclidean < 1.0).double().mean()) == pytest.approx(1 / 8, abs=0.02)
    cube = noise_in(Draws(stream(0), 4000), x, 2.0, "linf")
    assert float(cube.abs().max()) <= 2.0
    assert float((cube.abs().amax(1) < 1.0).double().mean()) == pytest.approx(1 / 8, abs=0.02)


# --- momentum --------------------------------------------------------------------------------------------------------


def test_momentum_adds_gradients_of_equal_length() -> None:
    class Turning(nn.Module):
        """Its gradient in x is (-1, 1) until the first pixel falls below ½, and (8, 0) from then on."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = torch.where(x[:, :1] < 0.5, 8 * x[:, :1], x[:, 1:] - x[:, :1])
            return torch.cat([torch.zeros_like(first), first], 1)

    # g = (-½, ½) s, then (½, ½) s for μ = 1: the second pixel goes on, the first returns; for μ = 3 it does not.
    x, y = torch.tensor([[0.55, 0.5]]), torch.tensor([0])
    once = robustfl.evasion("mia", eps=0.3, steps=2, step=0.1).perturb(Turning(), x, y)
    torch.testing.assert_close(once, torch.tensor([[0.55, 0.7]]))
    heavy = robustfl.evasion("mia", eps=0.3, steps=2, step=0.1, decay=3).perturb(Turning(), x, y)
    torch.testing.assert_close(heavy, torch.tensor([[0.35, 0.7]]))


# --- targets ---------------------------------------------------------------------------------------------------------

TARGETED = ["fgsm", "pgd", "mia", "pgd(norm=l2, eps=1)", "pgd(restarts=2)", "pgd(keep=best)"]


@pytest.mark.parametrize("spec", TARGETED)
def test_targeted_attacks_go_to_their_class_and_spare_its_images(spec: str) -> None:
    model, x, y = evasion_model.trained()
    attack = robustfl.evasion(spec, **({} if "eps" in spec else {"eps": 0.3}), targeted=True, target=3)
    found = attack.perturb(model, x, y)
    assert torch.equal(found[y == 3], x[y == 3])
    with torch.no_grad():
        before, after = F.log_softmax(model(x), 1)[:, 3], F.log_softmax(model(found), 1)[:, 3]
    assert float((after > before)[y != 3].double().mean()) > (0.8 if attack.name == "fgsm" else 0.97)


def test_restarts_and_the_best_iterate_bring_targeted_attacks_nearer() -> None:
    model, x, y = evasion_model.trained()

    def reached(spec: str) -> torch.Tensor:
        attack = robustfl.evasion(spec, eps=0.1, step=0.15, steps=3, targeted=True, target=3)
        with torch.no_grad():
            return F.log_softmax(model(attack.perturb(model, x, y, generator=stream(1))), 1)[:, 3]

    assert bool((reached("pgd(restarts=3)") >= reached("pgd")).all())
    assert bool((reached("pgd(keep=best)") >= reached("pgd")).all())


def test_the_default_target_is_the_least_likely_other_class() -> None:
    model = nn.Linear(3, 3, bias=False)
    nn.init.eye_(model.weight)
    x, y = torch.tensor([[0.9, 0.5, 0.1], [0.9, 0.5, 0.1]]), torch.tensor([0, 2])
    assert aim(model, x, y, None, "pgd").tolist() == [2, 1]
    found = robustfl.evasion("fgsm", eps=0.1, targeted=True).perturb(model, x, y)
    torch.testing.assert_close(found, torch.tensor([[0.8, 0.4, 0.2], [0.8, 0.6, 0.0]]))


# --- what defaults do, spelt out -------------------------------------------------------------------------------------


def written_out(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, start: torch.Tensor, eps: float, step: float, steps: int
) -> torch.Tensor:
    """The released loop: start in the ball, step, clip to the ball, clip to [0, 1]."""
    found = start.clamp(0, 1)
    for _ in range(steps):
        found = found.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(found), y, reduction="sum"), found)
        delta = (found.detach() + step * gradient.sign() - x).clamp(-eps, eps)
        found = (x + delta).clamp(0, 1)
    return found.detach()


def test_pgd_is_the_loop_of_its_equation() -> None:
    model, x, y = evasion_model.trained()
    x, y = x[:8].double(), y[:8]
    model = copy.deepcopy(model).double()
    eps = 8 / 255
    noise = torch.empty_like(x).uniform_(-eps, eps, generator=stream(5))
    expected = written_out(model, x, y, x + noise, eps, 2 / 255, 7)
    found = robustfl.evasion("pgd").perturb(model, x, y, generator=stream(5))
    torch.testing.assert_close(found, expected)


def test_the_released_digits_pipeline_clips_normalized_images() -> None:
    model, x, y = evasion_model.trained()
    x, y = x[:8].double(), y[:8]
    model = copy.deepcopy(model).double()
    eps, step = 8 / 255, 1.43 / 255
    u = 2 * x - 1
    noise = torch.empty_like(x).uniform_(-eps / 2, eps / 2, generator=stream(5))
    on_normalized = nn.Sequential(Halved(), model)
    expected = (written_out(on_normalized, u, y, u + 2 * noise, eps, step, 7) + 1) / 2
    attack = robustfl.evasion("pgd", eps=eps, step=step, legacy_digits_clip=True)
    found = attack.perturb(model, x, y, generator=stream(5))
    torch.testing.assert_close(found, expected)
    assert float(found[x == 0].min()) == 0.5


class Halved(nn.Module):
    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return (u + 1) / 2


@pytest.mark.parametrize("spec", ["fgsm", "mia(steps=1)"])
def test_the_released_digits_pipeline_moves_black_to_mid_grey(spec: str) -> None:
    found = robustfl.evasion(spec, eps=0.1, legacy_digits_clip=True).perturb(
        two_classes(), torch.tensor([[0.0, 0.8]]), torch.tensor([0])
    )
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.85]]))


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


def test_the_first_misclassified_iterate_is_the_best_for_good() -> None:
    now = climb_of([0] * 4, [2.0] * 4, [2.0] * 4, [False] * 4, fooled=[False, False, False, True])
    moved = torch.full((4, 1), 5.0)
    now.accept(moved, moved, torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.tensor([True, False, False, False]))
    assert now.best.flatten().tolist() == [5.0, 1.0, 5.0, 1.0]
    assert now.fooled.tolist() == [True, False, False, True]
    assert now.rises.tolist() == [1, 1, 1, 1]


def steps_written_out(
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
            expected = steps_written_out(model, x[i : i + 1], int(y[i]), one, start, eps, norm, steps)
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
