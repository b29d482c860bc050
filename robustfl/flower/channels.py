"""Flower's named arrays as rows: the update, the normalization statistics and the counters of a model apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor, nn

from robustfl.contracts import StatisticsSlices
from robustfl.errors import UsageError, closest
from robustfl.layout import statistics_layers

NUMBER = "robustfl"
"""The name of the record that tells a client's number."""

_SUSPECT = ("running_mean", "running_var", "moving_mean", "moving_variance", "num_batches_tracked")


@dataclass(frozen=True)
class Rows:
    """One message: ``update [d]``, ``statistics [s]`` and the counters, in the order of ``Channels``."""

    update: Tensor
    statistics: Tensor
    counters: tuple[Tensor, ...]


@dataclass(frozen=True)
class Channels:
    """Which of a model's arrays belong to which channel.

    ``update`` names the arrays of the update, ``layers`` where each normalization layer lies in the statistics row,
    ``statistics`` its mean and its variance; ``counters`` are arrays of whole numbers.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    update: tuple[str, ...]
    statistics: tuple[tuple[str, str], ...]
    layers: tuple[StatisticsSlices, ...]
    counters: tuple[str, ...]

    @property
    def updated(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of the arrays of the update."""
        return {name: self.shapes[name] for name in self.update}

    @classmethod
    def of(cls, arrays: ArrayRecord, model: nn.Module | None) -> Channels:
        """The channels of the model that the server sends; ``model`` tells statistics from weights.

        Raises ``UsageError`` if there may be statistics and nobody says which, or if arrays and model do not fit.
        """
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        dtypes = {name: array.dtype for name, array in arrays.items()}
        whole = [name for name, dtype in dtypes.items() if np.dtype(dtype).kind in "iub"]
        for name, dtype in dtypes.items():
            if name not in whole and (np.dtype(dtype).kind != "f" or np.dtype(dtype).itemsize > 8):
                raise UsageError(
                    f"RobustStrategy: array {name!r} has dtype {dtype}; floats of at most 64 bits are needed"
                )
        if model is None:
            suspects = [n for n in shapes if n in whole or n.rpartition(".")[2] in _SUSPECT]
            if suspects:
                raise UsageError(
                    f"RobustStrategy: {suspects[0]!r} looks like a normalization statistic, which is no part of an "
                    "update; give model=, the module whose state_dict the arrays are, so that statistics and counters "
                    "are told by the type of their layers"
                )
            pairs: list[tuple[str, str]] = []
        else:
            pairs = _pairs(shapes, model)
        layers, start = [], 0
        for mean, _ in pairs:
            width = int(np.prod(shapes[mean]))
            layers.append(StatisticsSlices(mean, slice(start, start + width), slice(start + width, start + 2 * width)))
            start += 2 * width
        apart = {name for pair in pairs for name in pair} | set(whole)
        return cls(
            shapes=shapes,
            dtypes=dtypes,
            update=tuple(name for name in shapes if name not in apart),
            statistics=tuple(pairs),
            layers=tuple(layers),
            counters=tuple(whole),
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that rows are computed in: the widest dtype there is, float32 at least."""
        return torch.float64 if any(d in ("float64", ">f8") for d in self.dtypes.values()) else torch.float32

    @property
    def variance_mask(self) -> Tensor:
        """Boolean ``[s]``: which statistics are variances."""
        mask = torch.zeros(self.layers[-1].variance.stop if self.layers else 0, dtype=torch.bool)
        for layer in self.layers:
            mask[layer.variance] = True
        return mask

    def read(self, arrays: ArrayRecord) -> Rows:
        """The rows of a message. Raises ``ValueError`` if it has other arrays than the model."""
        if set(arrays) != set(self.shapes):
            missing, extra = sorted(set(self.shapes) - set(arrays)), sorted(set(arrays) - set(self.shapes))
            told = [f"{name!r:.40} is missing" for name in missing[:1]] + [
                f"{name!r:.40} is none of the model's" for name in extra[:1]
            ]
            raise ValueError(f"other arrays than the model's: {' and '.join(told)}")
        found: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            values = arrays[name].numpy()
            if values.shape != shape or values.dtype != np.dtype(self.dtypes[name]):
                wanted = f"{self.dtypes[name]} {shape}"
                raise ValueError(f"array {name} is {values.dtype} {values.shape}, the model's is {wanted}")
            found[name] = torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("="))).reshape(-1)
        return Rows(
            self._row([found[name] for name in self.update]),
            self._row([found[name] for pair in self.statistics for name in pair]),
            tuple(found[name] for name in self.counters),
        )

    def _row(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.to(self.dtype) for part in parts]) if parts else torch.empty(0, dtype=self.dtype)

    def written(self, update: Tensor, statistics: Tensor, counters: Sequence[Tensor]) -> ArrayRecord:
        """Arrays from rows: the whole model."""
        made = dict(zip(self.counters, counters, strict=True))
        sizes = [int(np.prod(shape)) for shape in self.updated.values()]
        made |= dict(zip(self.update, torch.split(update, sizes), strict=True))
        for (mean, variance), layer in zip(self.statistics, self.layers, strict=True):
            made[mean], made[variance] = statistics[layer.mean], statistics[layer.variance]
        flat = {name: made[name].cpu().numpy().astype(dtype) for name, dtype in self.dtypes.items()}
        return ArrayRecord({name: Array(flat[name].reshape(shape)) for name, shape in self.shapes.items()})


def _pairs(shapes: dict[str, tuple[int, ...]], model: nn.Module) -> list[tuple[str, str]]:
    """The names of every normalization layer's mean and variance that are sent."""
    known = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name, shape in shapes.items():
        if name not in known:
            raise UsageError(
                f"RobustStrategy: array {name!r} is none of the model's; {closest(name, known)} (arrays are to be "
                "ArrayRecord(model.state_dict()))"
            )
        if known[name] != shape:
            raise UsageError(f"RobustStrategy: array {name!r} has shape {shape}, the model's has {known[name]}")
    pairs = []
    for prefix, _ in statistics_layers(model):
        mean, variance = (f"{prefix}.{kind}".lstrip(".") for kind in ("running_mean", "running_var"))
        if (mean in shapes) != (variance in shapes):
            raise UsageError(f"RobustStrategy: of {mean!r} and {variance!r} one is sent; send both or keep both")
        if mean in shapes:
            pairs.append((mean, variance))
    return pairs


def arrays_of(message: Message) -> ArrayRecord:
    """The arrays of a reply. Raises ``ValueError`` if it has none, or several records of them."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"{len(records)} records of arrays; one is needed")
    return records[0]


def number_of(message: Message) -> int | None:
    """The number a client has said it has, or None."""
    record = message.content.config_records.get(NUMBER)
    told = None if record is None else record.get("client")
    return told if isinstance(told, int) and not isinstance(told, bool) else None


def in_order(replies: Sequence[Message]) -> list[Message]:
    """Replies in the order of the numbers that clients tell, or else of their nodes."""
    numbers = [number_of(reply) for reply in replies]
    known = [n for n in numbers if n is not None]
    if len(known) == len(replies) == len(set(known)):
        return [reply for _, reply in sorted(zip(known, replies, strict=True), key=lambda pair: pair[0])]
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)
