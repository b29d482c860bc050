"""The laws of normalization schemes and of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robustfl.contracts import (
    BranchedLayer,
    BranchedNorm,
    LockstepLayer,
    LockstepNorm,
    Model,
    Norm,
    OneMachineNorm,
    Reports,
    StatisticsLayer,
    Tag,
)
from robustfl.defenses.aggregation import PlainMean
from robustfl.engine.one_pass import in_one_pass
from robustfl.engine.statistics import begin, collect, unseen
from robustfl.errors import Refused, told
from robustfl.layout import Layout, layout_of, statistics_layers
from robustfl.models.network import seed_dropout
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.testing.common import demand_rowwise, laws_of, normal, uniform
from robustfl.testing.suite import DOUBLE, Broken, Calls, Law, Suite, Trial, demand


def _follow(network: nn.Module, x: Tensor, when: str = "") -> None:
    """Raise ``Broken`` unless the input's gradient is that of finite differences, in a direction without a kink."""
    given = x.clone().requires_grad_(True)
    made = network(given)
    weights = torch.randn(made.shape, generator=stream(0, "check loss"), dtype=x.dtype)
    (slope,) = torch.autograd.grad((made * weights).sum(), given)
    for k in range(8):
        along = torch.randn(x.shape, generator=stream(k, "check direction"), dtype=x.dtype)
        with torch.no_grad():
            ahead, behind = ((network(x + h * along) * weights).sum() for h in (1e-6, -1e-6))
        found, wanted = float((slope * along).sum()), float(ahead - behind) / 2e-6
        if abs(found - wanted) <= 1e-3 * max(abs(wanted), 1e-3):
            return
    raise Broken(f"the gradient of the input is not that of finite differences{when}")


_SERVED = " in evaluation, which hides the model from evasion attacks"


def _heard(network: nn.Module) -> None:
    for name, module in statistics_layers(network):
        demand(
            isinstance(module, StatisticsLayer),
            f"nobody asks layer {name!r} ({type(module).__name__}) for its running statistics: it is no "
            "StatisticsLayer; a model makes its normalization layers with norm.layer",
        )


# --- normalization schemes -------------------------------------------------------------------------------------------

_CHANNELS, _SIZES = 4, (3, 2)
_ONE_MACHINE = "one machine on all data: clients are merged on purpose"


def _images(like: Tensor = DOUBLE) -> Tensor:
    """Five samples ``[b C H W]``: three of one client, then two of another."""
    return normal(5, _CHANNELS, 3, 3, like=like) + 1


def _layer(method: Norm, like: Tensor = DOUBLE, sizes: tuple[int, ...] | None = _SIZES) -> nn.Sequential:
    layer: Any = method.layer(_CHANNELS)
    demand(isinstance(layer, nn.Module), f"layer({_CHANNELS}) is {type(layer).__name__}, not a module")
    network = nn.Sequential(layer).to(like).train()
    begin(network, sizes)
    return network


def _normalising(calls: Calls) -> None:
    """A forward in both modes and a merge: of images, of constant ones, of inputs without width and height."""
    images = _images(calls.like)
    x, network = (images, torch.full_like(images, 7.0), images[:, :, 0, 0])[calls.case], _layer(calls.method, images)
    values = dict(network.named_parameters()) | dict(network.named_buffers())

    def layer(x: Tensor) -> Tensor:
        return network(x).detach()  # type: ignore[no-any-return]

    calls(layer, x, wanted=[x], also=values)
    layout = layout_of(network)
    reports = collect(network, layout, clients=2)
    network.eval()
    calls(layer, x, wanted=[x], also=values)
    if calls.method.sends_statistics:
        _merged(calls, reports, layout)


def _merged(calls: Calls, reports: Reports, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """The server's last statistics, the clients' messages and what the server makes of them."""
    old, layers, method = layout.initial_statistics(reports.rows), layout.layers, calls.method
    sent = calls(method.messages, reports, old, layers, wanted=[reports.rows])
    return old, sent, calls(method.merge, sent, reports.counts, old, layers, PlainMean(), wanted=[old], own=True)


def _gradient(trial: Trial) -> None:
    """The gradient of the input is that of finite differences."""
    _follow(_layer(trial.method), _images())


def _served(trial: Trial) -> None:
    """In evaluation outputs and gradients of the input are of that image alone."""
    network, x = _layer(trial.method).eval(), torch.cat([_images(), _images() + 2])
    with torch.no_grad():
        same = torch.equal(network(x), network(x))
        demand(same, "in evaluation outputs are others the second time: it remembers what it served")
        demand_rowwise(network, x, "in evaluation an image's output depends on the rest of the batch", 1e-6)
    _follow(network, x, _SERVED)


def _entries(trial: Trial) -> str:
    """Every entry is typed, statistics lie in a StatisticsLayer, and the scheme fits the layer."""
    network = _layer(trial.method)
    _heard(network)
    for kind, scheme in ((BranchedLayer, BranchedNorm), (LockstepLayer, LockstepNorm)):
        fits = isinstance(trial.method, scheme) == any(isinstance(m, kind) for m in network.modules())
        demand(fits, f"a scheme with a {kind.__name__} derives from {scheme.__name__}, and no other one does")
    layout = layout_of(network)
    for slot in layout.update:
        typed = f"{slot.name} is tagged as a weight of the network; derive the layer from NormLayer (tags)"
        demand(slot.tag is not Tag.WEIGHT, typed)
    return f"{layout.d} trainable entries, {layout.s} statistics for {_CHANNELS} channels"


def _clients_apart(trial: Trial) -> str:
    """Clients in one pass have the outputs, gradients and reports of each alone."""
    if isinstance(trial.method, OneMachineNorm):
        return _ONE_MACHINE
    x = _images()
    alone = torch.cat([_layer(trial.method, sizes=None)(part) for part in torch.split(x, list(_SIZES))])
    apart = torch.allclose(_layer(trial.method)(x), alone, rtol=1e-9, atol=1e-9)
    demand(apart, "two clients' samples in one forward give other outputs than each client alone (NormLayer.sizes)")
    layers = nn.Conv2d(_CHANNELS, _CHANNELS, 1), _layer(trial.method)[0], nn.Flatten(), nn.Linear(9 * _CHANNELS, 2)
    return in_one_pass(nn.Sequential(*layers), x, 2)


def _reported(network: nn.Module, layout: Layout, x: Tensor) -> Reports:
    begin(network, _SIZES)
    network(x)
    with unseen(network):
        network(x + 3)
    return collect(network, layout, clients=2)


def _report(trial: Trial) -> str | None:
    """Reports are of this round's visible forwards; facts: what they count, and whether they are variances."""
    network, x = _layer(trial.method), _images()
    layout = layout_of(network)
    if not layout.s:
        sends = trial.method.sends_statistics
        demand(not sends, "it merges statistics, but the layer has no running_mean and running_var")
        return "it has no statistics"
    network(x)
    first, again, moved = collect(network, layout, clients=2), *(_reported(network, layout, a) for a in (x, x + 100))
    demand(
        torch.equal(first.rows, again.rows) and torch.equal(first.counts, again.counts),
        "the same batch reports something else in the next round: begin must forget the last one, and forwards "
        "leave no trace while unseen is set (StatisticsLayer.unseen)",
    )
    found, there = first.counts[:, first.counts.any(0)].double(), [x[0, 0].numel() * size for size in _SIZES]
    if not torch.equal(found, torch.tensor(there).double()[:, None].expand_as(found)):
        return f"fact: it counts {found[:, 0].tolist()} values per channel, where there are {there}"
    before, after = (float(made.rows[:, layout.variance_mask()].abs().max()) for made in (first, moved))
    grows = f"fact: the second statistic grows from {before:.3g} to {after:.3g} if inputs move by 100"
    return f"{grows}; the server takes it for a variance, not for E[x²]" if after > 10 * before + 10 else None


class _Listening(PlainMean):
    """The plain mean, which notices whether it is asked at all."""

    asked = False

    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        self.asked = True
        return super().mixed(basis, weights=weights)


def _merge(trial: Trial) -> str | None:
    """Merged variances are at least 0, and the order of the messages does not matter; a fact: no rule is asked."""
    method, network = trial.method, _layer(trial.method)
    layout = layout_of(network)
    if not method.sends_statistics:
        return "clients send no statistics"
    network(_images())
    reports = collect(network, layout, clients=2)
    old, sent, merged = _merged(Calls(method), reports, layout)
    lowest = float(merged[layout.variance_mask()].min())
    demand(lowest >= 0, f"a merged variance is {lowest:g}")
    if isinstance(method, OneMachineNorm):
        return None
    messages, listening = sent[:1] * (1 + 0.5 * uniform(9, sent.shape[1], like=sent)), _Listening()
    messages[-1] *= 8
    counts, order = reports.counts[:1].expand(9, -1).clone(), torch.arange(9).roll(4)
    one, other = (method.merge(messages[o], counts[o], old, layout.layers, listening) for o in (torch.arange(9), order))
    alike = torch.allclose(one, other, rtol=1e-6, atol=1e-9)
    demand(alike, "the merged statistics depend on the order in which clients' messages stand")
    asked = listening.asked or not bool(counts.any())
    return None if asked else "fact: it never asks defense.mixed, so that no rule defends its statistics"


NORM = Suite(
    laws_of(
        Law("gradient", _gradient, waivable=True),
        Law("served", _served),
        Law("entries", _entries),
        Law("clients in one pass", _clients_apart),
        Law("report", _report),
        Law("merge", _merge),
    ),
    _normalising,
    more={"inputs [b C]": True},
)


# --- models ----------------------------------------------------------------------------------------------------------

_CLASSES, _SHAPES = 10, ((3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 64, 64))
_LARGE, _HUGE = 1_000_000, 30_000_000  # parameters: the law of one pass is tried in training alone, not at all


def _network(
    method: Model, norm: str = "gn(groups=1)", like: Tensor = DOUBLE, case: int = 0, seed: int = 0
) -> tuple[nn.Module, Tensor]:
    """A network with drawn parameters, in evaluation mode, and three images for it.

    Constructors may draw from torch's global generator, as torch's own do; ``seed`` is that one's meanwhile.
    """
    for shape in _SHAPES:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                made: Any = method.build(create("norm", norm), shape=shape, classes=_CLASSES)
        except Refused as error:
            refused = error
            continue
        demand(isinstance(made, nn.Module), f"build returned {type(made).__name__}; a module is needed")
        seed_dropout(made)
        method.initialise(made, stream(case, "check init"))
        return made.eval().to(like), uniform(3, *shape, like=like)
    raise Broken(f"it refuses images of every usual shape: {refused}")


def _computing(calls: Calls) -> None:
    network, x = _network(calls.method, like=calls.like, case=calls.case)

    def forward(x: Tensor) -> Tensor:
        try:
            return network(x).detach()  # type: ignore[no-any-return]
        except Exception as error:
            wanted = "build refuses (Refused) shapes that do not fit"
            raise Broken(f"images of shape {tuple(x.shape[1:])}: {told(error)}; {wanted}") from error

    calls(forward, x, wanted=[x.new_empty(3, _CLASSES)])


def _norms(trial: Trial) -> None:
    """Layers with running statistics are those of the norm."""
    _heard(_network(trial.method, "naive-bn")[0])


def _attackable(trial: Trial) -> None:
    """In evaluation the gradient of the input, which evasion attacks follow, is that of finite differences."""
    network, x = _network(trial.method)
    _follow(network.requires_grad_(False), x, _SERVED)


def _images_apart(trial: Trial) -> None:
    """An image's logits do not depend on the rest of the batch."""
    for norm in ("gn(groups=1)", "naive-bn"):
        network, x = _network(trial.method, norm)
        with torch.no_grad():
            what = f"in evaluation with {norm} an image's logits depend on the rest of the batch; the engine computes "
            demand_rowwise(network, x, what + "several clients' batches together, which such a model would mix", 1e-6)


def _initialised(trial: Trial) -> str | None:
    """Parameters are drawn from the generator alone; a fact: those that get no gradient."""
    network, x = _network(trial.method)
    again, other = _network(trial.method, seed=1)[0], _network(trial.method, case=1)[0]
    for (name, p), q in zip(network.named_parameters(), again.parameters(), strict=True):
        demand(
            torch.equal(p, q),
            f"two initialisations from one generator's state differ in {name}, which a constructor drew; draw it "
            "in initialise(network, generator), after super().initialise(network, generator)",
        )
    fixed = all(map(torch.equal, network.parameters(), other.parameters()))
    demand(not fixed, "two generators gave the same parameters; initialise must draw from generator")
    network(x).square().sum().backward()
    idle = [name for name, p in network.named_parameters() if p.grad is None]
    return f"fact: no gradient reaches {idle[0]}" if idle else None


def _one_pass(trial: Trial) -> str:
    """Clients in one pass have the losses and gradients of each alone."""
    network, x = _network(trial.method)
    size = sum(p.numel() for p in network.parameters())
    if size > _HUGE:
        return f"not tried with {size:,} parameters; every cell tries it before training"
    try:
        _images_apart(trial)
    except Broken:
        return "clients run one after another (images are not apart)"
    images = uniform(5, *x.shape[1:]).float()
    if size < _LARGE:
        in_one_pass(network, images, _CLASSES, training=False)
    return in_one_pass(network, images, _CLASSES)


MODEL = Suite(
    laws_of(
        Law("norms", _norms),
        Law("attackable", _attackable),
        Law("images apart", _images_apart, waivable=True),
        Law("initialised", _initialised),
        Law("clients in one pass", _one_pass),
    ),
    _computing,
)
