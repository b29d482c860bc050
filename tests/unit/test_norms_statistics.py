"""FBN's statistics are those of the merged batch; naive averaging misses the variance between clients."""

import pytest
import torch
from torch import nn

from robustfl.contracts import Context, Reports
from robustfl.defenses.aggregation import DefendedStatistics, PlainMean
from robustfl.defenses.pipeline import parse_pipeline
from robustfl.errors import Refused, UsageError
from robustfl.federation.statistics import begin, collect
from robustfl.norms import FBN, FixBN, NaiveBN
from robustfl.vectors import flatten_parameters, layout_of, read_statistics, write_statistics
from tests.passes import shared_gradients

SHAPES = {"vectors": (3,), "images": (3, 4, 5), "single pixels": (3, 1, 1)}


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


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 1, 3), (7,)], ids=str)
@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_fbn_statistics_are_those_of_torch_on_the_merged_batch(shape, sizes, momentum):
    norm = FBN(momentum=momentum)
    network = nn.Sequential(norm.layer(3)).double().train()
    plain = (nn.BatchNorm1d if len(shape) == 1 else nn.BatchNorm2d)(3, momentum=momentum).double()
    for round in range(3):
        x = samples(sizes, shape, seed=round)
        plain(x)
        one_round(norm, network, x, sizes)
    torch.testing.assert_close(network[0].running_mean, plain.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(network[0].running_var, plain.running_var, rtol=1e-12, atol=1e-12)


def test_fbn_pools_several_local_steps_and_moves_the_statistics_once():
    norm, sizes = FBN(), (6, 4)
    x = samples(sizes, (2,))
    steps = nn.Sequential(norm.layer(2)).double().train()
    layout, rows, counts = layout_of(steps), [], []
    for part in x.split(list(sizes)):
        begin(steps, None)
        for some in (part[:1], part[1:3], part[3:]):
            steps(some)
        report = collect(steps, layout)
        rows.append(report.rows)
        counts.append(report.counts)
    reports = Reports(torch.cat(rows), torch.cat(counts))
    previous = layout.initial_statistics(x)
    messages = norm.messages(reports, previous, layout.layers)
    pooled = norm.merge(messages, reports.counts, previous, layout.layers, PlainMean())
    _, at_once = one_round(norm, nn.Sequential(norm.layer(2)).double().train(), x, sizes)
    torch.testing.assert_close(pooled, at_once, rtol=1e-12, atol=1e-12)


def test_dsgd_with_fbn_equals_one_machine_with_the_same_layers():
    norm, sizes = FBN(), (4, 4, 4)

    def network():
        torch.manual_seed(3)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3), norm.layer(4), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(64, 8), norm.layer(8), nn.ReLU(), nn.Linear(8, 3)),
        ).double()

    machines = {"federation": (network(), sizes), "one machine": (network(), (12,))}
    thetas = {}
    for name, (model, split) in machines.items():
        layout = layout_of(model)
        theta = flatten_parameters(model, layout)
        out = theta.new_empty(len(split), layout.d)
        statistics = layout.initial_statistics(theta)
        for step in range(10):
            x = samples(sizes, (1, 6, 6), seed=step)
            y = torch.arange(12) % 3
            done = shared_gradients(model, layout, x, y, split, out=out)
            messages = norm.messages(done.reports, statistics, layout.layers)
            statistics = norm.merge(messages, done.reports.counts, statistics, layout.layers, PlainMean())
            write_statistics(model, layout, statistics)
            theta.sub_(0.1 * out.mean(0))
        thetas[name] = torch.cat([theta, statistics])
    torch.testing.assert_close(thetas["federation"], thetas["one machine"], rtol=1e-12, atol=1e-12)


def test_naive_variance_misses_exactly_the_variance_between_clients():
    sizes = (5, 5, 5)
    x = samples(sizes, (2,))
    network = nn.Sequential(NaiveBN(momentum=1.0).layer(2)).double().train()
    _, new = one_round(NaiveBN(momentum=1.0), network, x, sizes)
    means = torch.stack([part.mean(0) for part in x.split(5)])
    between = (means - means.mean(0)).square().mean(0)
    union = x.var(0, correction=0)
    torch.testing.assert_close(union - new[2:] * 4 / 5, between, rtol=1e-12, atol=1e-12)


def test_naive_average_weighs_clients_like_their_weights():
    x = samples((2, 6), (1,))
    network = nn.Sequential(NaiveBN(momentum=1.0).layer(1)).double().train()
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    messages, new = one_round(NaiveBN(momentum=1.0), network, x, (2, 6), PlainMean(weights))
    torch.testing.assert_close(new, weights @ messages)


@pytest.mark.parametrize("rule", ["nnm+median", "nnm+trimmed-mean"])
@pytest.mark.parametrize("joint", [False, True])
def test_robust_fbn_under_sign_flips_equals_the_honest_clients_alone(rule, joint):
    norm, generator = FBN(joint=joint), torch.Generator().manual_seed(0)
    network = nn.Sequential(norm.layer(3), norm.layer(3)).double().train()
    x = 10 + torch.randn(70, 3, generator=generator, dtype=torch.float64)
    layout = layout_of(network)
    previous = layout.initial_statistics(x)
    begin(network, (10,) * 7)
    network(x)
    reports = collect(network, layout)
    counts = torch.cat([reports.counts, reports.counts[:3]])  # every client of the round claims its 10 values
    rows = norm.messages(Reports(torch.cat([reports.rows, reports.rows[:3]]), counts), previous, layout.layers)
    for layer in layout.layers:
        rows[7:, layer.mean] = -rows[:7, layer.mean].mean(0)
        rows[7:, layer.variance] = rows[:7, layer.variance].mean(0)
    attacked = norm.merge(rows, counts, previous, layout.layers, PlainMean())
    defended = norm.merge(rows, counts, previous, layout.layers, DefendedStatistics(parse_pipeline(rule), 3, Context()))
    honest = rows[:7]
    for layer in layout.layers:
        m, v = honest[:, layer.mean], honest[:, layer.variance]
        spread = (m - m.mean(0)).square().mean(0)
        torch.testing.assert_close(defended[layer.mean], m.mean(0), rtol=1e-12, atol=1e-12)
        expected = v.mean(0) + 100 / (99 * 0.1) * spread
        torch.testing.assert_close(defended[layer.variance], expected, rtol=1e-12, atol=1e-12)
        assert bool((attacked[layer.variance] > 1.5 * expected).any())


def test_a_rule_by_columns_is_shown_all_layers_at_once_and_others_one_by_one(monkeypatch):
    layout = layout_of(nn.Sequential(FBN().layer(3), FBN().layer(2)))
    asked, each = [], DefendedStatistics.each
    monkeypatch.setattr(
        DefendedStatistics, "each", lambda self, bases, **kw: asked.append(len(bases)) or each(self, bases, **kw)
    )
    for rule, times in (("nnm+median", [2]), ("geometric-median", [1, 1])):
        asked.clear()
        defense = DefendedStatistics(parse_pipeline(rule), 1, Context())
        FBN().merge(torch.rand(5, 10), torch.full((5, 2), 4), torch.rand(10), layout.layers, defense)
        assert asked == times


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


def test_fbn_statistics_are_constants_of_the_backward_pass():
    layer = FBN().layer(2).double().train()
    layer.running_var.fill_(4.0)
    x = samples((3,), (2,)).requires_grad_()
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / (4 + 1e-5) ** 0.5))


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


@pytest.mark.parametrize("momentum", [0.0, -0.1, 1.1])
@pytest.mark.parametrize("scheme", [FBN, NaiveBN, FixBN])
def test_momentum_outside_its_range_is_refused(scheme, momentum):
    with pytest.raises(UsageError, match="momentum"):
        scheme(momentum=momentum)
