"""``robustfl.evaluate``: the numbers of somebody's own model, whatever form model and data come in."""

from __future__ import annotations

import json
import re
import runpy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
)

import robustfl
from robustfl.contracts import Evasion
from robustfl.data import Normalize, data_root, dataset_from_spec
from robustfl.errors import UsageError
from robustfl.evaluation.own_model import Evaluation, _placed
from robustfl.randomness import stream

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = ["fgsm(eps=0.1)", "pgd(eps=0.1, steps=3)"]


def small(seed: int = 0) -> nn.Sequential:
    """A network with batch norm and dropout, untrained, whose running statistics are not the initial ones."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 10)
    )
    model(torch.rand(32, 1, 8, 8))
    return model


def images() -> tuple[Tensor, Tensor]:
    """The digits' test set as its users hold it."""
    arrays = dataset_from_spec("digits").load(data_root())
    return torch.tensor(arrays.test_x).permute(0, 3, 1, 2).float() / 255, torch.tensor(arrays.test_y)


class Pairs(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return len(images()[1])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])

    def __init__(self) -> None:
        self.x, self.y = images()


FORMS: dict[str, Callable[[], Any]] = {
    "name": lambda: "digits",
    "method": lambda: dataset_from_spec("digits"),
    "tensors": images,
    "list": lambda: list(images()),
    "arrays": lambda: tuple(t.numpy() for t in images()),
    "uint8": lambda: ((images()[0] * 255).round().to(torch.uint8), images()[1].to(torch.int16)),
    "float64": lambda: (images()[0].double(), images()[1]),
    "data set": Pairs,
    "loader": lambda: DataLoader(TensorDataset(*images()), batch_size=200),
}


def test_a_loop_of_ones_own_has_the_numbers_of_a_cell() -> None:
    """Weights agree to rounding in float64, so accuracies are equal."""
    space = runpy.run_path(str(EXAMPLES / "own_loop.py"))
    record = robustfl.run(space["CELL"])
    found = robustfl.evaluate(space["model"], "digits", evasions=space["CELL"]["evasions"])
    assert (found.sa, found.ra, found.worst) == (record.metrics.sa, record.metrics.ra, record.metrics.ra_worst)
    assert found.per_class == record.metrics.per_class
    assert found.loss == pytest.approx(record.metrics.loss, rel=1e-9)
    assert found.sa > 0.8
    assert found.worst < found.sa - 0.1, "the attacks do something"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_data_gives_the_same_numbers(form: str) -> None:
    model = small()
    found = robustfl.evaluate(model, FORMS[form](), SPECS, batch=100)
    x, y = images()
    with torch.no_grad():
        assert found.sa == float((model.eval()(x).argmax(1) == y).double().mean())
    assert found.samples == found.ra_samples == len(y)
    assert found.ra == robustfl.evaluate(model, (x, y), SPECS, batch=100).ra


def test_robust_accuracy_is_that_of_the_attack_itself() -> None:
    model, (x, y) = small(), images()
    found = robustfl.evaluate(model, (x, y), SPECS, batch=100, seed=3)
    hits = []
    for spec in SPECS:
        attack, draws = robustfl.evasion(spec), stream(3, "evasion", spec)
        parts = [
            model.eval()(attack.perturb(model, a, b, generator=draws)).argmax(1) == b
            for a, b in zip(x.split(100), y.split(100), strict=True)
        ]
        hits.append(torch.cat(parts))
    assert found.ra == {spec: float(h.double().mean()) for spec, h in zip(SPECS, hits, strict=True)}
    assert found.worst == float((hits[0] & hits[1]).double().mean())
    assert found.per_class["sa"][0] is not None


def test_the_model_is_afterwards_as_it_was() -> None:
    model = small().train()
    model[2].eval()
    model[1].weight.requires_grad_(False)
    model[5].weight.grad = torch.full_like(model[5].weight, 7)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    robustfl.evaluate(model, images(), SPECS)
    assert [m.training for m in model] == [True, True, False, True, True, True]
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]
    assert model[5].weight.grad is not None
    assert bool((model[5].weight.grad == 7).all())
    assert [n for n, p in model.named_parameters() if p.grad is not None] == ["5.weight"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@dataclass(frozen=True)
class Rude(Evasion):
    """Takes gradients of everything and fails in the end."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        model.train().requires_grad_(True)
        with torch.enable_grad():
            model(x).sum().backward()
        model[2].running_mean.add_(1)  # type: ignore[index,operator]
        raise RuntimeError("enough")


def test_the_model_and_the_callers_gradients_are_as_they_were_after_an_error_too() -> None:
    model = small().eval()
    own = model[5].weight.grad = torch.full_like(model[5].weight, 7)
    with pytest.raises(RuntimeError, match="enough"):
        robustfl.evaluate(model, images(), [Rude()])
    assert not any(m.training for m in model.modules())
    assert [n for n, p in model.named_parameters() if p.grad is not None] == ["5.weight"]
    assert model[5].weight.grad is own
    assert bool((own == 7).all())
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), small().state_dict().values(), strict=True)
    )


class _Sum(nn.Module):
    """The sum of an image's pixels against two classes: its gradient is one number for all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return (x.sum((1, 2, 3))[:, None] - 19) * self.weight


@pytest.mark.parametrize("attack", ["fgsm", "pgd", "mia", "apgd-ce", "fab-t", "worst(of='pgd+mia')"])
def test_a_gradient_that_is_one_number_for_all_pixels_can_be_followed(attack: str) -> None:
    x, y = images()
    found = robustfl.evaluate(_Sum(), (x[:20], (y[:20] > 4).long()), [attack])
    assert 0 <= next(iter(found.ra.values())) <= found.sa


class _Blind(nn.Module):
    """Answers NaN where an image is not one of those it knows."""

    def __init__(self, known: Tensor, label: int) -> None:
        super().__init__()
        self.register_buffer("known", known.flatten(1))
        self.label = label

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        logits = torch.nn.functional.one_hot(torch.full((len(x),), self.label), 10).to(x) + 0.0 * flat.sum(1)[:, None]
        far = torch.cdist(flat, self.get_buffer("known")).amin(1) > 0.05
        return torch.where(far[:, None], logits * float("nan"), logits)


@pytest.mark.parametrize("label", [0, 3])
def test_who_answers_nan_is_not_robust_whatever_the_label(label: int) -> None:
    x, y = images()
    x, y = x[y == label][:10], y[y == label][:10]
    found = robustfl.evaluate(_Blind(x, label), (x, y), ["pgd(eps=0.1)", "square(eps=0.1, queries=20)"])
    assert found.sa == 1
    assert set(found.ra.values()) == {0.0}


def test_a_radius_in_units_of_255_is_doubted() -> None:
    x, y = images()
    found = robustfl.evaluate(small(), (x[:20], y[:20]), ["fgsm(eps=8)", "pgd(eps=0.1, steps=4)", "pgd(steps=2)"])
    assert "fgsm(eps=8) reaches every image: pixels lie in [0, 1]; is eps = 8/255 meant?" in found.notes
    assert not any("steps=4" in note for note in found.notes)
    short = "pgd(steps=2) does not cross its ball: 2 steps of 0.00784 are less than eps = 0.0314"
    assert short in found.notes


class _Detached(nn.Module):
    """Its outputs follow a graph that the images are no part of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(64, 10), torch.ones(10, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.detach().flatten(1)) * self.own


def test_outputs_without_a_gradient_are_named() -> None:
    x, y = images()
    with pytest.raises(UsageError, match="square and lsa need none"):
        robustfl.evaluate(_Detached(), (x[:10], y[:10]), ["fgsm"])


def test_it_works_where_gradients_are_off() -> None:
    model = small()
    wanted = robustfl.evaluate(model, images(), SPECS).ra
    with torch.no_grad():
        assert robustfl.evaluate(model, images(), SPECS).ra == wanted
    with torch.inference_mode():
        assert robustfl.evaluate(model, images(), SPECS).ra == wanted


def test_images_are_not_written_to_and_fewer_may_be_attacked() -> None:
    x, y = images()
    kept, told = x.clone(), list[tuple[int, int | None]]()
    found = robustfl.evaluate(small(), (x, y), SPECS, ra_limit=30, batch=40, on_batch=lambda *at: told.append(at))
    assert torch.equal(x, kept)
    assert (found.samples, found.ra_samples) == (len(y), 30)
    assert found.ra == robustfl.evaluate(small(), (x[:30], y[:30]), SPECS, batch=40).ra
    assert told[-1] == (len(y), len(y))


@dataclass(frozen=True)
class Counting(Evasion):
    """Leaves images as they are, and notes how many it was shown."""

    shown: ClassVar[list[int]] = []

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Tensor:
        self.shown.append(len(x))
        return x.clone()


def test_batches_of_unequal_size_weigh_by_their_images_and_none_beyond_the_limit_is_attacked() -> None:
    model, (x, y) = small().eval(), images()
    x, y = x[:101], y[:101]
    Counting.shown.clear()
    found = robustfl.evaluate(model, DataLoader(TensorDataset(x, y), batch_size=100), [Counting()], ra_limit=100)
    assert found.loss == pytest.approx(float(nn.functional.cross_entropy(model(x).detach(), y)), rel=1e-5)
    assert sum(Counting.shown) == 100
    assert 0 not in Counting.shown
    under = {spec: _wilson(value, 100) for spec, value in found.ra.items()}
    assert [found.interval(m) for m in ("sa", "worst")] == [_wilson(found.sa, 101), _wilson(found.worst, 100)]
    assert {spec: found.interval(spec) for spec in found.ra} == under


def _wilson(value: float | None, samples: int) -> object:
    """Wilson's interval of a share of ``samples``, at 95 %."""
    z = 1.959963984540054
    middle, reach = value + z**2 / (2 * samples), z * (value * (1 - value) / samples + z**2 / (4 * samples**2)) ** 0.5
    return pytest.approx(tuple((middle + s * reach) / (1 + z**2 / samples) for s in (-1, 1)), abs=1e-6)


def test_so_many_images_are_attacked_at_a_time_as_batch_says_however_many_there_are() -> None:
    """The draws of random starts depend on it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    Counting.shown.clear()
    robustfl.evaluate(model, (torch.rand(1100, 1, 1, 1), torch.arange(1100) % 2), [Counting()], batch=100)
    assert Counting.shown == [100] * 11


@dataclass(frozen=True)
class Drawing(Evasion):
    """Leaves images as they are, and notes what it draws."""

    drawn: ClassVar[list[float]] = []

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Tensor:
        self.drawn.append(float(torch.rand((), generator=generator)))
        return x.clone()


def test_batches_go_on_drawing_from_a_stream_of_their_attack() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    Drawing.drawn.clear()
    robustfl.evaluate(model, (torch.rand(6, 1, 1, 1), torch.arange(6) % 2), [Drawing()], batch=2, seed=3)
    draws = stream(3, "evasion", repr(Drawing()))
    assert Drawing.drawn == [float(torch.rand((), generator=draws)) for _ in range(3)]


def test_how_many_images_there_are_is_told_where_it_is_known() -> None:
    class Stream(IterableDataset[tuple[Tensor, int]]):
        def __iter__(self) -> Iterator[tuple[Tensor, int]]:
            return iter([(image, label) for image, label in zip(GOOD[0], GOOD[1].tolist(), strict=True)])

    pairs = TensorDataset(*GOOD)
    three = SubsetRandomSampler(range(3))
    by_hand = BatchSampler(range(4), 2, drop_last=False)
    for data, seen, total in (
        (pairs, [2, 4], 4),
        (DataLoader(pairs, batch_size=2), [2, 4], 4),
        (DataLoader(pairs, batch_size=3, drop_last=True), [3], 3),
        (DataLoader(pairs, batch_size=2, sampler=three), [2, 3], 3),
        (DataLoader(pairs, batch_sampler=by_hand), [2, 4], None),
        (DataLoader(pairs, batch_size=2, sampler=Endless()), [2, 4], None),
        (Stream(), [2, 4], None),
    ):
        told = list[tuple[int, int | None]]()
        robustfl.evaluate(small(), data, [], batch=2, on_batch=lambda *at, told=told: told.append(at))
        assert told == [(count, total) for count in seen]


class Endless(Sampler[int]):
    """Does not tell how many it draws."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_images_in_the_order_of_their_classes_are_noted() -> None:
    model, labels = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)), torch.arange(200) // 100
    x = torch.rand(200, 1, 1, 1)
    (note,) = robustfl.evaluate(model, (x, labels), [Counting()], ra_limit=80).notes
    assert "first 80 of 200 test images, which lack 1 of 2 classes" in note
    assert robustfl.evaluate(model, (x, labels), [Counting()]).notes == ()


def test_a_model_that_writes_to_its_input_sees_every_image_as_it_is() -> None:
    class Centres(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sub_(0.3).div_(0.2)

    x, y = images()
    kept, inner = x.clone(), small()
    found = robustfl.evaluate(nn.Sequential(Centres(), inner), (x, y), [])
    assert torch.equal(x, kept)
    assert found.loss == robustfl.evaluate(nn.Sequential(Normalize([0.3], [0.2]), inner), (x, y), []).loss


@pytest.mark.parametrize("replaced", [False, True])
def test_a_model_that_keeps_count_in_evaluation_is_told_and_put_back(*, replaced: bool) -> None:
    class Counts(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = small()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if replaced:
                self.seen = self.seen + 1
            else:
                self.seen += 1
            return self.inner(x)  # type: ignore[no-any-return]

    model = Counts()
    kept = model.seen
    found = robustfl.evaluate(model, images(), [])
    assert found.notes == ("the model changed its buffers seen in evaluation mode; put back",)
    assert (float(model.seen), found.ra, found.worst) == (0, {}, None)
    assert model.seen is kept


def test_a_buffer_that_holds_nan_all_along_has_not_changed() -> None:
    model = small()
    model.register_buffer("unused", torch.tensor([torch.nan, 1.0]))
    assert robustfl.evaluate(model, images(), []).notes == ()


def test_images_that_are_almost_black_are_told_of() -> None:
    x, y = images()
    (note,) = robustfl.evaluate(small(), (x / 255, y), []).notes
    bright_first = DataLoader(TensorDataset(torch.cat([x[:1], x / 255]), torch.cat([y[:1], y])), batch_size=1)
    assert robustfl.evaluate(small(), bright_first, []).notes == ()
    assert note.startswith("no pixel of a test image is above 0.0039, where 1 is white")


def test_the_result_is_a_table_and_json(tmp_path: Path) -> None:
    found = robustfl.evaluate(small(), images(), SPECS)
    frame = found.frame
    assert list(frame.index) == ["sa", *SPECS, "worst"]
    assert bool((frame["low"] <= frame["accuracy"]).all() and (frame["accuracy"] <= frame["high"]).all())
    told = json.loads(found.to_json(tmp_path / "found.json"))
    assert told == json.loads((tmp_path / "found.json").read_text())
    assert (told["sa"], told["ra"]) == (found.sa, found.ra)
    assert told["settings"]["evasions"][SPECS[1]]["params"]["steps"] == 3
    assert "<table" in found._repr_html_()
    assert SPECS[1] in str(found)
    with pytest.raises(UsageError, match="did you mean 'worst'"):
        found.interval("worts")


def test_wilsons_interval_by_hand() -> None:
    """8 of 10, z = 1.96: centre (8 + 1.9207)/(10 + 3.8415), half width 1.96/13.8415 · √(8·2/10 + 0.9604)."""
    labels = torch.tensor([0] * 8 + [1] * 2)
    always_zero = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    nn.init.zeros_(always_zero[1].weight), nn.init.zeros_(always_zero[1].bias)
    found = robustfl.evaluate(always_zero, (torch.rand(10, 1, 1, 1), labels), [])
    assert found.interval() == pytest.approx((0.4902, 0.9433), abs=1e-4)
    z = 0.6744897501960817  # half of the normal distribution lies within
    middle, reach = 0.8 + z**2 / 20, z * (0.8 * 0.2 / 10 + z**2 / 400) ** 0.5
    half = tuple((middle + side * reach) / (1 + z**2 / 10) for side in (-1, 1))
    assert found.interval(confidence=0.5) == pytest.approx(half, abs=1e-6)


def test_an_accuracy_that_no_binary_number_is_has_the_interval_of_its_hits() -> None:
    """0.29 · 100 is 28.999…"""
    found = Evaluation(sa=0.29, loss=1.0, ra={}, worst=None, samples=100, ra_samples=0, per_class={})
    assert found.interval() == _wilson(0.29, 100)


GOOD = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 9])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((GOOD[0] * 2 - 1, GOOD[1]), r"images reach from -.*give mean= and std="),
        ((GOOD[0] * torch.nan, GOOD[1]), "images reach from nan"),
        ((GOOD[0].int(), GOOD[1]), "dtype torch.int32"),
        ((GOOD[0], GOOD[1] + 1), "labels reach from 1 to 10; a model with 10 outputs knows 0 to 9"),
        ((GOOD[0], GOOD[1] - 1), "labels reach from -1"),
        ((GOOD[0], GOOD[1][:3]), "have 3 labels"),
        ((GOOD[0], GOOD[1].float()), "class numbers"),
        ((GOOD[0], GOOD[1] > 1), "class numbers"),
        ((GOOD[0], torch.eye(10)[GOOD[1]]), "class numbers"),
        ((GOOD[0][:0], GOOD[1][:0]), "no image"),
        (DataLoader(TensorDataset(*GOOD), batch_size=5, drop_last=True), "the data hold no image"),
        (
            (GOOD[0].permute(0, 2, 3, 1).expand(4, 8, 8, 3), GOOD[1]),
            "does not take a batch of 2 images of shape.*permute",
        ),
        ((["a", "b"], [0, 1]), "images of type list make no tensor"),
        ([{"image": 1}], "data is a list"),
        (DataLoader([{"image": 1}]), "a batch of the data is a dict"),  # type: ignore[arg-type]
        (7, "data is a int"),
        ("digts", "did you mean 'digits'"),
    ],
)
def test_data_that_make_no_sense_are_named(data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        robustfl.evaluate(small(), data, ["fgsm"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": len}, "not a torch.nn.Module"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 1))}, r"outputs for 2 images are \(2, 1\)"),
        ({"model": nn.Sequential(nn.Conv2d(1, 2, 1))}, r"outputs for 2 images are \(2, 2, 8, 8\)"),
        ({"evasions": ["pdg"]}, "did you mean 'pgd'"),
        ({"evasions": ["pgd", "pgd(steps=7)"]}, "pgd twice"),
        ({"evasions": [len]}, "neither a spec"),
        ({"evasions": 3}, "must be specs"),
        ({"batch": 0}, "batch=0"),
        ({"ra_limit": 1.5}, "ra_limit=1.5"),
        ({"device": "cuda:77"}, "device='cuda:77' cannot be used"),
        ({"device": "gpu"}, "device='gpu' cannot be used"),
    ],
)
def test_arguments_that_make_no_sense_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        robustfl.evaluate(**({"model": small(), "data": GOOD} | changes))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_broken_weights_are_told(value: float) -> None:
    model = small()
    with torch.no_grad():
        model[5].bias[9] = value
    with pytest.raises(UsageError, match="outputs are not finite"):
        robustfl.evaluate(model, GOOD)


def test_arrays_may_be_numpy_of_any_kind() -> None:
    x, y = images()
    strided = np.asfortranarray(x.numpy())[::-1]
    assert robustfl.evaluate(small(), (strided, y.numpy()[::-1]), []).sa == robustfl.evaluate(small(), (x, y), []).sa


def test_the_page_shows_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES.parent / "docs" / "own-loop.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, space)
    assert json.loads(Path("found.json").read_text())["sa"] == space["found"].sa
    assert [layer.shape for layer in space["change"]] == [(3, 2), (3,)]


class Saturated(torch.nn.Module):
    """Linear logits so far apart that float32 has no gradient of their loss left."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.stack([x.sum((1, 2, 3)), -x.sum((1, 2, 3))], dim=1)


def test_images_without_a_gradient_are_told() -> None:
    data = torch.full((20, 1, 2, 2), 0.5), torch.zeros(20, dtype=torch.long)
    told = robustfl.evaluate(Saturated(1e4), data, evasions=["fgsm(eps=0.1)"])
    assert told.ra["fgsm(eps=0.1)"] == 1.0
    assert any(
        note.startswith("the gradient of the loss is exactly zero for 100 % of the images") for note in told.notes
    )
    assert robustfl.evaluate(Saturated(0.1), data, evasions=["fgsm(eps=0.1)"]).notes == ()
    few = robustfl.evaluate(Saturated(1e4), data, evasions=["fgsm(eps=0.1)"], ra_limit=10)
    assert any("exactly zero for 100 % of the images" in note for note in few.notes)


def test_a_model_that_does_not_look_at_one_pixel_has_a_gradient() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight[:, 0] = 0.0
    data = torch.rand(20, 1, 2, 2), torch.arange(20) % 2
    assert robustfl.evaluate(model, data, evasions=["fgsm(eps=0.1)"]).notes == ()


def test_the_seed_is_among_the_settings_and_a_copy_goes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    assert robustfl.evaluate(small(), data, [], seed=7).settings["seed"] == 7
    model, moved = small(), list[nn.Module]()
    monkeypatch.setattr(nn.Module, "to", lambda self, where: moved.append(self) or self)
    tested, _, _ = _placed(model, "meta")
    assert moved == [tested]
    assert tested is not model
    assert next(tested.parameters()).data_ptr() != next(model.parameters()).data_ptr()


def test_a_model_that_autograd_does_not_see_is_named() -> None:
    model, data = Saturated(1.0), (torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.long))

    class Detached(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(x).detach()

    with pytest.raises(UsageError, match="do not depend on its inputs for autograd"):
        robustfl.evaluate(Detached(), data, evasions=["fgsm"])
    assert robustfl.evaluate(Detached(), data, evasions=["square(queries=5)"]).samples == 4


class _Noisy(nn.Module):
    """A model that draws at test time."""

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.5 * torch.randn_like(x)

    def __init__(self, noise: float = 1.0) -> None:
        super().__init__()
        self.inner, self.noise = small(), noise

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits + self.noise * torch.randn_like(logits)


def test_a_randomised_model_is_told_and_has_no_worst_of_several_attacks() -> None:
    attacks = ["fgsm(eps=0.0)", "mia(eps=0.0)"]
    found = robustfl.evaluate(_Noisy(), images(), attacks)
    assert found.worst is None
    assert "worst" not in found.frame.index
    assert found.notes[0].startswith("the model is randomised: two forwards of the same images differ")
    assert "eot=20" in found.notes[0]
    assert robustfl.evaluate(_Noisy(), images(), attacks[:1]).worst is not None
    assert robustfl.evaluate(_Noisy(0.0), images(), attacks).worst is not None


def test_a_model_that_is_randomised_and_depends_on_the_batch_can_be_attacked() -> None:
    """Also where a single image of a batch is left, of which batch norm has no statistics."""
    layers = nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10), _Noisy.Layer()
    x, y = images()
    found = robustfl.evaluate(nn.Sequential(*layers), (x[:9], y[:9]), ["apgd-ce(steps=20)"], eot=2, batch=4)
    assert [note[:9] for note in found.notes] == ["the model", "the model"]


def test_eot_attacks_and_classifies_with_the_mean_over_draws() -> None:
    """Of two equally likely models the one that is surer of itself decides."""

    class Turns(nn.Module):
        turn = 0

        def forward(self, x: Tensor) -> Tensor:
            self.turn += 1
            sure = torch.tensor([[2.0, 0.0]]) if self.turn % 2 else torch.tensor([[0.0, 1.0]])
            return sure + 0 * x.sum((1, 2, 3))[:, None]

    data = torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.long)
    found = robustfl.evaluate(Turns(), data, ["pgd(steps=2)", "apgd-ce(steps=2)"], eot=2)
    assert (found.sa, *found.ra.values()) == (1.0, 1.0, 1.0)
    mean = (torch.tensor([2.0, 0.0]).softmax(0) + torch.tensor([0.0, 1.0]).softmax(0)) / 2
    assert found.loss == pytest.approx(float(-mean[0].log()), rel=1e-5)
    assert found.settings["eot"] == 2
    assert "eot=2 changes nothing: the model is not randomised" in robustfl.evaluate(small(), images(), [], eot=2).notes


@pytest.mark.parametrize("batch", [None, 4, 50])
def test_a_model_that_depends_on_the_batch_has_one_batch_size_and_is_told(batch: int | None) -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.seen = nn.Linear(64, 10), list[int]()

        def layers(self, x: Tensor) -> Tensor:
            return self.last(5 * (x.flatten(1) - x.flatten(1).mean(0)))  # type: ignore[no-any-return]

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(len(x))
            return self.layers(x)

    model, (x, y) = Sizes(), images()
    found = robustfl.evaluate(model, (x[:99], y[:99]), ["pgd(eps=0.05)", "apgd-ce(eps=0.05, steps=10)"], batch=batch)
    size = batch or 99
    (note,) = found.notes
    assert f"every forward has batch size {size}" in note
    assert set(model.seen[-6:]) == {size}, "attacks that leave fooled images out, too"
    parts = [
        *x[: 99 // size * size].split(size),
        *([torch.cat([x[99 - 99 % size : 99], x])[:size]] if 99 % size else []),
    ]
    hits = torch.cat([model.layers(part).argmax(1) for part in parts])[:99] == y[:99]
    assert found.sa == float(hits.double().mean())


def test_a_batch_too_small_for_the_model_is_named() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10))
    with pytest.raises(UsageError, match=r"does not take a batch of 1 images.*Expected more than 1 value"):
        robustfl.evaluate(model, GOOD, batch=1)


def test_mean_and_std_are_the_normalization_and_eps_stays_in_pixels() -> None:
    inner, (x, y) = small(), images()
    whole = nn.Sequential(Normalize([0.3], [0.2]), inner)
    found = robustfl.evaluate(inner, (x, y), SPECS, mean=0.3, std=[0.2])
    wanted = robustfl.evaluate(whole, (x, y), SPECS)
    assert (found.sa, found.loss, found.ra) == (wanted.sa, wanted.loss, wanted.ra)


@pytest.mark.parametrize("given", [{"mean": 0.3}, {"mean": 0.3, "std": "a"}, {"mean": 0.3, "std": 0.0}])
def test_a_normalization_that_makes_no_sense_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"mean=\[?0.3"):
        robustfl.evaluate(small(), GOOD, **given)


class _Bright(nn.Module):
    """Class 1 where the mean of normalised pixels is above 0."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        return torch.stack([-mean, mean], 1)


def test_a_model_trained_on_inputs_of_another_scale_is_told() -> None:
    x = torch.linspace(0, 1, 40)[:, None, None, None].expand(40, 1, 8, 8)
    data = x, (x[:, 0, 0, 0] > 0.5).long()
    (note,) = robustfl.evaluate(_Bright(), data, []).notes
    assert note.startswith("of the first 40 images 52.5 % are classified right, and 100.0 % with mean=")
    assert robustfl.evaluate(_Bright(), data, [], mean=0.5, std=0.3).notes == ()


def test_a_batch_norm_whose_input_varies_less_than_in_training_is_told() -> None:
    x, y = images()
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10))
    for _ in range(30):
        model((x - 0.3) / 0.2)
    (note,) = robustfl.evaluate(model, (x, y), []).notes
    assert "the input of 0, the first batch norm, has 0.041 times the variance that it had in training" in note
    assert robustfl.evaluate(model, (x, y), [], mean=0.3, std=0.2).notes == ()


@pytest.mark.parametrize(
    "attack",
    ["fgsm", "pgd", "mia", "apgd-ce(steps=2)", "apgd-t(steps=2)", "fab-t(steps=2)", "square(queries=5)", "lsa"],
)
def test_a_model_that_writes_to_its_input_can_be_attacked(attack: str) -> None:
    class Centres(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sub_(0.3).div_(0.2)

    inner, (x, y) = small(), images()
    wanted = robustfl.evasion(attack).perturb(nn.Sequential(Normalize([0.3], [0.2]), inner).eval(), x[:8], y[:8])
    found = robustfl.evasion(attack).perturb(nn.Sequential(Centres(), inner).eval(), x[:8].clone(), y[:8])
    torch.testing.assert_close(found, wanted)


def test_a_scripted_model_has_the_numbers_of_its_module() -> None:
    model, (x, y) = small().eval(), images()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.script(model)
    wanted = robustfl.evaluate(model, (x, y), SPECS, batch=64)
    found = robustfl.evaluate(nn.Sequential(scripted), (x, y), SPECS)
    assert (found.sa, found.ra) == (wanted.sa, wanted.ra)


class _Given(Dataset[Any]):
    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index], 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_Given(object(), object()), r"images of _Given make no batch: default_collate.*ToTensor\(\)"),
        (_Given(torch.rand(1, 8, 8), torch.rand(1, 8, 9)), "make no batch: stack expects each tensor"),
        (
            DataLoader(_Given(torch.rand(1, 8, 8), torch.rand(1, 8, 9)), batch_size=1),
            r"images of shape \(1, 8, 9\) after images of shape \(1, 8, 8\)",
        ),
    ],
)
def test_samples_that_make_no_batch_are_named(data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        robustfl.evaluate(small(), data)


def test_an_error_of_a_data_set_is_its_own() -> None:
    class Broken(_Given):
        def __getitem__(self, index: int) -> Any:
            raise RuntimeError("file 7 is damaged")

    with pytest.raises(RuntimeError, match="file 7 is damaged"):
        robustfl.evaluate(small(), Broken(1))


def test_a_running_variance_below_0_is_refused() -> None:
    model = small()
    model[2].running_var[3] = -1e-6
    with pytest.raises(UsageError, match=r"2.running_var of the model holds -1e-06; variances must be ≥ 0"):
        robustfl.evaluate(model, GOOD)


def test_norm_and_eps_of_every_attack_are_printed() -> None:
    attacks = ["fgsm", "pgd(eps=0.5, norm=l2)", "worst(of='fgsm(eps=0.2)+mia')", "lsa"]
    shown = str(robustfl.evaluate(small(), images(), attacks, ra_limit=4)).splitlines()
    assert shown[0].split()[-2:] == ["norm", "eps"]
    assert [line.split()[-2:] for line in shown[3:5]] == [["linf", "8/255"], ["l2", "0.5"]]
    assert shown[5].endswith("linf  0.2, 8/255")
    assert [shown[k].split()[-1] for k in (2, 6)] == ["355", "4"]


def test_a_radius_that_is_small_for_the_data_set_is_told() -> None:
    class MNIST(TensorDataset):
        pass

    def told(*attacks: str) -> list[str]:
        return [n for n in robustfl.evaluate(small(), MNIST(*GOOD), attacks).notes if "small for" in n]

    assert told("fgsm") == ["eps = 8/255 (linf) is small for mnist: robust accuracy is usually reported at 0.3"]
    assert told("fgsm", "fgsm(eps=0.3)") == told("lsa") == told("fgsm(eps=0.1, norm=l2)") == []
    assert len(told("worst(of=fgsm+square(queries=2))")) == 1
