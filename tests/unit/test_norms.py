"""Normalization layers and the statistics that the server merges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustfl.defenses.aggregation import PlainMean
from robustfl.engine.statistics import begin, collect
from robustfl.errors import Refused
from robustfl.layout import layout_of, read_statistics, write_statistics
from robustfl.norms import FBN, GN, FixBN, NaiveBN, functional, sums


def images(seed=0):
    return torch.randn(6, 4, 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def samples(sizes, shape, seed=0):
    """Heterogeneous clients: each has its own mean and scale."""
    generator = torch.Generator().manual_seed(seed)
    parts = [
        (k + 1) * torch.randn(size, *shape, generator=generator, dtype=torch.float64) + 5 * k
        for k, size in enumerate(sizes)
    ]
    return torch.cat(parts)


def one_round(norm, network, x, sizes, defense=PlainMean()):  # noqa: B008
    """A forward of all clients, their messages, the server's merge written back to the network."""
    layout = layout_of(network)
    previous = read_statistics(network, layout, x)
    begin(network, sizes)
    with torch.no_grad():
        network(x)
    reports = collect(network, layout)
    messages = norm.messages(reports, previous, layout.layers)
    new = norm.merge(messages, reports.counts, previous, layout.layers, defense)
    write_statistics(network, layout, new)
    return messages, new


def test_negative_variances_from_clients_are_clamped_before_the_merge():
    layers = layout_of(nn.Sequential(NaiveBN().layer(1))).layers
    rows = torch.tensor([[0.0, -10.0], [0.0, 4.0]])
    counts = torch.tensor([[5], [5]])
    merged = NaiveBN().merge(rows, counts, torch.tensor([0.0, 1.0]), layers, PlainMean())
    assert merged.tolist() == [0.0, 2.0]


def test_fixbn_switches_at_the_floor_of_its_share_and_is_then_exactly_frozen():
    norm = FixBN(switch=0.29)
    assert next(t for t in range(100) if norm.frozen(t, 100)) == 29
    assert not FixBN(switch=1.0).frozen(9, 10)
    assert FixBN(switch=0.0).frozen(0, 10)
    layer = norm.layer(2).double().train()
    layer.running_mean.copy_(torch.tensor([1.0, -2.0]))
    layer.running_var.copy_(torch.tensor([4.0, 0.25]))
    x = samples((3, 2), (2,))
    layer.begin((3, 2), frozen=True)
    expected = (x - layer.running_mean) / (layer.running_var + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), expected)
    rows = torch.cat(layer.report()[:2], dim=1)
    assert torch.equal(rows, torch.tensor([[1.0, -2.0, 4.0, 0.25]] * 2, dtype=torch.float64))
    previous = rows[0]
    layers = layout_of(nn.Sequential(layer)).layers
    assert torch.equal(norm.merge(rows * 9, layer.report()[2][:, None], previous, layers, PlainMean()), previous)


@pytest.mark.parametrize("norm", [NaiveBN(), FixBN()], ids=["naive-bn", "fixbn"])
def test_one_value_per_channel_is_refused_by_batch_statistics(norm):
    layer = norm.layer(2).train()
    layer.begin((3, 1))
    with pytest.raises(Refused, match="client 1 of the batch has 1 value per channel"):
        layer(torch.zeros(4, 2))
    layer.begin((3, 1), frozen=True)
    layer(torch.zeros(4, 2))


def test_fbn_takes_clients_with_one_value_but_not_a_round_with_one():
    norm = FBN()
    network = nn.Sequential(norm.layer(1)).double().train()
    _, new = one_round(norm, network, torch.tensor([[1.0], [3.0]], dtype=torch.float64), (1, 1))
    torch.testing.assert_close(new, torch.tensor([0.2, 0.9 + 0.1 * 2.0], dtype=torch.float64))
    with pytest.raises(Refused, match="one value per channel"):
        one_round(norm, network, torch.ones(1, 1, dtype=torch.float64), (1,))
