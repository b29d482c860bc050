"""Data and models: data sets, how clients share them, and network architectures."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from robustfl.contracts.method import Method
from robustfl.contracts.norm import Norm


@dataclass(frozen=True)
class Arrays:
    """A data set in memory or mapped: images ``[N H W C]`` uint8 (or float32 in [0, 1]), labels int64 ``[N]``.

    ``train_client`` and ``test_client``, int64 ``[N]`` ≥ 0, say whose image each is, where the data say so.
    """

    train_x: np.ndarray[Any, Any]
    train_y: np.ndarray[Any, Any]
    test_x: np.ndarray[Any, Any]
    test_y: np.ndarray[Any, Any]
    classes: int
    fingerprint: str
    train_client: np.ndarray[Any, Any] | None = None
    test_client: np.ndarray[Any, Any] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)`` of one image."""
        height, width, channels = self.train_x.shape[1:]
        return channels, height, width


class Dataset(Method):
    """A data set by name; ``load`` decodes it once into a cache under ``root`` and memory-maps it."""

    kind: ClassVar[str] = "dataset"

    @abstractmethod
    def load(self, root: Path, *, download: bool = True) -> Arrays:
        """The arrays. Raises ``DataMissing`` with the folder and the command if they cannot be had."""

    @abstractmethod
    def fingerprint(self, root: Path, *, download: bool = True) -> str:
        """A digest of the content, without decoding again if the cache is there."""


class Partition(Method):
    """A way to spread training samples over clients.

    ``by`` says what ``split`` receives for each sample: its label, or with ``"client"`` the number of the client that
    the data say it is of (``Arrays.train_client``).
    """

    kind: ClassVar[str] = "partition"
    by: ClassVar[Literal["label", "client"]] = "label"

    @abstractmethod
    def split(
        self, labels: np.ndarray[Any, Any], *, clients: int, classes: int, generator: np.random.Generator
    ) -> list[np.ndarray[Any, Any]]:
        """Disjoint index arrays, one per client. A client may be left empty; the engine refuses such a cell."""


class Model(Method):
    """A network architecture, built with any norm."""

    kind: ClassVar[str] = "model"

    @abstractmethod
    def build(self, norm: Norm, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A network from normalised inputs ``[b C H W]`` to logits ``[b c]``. Raises ``Refused`` for a wrong shape."""

    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        """Draw the initial parameters in place, from ``generator`` alone (torch's default distributions)."""
        from robustfl.initialisation import torch_default

        torch_default(network, generator)
