"""The contract of every registered data set, partition and model; a new one takes part by being registered."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from robustfl.contracts import Norm
from robustfl.data import Dirichlet, Gamma, HuggingFace, ImageFolder, KClasses, Npz, Resized, dataset_from_spec
from robustfl.errors import DataMissing, Refused
from robustfl.layout import layout_of
from robustfl.models import ClientDropout
from robustfl.randomness import stream
from robustfl.registry import create, describe, entries
from robustfl.testing import check

ROBUSTFL = {kind: [e.cls for e in entries(kind) if not e.origin] for kind in ("dataset", "partition", "model")}
REQUIRED: dict[type, dict[str, Any]] = {
    Npz: {"path": "none.npz"},
    ImageFolder: {"path": "none"},
    HuggingFace: {"path": "none"},
    Gamma: {"gamma": 0.3},
    Dirichlet: {"alpha": 0.5},
    KClasses: {"k": 4},
    Resized: {"dataset": "mnist"},
}
EMBEDDED = ("digits", "digits-domain")
ELSEWHERE = ("npz", "hf", "imagefolder", "resized", "digits-fedbn", "domainnet", "office-caltech")  # not NAME.npz
HEAVY = ("alexnet", "vgg11", "vgg19")  # a hundred million parameters: shapes and gradients only, without numbers
DATASETS = [c(**REQUIRED.get(c, {})) for c in ROBUSTFL["dataset"]]
PARTITIONS = [c(**REQUIRED.get(c, {})) for c in ROBUSTFL["partition"]] + [Dirichlet(alpha=0.5, mode="equal")]
MODELS = [c() for c in ROBUSTFL["model"]]
LABELS = np.arange(300) % 10


@dataclass(frozen=True)
class _Groups(Norm):
    def layer(self, channels: int) -> nn.Module:
        return nn.GroupNorm(1, channels)


def ids(methods):
    return [describe(m) for m in methods]


@pytest.mark.parametrize("method", DATASETS + PARTITIONS + MODELS, ids=ids(DATASETS + PARTITIONS + MODELS))
def test_repr_and_description_build_the_method_again(method):
    assert eval(repr(method), {type(method).__name__: type(method)}) == method
    assert create(method.kind, describe(method)) == method
    assert (type(method).__doc__ or "").strip()
    assert hash(method) == hash(eval(repr(method), {type(method).__name__: type(method)}))


@pytest.mark.parametrize("dataset", DATASETS, ids=ids(DATASETS))
def test_without_data_every_set_says_so_or_is_embedded(dataset, tmp_path):
    if dataset.name in EMBEDDED:
        assert dataset.load(tmp_path, download=False).train_x.dtype == np.uint8
        return
    with pytest.raises(DataMissing, match=str(tmp_path)):
        dataset.load(tmp_path, download=False)


@pytest.mark.parametrize("name", [c.name for c in ROBUSTFL["dataset"] if c.name not in EMBEDDED + ELSEWHERE])
def test_every_public_set_is_read_from_an_archive_in_the_root(name, tmp_path):
    x, y = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    archive = "emnist-balanced" if name == "emnist" else name
    np.savez(tmp_path / f"{archive}.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    a = dataset_from_spec(name).load(tmp_path)
    assert a.shape == (3, 32, 32)
    assert a.classes >= 10


@pytest.mark.parametrize("partition", PARTITIONS, ids=ids(PARTITIONS))
def test_partitions_keep_every_law_give_out_every_sample_and_draw(partition):
    checks = {c.name: c for c in check(partition)}
    assert [c for c in checks.values() if not c.passed] == []
    drawn = "fact: 50% of the samples are given out" if partition.by == "client" else ""  # five of ten clients
    assert checks["parts"].reason == drawn
    parts = [partition.split(LABELS, clients=5, classes=10, generator=np.random.default_rng(seed)) for seed in (0, 1)]
    assert not all(map(np.array_equal, *parts))


@pytest.mark.parametrize("model", MODELS, ids=ids(MODELS))
def test_models_train_every_parameter_and_take_any_dtype(model):
    side = next(s for s in (20, 32, 64) if _takes(model, s))
    with torch.device("meta" if model.name in HEAVY else "cpu"):
        network = model.build(_Groups(), shape=(2, side, side), classes=3)
    if model.name not in HEAVY:
        model.initialise(network, stream(0, "init"))
    network = network.double()
    for module in network.modules():
        if isinstance(module, ClientDropout):
            module.begin(None, (stream(0, "dropout"),))
    device = next(network.parameters()).device
    x = torch.rand(4, 2, side, side, generator=stream(0, "x"), dtype=torch.float64).to(device)
    z = network(x)
    assert (z.shape, z.dtype) == ((4, 3), torch.float64)
    nn.functional.cross_entropy(z, torch.tensor([0, 1, 2, 0], device=device)).backward()
    assert all(p.grad is not None for p in network.parameters())
    assert device.type == "meta" or all(bool(torch.isfinite(p.grad).all()) for p in network.parameters())
    assert layout_of(network).d == sum(p.numel() for p in network.parameters())


def _takes(model, side):
    try:
        with torch.device("meta"):
            model.build(_Groups(), shape=(2, side, side), classes=3)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("model", MODELS, ids=ids(MODELS))
def test_models_refuse_a_single_class_and_images_without_channels(model):
    with pytest.raises(Refused, match=f"{model.name}.*at least 2 classes"):
        model.build(_Groups(), shape=(2, 64, 64), classes=1)
    with pytest.raises(Refused, match=f"{model.name}.*needs images"):
        model.build(_Groups(), shape=(0, 64, 64), classes=3)


QUICK = [model for model in MODELS if model.name not in HEAVY]  # whose layers the others have, too


@pytest.mark.parametrize("model", QUICK, ids=ids(QUICK))
def test_initial_parameters_come_from_the_generator_alone(model):
    side = next(s for s in (20, 32) if _takes(model, s))

    def draw(seed):
        network = model.build(_Groups(), shape=(2, side, side), classes=3)
        model.initialise(network, stream(seed, "init"))
        return nn.utils.parameters_to_vector(network.parameters())

    first = draw(0)
    torch.rand(3)  # the global generator plays no part
    assert torch.equal(first, draw(0))
    assert not torch.equal(first, draw(1))


def test_importing_the_rooms_touches_neither_network_nor_torchvision():
    code = (
        "import socket, sys, torch; socket.socket.connect = None; import robustfl.data, robustfl.models; "
        "assert not {'torchvision', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
