"""From a cell to a runnable experiment: data, split, model, methods. What cannot be is refused here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import Arrays, Evasion, LockstepNorm, Model, Norm, OneMachineNorm, StatisticsLayer, Tag
from robustfl.data import (
    Augment,
    Normalize,
    Resident,
    channel_statistics,
    data_root,
    domain_split,
    equal_blocks,
    label_counts,
    train_validation,
)
from robustfl.data.checks import data_doubts
from robustfl.data.partitions import long_tailed, proportional_tests
from robustfl.engine import Experiment
from robustfl.engine.one_pass import Mixed, in_one_pass
from robustfl.errors import Refused, RobustflError
from robustfl.layout import layout_of, read_statistics
from robustfl.models.network import seed_dropout
from robustfl.randomness import numpy_stream, stream
from robustfl.registry import create, describe

from .cell import Cell
from .methods import Methods

DTYPES = {"float32": torch.float32, "float64": torch.float64}
Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Built:
    """An experiment with what evaluation needs: the test set, validation indices per client, evasion attacks.

    ``tests[k]`` are client ``k``'s own test indices, ``domain_of[k]`` its domain, where the cell has domains, and
    ``named[k]`` its number in the data, where the data have clients.
    ``doubts`` are reasons to doubt accuracies on the data.
    """

    experiment: Experiment
    test: Resident
    validation: tuple[Tensor, ...]
    evasions: tuple[tuple[str, Evasion], ...]
    label_counts: list[list[int]]
    tests: tuple[Tensor, ...] = ()
    domain_of: tuple[int, ...] = ()
    named: tuple[int, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """Training, validation and own test indices per client, their domains, and the server's own training indices."""

    train: list[Indices]
    validation: list[Indices]
    tests: list[Indices]
    domain_of: tuple[int, ...]
    server: Indices | None = None


def build(
    cell: Cell, *, root: str | Path | None = None, device: torch.device | None = None, parts: list[Arrays] | None = None
) -> Built:
    """Load the data, split it, draw the initial model. Raises ``Refused``.

    ``parts`` are given to train alone: clients then have no test images of their own.
    """
    where, m, tests = device or torch.device("cpu"), Methods.of(cell, fresh=True), parts is None
    parts = parts or [dataset.load(data_root(root), download=False) for dataset in m.datasets]
    split = split_data(cell, m, parts, tests=tests)
    check_sizes(cell, split)
    arrays = _joined(parts) if cell.domains else parts[0]
    train = Resident.of(arrays.train_x, arrays.train_y, device=where)
    model = _model(cell, m, arrays, root).to(device=where, dtype=DTYPES[cell.dtype])
    mixing = _mixing(m, model, train, arrays.classes)
    layout = layout_of(model)
    if m.init is not None and layout.s:
        layout = replace(layout, start=read_statistics(model, layout, next(model.parameters()).detach()))
    experiment = Experiment(
        settings=cell.settings if mixing is None else replace(cell.settings, engine="reference"),
        model=model,
        layout=layout,
        train=train,
        parts=_on(where, split.train),
        classes=arrays.classes,
        algorithm=m.algorithm,
        norm=m.norm,
        attack=m.attack,
        defense=m.defense,
        statistics_defense=m.statistics_rule,
        lr=cell.schedule.function(cell.rounds),
        objective=m.objective,
        evasion=m.train_evasion,
        adversarial=cell.adversarial,
        root=None if split.server is None else _on(where, [split.server])[0],
        propagate=m.propagation,
        augment=Augment(cell.flip, cell.crop, cell.rotate) if cell.flip or cell.crop or cell.rotate else None,
    )
    experiment.held(cell.rounds - 1)  # refuses to freeze every layer
    return Built(
        experiment=experiment,
        test=Resident.of(arrays.test_x, arrays.test_y, device=where),
        validation=_on(where, split.validation),
        evasions=tuple(zip(cell.evasions, m.evasions, strict=True)),
        label_counts=label_counts(arrays.train_y, split.train, arrays.classes),
        tests=_on(where, split.tests),
        domain_of=split.domain_of,
        named=_named(m, arrays, split),
        doubts=(*([] if mixing is None else [mixing]), *_doubts(m, parts), *_beyond(cell, arrays, split)),
    )


def _on(device: torch.device, indices: list[Indices]) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(i.astype(np.int64, copy=False)).to(device) for i in indices)


# --- who has which samples -------------------------------------------------------------------------------------------


def check_sizes(cell: Cell, split: Split) -> None:
    """Raise ``Refused`` for a client with too few training samples, and for a selection without validation samples."""
    sizes, asks = [len(part) for part in split.train], cell.methods.algorithm.asks
    least = min(sizes)
    k = sizes.index(least)
    unequal = cell.partition.startswith("dirichlet") and "mode=equal" not in cell.partition
    remedy = "a larger min_size or mode=equal of dirichlet" if unequal else "fewer clients"
    remedy = "a larger min_size of natural" if cell.partition.startswith("natural") else remedy
    if least == 0:
        what = "domain_share" if cell.domains else cell.partition
        raise Refused(f"{what} leaves client {k} of {cell.clients} without training samples; use {remedy}")
    if "one_batch" in asks and "replacement" not in asks and least < cell.batch:
        raise Refused(
            f"batch={cell.batch} is larger than client {k}'s {least} training samples; use batch ≤ {least}, or {remedy}"
        )
    if cell.select == "validation":
        byzantine = cell.settings.byzantine()
        if not any(len(part) for k, part in enumerate(split.validation) if k not in byzantine):
            raise Refused("select='validation': no honest client keeps a sample for validation; use a larger share")


def split_data(cell: Cell, m: Methods, parts: list[Arrays], *, tests: bool = True) -> Split:
    """Draw who has which samples; reads labels only. Raises ``Refused``. ``tests``: also clients' own test images."""
    if cell.domains:
        _check_alike(cell, parts)
    classes, images = parts[0].classes, sum(len(part.train_y) for part in parts)
    for evasion in (*m.evasions, m.train_evasion):
        if isinstance(target := getattr(evasion, "target", None), int) and target >= classes:
            raise Refused(f"{describe(evasion)}: target={target} of {classes} classes; the last one is {classes - 1}")
    if cell.owners > images:  # before memory is taken for each
        raise Refused(f"clients={cell.clients} are more than the {images} training images")
    split = _domain_split(cell, m, parts) if cell.domains else _partition(cell, m, parts[0])
    if cell.tests == "own" and tests:
        split = replace(split, tests=_own_tests(cell, m, parts[0], split))
    return _without_server(cell, split) if cell.server_samples else split


def _partition(cell: Cell, m: Methods, arrays: Arrays) -> Split:
    labels = np.asarray(arrays.train_y)
    column, kinds, chosen = labels, arrays.classes, np.arange(len(labels))
    if m.partition.by == "client":
        column = _column(cell, arrays)
        kinds = int(column.max()) + 1
        if cell.tests == "own" and arrays.test_client is not None:  # who has none cannot be tested
            chosen = np.flatnonzero(np.isin(column, arrays.test_client))
    if cell.imbalance > 1:
        draws = numpy_stream(cell.seed, "long tail")
        chosen = chosen[long_tailed(labels[chosen], arrays.classes, cell.imbalance, draws)]
    draws = numpy_stream(cell.seed, "partition")
    parts = m.partition.split(column[chosen], clients=cell.owners, classes=kinds, generator=draws)
    whole = parts if len(chosen) == len(labels) else [chosen[part] for part in parts]
    byzantine = sorted(cell.settings.byzantine()) if cell.owners < cell.clients else []
    owners = [k for k in range(cell.clients) if k not in byzantine]
    apart = {
        k: train_validation(indices, cell.validation, numpy_stream(cell.seed, "validation", k))
        if cell.validation and len(indices) else (indices, indices[:0])
        for k, indices in zip(owners, whole, strict=True)
    }  # fmt: skip
    # Who copies an owner copies what it trains on, and nothing of what it holds out.
    apart |= {k: apart[owners[i % len(owners)]] for i, k in enumerate(byzantine)}
    train, validation = zip(*(apart[k] for k in range(cell.clients)), strict=True)
    return Split(list(train), list(validation), [], ())


def _column(cell: Cell, arrays: Arrays) -> Indices:
    """The client that every training image is of. Raises ``Refused`` where the data do not say."""
    if arrays.train_client is None:
        raise Refused(
            f"partition={cell.partition!r}: {cell.dataset} does not say whose its images are; that takes an array "
            "'client' in an npz file, or client= of hf"
        )
    return np.asarray(arrays.train_client)


def _named(m: Methods, arrays: Arrays, split: Split) -> tuple[int, ...]:
    """The numbers that the clients have in the data."""
    if m.partition.by != "client" or arrays.train_client is None:
        return ()
    return tuple(int(arrays.train_client[part[0]]) for part in split.train)


def _own_tests(cell: Cell, m: Methods, arrays: Arrays, split: Split) -> list[Indices]:
    """Every client's own test images: those that the data say are its own, else as its training images by class.

    Raises ``Refused`` for an honest client without any.
    """
    byzantine = cell.settings.byzantine()
    if m.partition.by == "client":
        if arrays.test_client is None:
            raise Refused(
                f"tests='own' with {cell.partition}: {cell.dataset} does not say whose its test images are; that takes "
                "an array 'test_client' in an npz file, or tests='common'"
            )
        tests = [np.flatnonzero(arrays.test_client == owner) for owner in _named(m, arrays, split)]
    else:
        copies = byzantine if cell.owners < cell.clients else frozenset()
        trained = [np.concatenate(pair) for pair in zip(split.train, split.validation, strict=True)]
        trained = [part[:0] if k in copies else part for k, part in enumerate(trained)]
        counts = label_counts(arrays.train_y, trained, arrays.classes)
        tests = proportional_tests(np.asarray(arrays.test_y), counts, numpy_stream(cell.seed, "own tests"))
    for k, part in enumerate(tests):
        if not len(part) and k not in byzantine:
            raise Refused(
                f"tests='own' leaves client {k} of {cell.clients} without test images, of {len(arrays.test_y)} in the "
                "data; use fewer clients or tests='common'"
            )
    return tests


def _domain_split(cell: Cell, m: Methods, domains: list[Arrays]) -> Split:
    blocks = equal_blocks
    if m.user_sizes is not None:
        blocks = partial(m.user_sizes.lengths, generator=numpy_stream(cell.seed, "partition"))
    sizes = [len(d.train_y) for d in domains], [len(d.test_y) for d in domains]
    slices = domain_split(*sizes, users=cell.users, share=cell.domain_share, validation=cell.validation, blocks=blocks)
    train, validation, tests, domain_of = zip(*((s.train, s.validation, s.test, s.domain) for s in slices), strict=True)
    return Split(list(train), list(validation), list(tests), domain_of)


def _doubts(m: Methods, parts: list[Arrays]) -> tuple[str, ...]:
    """Reasons to doubt accuracies on the data sets, each under its name."""
    found: dict[str, None] = {}  # once each, for domains that are one data set
    for dataset, arrays in zip(m.datasets, parts, strict=True):
        told = data_doubts(arrays)
        for name, kept in (("limit", len(arrays.train_y)), ("test_limit", len(arrays.test_y))):
            limit = getattr(dataset, name, None)
            told += [f"{name} = {limit} changes nothing: there are {kept} images"] if limit and limit > kept else []
        found |= dict.fromkeys(f"{describe(dataset)}: {words}" for words in told)
    return tuple(found)


def _beyond(cell: Cell, arrays: Arrays, split: Split) -> Iterator[str]:
    """Settings that ask for more pixels or images than there are."""
    height, width = arrays.shape[1:]
    if 2 * cell.crop > min(height, width):
        yield f"crop = {cell.crop} shifts images of {height} × {width} pixels by up to so many: much of them is padding"
    if cell.tests == "common" and cell.methods.partition.by == "client" and arrays.test_client is not None:
        yield "clients share all test images, though the data say whose each is; tests = 'own' tests each on its own"
    least = min(map(len, split.tests), default=len(arrays.test_y))
    if cell.representations > least:
        yield f"representations = {cell.representations} is more than there are: a user has {least} test images"


def _without_server(cell: Cell, split: Split) -> Split:
    """The split after the server has taken its own training images from the clients' parts."""
    everything = np.concatenate(split.train)
    if cell.attackers_data == "copied" and cell.f:
        everything = np.unique(everything)  # attackers hold copies of what honest clients have
    if cell.server_samples >= len(everything):
        raise Refused(
            f"server_samples={cell.server_samples} leaves clients nothing of {len(everything)} training samples"
        )
    order = numpy_stream(cell.seed, "server-data").permutation(len(everything))[: cell.server_samples]
    taken = everything[np.sort(order)]
    return replace(split, train=[part[~np.isin(part, taken)] for part in split.train], server=taken)


def _check_alike(cell: Cell, domains: list[Arrays]) -> None:
    """Raise ``Refused`` if images or classes of the domains differ."""
    first = domains[0]
    for name, other in zip(cell.domains, domains, strict=True):
        if other.shape != first.shape or other.classes != first.classes or other.train_x.dtype != first.train_x.dtype:
            raise Refused(
                f"domains differ: {cell.domains[0]} has images {first.shape} {first.train_x.dtype} of {first.classes} "
                f"classes, {name} {other.shape} {other.train_x.dtype} of {other.classes}; see the data set 'resized'"
            )


def _joined(domains: list[Arrays]) -> Arrays:
    """The domains one after another."""
    names = ("train_x", "train_y", "test_x", "test_y")
    arrays = {name: np.concatenate([getattr(domain, name) for domain in domains]) for name in names}
    return Arrays(**arrays, classes=domains[0].classes, fingerprint="+".join(d.fingerprint for d in domains))


# --- the model -------------------------------------------------------------------------------------------------------


def skeleton(cell: Cell, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The cell's model for images of a ``shape`` (C, H, W), with values that do not matter."""
    scaling = nn.Identity() if cell.scaling == "none" else Normalize([0.5] * shape[0], [0.5] * shape[0])
    model, norm = create("model", cell.model), create("norm", cell.norm)
    return nn.Sequential(scaling, _network(cell, cast(Model, model), cast(Norm, norm), shape, classes))


def _network(cell: Cell, model: Model, norm: Norm, shape: tuple[int, int, int], classes: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # constructors draw, and initialise may keep what those of a plug-in drew
        torch.manual_seed(stream(cell.seed, "constructors").initial_seed())
        network = model.build(norm, shape=shape, classes=classes)
        norm.adapt(network)
    layer = _layer_type(norm)
    if layer is not nn.Identity and not any(isinstance(part, layer) for part in network.modules()):
        raise Refused(f"{cell.model} has no normalization layers for {cell.norm} to take the place of; use norm=none")
    _check_layers(norm, network)
    seed_dropout(network)
    return network


def _check_layers(norm: Norm, network: nn.Module) -> None:
    """Raise ``RobustflError`` for running statistics that would stay at mean 0 and variance 1, or that nobody reads."""
    for part in network.modules():
        if isinstance(getattr(part, "running_mean", None), Tensor) and not isinstance(part, StatisticsLayer):
            raise RobustflError(
                f"nobody asks {type(part).__name__} for its running statistics; make normalization layers with "
                "norm.layer, of a class derived from robustfl.contracts.StatisticsLayer"
            )
    merges = type(norm).merge is not Norm.merge
    reports = any(isinstance(part, StatisticsLayer) for part in network.modules())
    if reports and not merges and not {Tag.MEAN, Tag.VARIANCE} & set(norm.private):
        raise RobustflError(
            f"norm {norm.name!r}: nobody merges what its layers report, and models would be tested with mean 0 and "
            "variance 1: override merge, or name Tag.MEAN and Tag.VARIANCE in private"
        )


def _model(cell: Cell, m: Methods, arrays: Arrays, root: str | Path | None) -> nn.Module:
    network = _network(cell, m.model, m.norm, arrays.shape, arrays.classes)
    m.model.initialise(network, stream(cell.seed, "init"))
    if m.init is not None:
        m.init.load(network.to(DTYPES[cell.dtype]), data_root(root))
    made = nn.Sequential(_scaling(cell, m, arrays), network)
    for name, parameter in made.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise RobustflError(f"parameter {name} of model {m.model.name!r} is not finite before training")
    return made


def _mixing(m: Methods, model: nn.Module, train: Resident, classes: int) -> str | None:
    """Why clients of a network from elsewhere cannot be computed in one pass; ``None`` if they can.

    Raises ``RobustflError`` for one that remembers what it has seen, and ``Refused`` where steps in lock-step need that
    pass.
    """
    own = all(type(part).__module__.partition(".")[0] in ("torch", "robustfl") for part in model.modules())
    if isinstance(m.norm, OneMachineNorm) or own:
        return None
    images = train.pixels(slice(0, 5), dtype=next(model.parameters()).dtype)
    try:
        in_one_pass(model, images, classes)
    except Mixed as error:
        if isinstance(m.norm, LockstepNorm):
            raise Refused(f"{m.norm.name} takes steps in lock-step, which this model does not allow: {error}") from None
        return f"clients run one after another ({error})"
    except (Refused, RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        return None  # training meets it again, and says whose it is
    return None


def _layer_type(norm: Norm) -> type[nn.Module]:
    """The type of a norm's layers; of a number of channels that almost any number of groups divides."""
    try:
        return type(norm.layer(5040))
    except Refused:
        return nn.Module


def _scaling(cell: Cell, m: Methods, arrays: Arrays) -> nn.Module:
    """The scaling of pixels in [0, 1] before the first layer, inside the model."""
    channels = arrays.shape[0]
    if cell.scaling == "none":
        return nn.Identity()
    if cell.scaling == "unit":
        return Normalize([0.5] * channels, [0.5] * channels)
    name = "" if cell.domains else m.dataset.name
    return Normalize(*channel_statistics(arrays, name))
