"""From a cell to a runnable experiment: data, split, model, methods. What cannot be is refused here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import Algorithm, Arrays, Attack, Dataset, Evasion, Model, Norm, Partition
from robustfl.data import (
    Augment,
    Normalize,
    Resident,
    channel_statistics,
    data_root,
    label_counts,
    train_validation,
)
from robustfl.defenses.pipeline import parse_pipeline
from robustfl.errors import Refused
from robustfl.federation import Experiment, Settings
from robustfl.models.dropout import seed_dropout
from robustfl.randomness import numpy_stream, stream
from robustfl.vectors import layout_of

from .spec import Cell, method

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Built:
    """An experiment with what evaluation needs: the test set, validation indices per client, evasion attacks."""

    experiment: Experiment
    test: Resident
    validation: tuple[Tensor, ...]
    evasions: tuple[tuple[str, Evasion], ...]
    label_counts: list[list[int]]


def build(cell: Cell, *, root: str | Path | None = None, device: torch.device | None = None) -> Built:
    """Load the data, split it, draw the initial model. Raises ``Refused`` or ``UsageError`` before training."""
    where = torch.device("cpu") if device is None else device
    dataset = cast(Dataset, method("dataset", cell.dataset))
    arrays = dataset.load(data_root(root), download=False)
    train = Resident.of(arrays.train_x, arrays.train_y, device=where)
    algorithm = cast(Algorithm, method("algorithm", cell.algorithm))
    parts, validation = _split(cell, arrays, algorithm)
    model = _model(cell, arrays, dataset.name).to(device=where, dtype=DTYPES[cell.dtype])
    experiment = Experiment(
        settings=_settings(cell),
        model=model,
        layout=layout_of(model),
        train=train,
        parts=tuple(torch.from_numpy(p).to(where) for p in parts),
        classes=arrays.classes,
        algorithm=algorithm,
        norm=cast(Norm, method("norm", cell.norm)),
        attack=cast(Attack, method("attack", cell.attack)),
        defense=parse_pipeline(cell.defense),
        lr=cell.schedule.function(),
        augment=Augment(cell.flip, cell.crop) if cell.flip or cell.crop else None,
    )
    return Built(
        experiment=experiment,
        test=Resident.of(arrays.test_x, arrays.test_y, device=where),
        validation=tuple(torch.from_numpy(v).to(where) for v in validation),
        evasions=tuple((e, cast(Evasion, method("evasion", e))) for e in cell.evasions),
        label_counts=label_counts(arrays.train_y, parts, arrays.classes),
    )


def _settings(cell: Cell) -> Settings:
    return Settings(
        clients=cell.clients,
        f=cell.f,
        f_declared=cell.f_declared,
        rounds=cell.rounds,
        batch=cell.batch,
        participation=cell.participation,
        scope=cell.scope,
        target=cell.target,
        seed=cell.seed,
        engine=cell.engine,
    )


def _split(
    cell: Cell, arrays: Arrays, algorithm: Algorithm
) -> tuple[list[np.ndarray[tuple[int], np.dtype[np.int64]]], list[np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    partition = cast(Partition, method("partition", cell.partition))
    labels = np.asarray(arrays.train_y)
    split = partition.split(
        labels, clients=cell.clients, classes=arrays.classes, generator=numpy_stream(cell.seed, "partition")
    )
    train, validation = [], []
    for k, indices in enumerate(split):
        kept, held = indices, indices[:0]
        if cell.validation and len(indices):
            kept, held = train_validation(indices, cell.validation, numpy_stream(cell.seed, "validation", k))
        if len(kept) == 0:
            raise Refused(
                f"{cell.partition} leaves client {k} of {cell.clients} without training samples; "
                "use fewer clients, a milder partition or its min_size"
            )
        if algorithm.one_batch and len(kept) < cell.batch:
            raise Refused(
                f"batch={cell.batch} is larger than client {k}'s {len(kept)} training samples; batch ≤ {len(kept)} fits"
            )
        train.append(kept.astype(np.int64, copy=False))
        validation.append(held.astype(np.int64, copy=False))
    return train, validation


def _model(cell: Cell, arrays: Arrays, dataset: str) -> nn.Module:
    architecture = cast(Model, method("model", cell.model))
    norm = cast(Norm, method("norm", cell.norm))
    with torch.random.fork_rng(devices=[]):  # constructors draw; what they draw is overwritten from our own stream
        network = architecture.build(norm, shape=arrays.shape, classes=arrays.classes)
    seed_dropout(network)
    architecture.initialise(network, stream(cell.seed, "init"))
    return nn.Sequential(Normalize(*channel_statistics(arrays, dataset)), network)
