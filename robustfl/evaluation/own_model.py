"""``robustfl.evaluate``: standard and robust accuracy of somebody's own trained model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from robustfl.arguments import check_model, check_whole, usable_device
from robustfl.attacks.evasion.accounts import masking, odd_radius, radius_text, short_way, small_radius
from robustfl.attacks.evasion.whitebox import frozen, input_gradient
from robustfl.contracts import Dataset, Evasion
from robustfl.data import Normalize, Resident, data_root, dataset_from_spec
from robustfl.data.checks import dark
from robustfl.errors import UsageError, closest, reason
from robustfl.evaluation.accuracy import (
    Accuracy,
    evaluation_batch,
    limit_doubt,
    mean_over_users,
    robust_accuracy,
    standard_accuracy,
)
from robustfl.evaluation.probes import PROBED, Evaluated, scale_doubts, traits
from robustfl.gradients import NEAR
from robustfl.randomness import stream
from robustfl.registry import create, describe, identity
from robustfl.torch_settings import float32_default

if TYPE_CHECKING:
    import pandas as pd

Batch = tuple[Tensor, Tensor]
Told = Callable[[int, int | None], None]

_PIECE = 1024
_FLAT = 0.01
"""The share of images without any gradient from which on that is told."""
_OWN_NORMALIZATION = (
    "pixels in [0, 1] are needed, in which attacks measure their eps; for a model that was trained on normalized "
    "images give mean= and std= of that normalization"
)
_EOT = 20  # draws that AutoAttack's version for randomised models takes


@dataclass(frozen=True)
class Evaluation:
    """Accuracies in [0, 1] of one model on one test set.

    ``sa`` is standard accuracy, ``loss`` the mean cross-entropy on clean images; ``ra`` maps every evasion attack to
    robust accuracy, and ``worst`` is the share of images that resist all of them (None without attacks). ``per_class``
    has a value for each class (None: no image of it), by ``"sa"`` and by attack. ``samples`` images were classified,
    the first ``ra_samples`` of them under attack. ``per_client`` has the same per client where the data set says whose
    its test images are. ``settings`` say how, ``notes`` what to doubt.
    """

    sa: float
    loss: float
    ra: dict[str, float]
    worst: float | None
    samples: int
    ra_samples: int
    per_class: dict[str, list[float | None]] = field(repr=False)
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    per_client: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)

    def interval(self, measure: str = "sa", *, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson's interval of ``"sa"``, ``"worst"`` or an attack: how far another draw of test images may be off."""
        from scipy.stats import binomtest

        if measure not in self._measures:
            raise UsageError(f"interval: no measure {measure!r}; {closest(measure, self._measures)}")
        value, samples = self._measures[measure]
        found = binomtest(round(value * samples), samples).proportion_ci(confidence, method="wilson")
        return float(found.low), float(found.high)

    @property
    def _measures(self) -> dict[str, tuple[float, int]]:
        known = {"sa": (self.sa, self.samples)} | {spec: (value, self.ra_samples) for spec, value in self.ra.items()}
        return known | ({} if self.worst is None else {"worst": (self.worst, self.ra_samples)})

    @property
    def frame(self) -> pd.DataFrame:
        """One row per measure: accuracy, the ends of its 95 % interval, samples."""
        import pandas as pd

        rows = {
            name: (value, *self.interval(name), samples) for name, (value, samples) in self._measures.items()
        }  # fmt: skip
        columns = ["accuracy", "low", "high", "samples"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("measure")

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON; with ``path`` also written there."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def _radius(self, measure: str, name: str) -> str:
        """The ``norm`` or ``eps`` of an attack as it is printed; "" where there is none."""
        attack = self.settings.get("evasions", {}).get(measure)
        parts = [attack, *attack.get("parts", ())] if isinstance(attack, Mapping) else []
        values = dict.fromkeys(part["params"][name] for part in parts if name in part["params"])
        return ", ".join(radius_text(value) if isinstance(value, float) else str(value) for value in values)

    def __str__(self) -> str:
        return "\n".join([self._shown.to_string(), *self._by_client, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        from html import escape

        return self._shown.to_html() + "".join(f"<p>{escape(line)}</p>" for line in (*self._by_client, *self.notes))

    @property
    def _by_client(self) -> list[str]:
        lines = []
        for measure, found in self.per_client.items():
            who = min(found, key=found.__getitem__)
            mean = f"{measure} by client: mean {100 * mean_over_users([*found.values()]):.1f} %"
            lines.append(f"{mean}, lowest {100 * found[who]:.1f} % (client {who} of {len(found)})")
        return lines

    @property
    def _shown(self) -> pd.DataFrame:
        import pandas as pd

        found = self.frame
        percents = [f"{100 * a:.1f} %  ({100 * b:.1f} - {100 * c:.1f})" for a, b, c in found.iloc[:, :3].to_numpy()]
        columns = {"accuracy (95 % interval)": percents, "images": found["samples"].to_list()}
        columns |= {name: [self._radius(measure, name) for measure in found.index] for name in ("norm", "eps")}
        return pd.DataFrame(columns, index=found.index)


@float32_default()
def evaluate(
    model: nn.Module,
    data: Any,
    evasions: str | Evasion | Sequence[str | Evasion] = ("pgd",),
    *,
    batch: int | None = None,
    ra_limit: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    root: str | Path | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    eot: int = 1,
    on_batch: Told = lambda done, total: None,
) -> Evaluation:
    """Measure how accurate a trained ``model`` is on clean images and on images perturbed by ``evasions``.

    ``model`` maps images to logits ``[b c]``. It is evaluated in evaluation mode, and its modes, gradients, flags and
    buffers are afterwards as they were. ``data`` is the name of a data set, whose test images are taken
    (``"cifar10"``, ``"npz:my.npz"``); a pair ``(X, y)`` of tensors or arrays, images ``[N C H W]`` in [0, 1] or as
    uint8; a torch ``DataLoader`` or data set of such pairs. ``evasions`` are attacks through this very model (white
    box), by name, as specs such as ``"pgd(eps=8/255, steps=20)"`` or as instances; an empty list leaves standard
    accuracy alone.

    ``batch`` images are attacked at a time (default: as many as fit a fixed budget); the draws of random starts depend
    on it and on ``seed``. ``ra_limit`` attacks the first so many images only. ``device`` evaluates a copy of the model
    elsewhere. ``root`` is the folder of data sets. ``mean`` and ``std``, numbers or one per channel, are the
    normalization that the model was trained with; eps stays in pixels. ``eot`` > 1 attacks and classifies with the mean
    over so many forwards of a model that is random at test time. ``on_batch(done, total)`` is called after every batch
    (None: unknown). Raises ``UsageError`` for input that makes no sense and ``DataMissing`` for data that are not here.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> found = evaluate(model, "digits", evasions=["fgsm", "pgd(steps=2)"], ra_limit=20)
    >>> found.samples, list(found.ra), found.worst <= min(found.ra.values())
    (355, ['fgsm', 'pgd(steps=2)'], True)
    """
    check_model(model, "evaluate")
    attacks = _attacks(evasions)
    for name, value in (("batch", batch), ("ra_limit", ra_limit), ("eot", eot)):
        if value is not None:
            check_whole(value, name, "evaluate", least=1)
    check_whole(seed, "seed", "evaluate", least=0)
    tested, where, dtype = _placed(model, device)
    batches, total, name, clients = _batches(data, batch, root)
    measured = _Measured(_normalized(tested, mean, std, where), tested, attacks, batch, ra_limit, seed, eot, name)
    with torch.inference_mode(False), torch.enable_grad(), _as_it_was(tested) as changed:
        for pair in batches:
            measured.see(*_checked(pair, where, dtype))
            on_batch(measured.samples, total)
    return measured.result(changed, clients)


class _Measured:
    """Counts over the images seen so far."""

    def __init__(
        self,
        model: nn.Module,
        inner: nn.Module,
        attacks: dict[str, Evasion],
        batch: int | None,
        ra_limit: int | None,
        seed: int,
        draws: int,
        dataset: str,
    ) -> None:
        self._model = model if draws == 1 else Evaluated(model, draws=draws)
        self._inner, self._eot, self._dataset = inner, draws, dataset
        self._attacks, self._batch, self._limit, self._seed = attacks, batch, ra_limit, seed
        self._randomised, self._doubts = False, list[str]()
        self._draws: dict[str, torch.Generator] = {}
        self._found: dict[str, list[Accuracy]] = {name: [] for name in ("sa", *attacks)}
        self._classes = self.samples = self._attacked = self._flat = 0
        self._brightest, self._shape = 0.0, torch.Size()

    def see(self, x: Tensor, y: Tensor) -> None:
        first = not self._classes
        self._shape = x.shape[1:] if first else self._shape
        if x.shape[1:] != self._shape:
            raise UsageError(
                f"evaluate: images of shape {tuple(x.shape[1:])} after images of shape {tuple(self._shape)}; all must "
                "have one size, such as by torchvision.transforms.Resize((32, 32))"
            )
        if first:
            few = 1 if self._batch == 1 else 2  # batch norm by the batch's statistics takes no single image
            self._classes = _classes(self._model, x[:few].clone())  # a model may write to its input
            self._batch = self._batch or evaluation_batch(self._model, x[:few].clone())
        if int(y.max()) >= self._classes or int(y.min()) < 0:
            raise UsageError(
                f"evaluate: labels reach from {int(y.min())} to {int(y.max())}; a model with {self._classes} outputs "
                f"knows 0 to {self._classes - 1}"
            )
        if first:
            self._probe(x, y)
        assert self._batch is not None
        self._brightest = max(self._brightest, float(x.max()))
        for part in torch.split(torch.arange(len(y), device=y.device), self._batch):
            self._measure(x[part], y[part])

    def _probe(self, x: Tensor, y: Tensor) -> None:
        """Look for traits of the model that numbers depend on."""
        assert self._batch is not None
        self._randomised, dependent = traits(self._model, x[:PROBED])
        if self._randomised:
            worst = f", and worst is not given for {len(self._attacks)} attacks, each of which meets other draws"
            advice = "" if self._eot > 1 else f"; eot={_EOT} attacks and classifies with the mean over {_EOT}"
            self._doubts.append(
                "the model is randomised: two forwards of the same images differ. Accuracies are those of one draw"
                f"{f' of the mean over {self._eot}' if self._eot > 1 else ''}"
                f"{worst if len(self._attacks) > 1 else ''}{advice}"
            )
        elif self._eot > 1:
            self._doubts.append(f"eot={self._eot} changes nothing: the model is not randomised")
        if dependent:
            self._batch = min(self._batch, NEAR, len(x))
            self._model = Evaluated(self._model, fill=x[: self._batch].clone())
            self._doubts.append(
                "the model's outputs depend on the other images of a batch (batch norm without running statistics?): "
                f"every forward has batch size {self._batch}, filled up with the first images; accuracies at another "
                "batch size differ"
            )
        self._doubts += scale_doubts(self._model, self._inner, x, y)

    def _measure(self, x: Tensor, y: Tensor) -> None:
        clean = standard_accuracy(self._model, lambda index: x[index], y, batch=len(y))
        if not np.isfinite(clean.loss):
            raise UsageError("evaluate: the model's outputs are not finite on clean images")
        self._found["sa"].append(clean)
        self.samples += len(y)
        left = len(y) if self._limit is None else min(len(y), self._limit - self._attacked)
        if left < 1 or not self._attacks:
            return
        self._attacked += left
        x, y = x[:left], y[:left]
        self._flat += _flat_images(self._model, x, y)
        for spec, attack in self._attacks.items():
            draws = self._draws.setdefault(spec, stream(self._seed, "evasion", spec, device=x.device))
            hit = robust_accuracy(self._model, lambda index: x[index], y, attack, batch=left, generator=draws)
            self._found[spec].append(hit)

    def result(self, changed: Sequence[str], clients: Tensor | None) -> Evaluation:
        """The accuracies of everything seen; ``changed`` are the buffers that the model wrote to."""
        if not self.samples:
            raise UsageError("evaluate: the data hold no image")
        whole = {name: _joined(found) for name, found in self._found.items()}
        by_client = {} if clients is None else {name: _per_client(found, clients) for name, found in whole.items()}
        clean = whole.pop("sa")
        ra = {spec: found.value for spec, found in whole.items()}
        worst = None
        if whole and not (self._randomised and len(whole) > 1):
            worst = float(torch.stack([found.hits for found in whole.values()]).all(0).double().mean())
        notes = [f"the model changed its buffers {', '.join(changed)} in evaluation mode; put back"] if changed else []
        registered = {spec: value for spec, value in ra.items() if self._attacks[spec].name}
        suspicion = masking(registered)
        radii = [words for attack in self._attacks.values() for words in (odd_radius(attack), short_way(attack))]
        radii.append(small_radius(self._attacks.values(), self._dataset))
        doubt = limit_doubt(clean.labels, self._limit or self._attacked) if self._attacks else ""
        return Evaluation(
            sa=clean.value,
            loss=clean.loss,
            ra=ra,
            worst=worst,
            samples=self.samples,
            ra_samples=self._attacked,
            per_class={"sa": clean.per_class(self._classes)}
            | {spec: found.per_class(self._classes) for spec, found in whole.items()},
            settings={
                "batch": self._batch,
                "seed": self._seed,
                "eot": self._eot,
                "evasions": {s: dict(identity(a)) if a.name else repr(a) for s, a in self._attacks.items()},
                "torch": str(torch.__version__),
            },
            notes=(
                *notes,
                *self._doubts,
                *filter(None, (*radii, dark("test", self._brightest), suspicion, doubt, self._flatness())),
            ),
            per_client=by_client,
        )

    def _flatness(self) -> str:
        """A note where many images gave attacks that follow the gradient nothing to follow."""
        share = self._flat / max(1, self._attacked)
        if share < _FLAT:
            return ""
        return (
            f"the gradient of the loss is exactly zero for {100 * share:.0f} % of the images, and attacks that follow "
            "it leave them as they are: outputs are saturated or inputs rounded, not robust; see apgd-t or square"
        )


def _flat_images(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """The number of images at which the loss's gradient is zero in every pixel; 0 where there is no autograd."""
    with frozen(model):
        try:
            gradient, _ = input_gradient(model, x.clone(), y)
        except UsageError:
            return 0
    return int((gradient.flatten(1) == 0).all(1).sum())


def _joined(found: Sequence[Accuracy]) -> Accuracy:
    labels = torch.cat([a.labels for a in found]).cpu()
    loss = sum(a.loss * len(a.labels) for a in found) / len(labels)
    return Accuracy(torch.cat([a.hits for a in found]).cpu(), labels, loss)


def _per_client(found: Accuracy, clients: Tensor) -> dict[str, float]:
    """The accuracy of every client, of the first images where not all were attacked."""
    owners = clients[: len(found.hits)]
    return {str(k): float(found.hits[owners == k].double().mean()) for k in sorted(set(owners.tolist()))}


# --- the model -------------------------------------------------------------------------------------------------------


def _placed(model: nn.Module, device: str | torch.device | None) -> tuple[nn.Module, torch.device, torch.dtype]:
    """The model to evaluate, its device and the dtype of its inputs. Raises ``UsageError``."""
    _check_variances(model)
    own = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    dtype = own[0].dtype if own else torch.get_default_dtype()
    home = own[0].device if own else torch.device("cpu")
    if device is None:
        return model, home, dtype
    where = usable_device(device, "evaluate")
    return (model, home, dtype) if where == home else (copy.deepcopy(model).to(where), where, dtype)


def _normalized(
    model: nn.Module,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    where: torch.device,
) -> nn.Module:
    """The model, with a first layer that normalizes pixels where one is asked for. Raises ``UsageError``."""
    if mean is None and std is None:
        return model
    try:
        mean_of, std_of = ([float(v) for v in np.atleast_1d(np.asarray(values))] for values in (mean, std))
    except (TypeError, ValueError):
        raise UsageError(
            f"evaluate: mean={mean!r} and std={std!r} must both be given, a number or one per channel"
        ) from None
    if not np.isfinite([*mean_of, *std_of]).all():
        raise UsageError(f"evaluate: mean={mean!r} and std={std!r} must be finite")
    return nn.Sequential(Normalize(mean_of, std_of).to(where), model)


def _check_variances(model: nn.Module) -> None:
    """Raise ``UsageError`` for a running variance below 0, as of averaged or attacked weights."""
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] == "running_var" and bool((buffer < 0).any()):
            raise UsageError(f"evaluate: {name} of the model holds {float(buffer.min()):g}; variances must be ≥ 0")


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[list[str]]:
    """Within, a model in evaluation mode whose weights take no gradient. Everything comes back; the list tells which
    buffers had changed."""
    modes = [(m, m.training) for m in model.modules()]
    flags = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    buffers = [
        (module, name, ".".join(filter(None, (prefix, name))), buffer, buffer.clone())
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    changed: list[str] = []
    try:
        model.eval()
        for parameter, _, _ in flags:
            parameter.grad = None
            parameter.requires_grad_(False)
        yield changed
    finally:
        for module, training in modes:
            module.training = training
        for parameter, flag, gradient in flags:
            parameter.requires_grad_(flag)
            parameter.grad = gradient
        for module, name, path, buffer, before in buffers:
            now = getattr(module, name, None)  # a model may write into it, or put another one in its place
            if not isinstance(now, Tensor) or not _same(now, before):
                changed.append(path)
            with torch.no_grad():
                buffer.copy_(before)
            setattr(module, name, buffer)


def _same(now: Tensor, before: Tensor) -> bool:
    """True for equal buffers; NaN is NaN."""
    alike = now.shape == before.shape and now.dtype == before.dtype
    return alike and bool(((now == before) | (now.isnan() & before.isnan())).all())


def _classes(model: nn.Module, x: Tensor) -> int:
    shape, count = tuple(x.shape[1:]), len(x)
    try:
        with torch.no_grad():
            logits = model(x)
    except Exception as error:
        first = reason(error).splitlines()[0]
        last = " (channels come first: X.permute(0, 3, 1, 2))" if len(shape) == 3 and shape[-1] in (1, 3) else ""
        raise UsageError(
            f"evaluate: the model does not take a batch of {count} images of shape {shape}: {first}{last}"
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != count or logits.shape[1] < 2:
        made = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UsageError(
            f"evaluate: the model's outputs for {count} images are {made}; logits [{count} c] with c ≥ 2 are needed"
        )
    return int(logits.shape[1])


# --- attacks and data ------------------------------------------------------------------------------------------------


def _attacks(given: str | Evasion | Sequence[str | Evasion]) -> dict[str, Evasion]:
    """The attacks by their shortest specs."""
    listed = [given] if isinstance(given, (str, Evasion)) else given
    if not isinstance(listed, Iterable) or isinstance(listed, Mapping):
        raise UsageError(f"evaluate: evasions={given!r} must be specs such as ['fgsm', 'pgd(eps=8/255, steps=20)']")
    attacks: dict[str, Evasion] = {}
    for one in listed:
        attack = create("evasion", one) if isinstance(one, str) else one
        if not isinstance(attack, Evasion):
            raise UsageError(f"evaluate: evasions hold {one!r}, which is neither a spec nor a robustfl Evasion")
        spec = describe(attack) if attack.name else repr(attack)
        if spec in attacks:
            raise UsageError(f"evaluate: evasions name {spec} twice")
        attacks[spec] = attack
    return attacks


def _batches(
    data: Any, batch: int | None, root: str | Path | None
) -> tuple[Iterable[Any], int | None, str, Tensor | None]:
    """Pairs of images and labels; the number of images if that is known; the name of the data set, or ""; clients."""
    # A multiple of every default batch, so that borders stay where they would be.
    step = _PIECE if batch is None else batch * -(-_PIECE // batch)
    if isinstance(data, (str, Dataset)):
        chosen = dataset_from_spec(data) if isinstance(data, str) else data
        arrays = chosen.load(data_root(root))
        held = Resident.of(arrays.test_x, arrays.test_y)
        images = held.x.permute(0, 3, 1, 2)
        clients = None if arrays.test_client is None else torch.tensor(np.asarray(arrays.test_client))
        return ((images[piece], held.y[piece]) for piece in _pieces(len(held), step)), len(held), chosen.name, clients
    if isinstance(data, (TorchDataset, DataLoader)):
        loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=256 if batch is None else batch)
        # Those of torchvision have classes MNIST, CIFAR10, …
        return _collated(loader), _drawn_by(loader), type(loader.dataset).__name__.lower(), None
    if isinstance(data, (tuple, list)) and len(data) == 2:
        images, labels = _sound(data)
        return ((images[piece], labels[piece]) for piece in _pieces(len(labels), step)), len(labels), "", None
    raise UsageError(
        f"evaluate: data is a {type(data).__name__}; give a data set's name, a pair (X, y) of tensors or arrays, a "
        "torch DataLoader or a torch Dataset"
    )


def _collated(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader. Raises ``UsageError`` for samples that make no batch."""
    try:
        yield from loader
    except (TypeError, RuntimeError) as error:  # of torch's default_collate; others are the data set's own
        said = str(error).splitlines()[-1] if str(error) else ""
        if "default_collate" not in said and "stack expects each tensor" not in said:
            raise
        raise UsageError(
            f"evaluate: the images of {type(loader.dataset).__name__} make no batch: {said}; they must be tensors of "
            "one size, such as by torchvision.transforms.Compose([Resize((32, 32)), ToTensor()])"
        ) from error


def _drawn_by(loader: DataLoader[Any]) -> int | None:
    """How many images a loader gives, if it is known: none where data come one by one, or batches from a rule."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return None
    try:
        drawn = len(cast("Any", loader.sampler))
    except TypeError:
        return None
    return drawn - drawn % loader.batch_size if loader.drop_last else drawn


def _pieces(length: int, step: int) -> list[slice]:
    return [slice(i, i + step) for i in range(0, length, step)]


def _checked(pair: Any, where: torch.device, dtype: torch.dtype) -> Batch:
    """A batch of images and labels as the model takes them."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise UsageError(f"evaluate: a batch of the data is a {type(pair).__name__}, not a pair of images and labels")
    images, labels = _sound(pair)
    # Copies: what was made in inference mode cannot be attacked, and nobody may write to the caller's images.
    pixels = images.detach().to(device=where, dtype=dtype, copy=True)
    return pixels.div_(255) if images.dtype == torch.uint8 else pixels, labels.detach().to(
        where, torch.int64, copy=True
    )


def _sound(pair: Sequence[Any]) -> Batch:
    """Images and labels as tensors. Raises ``UsageError`` naming what is wrong with them."""
    images, labels = _tensor(pair[0], "images"), _tensor(pair[1], "labels")
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UsageError(
            f"evaluate: labels of shape {tuple(labels.shape)} and dtype {labels.dtype} must be class numbers [N]"
        )
    if images.dim() < 2 or len(images) != len(labels):
        raise UsageError(f"evaluate: images of shape {tuple(images.shape)} have {len(labels)} labels; each needs one")
    if not len(labels):
        raise UsageError("evaluate: the data hold no image")
    if images.dtype == torch.uint8:
        return images, labels
    if not images.is_floating_point():
        raise UsageError(f"evaluate: images have dtype {images.dtype}; {_OWN_NORMALIZATION}")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 1.0):  # false for NaN too
        raise UsageError(f"evaluate: images reach from {low:g} to {high:g}; {_OWN_NORMALIZATION}")
    return images, labels


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"evaluate: {what} of type {type(values).__name__} make no tensor: {reason(error)}") from None
