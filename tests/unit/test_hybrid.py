"""HBN: exact global statistics, hybrid training, testing with fresh statistics that fit the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustfl.contracts import StatisticsLayer
from robustfl.defenses.aggregation import PlainMean
from robustfl.engine import train
from robustfl.engine.clients import Clients
from robustfl.engine.statistics import begin, collect, collecting
from robustfl.engine.statistics_aggregation import _moved
from robustfl.engine.training import _Loop
from robustfl.layout import layout_of, read_statistics
from robustfl.registry import create
from robustfl.scenarios.build import Built, build
from robustfl.scenarios.cell import Cell

SIZES = (6, 4, 5)


def data() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, 2, 3, 3, generator=generator, dtype=torch.float64) + 3 * k for k, n in enumerate(SIZES)]


def network(norm: str = "hbn") -> nn.Sequential:
    made = create("norm", norm)
    torch.manual_seed(0)
    layers = [made.layer(2), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1), made.layer(3), nn.ReLU(), nn.Flatten(),
              nn.Linear(27, 4), made.layer(4)]  # fmt: skip
    return nn.Sequential(*layers).double()


def cell(**more: object) -> Cell:
    base = {"evasions": [], "clients": 4, "batch": 8, "rounds": 2, "dtype": "float64", "norm": "hbn",
            "algorithm": "fedavg(local_steps=2)", "partition": "gamma(gamma=0.3)"}  # fmt: skip
    return Cell.of({**base, **more})


def test_first_update_takes_the_union_and_later_ones_a_small_step() -> None:
    def statistics(**more: object) -> list[torch.Tensor]:
        return [r.state.statistics.clone() for r in train(build(cell(rounds=2, **more)).experiment)]

    usual, slow = statistics(), statistics(norm="hbn(lambda_first=0.01)")
    initial = build(cell()).experiment.layout.initial_statistics(usual[0])
    torch.testing.assert_close(slow[0] - initial, 0.01 * (usual[0] - initial), rtol=1e-9, atol=1e-12)
    assert float((usual[1] - usual[0]).norm()) < 0.05 * float((usual[0] - initial).norm())


@pytest.mark.parametrize("eval_stats", ["subset", "all", "ema"])
def test_testing_uses_fresh_statistics_and_training_goes_on_with_its_own(eval_stats: str) -> None:
    e = build(cell(norm=f"hbn(eval_stats={eval_stats})", participation=0.5)).experiment
    for record in train(e):
        last = record
    held = read_statistics(e.model, e.layout, last.state.theta)
    assert torch.equal(held, last.state.statistics)
    if eval_stats == "ema":
        assert last.tested is None
        return
    assert not torch.equal(last.tested.statistics, last.state.statistics)
    assert torch.equal(last.tested.theta, last.state.theta)


# --- what a pass collects --------------------------------------------------------------------------------------------


def by_hand(layers: nn.Sequential, x: torch.Tensor, *, mixed: bool) -> torch.Tensor:
    """Statistics of a pass over one batch that the mixture normalises; biased variances."""
    parts = []
    for layer in layers:
        if isinstance(layer, StatisticsLayer):
            axes = [0, *range(2, x.dim())]
            own, share = (x.mean(axes), x.var(axes, correction=0)), torch.sigmoid(layer.factor)
            server = (layer.running_mean, layer.running_var)
            both = tuple((1 - share) * a + share * b for a, b in zip(own, server, strict=True))
            parts += both if mixed else own
            shape = (1, -1, *(1,) * (x.dim() - 2))
            x = (x - both[0].view(shape)) * (both[1].view(shape) + layer.eps).rsqrt()
        else:
            x = layer(x)
    return torch.cat(parts).detach()


@pytest.mark.parametrize(
    ("norm", "refresh", "mixed"),
    [("hbn", False, False), ("hbn", True, True), ("hbn(stats_mode=repo)", False, True)],
)
def test_a_pass_is_normalised_as_training_and_a_test_gets_what_normalised(norm, refresh, mixed):
    model = network(norm)
    for layer in model:
        if isinstance(layer, StatisticsLayer):
            torch.nn.init.uniform_(layer.factor, -1, 1, generator=torch.Generator().manual_seed(2))
            layer.running_mean.fill_(0.5)
    x = data()[0]
    begin(model, None)
    with collecting(model.train(), refresh=refresh), torch.no_grad():
        model(x)
    torch.testing.assert_close(collect(model, layout_of(model)).rows[0], by_hand(model, x, mixed=mixed))


@pytest.mark.parametrize("mode", ["hybrid", "eval"])
def test_a_pass_over_many_samples_takes_them_in_batches_of_equal_size(mode, monkeypatch):
    """With three batches of 67 samples and one normaliser for all, the pooled statistics are those of all samples."""
    monkeypatch.setattr("robustfl.engine.clients.STATISTICS_BATCH", 80)
    e = build(
        cell(norm=f"hbn(stats_mode={mode})", model="mlp", partition="iid", dataset="digits(limit=804, test_limit=10)")
    ).experiment
    sizes: list[int] = []
    handle = e.model.register_forward_pre_hook(lambda m, given: sizes.append(len(given[0])))
    clients = Clients(e, lambda message: None)
    sizes.clear()
    reports = clients.statistics([0], 0, e.flat[None])
    handle.remove()
    assert sizes == [67, 67, 67]
    assert reports.counts.tolist() == [[201]]
    hidden = e.model[1][1](e.model[0](e.train.pixels(e.seats[0], dtype=torch.float64)).flatten(1)).detach()
    expected = torch.cat([hidden.mean(0), hidden.var(0, correction=0)])
    torch.testing.assert_close(reports.rows[0], expected, rtol=1e-9, atol=1e-9)


DEEP = {"model": "mlp(hidden=(50, 50, 50, 50))", "dataset": "digits"}


def settle(e: Built) -> None:
    """Statistics of all training data, layer after layer, so that each fits the network that uses it."""
    x = torch.cat([e.experiment.train.pixels(part, dtype=e.experiment.flat.dtype) for part in e.experiment.parts])
    model = e.experiment.model.eval()
    for layer in [m for m in model.modules() if isinstance(m, StatisticsLayer)]:
        inputs: list[torch.Tensor] = []
        handle = layer.register_forward_pre_hook(lambda m, given, to=inputs: to.append(given[0]))
        with torch.no_grad():
            model(x)
        handle.remove()
        flat = inputs[0].transpose(0, 1).flatten(1)
        layer.running_mean.copy_(flat.mean(1))
        layer.running_var.copy_(flat.var(1))
    model.train()


def test_repeated_passes_in_evaluation_mode_leave_statistics_that_fit_the_model() -> None:
    built = build(cell(**DEEP, norm="hbn(stats_mode=eval)", schedule={"kind": "constant", "lr": 0.05}))
    e = built.experiment
    *_, last = train(e)
    settle(built)
    torch.testing.assert_close(last.tested.statistics, read_statistics(e.model, e.layout, e.flat), rtol=1e-8, atol=1e-8)


def passes_of(norm: str) -> int:
    """The passes of one client before a test."""
    e = build(cell(**DEEP, norm=norm, rounds=1)).experiment
    loop, before, seen = _Loop(e, lambda message: None), None, 0
    for record in train(e):
        before = record.state
    assert before is not None
    original = loop._clients.statistics

    def counted(ids: list[int], *rest: object, **more: object) -> object:
        nonlocal seen
        seen += 0 in ids
        return original(ids, *rest, **more)  # type: ignore[arg-type]

    loop._clients.statistics = counted  # type: ignore[method-assign, assignment]
    loop.channel.refreshed(before)
    return seen


def test_passes_are_repeated_as_often_as_there_are_layers_or_until_little_moves() -> None:
    norms = ("hbn", "hbn(stats_mode=eval)", "hbn(stats_mode=eval, tolerance=1e6)")
    assert [passes_of(norm) for norm in norms] == [1, 4, 1]


def test_how_far_statistics_have_moved_by_hand() -> None:
    model = network()
    layout = layout_of(model)
    before = read_statistics(model, layout, torch.zeros(1, dtype=torch.float64))
    layer = layout.layers[1]
    after = before.clone()
    assert _moved(before, after, layout) == 0.0
    after[layer.variance] = 4.0  # the deviation from 1 to 2: half of what it is now
    assert _moved(before, after, layout) == pytest.approx(0.5)
    after[layer.mean] = 3.0
    assert _moved(before, after, layout) == pytest.approx(1.5)


# --- the ablation's variants, and FedWon's weights --------------------------------------------------------------------


def layer_of(norm: str, *, mean: float = 3.0, variance: float = 4.0) -> StatisticsLayer:
    """A layer of two channels in training, with statistics of the server."""
    layer = create("norm", norm).layer(2).double().train()
    layer.running_mean.fill_(mean)
    layer.running_var.fill_(variance)
    begin(layer, None)
    return layer


@pytest.mark.parametrize(("mixture", "share"), [("global", 1.0), ("batch", 0.0), ("half", 0.5), ("learned", 0.5)])
def test_fixed_mixtures_normalise_with_the_share_they_name(mixture: str, share: float) -> None:
    """The learned one starts at one half."""
    x = torch.tensor([[-1.0, 0.0], [3.0, 8.0]], dtype=torch.float64)
    layer = layer_of(f"hbn(mixture={mixture})")
    mean, variance = (1 - share) * x.mean(0) + share * 3, (1 - share) * x.var(0, correction=0) + share * 4
    torch.testing.assert_close(layer(x), (x - mean) / (variance + 1e-5).sqrt())


@pytest.mark.parametrize("mixture", ["global", "batch", "half"])
def test_factors_of_fixed_mixtures_have_no_part(mixture: str) -> None:
    layer = layer_of(f"hbn(mixture={mixture})")
    x = data()[0].requires_grad_(True)
    (layer(x) ** 3).sum().backward()
    assert layer.factor.grad is None
    with torch.no_grad():
        layer.factor.fill_(7.0)
    assert torch.equal(layer(x), (again := layer_of(f"hbn(mixture={mixture})"))(x))
    assert bool((again.factor == 0).all())
    factors = trained_factors(f"hbn(mixture={mixture})")
    assert bool((factors == 0).all())


def trained_factors(norm: str) -> torch.Tensor:
    *_, last = train(build(cell(norm=norm)).experiment)
    return last.state.personal.parameters


def test_global_statistics_are_constants_of_the_backward_pass_and_those_of_the_batch_are_not() -> None:
    x = data()[0]
    for mixture, constant in (("global", True), ("batch", False)):
        layer, inputs = layer_of(f"hbn(mixture={mixture})"), x.clone().requires_grad_(True)
        (layer(inputs) ** 3).sum().backward()
        with torch.no_grad():
            scale = (layer.running_var + 1e-5).rsqrt() if constant else (x.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
            plain = 3 * layer(x) ** 2 * scale.view(1, -1, 1, 1)
        assert torch.allclose(inputs.grad, plain) == constant  # type: ignore[arg-type]


def test_average_of_variances_misses_the_spread_between_clients() -> None:
    """Biased variances 1 and 3 of 4 and 12 values around 0 and 8."""
    norms = [create("norm", f"hbn(variances={way})") for way in ("average", "union")]
    layout = layout_of(nn.Sequential(norms[0].layer(1)))
    messages = torch.tensor([[0.0, 1.0], [8.0, 3.0]], dtype=torch.float64)
    counts = torch.tensor([[4], [12]])
    average, union = (
        norm.merge(messages, counts, torch.zeros(2, dtype=torch.float64), layout.layers, PlainMean(round=0))
        for norm in norms
    )
    torch.testing.assert_close(average, torch.tensor([6.0, 2.5], dtype=torch.float64))
    spread = 0.25 * 36 + 0.75 * 4
    torch.testing.assert_close(union, torch.tensor([6.0, 16 / 15 * (2.5 + spread)], dtype=torch.float64))


MOVING = "hbn(collection=training, eval_stats=ema, lam=1)"


def test_moving_averages_are_those_of_the_batches_from_the_servers_statistics_on() -> None:
    layer = layer_of(MOVING)
    expected = (torch.full((2,), 3.0, dtype=torch.float64), torch.full((2,), 4.0, dtype=torch.float64))
    for x in data():
        layer(x)
        now = (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0))
        expected = tuple(0.9 * old + 0.1 * new for old, new in zip(expected, now, strict=True))
    mean, variance, counts = layer.report()
    torch.testing.assert_close(mean[0], expected[0])
    torch.testing.assert_close(variance[0], expected[1])
    assert counts.tolist() == [9 * sum(SIZES)]
    layer.unseen = True
    layer(data()[0])
    torch.testing.assert_close(layer.report()[0][0], expected[0])


def test_hbn_on_standardised_weights_has_fedwons_convolutions_under_its_own_layers() -> None:
    built = {
        norm: build(cell(norm=norm, model="simple-cnn", dataset="resized(dataset=digits, size=8, channels=3)"))
        for norm in ("hbn", "hbn(standardised=true)", "fedwon")
    }
    models = {norm: b.experiment.model for norm, b in built.items()}
    kinds = {
        norm: [type(m).__name__ for m in model.modules() if isinstance(m, nn.Conv2d)] for norm, model in models.items()
    }
    assert kinds["hbn(standardised=true)"] == kinds["fedwon"] == ["StandardisedConv2d"] * 3
    assert kinds["hbn"] == ["Conv2d"] * 3
    assert [len([m for m in model.modules() if hasattr(m, "factor")]) for model in models.values()] == [3, 3, 0]
    layouts = [b.experiment.layout for b in built.values()]
    assert layouts[0].update == layouts[1].update
    first = next(m for m in models["hbn(standardised=true)"].modules() if isinstance(m, nn.Conv2d))
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # scaling the weights changes nothing
        y = first(x)
        first.weight.data *= 3
    torch.testing.assert_close(first(x), y)
    assert [r.loss for r in train(built["hbn"].experiment)] != [
        r.loss for r in train(built["hbn(standardised=true)"].experiment)
    ]
