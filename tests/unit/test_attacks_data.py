"""What data poisoners make of a batch."""

from __future__ import annotations

import pytest
import torch

import robustfl
from robustfl.contracts import View
from robustfl.errors import Refused, UsageError
from robustfl.randomness import stream

X = torch.linspace(0, 0.5, 10 * 3 * 8 * 8).reshape(10, 3, 8, 8)
Y = torch.arange(10)


def poison(spec: str, **more: int) -> tuple[torch.Tensor, torch.Tensor]:
    return robustfl.attack(spec).poison(X, Y, classes=10, generator=stream(0), **more)


def test_labels_of_one_class_become_another() -> None:
    assert poison("label-flip(source=3, target=7)")[1].tolist() == [0, 1, 2, 7, 4, 5, 6, 7, 8, 9]
    assert poison("label-flip(target=7)")[1].tolist() == [7] * 10
    assert poison("label-flip")[1].tolist() == list(range(9, -1, -1))


@pytest.mark.parametrize(
    ("spec", "words"),
    [("label-flip(source=1)", "source=1 needs a target"), ("label-flip(source=2, target=2)", "must differ")],
)
def test_label_flipping_that_flips_nothing_is_refused(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        robustfl.attack(spec)


@pytest.mark.parametrize("spec", ["label-flip(target=10)", "label-flip(source=10, target=1)", "badnets(target=10)"])
def test_classes_that_the_data_do_not_have_are_refused(spec: str) -> None:
    with pytest.raises(Refused, match="=10 must be < 10, the number of classes"):
        poison(spec)


def test_random_labels_are_uniform_over_all_classes() -> None:
    y = torch.zeros(20_000, dtype=torch.int64)
    _, drawn = robustfl.attack("dirty-labels").poison(y, y, classes=4, generator=stream(0))
    assert (torch.bincount(drawn, minlength=4) / 5000).tolist() == pytest.approx([1.0] * 4, abs=0.05)
    _, some = robustfl.attack("dirty-labels(fraction=0.4)").poison(y, y, classes=4, generator=stream(0))
    assert float((some != 0).double().mean()) == pytest.approx(0.4 * 3 / 4, abs=0.02)


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 5), (0.3, 3), (0.31, 4), (1.0, 10), (0.01, 1)])
def test_a_share_of_the_batch_is_stamped_and_labelled(fraction: float, count: int) -> None:
    x, y = poison(f"badnets(target=4, fraction={fraction}, size=2, margin=1)")
    changed = (x != X).flatten(1).any(1)
    assert int(changed.sum()) == count
    assert y[changed].tolist() == [4] * count
    assert torch.equal(y[~changed], Y[~changed])
    square = torch.zeros(8, 8, dtype=torch.bool)
    square[5:7, 5:7] = True
    assert torch.equal((x != X)[changed].all(0).all(0), square)
    assert bool((x[changed][:, :, square] == 1).all())


def test_which_samples_are_stamped_is_drawn() -> None:
    def stamped(seed: int) -> tuple[bool, ...]:
        x, _ = robustfl.attack("badnets").poison(X, Y, classes=10, generator=stream(seed))
        return tuple((x != X).flatten(1).any(1).tolist())

    assert len({stamped(seed) for seed in range(8)}) > 1


def test_attackers_stamp_different_bars_that_together_are_the_trigger() -> None:
    attack = robustfl.attack("dba(fraction=1, target=1)")
    bars = [attack.poison(X, Y, classes=10, generator=stream(0), attacker=i)[0] != X for i in range(5)]
    assert torch.equal(bars[0], bars[4])
    assert [int(bar[0, 0].sum()) for bar in bars] == [3] * 5
    assert torch.equal(sum(bar.int() for bar in bars[:4]), (attack.trigger(X) != X).int())


def test_the_bars_stand_where_the_parameters_say() -> None:
    drawn = robustfl.attack("dba(length=2, gap=1)").trigger(torch.zeros(1, 1, 4, 6))[0, 0]
    assert drawn.tolist() == [[1, 1, 0, 1, 1, 0], [0] * 6, [1, 1, 0, 1, 1, 0], [0] * 6]


@pytest.mark.parametrize("spec", ["badnets(size=9)", "badnets(margin=6)", "dba(length=4)", "dba(gap=7, length=1)"])
def test_a_trigger_larger_than_the_image_is_refused(spec: str) -> None:
    with pytest.raises(Refused, match=r"the trigger takes \d+×\d+ pixels; the images have 8×8"):
        poison(spec)


@pytest.mark.parametrize("name", ["badnets", "dba"])
def test_backdoors_want_images(name: str) -> None:
    with pytest.raises(UsageError, match="stamps images"):
        robustfl.attack(name).trigger(torch.zeros(3, 4))


OWN = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.5, 0.0]])


def sent(spec: str, **view: object) -> list[list[float]]:
    return robustfl.attack(spec).forge(View(n=6, f=2, own=OWN, **view), generator=stream(0)).tolist()


def test_model_replacement_survives_the_mean_of_honest_clients_that_stand_still() -> None:
    rows = torch.tensor(sent("model-replacement"))
    mean = torch.cat([torch.zeros(4, 3), rows]).mean(0)
    torch.testing.assert_close(mean, OWN.mean(0))


def test_a_norm_bound_shortens_only_rows_that_are_longer() -> None:
    assert sent("model-replacement(scale=2, bound=5)") == [[3, 4, 0], [0, 1, 0]]


def test_neurotoxin_leaves_out_what_the_server_moved_most() -> None:
    last = torch.tensor([0.1, -5.0, 3.0])
    assert sent("neurotoxin(ratio=0.3)", previous=last) == [[3, 0, 0], [0, 0, 0]]
    assert sent("neurotoxin(ratio=0.6, scale=2)", previous=last) == [[6, 0, 0], [0, 0, 0]]
    assert sent("neurotoxin(scale=2)") == [[6, 8, 0], [0, 1, 0]]  # the first round


@pytest.mark.parametrize("name", ["model-replacement", "neurotoxin"])
def test_backdoors_leave_statistics_as_they_are(name: str) -> None:
    assert sent(name, channel="statistics", previous=torch.ones(3)) == OWN.tolist()


@pytest.mark.parametrize("name", ["model-replacement", "neurotoxin"])
@pytest.mark.parametrize("inner", ["sf", "none", "model-replacement"])
def test_only_plain_data_poisoning_is_scaled_or_projected(name: str, inner: str) -> None:
    with pytest.raises(UsageError, match="must poison data and leave messages alone"):
        robustfl.attack(name, attack=inner)


def test_constrain_and_scale_mixes_the_gradient_with_the_way_from_the_received_model() -> None:
    gradient, moved = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 8.0])
    assert robustfl.attack("model-replacement").constrain(gradient, moved).tolist() == [4, 0]
    constrained = robustfl.attack("model-replacement", alpha=0.25)
    assert constrained.constrain(gradient, moved).tolist() == [1, 6]
    assert robustfl.attack("timed", attack="model-replacement(alpha=0.25)", start=3).constrain(
        gradient, moved, round=2
    ).tolist() == [4, 0]
    assert robustfl.attack("timed", attack="model-replacement(alpha=0.25)", start=3).constrain(
        gradient, moved, round=3
    ).tolist() == [1, 6]
