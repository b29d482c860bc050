"""The attacks of AutoAttack, the local search, and sequences of attacks."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import evasion_model
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import robustfl
from robustfl.attacks.evasion import checkpoints, masking, p_at, resisting_after
from robustfl.attacks.evasion.balls import Draws
from robustfl.attacks.evasion.fab_t import project
from robustfl.attacks.evasion.points import in_turn
from robustfl.contracts import Evasion
from robustfl.errors import UsageError
from robustfl.randomness import stream
from robustfl.registry import create

RADII = {"linf": 0.1, "l2": 0.6}


def linear(weight: list[list[float]], bias: list[float]) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(len(weight[0]), len(weight))).double()
    model.load_state_dict({"1.weight": torch.tensor(weight), "1.bias": torch.tensor(bias)})
    return model


# --- losses and schedules --------------------------------------------------------------------------------------------


def test_checkpoints_of_short_runs_are_rounded_up_and_distinct() -> None:
    assert checkpoints(50) == [0, 11, 21, 29, 35, 40, 44, 47, 50]
    assert checkpoints(3) == [0, 1, 2, 3]


def test_the_share_of_pixels_can_be_stretched_to_the_budget() -> None:
    assert [p_at(q, queries=1000, rescale=True) for q in (1, 2, 5, 6)] == [0.8, 0.4, 0.4, 0.2]
    assert p_at(9000, queries=10_000) == 0.8 / 512


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
    model, x, y = evasion_model.trained()
    together = evasion_model.resisting(attack, count=150)
    for part in attack.parts:
        alone = evasion_model.resisting(part, count=150)
        assert not bool((together & ~alone).any()), part.name
    shares = resisting_after(attack, model, x[:150], y[:150], generator=stream(0, "attack"))
    assert list(shares) == ["clean", "apgd-ce", "apgd-t", "fab-t", "square"]
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert shares["clean"] == evasion_model.accuracy(model, x[:150], y[:150])
    assert shares["square"] == pytest.approx(float(together.double().mean()))


def test_the_worst_case_fools_what_each_part_fools() -> None:
    spec = "fgsm(eps=0.1)+pgd(eps=0.1, steps=3)+square(eps=0.1, queries=40)+pgd(eps=0.5, norm=l2)"
    attack = robustfl.evasion("worst", of=spec)
    together = evasion_model.resisting(attack, count=150)
    for part in attack.parts:
        assert not bool((together & ~evasion_model.resisting(part, count=150)).any()), part.name
    model, x, y = evasion_model.trained()
    shares = resisting_after(attack, model, x[:150], y[:150], generator=stream(0, "attack"))
    assert list(shares) == ["clean", "fgsm", "pgd", "square", "pgd 4"]


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
    first = robustfl.evasion("fgsm", eps=0.2)
    left = [len(h.rows) for _, h in in_turn([first, Inverting()], model, x, y, Draws(stream(0), 2))]
    assert left == [1, 0]


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
