"""The contracts of partitions, data sets and models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustfl.contracts import Arrays, Dataset, Model, Partition
from robustfl.data import data_root
from robustfl.data.checks import dark_images, repeated_images, unseen_classes, untested_classes
from robustfl.errors import DataMissing, FileMissing, Refused, told
from robustfl.models.dropout import seed_dropout
from robustfl.randomness import numpy_stream, stream
from robustfl.registry import create
from robustfl.testing.common import COMMON, FIRST, FORM, built
from robustfl.testing.guards import Broken, Differs, held_in_one_pass, said, same, unheard
from robustfl.testing.suite import LIMIT, Check, Law, Trial, run

_CLIENTS, _CLASSES, _IMAGES = 5, 10, 400
_LARGE = 1_000_000  # parameters, beyond which the law of one pass is tried in training alone
_SHAPES = ((3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 64, 64))
_PLAIN = tuple(law for law in COMMON if law not in FORM and law.name != "finite")


# --- partitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Splitting(Trial[Partition]):
    def labels(self, case: int = 0) -> np.ndarray[Any, Any]:
        """Labels in no order, every class as often."""
        return numpy_stream(case, "check labels").permutation(np.arange(_IMAGES) % _CLASSES)

    def split(self, method: Partition, labels: np.ndarray[Any, Any], case: int = 0) -> list[np.ndarray[Any, Any]]:
        draws = numpy_stream(case, "check split")
        return method.split(labels, clients=_CLIENTS, classes=_CLASSES, generator=draws)

    def outcome(self, method: Partition, case: int = 0) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(np.asarray(p)) for p in self.split(method, self.labels(case), case))


def _parts(trial: _Splitting) -> str | None:
    found = trial.split(trial.fresh(), trial.labels())
    if not isinstance(found, list) or len(found) != _CLIENTS:
        what = f"a list of {len(found)}" if isinstance(found, list) else f"a {type(found).__name__}"
        raise Broken(f"split returned {what} for {_CLIENTS} clients; a list with one index array each is needed")
    for k, part in enumerate(found):
        if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "iu":
            raise Broken(f"client {k} got {type(part).__name__}, not an array [m] of whole numbers")
        if len(part) and (part.min() < 0 or part.max() >= _IMAGES):
            raise Broken(f"client {k} has indices from {part.min()} to {part.max()} of {_IMAGES} samples")
    return None


def _disjoint(trial: _Splitting) -> str | None:
    for case in (0, 1):
        owner: dict[int, int] = {}
        for k, part in enumerate(trial.split(trial.fresh(), trial.labels(case), case)):
            for index in part.tolist():
                if index in owner:
                    whose = "twice" if owner[index] == k else f"as does client {owner[index]}"
                    raise Broken(f"client {k} has sample {index} {whose}; parts must not overlap")
                owner[index] = k
    spread = len(owner) / _IMAGES
    return None if spread == 1 else f"fact: {spread:.0%} of the samples are given out"


def _labels_untouched(trial: _Splitting) -> str | None:
    labels = trial.labels()
    trial.split(trial.fresh(), labels)
    if not np.array_equal(labels, trial.labels()):
        raise Broken("split wrote to the labels; it must work on a copy")
    return None


PARTITION_LAWS = (
    *FIRST,
    *FORM,
    Law("parts", "one array of sample numbers per client, all of them in range", _parts),
    Law("disjoint", "no sample belongs to two clients", _disjoint),
    Law("labels untouched", "the labels are not written to", _labels_untouched),
    *_PLAIN,
)


def check_partition(method: Partition | type[Partition] | str, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """The contract of a partition, law by law."""
    return run(PARTITION_LAWS, _Splitting(built("partition", method, params)), limit=limit)


# --- data sets -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loading(Trial[Dataset]):
    root: Path = Path()

    def load(self, method: Dataset) -> Arrays:
        return method.load(self.root, download=False)

    def outcome(self, method: Dataset, case: int = 0) -> tuple[Tensor, ...]:
        del case
        return tuple(torch.from_numpy(np.array(part)) for _, part in _named(self.load(method)))


def _named(arrays: Arrays) -> list[tuple[str, np.ndarray[Any, Any]]]:
    return [(name, getattr(arrays, name)) for name in ("train_x", "train_y", "test_x", "test_y")]


def _images(trial: _Loading) -> str | None:
    arrays = trial.load(trial.fresh())
    for name, x in _named(arrays)[::2]:
        if x.ndim != 4 or not len(x):
            raise Broken(f"{name} has shape {x.shape}; images [N H W C] with N ≥ 1 are needed")
        if x.dtype not in (np.uint8, np.float32):
            raise Broken(f"{name} has dtype {x.dtype}; uint8, or float32 in [0, 1], is needed")
        if x.dtype == np.float32 and not (float(x.min()) >= 0 and float(x.max()) <= 1):
            raise Broken(f"{name} reaches from {float(x.min()):g} to {float(x.max()):g}; pixels must lie in [0, 1]")
    if arrays.train_x.shape[1:] != arrays.test_x.shape[1:] or arrays.train_x.dtype != arrays.test_x.dtype:
        raise Broken(f"train images are {arrays.train_x.shape[1:]}, test images {arrays.test_x.shape[1:]}")
    if arrays.train_x.shape[-1] > 4:
        return f"fact: {arrays.train_x.shape[-1]} channels; channels come last"
    doubt = dark_images(arrays)
    return f"fact: {doubt}" if doubt else None


def _labels(trial: _Loading) -> str | None:
    arrays = trial.load(trial.fresh())
    for part in ("train", "test"):
        x, y = getattr(arrays, f"{part}_x"), getattr(arrays, f"{part}_y")
        if y.shape != (len(x),) or y.dtype.kind not in "iu":
            raise Broken(f"{part}_y is {y.dtype} {y.shape}; {len(x)} class numbers are needed")
        if int(y.min()) < 0 or int(y.max()) >= arrays.classes:
            raise Broken(
                f"{part}_y reaches from {y.min()} to {y.max()}; {arrays.classes} classes are 0 to {arrays.classes - 1}"
            )
    doubt = unseen_classes(arrays) or untested_classes(arrays)
    return f"fact: {doubt}" if doubt else None


def _fingerprint(trial: _Loading) -> str | None:
    method = trial.fresh()
    told, loaded = method.fingerprint(trial.root, download=False), trial.load(method).fingerprint
    if not told or told != loaded:
        raise Broken(f"fingerprint() says {told!r}, load() says {loaded!r}; cells are keyed by it, so both must agree")
    return None


def _kept_apart(trial: _Loading) -> str | None:
    """Nobody is tested on what was trained on. Real data sets repeat some images; half of the test part is too much."""
    arrays = trial.load(trial.fresh())
    again = repeated_images(arrays)
    if 2 * again > len(arrays.test_x):
        raise Broken(f"{again} of {len(arrays.test_x)} test images are training images, too")
    return f"fact: {again} of {len(arrays.test_x)} test images are training images, too" if again else None


DATASET_LAWS = (
    *FIRST,
    *FORM,
    Law("images", "train and test images are [N H W C], uint8 or float32 in [0, 1]", _images),
    Law("labels", "one class number per image, from 0 to classes - 1", _labels),
    Law("test apart", "test images are others than training images", _kept_apart),
    Law("fingerprint", "fingerprint and load tell the same digest", _fingerprint),
    *_PLAIN,
)


def check_dataset(
    method: Dataset | type[Dataset] | str, *, limit: float = LIMIT, root: str | Path | None = None, **params: Any
) -> list[Check]:
    """The contract of a data set, law by law; without its files here, of what holds for any method.

    Raises ``UsageError`` if a parameter names a file that is not there.
    """
    trial = _Loading(built("dataset", method, params), root=data_root(root))
    try:
        trial.method.fingerprint(trial.root, download=False)
    except FileMissing:
        raise
    except DataMissing as error:
        words = f"not looked at: {error}"
        left = (Check(law.name, True, words, because="its files") for law in DATASET_LAWS if law not in FORM)
        return [*run(FORM, trial, limit=limit), *left]
    except Exception:
        pass  # the laws say what is wrong
    return run(DATASET_LAWS, trial, limit=limit)


# --- models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Building(Trial[Model]):
    def network(
        self, method: Model, norm: str = "gn(groups=1)", case: int = 0, built: int = 0
    ) -> tuple[nn.Module, Tensor]:
        """A network with drawn parameters, in evaluation mode, and three images for it.

        Constructors may draw from torch's global generator, as torch's own do; ``built`` is its seed meanwhile.
        """
        for shape in _SHAPES:
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(built)
                    made = method.build(create("norm", norm), shape=shape, classes=_CLASSES)
            except Refused as error:
                refused = error
                continue
            if not isinstance(made, nn.Module):
                raise Broken(f"build returned {said(made)}; a module is needed")
            seed_dropout(made)
            method.initialise(made, stream(case, "check init"))
            return made.eval(), torch.rand(3, *shape, generator=stream(0, "check images"))
        raise Broken(f"it refuses images of every usual shape: {refused}")

    def outcome(self, method: Model, case: int = 0) -> tuple[Tensor, ...]:
        made, x = self.network(method, case=case)
        try:
            with torch.no_grad():
                return (made(x),)
        except Exception as error:
            shape = tuple(x.shape[1:])
            raise Broken(
                f"images of shape {shape}: {told(error)}; build refuses (Refused) shapes that do not fit"
            ) from error


def _logits(trial: _Building) -> str | None:
    (logits,) = trial.outcome(trial.fresh())
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (3, _CLASSES):
        what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise Broken(f"three images of {_CLASSES} classes gave {what}; logits (3, {_CLASSES}) are needed")
    if not bool(torch.isfinite(logits).all()):
        raise Broken("its logits are not finite, of three random images and initial parameters")
    return None


def _asked(trial: _Building) -> str | None:
    if name := unheard(trial.network(trial.fresh(), "naive-bn")[0]):
        raise Broken(f"nobody asks {name} for its running statistics; make normalization layers with norm.layer")
    return None


def _apart(trial: _Building) -> str | None:
    for norm in ("gn(groups=1)", "naive-bn"):
        made, x = trial.network(trial.fresh(), norm)
        made = made.double()
        x = x.double()
        with torch.no_grad():
            together, alone = made(x), torch.cat([made(part[None]) for part in x])
        off = float((together - alone).abs().max())
        if off > 1e-6 * max(1.0, float(alone.abs().max())):
            raise Differs(
                f"an image's logits depend on the rest of the batch (by up to {off:.2g}, evaluation mode, {norm}); the "
                "engine computes the batches of several clients together, which such a model would mix"
            )
    return None


def _initialised(trial: _Building) -> str | None:
    method = trial.fresh()
    named = list(trial.network(method, built=0)[0].named_parameters())
    one, two = [p for _, p in named], list(trial.network(method, built=1)[0].parameters())
    if not same(tuple(p.detach() for p in one), tuple(p.detach() for p in two)):
        name = next(n for (n, p), q in zip(named, two, strict=True) if not torch.equal(p, q))
        raise Differs(
            f"two initialisations from one generator's state differ in {name}, which a constructor drew; draw it in "
            "initialise(network, generator), after super().initialise(network, generator)"
        )
    other = list(trial.network(method, case=1)[0].parameters())
    if same(tuple(p.detach() for p in one), tuple(p.detach() for p in other)):
        raise Broken("two generators gave the same parameters; initialise must draw from generator")
    return None


def _trained(trial: _Building) -> str | None:
    made, x = trial.network(trial.fresh())
    made(x).square().sum().backward()
    idle = [name for name, p in made.named_parameters() if p.grad is None]
    return f"fact: no gradient reaches {idle[0]}" if idle else None


def _attackable(trial: _Building) -> str | None:
    """What evasion attacks follow: the gradient of the input as the model is served, its parameters left alone."""
    made, x = trial.network(trial.fresh())
    made, x = made.double().requires_grad_(False), x.double()
    weights = torch.randn(3, _CLASSES, generator=stream(0, "check loss"), dtype=torch.float64)
    given = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad((made(given) * weights).sum(), given)
    gaps = []
    for place in range(8):  # a kink of the network may lie in one direction, and in none of the others
        along = torch.randn(x.shape, generator=stream(place, "check direction"), dtype=torch.float64)
        with torch.no_grad():
            ahead, behind = ((made(x + h * along) * weights).sum() for h in (1e-6, -1e-6))
        found, wanted = float((slope * along).sum()), float(ahead - behind) / 2e-6
        gaps.append(abs(found - wanted) / max(abs(wanted), 1e-3))
    if min(gaps) > 1e-3:
        raise Broken(
            "in evaluation the gradient of the input is not that of finite differences, which hides the model from "
            "evasion attacks"
        )
    return None


def _served(trial: _Building) -> str | None:
    try:
        _apart(trial)
    except Differs:
        return "clients run one after another (images are not apart)"
    made, x = trial.network(trial.fresh())
    images = torch.rand(5, *x.shape[1:], generator=stream(0, "check images"))
    if sum(p.numel() for p in made.parameters()) < _LARGE:
        held_in_one_pass(made, images, _CLASSES, training=False)
    return held_in_one_pass(made, images, _CLASSES)


MODEL_LAWS = (
    *FIRST,
    *FORM,
    Law("logits", "one row of logits per image, as wide as there are classes", _logits),
    Law("norms", "layers with running statistics are those of the norm", _asked),
    Law("attackable", "in evaluation the input's gradient is that of finite differences", _attackable),
    Law("images apart", "an image's logits do not depend on the rest of the batch", _apart, waivable=True),
    Law("initialised", "all parameters are drawn, from the generator alone", _initialised),
    Law("trains", "gradients reach its parameters; those they do not reach are told", _trained),
    Law("clients in one pass", "served together, clients have the losses and gradients of each alone", _served),
    *_PLAIN,
)


def check_model(method: Model | type[Model] | str, *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """The contract of a model, law by law, on the first usual shape of images that it does not refuse."""
    return run(MODEL_LAWS, _Building(built("model", method, params)), limit=limit)
