"""Evasion attacks: balls, steps, targets and sequences, and each attack written once more, image by image."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import evasion_model
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import robustfl
from robustfl.attacks.evasion import PGD, checkpoints, fab_t, masking, p_at, points, targeted_dlr
from robustfl.attacks.evasion.apgd import _Climb, _loss, climb
from robustfl.attacks.evasion.balls import Draws, noise_in
from robustfl.attacks.evasion.fab_t import project
from robustfl.attacks.evasion.losses import aim
from robustfl.attacks.evasion.points import Harvest, InTurn
from robustfl.attacks.evasion.square import signs
from robustfl.attacks.evasion.whitebox import frozen
from robustfl.contracts import Evasion
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.registry import create


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
    model = nn.Sequential(nn.Flatten(), nn.Linear(len(weight[0]), len(weight))).double()
    model.load_state_dict({"1.weight": torch.tensor(weight), "1.bias": torch.tensor(bias)})
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


@pytest.mark.parametrize("name", ["apgd-t", "fab-t"])
@pytest.mark.parametrize("eps", [0.01, 0.06])  # the second fools every image before the last class, and stops drawing
def test_classes_aimed_at_together_find_what_one_after_another_finds(
    name: str, eps: float, images: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = images
    attack = robustfl.evasion(name, eps=eps, steps=12, restarts=2)
    found, states = [], []
    for at_a_time in (1, 256):
        monkeypatch.setattr(points, "NEAR", at_a_time)
        found.append(attack.perturb(model, x, y, generator=(draw := stream(1))))
        states.append(draw.get_state())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)
    assert torch.equal(*states)
    assert (resisting(model, found[1], y) == 0) == (eps > 0.05)


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


RADII = {"linf": 0.1, "l2": 0.6}


# --- losses and schedules --------------------------------------------------------------------------------------------


def test_checkpoints_of_short_runs_are_rounded_up_and_distinct() -> None:
    assert checkpoints(50) == [0, 11, 21, 29, 35, 40, 44, 47, 50]
    assert checkpoints(3) == [0, 1, 2, 3]


def test_a_draw_of_one_half_is_a_plus() -> None:
    assert signs(torch.tensor([0.0, 0.49, 0.5, 0.99])).tolist() == [-1, -1, 1, 1]


def test_the_share_of_pixels_can_be_stretched_to_the_budget() -> None:
    assert [p_at(q, queries=1000, rescale=True) for q in (1, 2, 5, 6)] == [0.8, 0.4, 0.4, 0.2]
    assert p_at(9000, queries=10_000) == 0.8 / 512
    assert [p_at(q, queries=10_000, rescale=True) for q in (10, 11)] == [0.8, 0.4]


def test_the_start_in_the_euclidean_ball_fits_images_smaller_than_its_grid() -> None:
    x = torch.full((2, 1, 3, 4), 0.5)
    found = robustfl.evasion("square(norm=l2, eps=0.1, queries=1)").perturb(nn.Flatten(), x, torch.zeros(2).long())
    torch.testing.assert_close((found - x).flatten(1).norm(dim=1), torch.full((2,), 0.1))


# --- APGD ------------------------------------------------------------------------------------------------------------


def test_two_classes_are_attacked_by_cross_entropy() -> None:
    model = linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    x = torch.tensor([[0.6, 0.5]], dtype=torch.float64)
    for eps, fooled in ((0.051, True), (0.049, False)):
        found = robustfl.evasion("apgd-t", eps=eps, steps=10).perturb(model, x, torch.tensor([0]))
        assert (model(found).argmax(1) != 0).tolist() == [fooled]


# --- FAB -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_hyperplane_out_of_reach_is_approached_to_the_corner(norm: str) -> None:
    x, w = torch.tensor([[0.2, 0.7, 0.5]]), torch.tensor([[1.0, -2.0, 0.0]])
    torch.testing.assert_close(project(x, w, torch.tensor([-9.0]), norm), torch.tensor([[0.8, -0.7, 0.0]]))
    torch.testing.assert_close(project(x, w, torch.tensor([9.0]), norm), torch.tensor([[-0.2, 0.3, 0.0]]))


# --- local search ----------------------------------------------------------------------------------------------------


def brightness(first: Tensor, bias: float) -> nn.Module:
    """Class 0 while the weighted sum of the pixels exceeds ``bias``."""
    flat = first.flatten().tolist()
    return linear([flat, [0.0] * len(flat)], [0.0, bias])


def test_the_library_variant_starts_every_round_from_the_image() -> None:
    x = torch.rand(4, 3, 8, 8, generator=stream(0), dtype=torch.float64)
    model = brightness(torch.ones(3, 8, 8, dtype=torch.float64), -1e3)  # nothing fools it
    y = torch.zeros(4).long()
    adding = robustfl.evasion("lsa").perturb(model, x, y)
    library = robustfl.evasion("lsa", variant="advertorch").perturb(model, x, y)
    changed = [(found != x).any(1).flatten(1).sum(1) for found in (adding, library)]
    assert int(changed[1].max()) <= 5 < int(changed[0].max())
    with pytest.raises(UsageError, match="8x4 images are not square"):
        robustfl.evasion("lsa", variant="advertorch").perturb(
            brightness(torch.ones(3, 8, 4, dtype=torch.float64), -1e3), x[..., :4], y
        )


# --- sequences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_together_they_fool_what_each_fools(norm: str) -> None:
    attack = robustfl.evasion("autoattack", eps=RADII[norm], norm=norm, steps=8, queries=60)
    together = evasion_model.resisting(attack, count=60)
    for part in attack.parts:
        alone = evasion_model.resisting(part, count=60)
        assert not bool((together & ~alone).any()), part.name


def test_the_worst_case_fools_what_each_part_fools() -> None:
    spec = "fgsm(eps=0.1)+pgd(eps=0.1, steps=3)+square(eps=0.1, queries=40)+pgd(eps=0.5, norm=l2)"
    attack = robustfl.evasion("worst", of=spec)
    together = evasion_model.resisting(attack, count=150)
    for part in attack.parts:
        assert not bool((together & ~evasion_model.resisting(part, count=150)).any()), part.name


@pytest.mark.parametrize(
    ("spec", "passes"),
    [
        ("lsa", 7 * (128 + 1)), ("square(queries=40, restarts=2)", 2 * 41), ("fab-t", 9 * (4 * 100 + 3 + 2) + 1),
        ("fab-t(steps=10, targets=2, restarts=3)", 2 * 3 * (4 * 10 + 3 + 2) + 1),
    ],
)  # fmt: skip
def test_passes_are_counted_as_the_attack_takes_them(spec: str, passes: int) -> None:
    assert create("evasion", spec).passes == passes


def test_the_worst_case_is_written_in_one_way() -> None:
    attack = create("evasion", "worst(of=pgd( eps=8/255 , steps=9)+worst(of='fgsm+square(p=.5)'))")
    assert attack.of == "pgd(steps=9)+worst(of='fgsm+square(p=0.5)')"
    assert [part.name for part in attack.parts] == ["pgd", "worst"]
    assert attack.passes == 27 + 3 + 5001


@dataclass(frozen=True)
class Inverting(Evasion):
    """An attack from elsewhere that knows nothing of rows."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return 1 - x


def test_attacks_from_elsewhere_take_part_in_a_sequence() -> None:
    model = linear([[1.0], [-1.0]], [0.0, 1.0])
    x, y = torch.tensor([[0.9], [0.6]], dtype=torch.float64).view(2, 1, 1, 1), torch.tensor([0, 0])

    class Both(InTurn):
        parts = robustfl.evasion("fgsm", eps=0.25), Inverting()  # the second meets what the first does not fool

    assert Both().craft(model, x, y, Draws(stream(0), 2)).flatten().tolist() == pytest.approx([0.1, 0.35])


@pytest.mark.parametrize("spec", ["apgd-ce(eps=0.1, steps=9)", "square(eps=0.1, queries=70)", "lsa", "pgd(eps=0.1)"])
def test_what_an_image_draws_does_not_depend_on_which_others_are_left(spec: str) -> None:
    model, x, y = evasion_model.trained()
    model, x, y = copy.deepcopy(model).double(), x[:6].double(), y[:6]
    attack = robustfl.evasion(spec)
    together = attack.perturb(model, x, y, generator=stream(0))
    wrong = y.clone()
    wrong[[0, 2, 3]] = (wrong[[0, 2, 3]] + 1) % 10  # misclassified from the start: nothing to do for them
    others = attack.perturb(model, x, wrong, generator=stream(0))
    torch.testing.assert_close(others[[1, 4, 5]], together[[1, 4, 5]])


# --- masked gradients ------------------------------------------------------------------------------------------------


class Rounded(nn.Module):
    """Pixels in nine steps: as good a classifier, with no gradient at all."""

    def forward(self, x: Tensor) -> Tensor:
        return (8 * x).round() / 8


def test_masked_gradients_are_noticed() -> None:
    model, x, y = evasion_model.trained()
    masked = nn.Sequential(Rounded(), model).eval()
    specs = ("pgd(eps=0.1)", "apgd-ce(eps=0.1, steps=10)", "square(eps=0.1, queries=200)")

    def report(network: nn.Module) -> dict[str, float]:
        found = {s: robustfl.evasion(s).perturb(network, x[:100], y[:100]) for s in specs}
        return {s: evasion_model.accuracy(network, images, y[:100]) for s, images in found.items()}

    assert masking(report(model)) is None
    warning = masking(report(masked))
    assert "gradients may be masked" in warning
    assert "square(eps=0.1, queries=200)" in warning


@pytest.mark.parametrize(
    ("report", "warned"),
    [
        ({"pgd": 0.5, "square": 0.495}, False),  # within the margin
        ({"pgd(eps=0.1)": 0.5, "square(eps=0.2)": 0.1}, False),  # a larger ball
        ({"pgd(eps=0.2)": 0.5, "square(eps=0.1)": 0.1}, True),  # a smaller ball
        ({"pgd": 0.5, "square(norm=l2)": 0.1}, False),
        ({"pgd": 0.5, "lsa": 0.4}, True),
        ({"pgd": 0.5, "fgsm": 0.2, "lsa": 0.4}, False),  # the strongest white box counts
        ({"square": 0.1}, False),
        ({"autoattack": 0.5, "square": 0.1}, False),  # made of both kinds
        ({"worst(of=pgd+fgsm)": 0.5, "worst(of=square+lsa)": 0.1}, True),
        ({}, False),
    ],
)
def test_what_counts_as_masking(report: dict[str, float], warned: bool) -> None:
    assert (masking(report) is not None) == warned


def test_the_warning_says_who_beat_whom() -> None:
    assert masking({"pgd": 0.5, "lsa": 0.4}) == (
        "gradients may be masked: robust accuracy is 40.0 % under lsa, without gradients (which no ε bounds), "
        "but 50.0 % under pgd"
    )


def test_the_loss_of_images_that_resist_is_the_highest_found() -> None:
    model, x, y = evasion_model.trained()
    attack = robustfl.evasion("worst", of="fgsm(eps=0.02)+pgd(eps=0.04)")
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(a.perturb(model, x, y, generator=stream(0))), y, reduction="none")
            for a in (*attack.parts, attack)
        ]
    held = evasion_model.hits(model, attack.perturb(model, x, y, generator=stream(0)), y)
    torch.testing.assert_close(losses[2][held], torch.maximum(losses[0], losses[1])[held])


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
