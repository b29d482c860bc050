"""Each layer against torch's own, and per-sample schemes against their definition."""

import pytest
import torch
from torch import nn

from robustfl.errors import Refused, UsageError
from robustfl.norms import FBN, GN, IN, LN, CentralisedBN, FixBN, NaiveBN, NoNorm, functional, sums


def images(seed=0):
    return torch.randn(6, 4, 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_affine(layer):
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, -1.0, 0.5]))
        layer.bias.copy_(torch.tensor([0.0, 1.0, -3.0, 2.0]))
    return layer


@pytest.mark.parametrize(("norm", "groups"), [(GN(groups=2), 2), (GN(groups=4), 4), (LN(), 1), (IN(), 4)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_per_sample_schemes_are_group_norms(norm, groups, layout):
    layer = with_affine(norm.layer(4).double())
    x = images().contiguous(memory_format=layout)
    torch.testing.assert_close(layer(x), nn.functional.group_norm(x, groups, layer.weight, layer.bias, 1e-5))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_naive_bn_of_one_client_is_torch_batch_norm(layout):
    layer, plain = with_affine(NaiveBN().layer(4).double()), with_affine(nn.BatchNorm2d(4).double())
    x = images().contiguous(memory_format=layout)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = images(1)
    (layer(mine) * weights).sum().backward()
    (plain(theirs) * weights).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad)
    mean, variance, counts = layer.report()
    torch.testing.assert_close(mean[0], plain.running_mean)
    torch.testing.assert_close(variance[0], plain.running_var)
    assert counts.tolist() == [36]


def test_naive_bn_keeps_clients_apart():
    layer = NaiveBN().layer(4).double()
    x = images()
    layer.begin((2, 4))
    together, (means, _, counts) = layer(x), layer.report()
    layer.begin(None)
    alone, (mean, _, _) = layer(x[2:]), layer.report()
    torch.testing.assert_close(together[2:], alone)
    torch.testing.assert_close(means[1], mean[0])
    assert counts.tolist() == [12, 24]


@pytest.mark.parametrize("norm", [NaiveBN(), FBN(), FixBN(), CentralisedBN()])
def test_evaluation_normalises_with_the_servers_statistics(norm):
    layer = with_affine(norm.layer(4).double())
    layer.running_mean.copy_(torch.arange(4.0))
    layer.running_var.copy_(torch.arange(1.0, 5.0))
    x = images()
    expected = nn.functional.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias)
    layer.begin((3, 3))
    torch.testing.assert_close(layer.eval()(x), expected)
    torch.testing.assert_close(layer(x[:1]), expected[:1])


def test_centralised_bn_ignores_the_borders_between_clients():
    layer, plain = CentralisedBN().layer(4).double(), nn.BatchNorm2d(4).double()
    layer.begin((1, 5))
    torch.testing.assert_close(layer(images()), plain(images()))
    mean, variance, counts = layer.report()
    torch.testing.assert_close(mean, plain.running_mean.expand(2, -1))
    torch.testing.assert_close(variance, plain.running_var.expand(2, -1))
    assert counts.tolist() == [6, 30]


def test_no_norm_is_the_identity():
    x = images()
    assert NoNorm().layer(4)(x) is x


def test_groups_must_divide_the_channels():
    with pytest.raises(Refused, match="3 channels are not divisible into 2 groups"):
        GN().layer(3)
    with pytest.raises(UsageError, match="groups=0"):
        GN(groups=0)


def test_one_value_per_group_is_refused():
    with pytest.raises(Refused, match="one value per group"):
        IN().layer(4)(torch.zeros(2, 4))


@pytest.mark.parametrize("norm", [NaiveBN(), FBN(), GN()])
def test_inputs_of_another_shape_are_refused(norm):
    layer = norm.layer(4)
    with pytest.raises(Refused, match="4 channels got an input of shape"):
        layer(torch.zeros(2, 3))
    with pytest.raises(Refused, match="got an input of shape"):
        layer(torch.zeros(2, 4, 3))
    layer.begin((2, 2))
    with pytest.raises(Refused, match="3 given"):
        layer(torch.zeros(3, 4))


@pytest.mark.parametrize("entries", [1, 100, 700, 1 << 18])
def test_batches_larger_than_the_cache_are_normalised_piece_by_piece_alike(monkeypatch, entries):
    monkeypatch.setattr(sums, "_PIECE", entries)
    draw = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(3 * 5, 4, 6, 6, generator=draw, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias, outer = (torch.randn(s, generator=draw, dtype=torch.float64) for s in ((3, 4), (3, 4), x.shape))
    weight.requires_grad_(), bias.requires_grad_()
    outer = outer.contiguous(memory_format=torch.channels_last)
    out, *moments = functional.own_statistics(x, weight, bias, (5, 5, 5), 1e-5)
    into, *rows = torch.autograd.grad(out, (x, weight, bias), outer)
    for k, part in enumerate(x.detach().split(5)):
        inner, (w, b) = part.clone().requires_grad_(), (t[k].detach().clone().requires_grad_() for t in (weight, bias))
        mean, variance = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
        expected = torch.nn.functional.batch_norm(inner, mean, variance, w, b, training=True, momentum=1.0, eps=1e-5)
        given = torch.autograd.grad(expected, (inner, w, b), outer.split(5)[k])
        for mine, right in zip(
            (out.split(5)[k], into.split(5)[k], rows[0][k], rows[1][k], *(m[k] for m in moments)),
            (expected, *given, mean, variance),
            strict=True,
        ):
            torch.testing.assert_close(mine.detach(), right.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 5, 2), (1, 4, 3, 2, 2)])
def test_moments_of_a_piece_are_torch_s_with_their_gradients(shape):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    variance, mean = torch.var_mean(x, sums.within(x), correction=0)
    found = functional.piece_moments(x)
    torch.testing.assert_close(found, (mean, variance))
    weights = [torch.randn(mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (1, 2)]
    ours = torch.autograd.grad(found, x, weights)
    torch.testing.assert_close(ours, torch.autograd.grad((mean, variance), x, weights))


SERVED = (torch.tensor([1.0, -2.0, 0.0, 5.0], dtype=torch.float64), torch.tensor([2.0, 0.3, 1.0, 9.0]).double())
SCHEMES = {
    "own": lambda *given: functional.own_statistics(*given, 1e-3),
    "server": lambda *given: (functional.server_statistics(*given, SERVED, 1e-3),),
    "group": lambda *given: (functional.group_statistics(*given, 2, 1e-3),),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_client_alone_is_normalised_alike_whichever_kernels_serve_it(monkeypatch, scheme, layout):
    draw = torch.Generator().manual_seed(0)
    x = images(3).contiguous(memory_format=layout).requires_grad_()
    weight, bias, outer = (torch.randn(s, generator=draw, dtype=torch.float64) for s in ((1, 4), (1, 4), x.shape))
    weight.requires_grad_(), bias.requires_grad_()
    made = {}
    for most in (0, functional.FUSED):
        monkeypatch.setattr(functional, "FUSED", most)
        out, *moments = SCHEMES[scheme](x, weight, bias, (6,))
        made[most] = [out.detach(), *moments, *torch.autograd.grad(out, (x, weight, bias), outer)]
    torch.testing.assert_close(made[0], made[functional.FUSED], rtol=1e-12, atol=1e-12)
