"""What every registered normalization scheme promises."""

import copy
import pickle

import pytest
import torch
from torch import nn

import robustfl.norms
from robustfl.contracts import BranchedLayer, StatisticsLayer, Tag
from robustfl.engine.statistics import begin, collect
from robustfl.layout import layout_of, tag_of
from robustfl.papers import spelled_out
from robustfl.registry import create, entries
from robustfl.testing import check

NORMS = [entry.name for entry in entries("norm")]
# Schemes that have no layer: their work is done elsewhere in the network.
WITHOUT_LAYER = {"none", "fedfn", "fedwon"}
pytestmark = pytest.mark.parametrize("name", NORMS)
SIZES = (3, 2)


def images(dtype=torch.float64):
    return torch.randn(5, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) + 1


def single(layer):
    """The layer that does the work: of branches, the one in use."""
    return getattr(layer, layer.branch) if isinstance(layer, BranchedLayer) else layer


def ready(name, dtype=torch.float64):
    network = nn.Sequential(create("norm", name).layer(4)).to(dtype).train()
    begin(network, SIZES)
    return network


def test_is_exported_by_its_room_says_where_it_comes_from_and_its_repr_evaluates_back(name):
    norm = create("norm", name)
    assert type(norm) is getattr(robustfl.norms, type(norm).__name__)
    assert "arXiv" in spelled_out(norm.paper) or name == "none"
    assert eval(repr(norm), vars(robustfl.norms)) == norm


def test_it_keeps_every_law_of_the_suite(name):
    assert {c.name: c.reason for c in check(create("norm", name)) if not c.passed} == {}


def test_gradients_of_the_affine_part_are_those_of_finite_differences(name):
    layer = single(ready(name)[0])
    if name in WITHOUT_LAYER:
        assert not list(layer.parameters())
        return
    x = images()

    def output(weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    start = [torch.rand(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(output, start)


def test_entries_are_tagged_by_type(name):
    layer = single(ready(name)[0])
    tags = {key: tag_of(layer, key) for key in layer.state_dict() if tag_of(layer, key) is not Tag.PRIVATE}
    affine = {"weight": Tag.AFFINE, "bias": Tag.AFFINE}
    statistics = {"running_mean": Tag.MEAN, "running_var": Tag.VARIANCE}
    expected = {} if name in WITHOUT_LAYER else affine
    assert tags == expected | (statistics if isinstance(layer, StatisticsLayer) else {})


def test_reports_have_the_layouts_order_and_count_values(name):
    network, norm = ready(name), create("norm", name)
    network(images())
    layout = layout_of(network)
    reports = collect(network, layout, clients=2)
    assert reports.rows.shape == (2, layout.s)
    layer = single(network[0])
    branches = len(network[0].branches) if isinstance(network[0], BranchedLayer) else 1
    assert layout.s == (8 * branches if isinstance(layer, StatisticsLayer) else 0)
    if norm.sends_statistics and not branches > 1 and norm.statistics_pass is None and name != "fbn-hbn-repo":
        assert reports.counts.tolist() == [[27], [18]]


def test_layer_pickles_and_copies(name):
    network, x = ready(name).eval(), images()
    for other in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
        assert torch.equal(other(x), network(x))
