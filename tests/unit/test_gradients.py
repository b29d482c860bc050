"""The shared pass and the reference loop give the same gradients, losses and reports."""

import pytest
import torch
from torch import nn

from robustfl.contracts import NormLayer
from robustfl.engine.statistics import begin
from robustfl.gradients import Unsupported, channels_last
from robustfl.layout import flatten_parameters, layout_of, write_statistics
from robustfl.models.network import ClientDropout
from robustfl.randomness import stream
from robustfl.registry import create, entries
from tests.passes import plain_gradients, shared_gradients

NORMS = [entry.name for entry in entries("norm")]
# Networks that want larger images than the small ones here.
TOO_LARGE = {"resnet18", "alexnet", "mobilenetv2", "tv-resnet18", "tv-resnet50", "vgg11", "vgg19"}
SMALLER = {"digits": {"channels": (4, 4, 4), "hidden": (16, 8)}}
CLIENTS = {"equal": (4, 4, 4), "unequal": (3, 5, 2), "one": (6,)}


def image_net(norm):
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        norm.layer(6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, stride=2, padding=1, bias=False, groups=2),
        norm.layer(4),
        nn.ReLU(),
        ClientDropout(0.3),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 8),
        *((norm.layer(8),) if norm.name != "in" else ()),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


def prepared(network, dtype, seed=0):
    """The network in its dtype with parameters and statistics away from their initial values, and its layout."""
    network.to(dtype)
    layout = layout_of(network)
    generator = torch.Generator().manual_seed(seed)
    theta = flatten_parameters(network, layout)
    theta.copy_(0.3 * torch.randn(layout.d, generator=generator, dtype=torch.float64).to(dtype))
    row = torch.rand(layout.s, generator=generator, dtype=torch.float64).to(dtype) + 0.2
    write_statistics(network, layout, row)
    return network.train(), layout


def batch(sizes, shape, dtype, classes=3):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(sum(sizes), *shape, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(classes, (sum(sizes),), generator=generator)


def both(network, layout, x, y, sizes, *, frozen=False):
    results = []
    for method in (plain_gradients, shared_gradients):
        out = torch.full((len(sizes), layout.d), float("nan"), dtype=x.dtype)
        generators = tuple(stream(1, "dropout", k) for k in range(len(sizes)))
        done = method(network, layout, x, y, sizes, generators=generators, frozen=frozen, out=out)
        results.append((out, done))
    return results


def assert_equal_passes(results, tolerance):
    (slow, first), (fast, second) = results
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(second.losses, first.losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(second.reports.rows, first.reports.rows, rtol=tolerance, atol=tolerance)
    assert torch.equal(second.reports.counts, first.reports.counts)
    assert [done.losses.requires_grad for done in (first, second)] == [False, False]  # or a graph lives on


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("sizes", CLIENTS.values(), ids=CLIENTS.keys())
@pytest.mark.parametrize("name", NORMS)
def test_shared_equals_reference_on_images(name, sizes, dtype):
    network, layout = prepared(image_net(create("norm", name)), dtype)
    x, y = batch(sizes, (2, 8, 8), dtype)
    assert_equal_passes(both(network, layout, x, y, sizes), 1e-10 if dtype is torch.float64 else 1e-5)


@pytest.mark.parametrize("norm", ["naive-bn", "fbn"])
@pytest.mark.parametrize("sizes", CLIENTS.values(), ids=CLIENTS.keys())
def test_shared_equals_reference_without_grouped_convolutions(monkeypatch, sizes, norm):
    monkeypatch.setattr("robustfl.layer_kinds.SMALL", 0)
    network, layout = prepared(image_net(create("norm", norm)), torch.float64)
    x, y = batch(sizes, (2, 8, 8), torch.float64)
    assert_equal_passes(both(network, layout, x, y, sizes), 1e-10)


@pytest.mark.parametrize("norm", ["naive-bn", "fbn"])
@pytest.mark.parametrize("name", [e.name for e in entries("model") if e.name not in TOO_LARGE])
def test_shared_equals_reference_on_registered_models(name, norm):
    model = create("model", name, **SMALLER.get(name, {}))
    network, layout = prepared(model.build(create("norm", norm), shape=(1, 16, 16), classes=3), torch.float64)
    model.initialise(network, stream(0, "initialisation"))
    x, y = batch((3, 2), (1, 16, 16), torch.float64)
    assert_equal_passes(both(network, layout, x, y, (3, 2)), 1e-10)


@pytest.mark.parametrize("name", ["naive-bn", "fbn"])
def test_float32_statistics_of_many_values_stay_accurate(name):
    network = nn.Sequential(create("norm", name, momentum=1.0).layer(3)).train()
    x = channels_last(torch.randn(32, 3, 40, 40, generator=torch.Generator().manual_seed(0)) + 1)
    begin(network, (16, 16))
    network(x)
    mean, second, _ = network[0].report()
    exact = x.double().view(2, 16, 3, 40, 40)
    torch.testing.assert_close(mean.double(), exact.mean((1, 3, 4)), rtol=1e-6, atol=0)
    correction = 1 if name == "naive-bn" else 0
    torch.testing.assert_close(second.double(), exact.var((1, 3, 4), correction=correction), rtol=1e-6, atol=0)


def test_reference_row_is_the_gradient_of_the_clients_own_mean_loss():
    network, layout = prepared(nn.Sequential(nn.Linear(5, 3)), torch.float64)
    x, y = batch((2, 3), (5,), torch.float64)
    out = torch.empty(2, layout.d, dtype=torch.float64)
    done = plain_gradients(network, layout, x, y, (2, 3), out=out)
    residual = torch.softmax(network(x[2:]), 1) - nn.functional.one_hot(y[2:], 3)
    torch.testing.assert_close(out[1, :15].view(3, 5), residual.detach().T @ x[2:] / 3)
    torch.testing.assert_close(done.losses[1], nn.functional.cross_entropy(network(x[2:]), y[2:]).detach())


class Twice(nn.Module):
    """One convolution, one linear and one normalization layer used twice; one linear layer never used."""

    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.mix = nn.Conv2d(2, 2, 3, padding=1), norm.layer(2), nn.Linear(8, 8)
        self.idle, self.out = nn.Linear(4, 4), nn.Linear(32, 3)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.conv(x)))
        x = self.norm(self.conv(x))[:, :, ::2, ::2]
        x = self.mix(self.mix(x.reshape(len(x), 4, 8)))
        return self.out(x.flatten(1))


@pytest.mark.parametrize("sizes", CLIENTS.values(), ids=CLIENTS.keys())
@pytest.mark.parametrize("name", ["naive-bn", "fbn", "gn"])
def test_layers_used_twice_or_never(name, sizes):
    network, layout = prepared(Twice(create("norm", name)), torch.float64)
    x, y = batch(sizes, (2, 8, 8), torch.float64)
    assert_equal_passes(both(network, layout, x, y, sizes), 1e-10)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x):
        return nn.functional.linear(x, self.inner.weight * 2, self.inner.bias)


class SamplesSecond(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 3)

    def forward(self, x):
        return self.inner(x.t().unsqueeze(2)).mean(0)


def hooked():
    model = nn.Linear(5, 3)
    model.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return model


REFUSED = {
    "weights used by another operation": lambda: Functional(),
    "torch's own batch norm": lambda: nn.Sequential(nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3)),
    "an unknown trainable layer": lambda: nn.Sequential(nn.Bilinear(5, 5, 5), nn.Linear(5, 3)),
    "a leading axis that is not the samples": lambda: SamplesSecond(),
    "a hook on gradients, which would never be called": lambda: hooked(),
    "frozen parameters": lambda: nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_models_that_cannot_be_kept_apart_are_refused_and_left_as_they_were(make):
    network, layout = prepared(make(), torch.float64)
    x, y = batch((4, 4), (5,), torch.float64)
    before = {name: dict(module.__dict__) for name, module in network.named_modules()}
    with pytest.raises(Unsupported):
        shared_gradients(network, layout, x, y, (4, 4), out=torch.empty(2, layout.d, dtype=torch.float64))
    assert all(parameter.grad is None for parameter in network.parameters())
    assert {name: module.__dict__.keys() for name, module in network.named_modules()} == {
        name: members.keys() for name, members in before.items()
    }


@pytest.mark.parametrize("method", [plain_gradients, shared_gradients])
def test_a_pass_writes_neither_model_nor_inputs(method):
    network, layout = prepared(image_net(create("norm", "naive-bn")), torch.float64)
    x, y = batch((4, 4), (2, 8, 8), torch.float64)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    inputs = x.clone()
    out = torch.empty(2, layout.d, dtype=torch.float64)
    method(network, layout, x, y, (4, 4), generators=(stream(0), stream(1)), out=out)
    assert torch.equal(x, inputs)
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    layers = [m for m in network.modules() if isinstance(m, NormLayer)]
    assert layers
    assert all("forward" not in vars(module) for module in network.modules())


def test_centralised_rows_are_the_gradient_of_ordinary_batch_norm_on_the_merged_batch():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    network = nn.Sequential(nn.Linear(5, 4), create("norm", "centralised-bn").layer(4), nn.Linear(4, 3)).double()
    weights = {k: v for k, v in plain.state_dict().items() if "num_batches" not in k}
    network.load_state_dict(weights)
    layout = layout_of(network)
    x, y = batch((2, 4), (5,), torch.float64)
    out = torch.empty(2, layout.d, dtype=torch.float64)
    done = shared_gradients(network, layout, x, y, (2, 4), out=out)
    nn.functional.cross_entropy(plain(x), y).backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    torch.testing.assert_close(out, expected.expand(2, -1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(done.reports.rows[1, :4], plain[1].running_mean)
    torch.testing.assert_close(done.reports.rows[0, 4:], plain[1].running_var)


def test_begin_reaches_every_layer():
    network = image_net(create("norm", "fixbn"))
    begin(network, (2, 2), frozen=True, generators=(stream(0), stream(1)))
    layers = [m for m in network.modules() if isinstance(m, NormLayer)]
    assert {(layer.sizes, layer.frozen) for layer in layers} == {((2, 2), True)}
    assert [len(m.generators) for m in network.modules() if isinstance(m, ClientDropout)] == [2]
