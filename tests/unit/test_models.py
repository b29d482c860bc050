"""Architectures: the papers' counts, shapes that are refused, and dropout by client."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from robustfl.contracts import Norm
from robustfl.engine.one_pass import in_one_pass
from robustfl.errors import Refused, UsageError
from robustfl.initialisation import torch_default
from robustfl.layout import layout_of
from robustfl.models import (
    AlexNet,
    BucketingCnn,
    ClientDropout,
    DigitsCnn,
    DigitsNet,
    DomainsCnn,
    FbnCnn,
    FemnistCnn,
    Mlp,
    MnistCnn,
    MobileNetV2,
    ResNet18,
    ResNet20,
    SimpleCnn,
    TorchvisionResNet18,
    TorchvisionResNet50,
    Vgg11,
    Vgg19,
    Vit,
    WideResNet,
    seed_dropout,
)
from robustfl.models.network import classifier, representing
from robustfl.models.vit import positions
from robustfl.randomness import stream
from robustfl.registry import create, entries


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm of two- and four-dimensional inputs."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim in (2, 4)


@dataclass(frozen=True)
class _Bn(Norm):
    def layer(self, channels: int) -> nn.Module:
        return _BatchNorm(channels)


@dataclass(frozen=True)
class _NoNorm(Norm):
    def layer(self, channels: int) -> nn.Module:
        return nn.Identity()


CIFAR, MNIST, DIGITS = (3, 32, 32), (1, 28, 28), (1, 8, 8)
COUNTS = [
    (BucketingCnn(), MNIST, 1_199_882 + 192, 192),
    (FbnCnn(), CIFAR, 1_310_922, 768),
    (SimpleCnn(), CIFAR, 156_298, 224),
    (ResNet20(), CIFAR, 269_722, 1_376),
    (WideResNet(), CIFAR, 2_748_890, 2 * (16 + 3 * 64 + 64 + 3 * 128 + 128 + 3 * 256 + 256)),
    (WideResNet(depth=28, width=10), CIFAR, 36_479_194, 17_952),
    (Vit(), CIFAR, 6_272 + 6 * 198_272 + 256 + 1_290, 0),
    (ResNet18(variant="bn+gn"), CIFAR, 11_178_762, 3_968),
    (ResNet18(), CIFAR, 11_178_762, 9_600),
    (Mlp(), MNIST, 23_920, 60),
    (MnistCnn(), MNIST, 431_080 + 140, 140),
    (DigitsCnn(), DIGITS, 17_418, 160),
    (DigitsNet(), (3, 28, 28), 14_219_210, 5_632),
    (DigitsNet(channels=(2, 3, 4), hidden=(6, 5)), (3, 28, 28), 1_886 + 40, 40),
    (DomainsCnn(), (3, 16, 16), 38_794, 224),
    (AlexNet(), (3, 256, 256), 57_063_498, 18_688),
    (FemnistCnn(), MNIST, 1_663_562, 192),
    (TorchvisionResNet18(), CIFAR, 11_181_642, 9_600),
    (TorchvisionResNet50(), CIFAR, 23_528_522, 53_120),
    (MobileNetV2(), CIFAR, 2_236_682, 34_112),
    (Vgg11(), CIFAR, 128_812_810, 5_504),
    (Vgg19(), CIFAR, 139_622_218, 11_008),
]
IDS = [f"{m.name}-{s}" for m, _, _, s in COUNTS]


@pytest.mark.parametrize(("model", "shape", "trainable", "running"), COUNTS, ids=IDS)
def test_counts_are_those_of_the_specification(model, shape, trainable, running):
    with torch.device("meta"):
        layout = layout_of(model.build(_Bn(), shape=shape, classes=10))
    assert (layout.d, layout.s) == (trainable, running)


_C = " c3p1:{} n r"
_VGG = " m2 a7 f l4096 r l4096 r l10"
LAYERS = {
    "alexnet": "c11s4p2:64 n r m3s2 c5p2:192 n r m3s2 c3p1:384 n r c3p1:256 n r c3p1:256 n r m3s2 a6 f"
    " l4096 n r l4096 n r l10",
    "bucketing-cnn": "c3:32 n r c3:64 n m2 d0.25 f l128 r d0.5 l10",
    "digits": "c5p2:64 n r m2 c5p2:64 n r m2 c5p2:128 n r f l2048 n r l512 n r l10",
    "digits-cnn": "c3p1:16 n r m2 f l64 n r l10",
    "domains-cnn": "c3p1:16 n r m2 c3p1:32 n r m2 f l64 n r l10",
    "fbn-cnn": "c3p1:64 r n c3p1:64 r n m2 d0.25 c3p1:128 r n c3p1:128 r n m2 d0.25 f l128 r l10",
    "femnist-cnn": "c5p2:32 n r m2 c5p2:64 n r m2 f l512 r l10",
    "mlp": "f l30 n r l10",
    "mnist-cnn": "c5:20 n r m2 c5:50 n r m2 f l500 r l10",
    "simple-cnn": "c3p1:16 n r m2 c3p1:32 n r m2 c3p1:64 n r m2 f l128 r l10",
    "vgg11": " m2".join([_C.format(64), _C.format(128), 2 * _C.format(256), *2 * [2 * _C.format(512)]]) + _VGG,
    "vgg19": " m2".join([2 * _C.format(64), 2 * _C.format(128), 4 * _C.format(256), *2 * [4 * _C.format(512)]]) + _VGG,
}  # fmt: skip


def _word(layer):
    """A layer in few letters: convolution (kernel, stride, padding, width), norm, ReLU, pools, dropout, linear."""
    match layer:
        case nn.Conv2d(kernel_size=(k, _), stride=(s, _), padding=(p, _), out_channels=width):
            return f"c{k}{f's{s}' * (s > 1)}{f'p{p}' * (p > 0)}:{width}"
        case nn.MaxPool2d(kernel_size=k, stride=s, padding=0):
            return f"m{k}{f's{s}' * (s != k)}"
        case nn.AdaptiveAvgPool2d(output_size=side):
            return f"a{side if isinstance(side, int) else side[0]}"
        case nn.Linear(out_features=width):
            return f"l{width}"
        case ClientDropout(p=p):
            return f"d{p}"
    return {_BatchNorm: "n", nn.ReLU: "r", nn.Flatten: "f"}[type(layer)]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_the_paper_in_their_order(name):
    model, shape = next((m, shape) for m, shape, *_ in COUNTS if m.name == name)
    with torch.device("meta"):
        network = model.build(_Bn(), shape=shape, classes=10)
    assert [_word(layer) for layer in network] == LAYERS[name].split()


def _normed(layer, x):
    if isinstance(layer, nn.GroupNorm):
        return nn.functional.group_norm(x, 2, layer.weight, layer.bias)
    return nn.functional.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias)


@pytest.mark.parametrize("model", [ResNet20(), ResNet18(), ResNet18(variant="bn+gn")], ids=repr)
def test_residual_networks_compute_their_equations(model):
    network, draws = model.build(_Bn(), shape=(3, 32, 26), classes=5).double().eval(), stream(0, "values")
    for entry in (*network.parameters(), *network.buffers()):
        if entry.ndim == 1:
            nn.init.uniform_(entry, 0.5, 1.5, generator=draws)  # norms that are seen
    x = torch.rand(2, 3, 32, 26, generator=draws, dtype=torch.float64)
    conv, relu = nn.functional.conv2d, torch.relu
    with torch.no_grad():
        stem, blocks = network[0], [m for m in network if hasattr(m, "conv1")]
        y = relu(_normed(network[1], conv(x, stem.weight, stem.bias, padding=1)))
        for b in blocks:
            stride = 2 if b.conv1.out_channels > y.shape[1] else 1
            z = relu(_normed(b.norm1, conv(y, b.conv1.weight, b.conv1.bias, stride, 1)))
            z = _normed(b.norm2, conv(z, b.conv2.weight, b.conv2.bias, padding=1))
            if stride == 2 and isinstance(model, ResNet18):
                y = _normed(b.shortcut[1], conv(y, b.shortcut[0].weight, b.shortcut[0].bias, 2))
            elif stride == 2:
                zeros = torch.zeros(len(z), y.shape[1] // 2, *z.shape[2:], dtype=y.dtype)
                y = torch.cat([zeros, y[:, :, ::2, ::2], zeros], 1)
            y = relu(z + y)
        seen = y[:, :, :3, :3] if isinstance(model, ResNet18) else y  # of 4×4 and of 8×7
        expected = seen.mean((2, 3)) @ network[-1].weight.T + network[-1].bias
        torch.testing.assert_close(network(x), expected)


def test_wide_residual_networks_compute_their_equations():
    """A block adds to its input, or to a convolution of the activated one, what two activated convolutions make."""
    network, draws = WideResNet(width=2).build(_Bn(), shape=(3, 10, 8), classes=5).double().eval(), stream(0, "values")
    for entry in (*network.parameters(), *network.buffers()):
        if entry.ndim == 1:
            nn.init.uniform_(entry, 0.5, 1.5, generator=draws)
    x = torch.rand(2, 3, 10, 8, generator=draws, dtype=torch.float64)
    conv, active = nn.functional.conv2d, lambda norm, y: torch.relu(_normed(norm, y))
    with torch.no_grad():
        y = conv(x, network[0].weight, padding=1)
        for place, b in enumerate(network[1:7]):
            stride, a = 2 if place in (2, 4) else 1, active(b.norm1, y)
            z = conv(active(b.norm2, conv(a, b.conv1.weight, None, stride, 1)), b.conv2.weight, padding=1)
            y = z + (y if place % 2 else conv(a, b.shortcut.weight, None, stride))
        expected = active(network[7], y).mean((2, 3)) @ network[-1].weight.T + network[-1].bias
        torch.testing.assert_close(network(x), expected)


def test_the_vision_transformer_computes_what_torchs_encoder_does():
    made = Vit(width=8, depth=2, heads=2, mlp=3.0)
    network, draws = made.build(_NoNorm(), shape=(3, 8, 12), classes=5).double().eval(), stream(0, "values")
    for entry in network.parameters():
        nn.init.normal_(entry, std=0.3, generator=draws)
    x = torch.rand(2, 3, 8, 12, generator=draws, dtype=torch.float64)
    patches, *blocks, norm, _, head = network
    with torch.no_grad():
        cut = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 6, 48)
        y = cut @ patches.project.weight.flatten(1).T + patches.project.bias + patches.positions
        for b in blocks:
            layer = nn.TransformerEncoderLayer(8, 2, 24, 0.0, "gelu", batch_first=True, norm_first=True).double().eval()
            theirs = (
                layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias, *layer.self_attn.out_proj.parameters(),
                *layer.linear1.parameters(), *layer.linear2.parameters(), *layer.norm1.parameters(),
                *layer.norm2.parameters(),
            )  # fmt: skip
            ours = (b.qkv, b.out, b.mlp[0], b.mlp[2], b.norm1, b.norm2)
            for mine, other in zip((p for m in ours for p in m.parameters()), theirs, strict=True):
                other.copy_(mine)
            y = layer(y)
        expected = norm(y).mean(1) @ head.weight.T + head.bias
        torch.testing.assert_close(network(x), expected)


def test_positions_are_sines_and_cosines_of_the_coordinates():
    found = positions(2, 3, 8)[5]  # y = 1, x = 2; frequencies 1 and 1/10,000
    expected = [f(c * w) for c in (2, 1) for f in (math.sin, math.cos) for w in (1, 1e-4)]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("vit", (1, 8, 10), "images of 8×10 pixels are no multiple of patch=4"),
        ("vit(width=10)", (1, 8, 8), "width=10 must be a multiple of heads=4 and of 4"),
        ("wide-resnet(depth=18)", (1, 8, 8), "depth=18 must be 6n"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(spec, shape, message):
    with pytest.raises((Refused, UsageError), match=message):
        create("model", spec).build(_NoNorm(), shape=shape, classes=3)


@pytest.mark.parametrize("spec", ["wide-resnet(depth=10, width=1, dropout=0.3)", "vit(width=8, depth=2, heads=2)"])
def test_clients_of_new_networks_run_in_one_pass(spec):
    network = create("model", spec).build(create("norm", "naive-bn"), shape=(2, 8, 8), classes=3)
    seed_dropout(network)
    images = torch.rand(5, 2, 8, 8, generator=stream(0, "images"))
    assert in_one_pass(network, images, 3) == "all clients in one pass"


SIZES = [
    (WideResNet(depth=10, width=1), 4),
    (BucketingCnn(), 6),
    (FbnCnn(), 4),
    (SimpleCnn(), 8),
    (MnistCnn(), 16),
    (DigitsCnn(), 2),
    (ResNet20(), 4),
    (ResNet18(), 17),
    (Mlp(hidden=(5, 4)), 1),
    (DigitsNet(channels=(2, 2, 2), hidden=(4, 4)), 4),
    (DomainsCnn(), 4),
    (FemnistCnn(hidden=8), 4),
    (AlexNet(), 63),
    (TorchvisionResNet18(), 32),
    (TorchvisionResNet50(), 32),
    (MobileNetV2(), 32),
    (Vgg11(), 32),
    (Vgg19(), 32),
]


@pytest.mark.parametrize(("model", "least"), SIZES, ids=[m.name for m, _ in SIZES])
def test_the_least_image_gives_logits_and_a_smaller_one_is_refused(model, least):
    with torch.device("meta"), torch.no_grad():
        network = model.build(_Bn(), shape=(2, least, least + 3), classes=7).eval()
        assert network(torch.zeros(3, 2, least, least + 3)).shape == (3, 7)
    if least > 1:
        with pytest.raises(Refused, match=rf"'{model.name}' needs images .* at least {least}×{least}"):
            model.build(_Bn(), shape=(2, least + 3, least - 1), classes=7)


@pytest.mark.parametrize("name", [e.name for e in entries("model") if not e.origin])
def test_the_classifier_makes_the_logits_wherever_a_norm_puts_it(name):
    norm = create("norm", "fedfn")
    with torch.device("meta"), torch.no_grad():
        network = create("model", name).build(norm, shape=(3, 64, 64), classes=7).eval()
        norm.adapt(network)
        made = []
        classifier(network).register_forward_hook(lambda module, inputs, output: made.append(output))
        assert network(torch.zeros(2, 3, 64, 64)) is made[0]
    assert classifier(network).out_features == 7
    assert all("classifier" not in key for key in network.state_dict())


def test_a_representation_is_what_the_last_linear_layer_receives() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(5, 1, 2, 2)
    with representing(model) as seen:
        y = model(x)
    model(x)
    assert len(seen) == 1
    assert torch.equal(model[3](seen[0]), y)
    with pytest.raises(Refused, match="Sequential has no linear layer"), representing(nn.Sequential(nn.ReLU())):
        pass


TORCHVISION = {
    TorchvisionResNet18(): "resnet18", TorchvisionResNet50(): "resnet50", MobileNetV2(): "mobilenet_v2",
}  # fmt: skip


@pytest.mark.parametrize(("model", "name"), TORCHVISION.items(), ids=TORCHVISION.values())
def test_torchvisions_networks_compute_what_torchvisions_do(model, name):
    from torchvision import models

    theirs, ours = getattr(models, name)(num_classes=5).eval(), model.build(_Bn(), shape=CIFAR, classes=5).eval()
    entries_of = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    assert all(a.copy_(b).shape == b.shape for a, b in entries_of)
    x = torch.rand(2, 3, 64, 64, generator=stream(0, "x"))
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


def test_torchvisions_networks_take_one_channel_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    network = MobileNetV2().build(_Bn(), shape=(1, 32, 32), classes=3).eval()
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 3)
    first = next(m for m in network.modules() if isinstance(m, nn.Conv2d))
    assert (first.kernel_size, first.stride, first.padding, first.bias) == ((3, 3), (2, 2), (1, 1), None)


def test_resnet20_starts_kaiming_normal_and_others_uniform():
    def spread(model, shape):
        network = model.build(_NoNorm(), shape=shape, classes=10)
        model.initialise(network, stream(0, "init"))
        weight = next(m for m in network.modules() if isinstance(m, nn.Conv2d) and m.in_channels > 3).weight.detach()
        return weight * (weight[0].numel() ** 0.5)  # 1/√fan_in = 1

    assert spread(SimpleCnn(), CIFAR).abs().max() <= 1.0  # U(-1/√fan_in, 1/√fan_in)
    normal = spread(ResNet20(), CIFAR)
    assert normal.std() == pytest.approx(2**0.5, rel=0.1)
    assert normal.abs().max() > 3.0


def test_biases_start_uniform_within_the_root_of_what_a_unit_reads():
    network = SimpleCnn().build(_NoNorm(), shape=CIFAR, classes=10)
    SimpleCnn().initialise(network, stream(0, "init"))
    read = [(m.weight[0].numel(), m.bias) for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(read) == 5
    for inputs, bias in read:
        assert bias.abs().max() <= inputs**-0.5
        assert bias.abs().max() >= 0.5 * inputs**-0.5


def test_dropout_masks_of_a_client_do_not_depend_on_its_neighbours():
    x = torch.ones(5, 6)
    together, alone = ClientDropout(0.5), ClientDropout(0.5)
    together.begin((2, 3), (stream(0, "a"), stream(0, "b")))
    alone.begin(None, (stream(0, "b"),))
    assert torch.equal(together(x)[2:], alone(x[2:]))


def test_dropout_scales_what_it_keeps_and_is_silent_in_evaluation():
    layer = ClientDropout(0.25)
    layer.begin(None, (stream(0, "a"),))
    x = torch.ones(100, 100)
    kept = layer(x)
    assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (kept == 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(ClientDropout(0.0)(x), x)


def test_seed_dropout_replaces_nested_layers_with_their_rate():
    network = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)))
    seed_dropout(network)
    assert [m.p for m in network.modules() if isinstance(m, ClientDropout)] == [0.1, 0.3]
    assert not any(isinstance(m, nn.Dropout) for m in network.modules())


def test_a_dropout_under_two_names_is_replaced_under_both():
    shared = nn.Dropout(0.5)
    network = nn.Sequential(nn.Linear(2, 2), shared, nn.Linear(2, 2), shared)
    seed_dropout(network)
    assert [type(m) for m in network] == [nn.Linear, ClientDropout] * 2


def test_a_share_that_is_no_number_of_256ths_is_not_rounded_to_one():
    layer = ClientDropout(0.3)
    layer.begin(None, (stream(0, "dropout"),))
    share = (layer(torch.ones(1000, 2000)) > 0).double().mean().item()
    assert share == pytest.approx(0.7, abs=0.0016)  # five standard deviations; 180/256 is ten away


def test_attention_and_embeddings_are_drawn_from_the_generator_as_torch_draws_them() -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(torch.seed())  # whatever constructors draw
        layers = [nn.MultiheadAttention(64, 4, add_bias_kv=True), nn.MultiheadAttention(64, 4, kdim=32, vdim=16)]
        network = nn.ModuleList([*layers, nn.Embedding(500, 64, padding_idx=3)])
        torch_default(network, torch.Generator().manual_seed(seed))
        return network

    with torch.random.fork_rng(devices=[]):
        one, again, other = made(0), made(0), made(1)
    drawn = 0
    for (name, p), q, r in zip(one.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
        drawn += not torch.equal(p, r)
    assert drawn == 9
    attention = one[0]
    assert float(attention.in_proj_weight.detach().abs().max()) == pytest.approx(math.sqrt(6 / (64 + 192)), rel=0.01)
    assert not attention.in_proj_bias.any()
    assert not attention.out_proj.bias.any()
    assert float(one[2].weight.detach().std()) == pytest.approx(1, rel=0.02)
    assert not one[2].weight[3].any()
