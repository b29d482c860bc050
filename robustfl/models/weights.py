"""Initial weights from a file of the user's, such as those of a network that was trained on ImageNet."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustfl.contracts import Tag
from robustfl.errors import DataMissing, Refused, some
from robustfl.layout import tag_of
from robustfl.models.network import Network
from robustfl.parameters import check, param

_UNREADABLE = (pickle.UnpicklingError, RuntimeError, ValueError, OSError, EOFError, KeyError, AttributeError)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_NAMED = 5
_PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True)
class Weights:
    """A ``state_dict`` saved by torch, under torchvision's names for its networks, else under the network's own.

    The file is read with ``weights_only``, so that no code in it runs. A relative path is looked up in the working
    directory, then in the data root. Every parameter must be there in the network's shape, but for what clients keep
    to themselves (HBN's factors), which starts as usual. Running statistics are those that training begins with; for
    layers without any (group norm) the file's are left out. With ``head = "new"`` the last linear layer is drawn
    anew, whatever the file has for it, as it must be for another number of classes. Prefixes of all names that
    ``DataParallel``, ``torch.compile`` or Lightning put there (``module.``, ``_orig_mod.``, ``model.``) are left out.
    With ``prefix`` the entries whose names begin with it are taken, without it, and no others.
    """

    name: ClassVar[str] = "weights"

    path: str = param(doc="the file")
    head: str = param("file", choices=("file", "new"), doc="where the last linear layer comes from")
    prefix: str = param("", doc="the beginning of the names to take, which is left out")

    def __post_init__(self) -> None:
        check(self)

    def file(self, root: Path) -> Path:
        """Where the file lies. Raises ``DataMissing``."""
        given = Path(os.path.expanduser(self.path))
        places = list(dict.fromkeys([given.absolute(), given if given.is_absolute() else root / given]))
        for place in places:
            if place.is_file():
                return place
        raise DataMissing(f"init: there is no file of weights {' or '.join(map(str, places))}; a state_dict of torch")

    def digest(self, root: Path) -> str:
        """A digest of the file's bytes. Raises ``DataMissing``."""
        place = self.file(root)
        facts = place.stat()
        return _digest(place, facts.st_size, facts.st_mtime_ns)

    def load(self, network: nn.Module, root: Path) -> None:
        """Write the file's entries into ``network``. Raises ``Refused``, naming entries that do not fit."""
        place = self.file(root)
        own = _entries(network)
        read = _read(place)
        found = _unwrapped(read, own) if not self.prefix else _beginning(read, self.prefix, place)
        new = _head(network) if self.head == "new" else frozenset()
        wanted = {name: tensor for name, tensor in own.items() if name not in new}
        missing = [name for name in wanted if name not in found]
        layers = {name.rpartition(".")[0] for name in own}
        unused = [name for name in found if name not in own and not _no_statistics_here(name, layers)]
        shapes = [
            f"{name} is {tuple(found[name].shape)}, not {tuple(tensor.shape)}"
            for name, tensor in wanted.items()
            if name in found and found[name].shape != tensor.shape
        ]
        problems = [
            f"{what}: {some(names, _NAMED)}"
            for what, names in (("it lacks", missing), ("the network has no", unused), ("of another shape", shapes))
            if names
        ]
        if problems:
            wrong = {*missing, *(words.split(" ")[0] for words in shapes)}
            hint = "; head=new draws the last layer anew" if wrong and wrong <= _head(network) and not unused else ""
            hint = hint or _prefixed(found, own)
            raise Refused(f"init: {place} does not fit the network: {'; '.join(problems)}{hint}")
        broken = [name for name in wanted if not bool(torch.isfinite(found[name]).all())]
        if broken:
            raise Refused(f"init: {place} holds numbers that are not finite: {some(broken, _NAMED)}")
        negative = [name for name in wanted if name.endswith("running_var") and bool((found[name] < 0).any())]
        if negative:
            raise Refused(f"init: {place} holds variances below 0: {some(negative, _NAMED)}; they must be ≥ 0")
        with torch.no_grad():
            for name, tensor in wanted.items():
                tensor.copy_(found[name])


@lru_cache(64)
def _digest(place: Path, size: int, changed: int) -> str:
    del size, changed
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _read(place: Path) -> Mapping[str, Tensor]:
    try:
        found: Any = torch.load(place, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        said = str(error).partition("\n")[0][:200]
        raise Refused(f"init: {place} cannot be read as weights: {type(error).__name__}: {said}") from None
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        holds = f"; it holds {some([str(name) for name in found], _NAMED)}" if isinstance(found, Mapping) else ""
        raise Refused(f"init: {place} is no state_dict of torch, names with a tensor each{holds}")
    return {str(name): tensor for name, tensor in found.items()}


def _unwrapped(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The entries without prefixes of a wrapper that every name has and no name of the network."""
    while found:
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in found)), None)
        if prefix is None or any(name.startswith(prefix) for name in own):
            return found
        found = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    return found


def _beginning(found: Mapping[str, Tensor], prefix: str, place: Path) -> Mapping[str, Tensor]:
    """The entries whose names begin with ``prefix``, without it. Raises ``Refused`` where there are none."""
    chosen = {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
    if not chosen:
        raise Refused(f"init: no name in {place} begins with prefix={prefix!r}; it holds {some([*found], _NAMED)}")
    return chosen


def _prefixed(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """Ends a refusal: the beginning of names in the file that are the network's but for it."""
    counts = Counter(name[: -len(end)] for name in found for end in _ends(name) if end in own)
    if not counts:
        return ""
    prefix, count = counts.most_common(1)[0]
    return f"; {count} of its {len(found)} names are the network's after {prefix!r}: take these with prefix={prefix}"


def _ends(name: str) -> Iterator[str]:
    """What is left of a name without its first parts, one after another.

    >>> list(_ends("module.net.0.weight"))
    ['net.0.weight', '0.weight', 'weight']
    """
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _entries(network: nn.Module) -> dict[str, Tensor]:
    """The entries a file gives, under the file's names: all parameters and running statistics but private ones."""
    found: dict[str, Tensor] = {}
    for prefix, module in network.named_modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tag_of(module, name) not in (Tag.PRIVATE, Tag.COUNTER):
                found[_released(network, f"{prefix}.{name}".lstrip("."))] = tensor
    return found


def _released(network: nn.Module, name: str) -> str:
    first, _, rest = name.partition(".")
    given = network.released if isinstance(network, Network) else {}
    return f"{given[first]}.{rest}" if first in given else name


def _head(network: nn.Module) -> frozenset[str]:
    linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        return frozenset()
    name, layer = linear[-1]
    return frozenset(_released(network, f"{name}.{entry}") for entry, _ in layer.named_parameters(recurse=False))


def _no_statistics_here(name: str, layers: set[str]) -> bool:
    """True if an entry is a running statistic of a layer that has none of its own."""
    layer, _, leaf = name.rpartition(".")
    return leaf in _STATISTICS and layer in layers
