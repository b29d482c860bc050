"""Every parameter of every registered method changes something or is refused: none is ignored silently.

A method is tried as it is by default, and with every other value of each of its switches (choices, truths, things that
may be left out). In each of these forms every other parameter gets other values, until one of them changes what comes
out by more than rounding. What nothing changed stands in ``IDLE``, with its reason; an entry that is no longer true
fails, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustfl.contracts import (
    Aggregated,
    Aggregator,
    Attack,
    Context,
    Evasion,
    Forged,
    Method,
    Propagation,
    Rehearsal,
    StatisticsSlices,
    Step,
    View,
)  # fmt: skip
from robustfl.data import data_root
from robustfl.defenses import parse_pipeline
from robustfl.errors import RobustflError
from robustfl.parameters import types_of
from robustfl.registry import Entry, describe, entries
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell

Values = tuple[Tensor | str | float | None, ...]
N_ENTRIES, SHAPES = 40, ((4, 8), (4,), (4,))

# What every form of a method has, so that the others of its parameters show on small inputs in little time.
BASE: dict[tuple[str, str], dict[str, Any]] = {
    ("attack", "poisonedfl"): {"period": 1, "scale": 1.0},
    ("attack", "opt"): {"evals": 10},
    ("attack", "altermin"): {"ls": 2},
    ("attack", "a3fl"): {"noise_loss_lambda": 2.0, "adv_lr": 0.5},
    ("defense", "auror"): {"alpha": 2.0, "tau": 0.3},
    ("defense", "centered-clipping"): {"tau": 0.5},
    ("defense", "deepsight"): {"inputs": 30},
    ("defense", "dnc"): {"b": 2},
    ("defense", "flanders"): {"steps": 20, "window": 3},
    ("defense", "fldetector"): {"window": 3},
    ("evasion", "apgd-ce"): {"steps": 6},
    ("evasion", "apgd-t"): {"steps": 4},
    ("evasion", "autoattack"): {"steps": 4, "queries": 20, "eps": 0.01},
    ("evasion", "fab-t"): {"steps": 4},
    ("evasion", "square"): {"queries": 20},
    ("evasion", "lsa"): {"rounds": 2, "candidates": 20},
    ("evasion", "mia"): {"steps": 4},
    ("evasion", "pgd"): {"steps": 4, "eps": 2.0},
    ("norm", "fedtan-ii"): {"switch_round": 1},
    ("objective", "pnc"): {"warmup": 1},
    ("dataset", "resized"): {"dataset": "digits(limit=20, test_limit=10)"},
    ("partition", "classes"): {"k": 2},
    ("partition", "dirichlet"): {"alpha": 0.5, "min_size": 20},
    ("partition", "gamma"): {"gamma": 0.5},
}
TEXTS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("attack", "attack"): ("alie", "sf", "badnets(target=1)"),
    ("attack", "parameter"): (None, "deviation"),
    ("evasion", "of"): ("pgd(steps=2)", "fgsm"),
    ("defense", "rule"): ("median", "trimmed-mean"),
    ("dataset", "dataset"): ("digits(limit=30, test_limit=10)",),
}
ABSENT = {
    "cifar10", "cifar100", "digits-fedbn", "domainnet", "emnist", "fashion-mnist", "hf", "imagefolder", "mnist",
    "npz", "office-caltech", "svhn", "tiny-imagenet", "usps",
}  # fmt: skip
"""Data sets that a machine without files has not; their limits are those of ``digits``."""

# (kind, method, parameter): why nothing changes, in which forms (a switch with its value; "" is the default form).
IDLE: dict[tuple[str, str, str], tuple[str, set[str]]] = {
    **{
        ("attack", name, "ddof"): ("γ makes up for the length of s", forms)
        for name, forms in (("min-max", {""}), ("min-sum", {"", "bound=min"}))
    },
    ("attack", "opt", "parameter"): (
        "ALIE's z and its deviation run along one line; the others have no number, or are given one they have",
        {"", "parameter=deviation", "attack=sf", "attack=badnets(target=1)", "search=golden"},
    ),
    ("attack", "opt", "start"): ("the interval's upper half holds the best", {"search=golden"}),
    ("defense", "deepsight", "tau"): ("here no cluster is near the threshold; test_fine_points sets it", {""}),
    ("defense", "deepsight", "inputs"): ("here more images change no cluster; test_aggregators sets them", {""}),
    ("defense", "gas", "rule"): ("both rules by columns find the same rows far", {"rule=median", "rule=trimmed-mean"}),
    ("defense", "geometric-median", "init"): (
        "an iteration that converges forgets where it began",
        {"", "init=zero", "init=mean", "weighted=True"},
    ),
    ("defense", "multi-krum", "variant"): (
        "the best n - f rows are the same by both; m=3 shows it",
        {"", "variant=nf"},
    ),
    ("evasion", "autoattack", "targets"): ("what later targets find, the first has found", {"", "norm=l2"}),
    ("evasion", "autoattack", "queries"): ("what Square finds, the members before it have found", {"", "norm=l2"}),
    ("evasion", "pgd", "keep"): ("no step is too long within this ball: the last iterate is the best", {"norm=l2"}),
    ("partition", "dirichlet", "min_size"): ("all clients have as many; it only refuses too many", {"mode=equal"}),
}


# --- forms and other values ------------------------------------------------------------------------------------------


def options(kind: str, cls: type[Method], field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    """The values of a switch; nothing for a number."""
    hint = types_of(cls)[field.name]
    if field.metadata.get("choices"):
        return tuple(field.metadata["choices"])
    if hint is bool:
        return (False, True)
    if (kind, field.name) in TEXTS:
        return TEXTS[kind, field.name]
    return (None, 3, 2.5) if "None" in str(hint) else ()


def others(kind: str, cls: type[Method], field: dataclasses.Field[Any], value: Any) -> list[Any]:
    """Values beside ``value`` that may change something, the most likely first."""
    found: list[Any] = list(options(kind, cls, field))
    if isinstance(value, tuple):
        found += [tuple(max(1, v // 2) for v in value)]
    elif type(value) is int or "int" in str(types_of(cls)[field.name]):
        start = value if type(value) is int else 2
        found += [1, 2, 3, start + 1, start - 1, 2 * start, max(1, start // 2), 0]
    elif type(value) is float or "float" in str(types_of(cls)[field.name]):
        start = value if type(value) is float else 1.0
        found += [start / 2, 2 * start, start + 0.25, 0.3, 3.0, start * 0.9, start * 10, start / 10, 0.01]
    return [v for v in dict.fromkeys(found) if v != value or type(v) is not type(value)]


def made(cls: type[Method], values: dict[str, Any]) -> Method | None:
    try:
        return cls(**values)
    except RobustflError:
        return None


def forms(entry: Entry) -> Iterator[tuple[str, Method]]:
    """The method by default, then with every other value of one switch."""
    base = BASE.get((entry.kind, entry.name), {})
    fields = dataclasses.fields(entry.cls)  # type: ignore[arg-type]
    first = entry.cls(**base)
    yield "", first
    inherited = {name for base in entry.cls.__mro__[1:] for name in vars(base).get("__dataclass_fields__", ())}
    for field in fields:
        if field.name in inherited:  # of another method, where the forms that it makes are tried
            continue
        for value in options(entry.kind, entry.cls, field):
            form = made(entry.cls, {**base, field.name: value})
            if field.name not in base and form is not None and form != first:
                yield f"{field.name}={value}", form


def idle(entry: Entry) -> dict[str, set[str]]:
    """By parameter the forms in which no other value changes what comes out, though one is accepted."""
    found: dict[str, set[str]] = {}
    probe = cache(PROBES[entry.kind])

    def outcome(method: Method) -> Values | None:
        try:
            return probe(method)
        except RobustflError:
            return None

    for name, form in forms(entry):
        before = outcome(form)
        for field in dataclasses.fields(form) if before is not None else ():  # type: ignore[arg-type]
            now = getattr(form, field.name)
            given = {f.name: getattr(form, f.name) for f in dataclasses.fields(form)}  # type: ignore[arg-type]
            tries = (made(entry.cls, given | {field.name: v}) for v in others(entry.kind, entry.cls, field, now))
            outcomes = (after for t in tries if t is not None and (after := outcome(t)) is not None)
            accepted = [apart(before, after) for after in _until_apart(before, outcomes)]
            if accepted and not any(accepted):
                found.setdefault(field.name, set()).add(name)
    return found


def _until_apart(before: Values, outcomes: Iterator[Values]) -> Iterator[Values]:
    for after in outcomes:
        yield after
        if apart(before, after):
            return


def apart(one: Values, other: Values) -> bool:
    """True if two outcomes differ by more than rounding."""
    if len(one) != len(other):
        return True
    for a, b in zip(one, other, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-7, atol=1e-10, equal_nan=True):
                return True
        elif isinstance(a, float) and isinstance(b, float):
            if not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12):
                return True
        elif a is not b and a != b:
            return True
    return False


# --- what comes out --------------------------------------------------------------------------------------------------


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n: int, seed: int, entries: int = N_ENTRIES) -> Tensor:
    noise = torch.randn(n, entries, generator=draws(seed), dtype=torch.float64)
    return 0.3 * noise + 0.5 * torch.randn(entries, generator=draws(seed + 100), dtype=torch.float64)


def of_attack(attack: Method) -> Values:
    """Rows of several rounds on both channels, poisoned batches, triggers and what a poisoned gradient becomes."""
    assert isinstance(attack, Attack)
    found: list[Any] = [attack.target]
    server = parse_pipeline("multi-krum")
    for channel in ("update", "statistics"):
        state: Any = {}
        previous = None
        for r in range(2 if attack.name.startswith("opt") else 6):  # searches take their time
            honest, own = rows(8, r), rows(3, r + 50)
            variance = torch.arange(N_ENTRIES) >= N_ENTRIES // 2 if channel == "statistics" else None
            if variance is not None:
                honest[:, variance], own[:, variance] = honest[:, variance].abs(), own[:, variance].abs()
            view = View(
                n=11, f=3, channel=channel, honest=honest, own=own, variance=variance, round=r, previous=previous,
                state=state, aggregate=Rehearsal(lambda stack: server(stack, f=3)),
            )  # type: ignore[arg-type]  # fmt: skip
            sent = Forged.of(attack.forge(view.redacted(attack), generator=draws(r)))
            state, previous = sent.state, honest.mean(0) + 0.1 * sent.rows.mean(0)
            found.append(sent.rows)
    x, y = torch.rand(8, 3, 12, 12, generator=draws(3), dtype=torch.float64), torch.arange(8) % 5
    if attack.adapts:
        linear = nn.Linear(432, 6).double()
        nn.init.normal_(linear.weight, generator=draws(4))
        attack = attack.adapted(attack.adapt(nn.Sequential(nn.Flatten(), linear), x, y, state={}))
    for r in range(3):
        own = attack.in_step(r, rows(1, r + 2)[0])
        for k in range(4):
            found += own.poison(x, y, classes=6, generator=draws(r + 9), attacker=k, round=r)
        found.append(own.constrain(rows(1, r)[0], rows(1, r + 1)[0], round=r))
        found += [own.loss(rows(8, r), torch.sin, y)] if own.trains else []
    return (*found, attack.trigger(x))


def _noise_outputs(models: Tensor, b: int, generator: torch.Generator) -> Tensor:
    images = torch.randn(b, N_ENTRIES, generator=generator, dtype=torch.float64)
    classes = torch.randn(N_ENTRIES, 5, generator=draws(99), dtype=torch.float64)
    every = torch.cat([models, torch.zeros(1, models.shape[1], dtype=torch.float64)])[:, :N_ENTRIES]
    return torch.stack([torch.softmax((images * (1 + m)) @ classes, -1) for m in every])


def _stacks(round: int) -> Iterator[Tensor]:
    """Rows alike; with two outliers and three near duplicates; of very different lengths; long ones that drift."""
    yield rows(10, round)
    near = rows(13, round)
    near[:2] = 1 - 3 * near[:2]
    near[3:6] = near[3] + 0.01 * near[4:7]
    yield near
    signs = torch.sign(torch.randn(12, 1, generator=draws(round + 3), dtype=torch.float64))
    yield rows(12, round) * torch.linspace(0.2, 4, 12, dtype=torch.float64).unsqueeze(1) ** 2 * signs
    long = rows(11, round, 1500)
    yield long + torch.linspace(0, 1, 11, dtype=torch.float64).unsqueeze(1)


def of_defense(method: Method) -> Values:
    if isinstance(method, Propagation):
        sources = rows(3, 1, 8).abs()
        layers = [StatisticsSlices("a", slice(0, 2), slice(2, 4)), StatisticsSlices("b", slice(4, 6), slice(6, 8))]
        return (method.weights(sources, rows(1, 2, 8)[0].abs(), layers), method.every_round)
    if isinstance(method, Step):
        stacks = [X for r in range(2) for X in _stacks(r)]
        return tuple(method.mix(X @ X.T, f=2, context=Context(generator=draws(1))) for X in stacks)
    assert isinstance(method, Aggregator)
    found: list[Tensor] = []
    for place, weighted in ((0, False), (0, True), (1, True), (2, False), (3, False)):
        state: Any = {}
        for r in range(8 if method.name in LONG else 3):
            X = list(_stacks(r))[place]
            n, d = X.shape
            shares = torch.arange(1, n + 1, dtype=torch.float64)
            context = Context(
                    generator=draws(r), round=r, state=state, weights=shares / shares.sum() if weighted else None,
                    clients=torch.arange(n), reference=rows(1, 5, d)[0], model=rows(1, 77, d)[0],
                    shapes=SHAPES if d == N_ENTRIES else ((d,),), noise_outputs=_noise_outputs,
                    representations=lambda models: (1 + models)[:, None, :30] * torch.rand(7, 30, generator=draws(98)),
                )  # fmt: skip
            result = method.aggregate(X, f=2, context=context)
            state = result.state if isinstance(result, Aggregated) else {}
            found.append(result.vector if isinstance(result, Aggregated) else result)
    return tuple(found)


@cache
def _network() -> nn.Module:
    """A small network that is not sure of its answers, so that attacks of any strength find some and miss some."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 5)
        network = nn.Sequential(*layers).double().eval()
    for parameter in network.parameters():
        parameter.data *= 2
    return network


def of_evasion(attack: Method) -> Values:
    assert isinstance(attack, Evasion)
    x = torch.rand(16, 1, 6, 6, generator=draws(1), dtype=torch.float64)
    y = _network()(x).argmax(1)
    y[0] = (y[0] + 1) % 5
    return (attack.perturb(_network(), x, y, generator=draws(2)),)


SMALL: dict[str, Any] = {
    "dataset": "digits(limit=200, test_limit=30)", "model": "mlp(hidden=(8, 6))", "norm": "gn", "clients": 5,
    "rounds": 2, "batch": 8, "dtype": "float64", "evasions": [], "partition": "dirichlet(alpha=1)",
}  # fmt: skip
AT: dict[str, Any] = {
    "norm": "dual-bn(local=true)", "at": "users(ids=(0, 1))", "algorithm": "fedavg(local_steps=2)",
    "train_evasion": "pgd(steps=2, eps=0.1)", "rounds": 2,
}  # fmt: skip
LONG = ("fldetector", "flanders")
IMAGES: dict[str, Any] = {"model": "digits-cnn(hidden=6)"}


def of_cell(settings: dict[str, Any]) -> Values:
    """What a short training measures: losses and accuracies, also during it. Raises ``UsageError`` if refused."""
    torch.set_num_threads(1)
    record = run_cell(Cell.of({**SMALL, **settings}), fingerprint="x")
    if record.status == "refused":
        raise RobustflError(record.reason)
    assert record.metrics is not None, record.reason
    told = [part for point in record.curve for part in (point.sa, point.loss, point.ra)]
    return (record.metrics.sa, record.metrics.loss, *told)


def of_norm(norm: Method) -> Values:
    text = describe(norm)
    layered = norm.name in ("in", "fedwon", "fedfn") or "standardised" in text
    mixing = {"defense": "nnm+median", "f": 1, "rounds": 3, **(IMAGES if layered else {})}
    branches = ("clean", "both") if norm.name == "dual-bn" else ("both",)
    return tuple(v for branch in branches for v in of_cell({"norm": text, "branch": branch, **mixing}))


def of_partition(partition: Any) -> Values:
    labels = np.arange(240) % 6 if partition.by == "label" else np.repeat(np.arange(7), range(1, 8))
    split = partition.split(labels, clients=5, classes=int(labels.max()) + 1, generator=np.random.default_rng(0))
    return tuple(torch.from_numpy(np.asarray(part)) for part in split)


def of_dataset(dataset: Any) -> Values:
    arrays = dataset.load(data_root(None), download=False)
    return tuple(torch.tensor(np.asarray(part)).double() for part in (arrays.train_x, arrays.test_x))


def of_model(model: Any) -> Values:
    from robustfl.registry import create

    shape = (3, 32, 32) if model.name in ("digits", "resnet18", "femnist-cnn") else (1, 8, 8)
    shape = {"femnist-cnn": (1, 28, 28), "domains-cnn": (3, 16, 16), "digits": (3, 28, 28)}.get(model.name, shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = model.build(create("norm", "naive-bn"), shape=shape, classes=10)
        made = network.eval()(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    layers = (f"{type(part).__name__} {[tuple(p.shape) for p in part.parameters()]}" for part in network.modules())
    return (*layers, made.detach().double())


PROBES: dict[str, Callable[[Any], Values]] = {
    "attack": of_attack, "evasion": of_evasion, "defense": of_defense, "norm": of_norm, "dataset": of_dataset,
    "algorithm": lambda method: of_cell({"algorithm": describe(method)}),
    "objective": lambda method: of_cell({**AT, "objective": describe(method)}),
    "model": of_model, "partition": of_partition,
}  # fmt: skip
METHODS = [
    e
    for kind in PROBES
    for e in entries(kind)
    if not e.origin and e.name not in ABSENT and dataclasses.fields(e.cls)  # type: ignore[arg-type]
]


@pytest.mark.slow
@pytest.mark.parametrize("entry", METHODS, ids=lambda e: f"{e.kind} {e.name}")
def test_every_parameter_acts_or_is_refused(entry: Entry) -> None:
    expected = {
        name: forms for (kind, method, name), (_, forms) in IDLE.items() if (kind, method) == (entry.kind, entry.name)
    }
    assert idle(entry) == expected
