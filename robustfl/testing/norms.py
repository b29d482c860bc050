"""The laws of normalization schemes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustfl.contracts import (
    BranchedLayer,
    BranchedNorm,
    LockstepLayer,
    LockstepNorm,
    Norm,
    NormLayer,
    OneMachineNorm,
    Reports,
    StatisticsAggregation,
    StatisticsLayer,
    Tag,
)
from robustfl.defenses.aggregation import PlainMean
from robustfl.federation.statistics import begin, collect, seen_by_client, unseen
from robustfl.passes import Plan, Unsupported, together
from robustfl.testing.common import COMMON, FIRST, built
from robustfl.testing.guards import Broken, Differs, attempt, devices, expect, held_in_one_pass, own_memory, untouched
from robustfl.testing.suite import LIMIT, Check, Law, Trial, run
from robustfl.vectors import Layout, layout_of, statistics_layers, write_statistics

CHANNELS, SIZES = 4, (3, 2)


def images(dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0) -> Tensor:
    """Five samples ``[b C H W]``: three of one client, then two of another."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(5, CHANNELS, 3, 3, generator=draw, dtype=torch.float64) + 1).to(device, dtype)


@dataclass(frozen=True)
class NormTrial(Trial[Norm]):
    """A scheme, its layer in a network of its own, and samples of two clients."""

    def network(
        self, method: Norm | None = None, dtype: torch.dtype = torch.float64, device: str = "cpu"
    ) -> nn.Sequential:
        """A network of one layer, in training, at the start of a round."""
        layer: Any = (self.method if method is None else method).layer(CHANNELS)
        if not isinstance(layer, nn.Module):
            raise Broken(f"layer({CHANNELS}) is {type(layer).__name__}, not a module")
        network = nn.Sequential(layer).to(device, dtype).train()
        begin(network, SIZES)
        return network

    def outcome(self, method: Norm, case: int = 0) -> tuple[Tensor, ...]:
        network, x = self.network(method), images(seed=case)
        trained = network(x).detach()
        layout = layout_of(network)
        reports = collect(network, layout, clients=2)
        found = (trained, network.eval()(x).detach(), reports.rows)
        return (*found, *self.merged(method, reports, layout)) if method.sends_statistics else found

    def merged(self, method: Norm, reports: Reports, layout: Layout) -> tuple[Tensor, Tensor]:
        """Messages and the server's new statistics."""
        previous = layout.initial_statistics(reports.rows)
        messages = method.messages(reports, previous, layout.layers)
        return messages, method.merge(messages, reports.counts, previous, layout.layers, PlainMean())


def _outputs(trial: NormTrial) -> str | None:
    remark = None
    for device in devices():
        for dtype in (torch.float32, torch.float64):
            x = images(dtype, device)
            for inputs in (x, x[:, :, 0, 0]):
                shape = tuple(inputs.shape)
                for train in (True, False):
                    network = trial.network(dtype=dtype, device=device).train(train)
                    y, reason = attempt(network, inputs)
                    if reason is None:
                        expect(y, inputs, shape, f"the output for inputs {shape} of {dtype}", graph=True)
                    elif inputs.dim() == 4:
                        raise Broken(f"inputs [b C H W] are refused: {reason}")
                    else:
                        remark = f"[b C] refused: {reason}"
    return remark


def _constant(trial: NormTrial) -> str | None:
    for train in (True, False):
        y = trial.network().train(train)(torch.full((5, CHANNELS, 3, 3), 7.0, dtype=torch.float64))
        if not bool(torch.isfinite(y).all()):
            raise Broken("the output for constant inputs is not finite; add eps to the variance")
    return None


def _inputs(trial: NormTrial) -> str | None:
    for train in (True, False):
        network, x = trial.network().train(train), images()
        state = dict(network.named_parameters()) | dict(network.named_buffers())
        with untouched(x=x, **state):
            network(x)
    return None


def _gradient(trial: NormTrial) -> str | None:
    _follow(trial.network(), images()[:, :, :2, :1], "the gradient of the input is not that of finite differences")
    return None


def _follow(network: nn.Module, x: Tensor, broken: str) -> None:
    """Raise ``Broken`` with these words if the input's gradient is not that of finite differences."""
    try:
        torch.autograd.gradcheck(network, x.clone().requires_grad_(True))
    except RuntimeError as error:
        raise Broken(f"{broken}: {str(error).split(chr(10))[0]}") from error


def _served(trial: NormTrial) -> str | None:
    """In evaluation an image gets what it always gets, whatever was served before it or is beside it."""
    network = trial.network().eval()
    fresh, draw = copy.deepcopy(network), torch.Generator().manual_seed(1)
    x = torch.randn(600, CHANNELS, 3, 3, generator=draw, dtype=torch.float64)
    with torch.no_grad():
        for part in torch.split(x[:536], 67):
            network(part)
        together, first = network(x[536:]), fresh(x[536:])
        if not torch.equal(together, first):
            raise Differs("in evaluation outputs are others after 536 images: it remembers what it served")
        if not torch.allclose(together[:1], fresh(x[536:537]), rtol=1e-6, atol=1e-9):
            raise Differs("in evaluation an image's output depends on the rest of the batch")
    hidden = "in evaluation the gradient of the input is not that of finite differences, which hides the model from "
    _follow(fresh, x[:9, :, :2, :1], f"{hidden}evasion attacks")
    return None


def _tags(trial: NormTrial) -> str | None:
    network = trial.network()
    for name, module in statistics_layers(network):
        if not isinstance(module, StatisticsLayer):
            raise Broken(
                f"layer {name!r} ({type(module).__name__}) has running statistics and is no StatisticsLayer, so nobody "
                "asks it for a report"
            )
    for kind, scheme in ((BranchedLayer, BranchedNorm), (LockstepLayer, LockstepNorm)):
        if isinstance(trial.method, scheme) != any(isinstance(m, kind) for m in network.modules()):
            raise Broken(f"a scheme with a {kind.__name__} derives from {scheme.__name__}, and no other one does")
    layout = layout_of(network)
    counted = sum(p.numel() for p in network.parameters())
    if layout.d != counted:
        raise Broken(f"the layout has {layout.d} trainable entries, the layer {counted}")
    for slot in layout.update:
        if slot.tag is Tag.WEIGHT:
            raise Broken(f"{slot.name} is tagged as a weight of the network; derive the layer from NormLayer (tags)")
    return f"{layout.d} trainable entries, {layout.s} statistics for {CHANNELS} channels"


def _apart(trial: NormTrial) -> str | None:
    if isinstance(trial.method, OneMachineNorm):
        return "one machine on all data: clients are merged on purpose"
    x = images()
    together = trial.network()(x)
    alone = []
    for part in torch.split(x, list(SIZES)):
        network = trial.network()
        begin(network, None)
        alone.append(network(part))
    if not torch.allclose(together, torch.cat(alone), rtol=1e-9, atol=1e-9):
        raise Differs("two clients' samples in one forward give other outputs than each client alone (NormLayer.sizes)")
    return None


def _rows(trial: NormTrial) -> str | None:
    network, x = trial.network(), images()
    layers = [m for m in network.modules() if isinstance(m, NormLayer) and "weight" in m._parameters]
    if isinstance(trial.method, OneMachineNorm) or not layers:
        return "there is nothing to keep apart"
    (network(x) * x.flip(0)).sum().backward()
    named = {n: p for n, p in network.named_parameters() if p.grad is not None}
    ordinary = {n: p.grad.clone() for n, p in named.items() if p.grad is not None}
    layout, named = layout_of(network), dict(network.named_parameters())
    theta = torch.cat([named[slot.name].detach().flatten() for slot in layout.update])
    begin(network, SIZES)
    found = torch.zeros(2, layout.d, dtype=torch.float64)

    def losses() -> Tensor:
        return torch.stack([part.sum() for part in torch.split(network(x) * x.flip(0), list(SIZES))])

    try:
        together(Plan(network, layout), theta.expand(2, -1), SIZES, losses, out=found)
    except Unsupported as error:
        return f"it works, one client after another ({error})"
    for slot in layout.update:
        whole, mine = ordinary.get(slot.name), found[:, slot.start : slot.stop].sum(0).view(slot.shape)
        if whole is not None and not torch.allclose(mine, whole, rtol=1e-6, atol=1e-9):
            raise Differs(f"the clients' gradients of {slot.name} do not add up to the ordinary gradient")
    return None


def _in_one_pass(trial: NormTrial) -> str | None:
    if isinstance(trial.method, OneMachineNorm):
        return "one machine on all data: clients are merged on purpose"
    layer = trial.network()[0]
    network = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), layer, nn.Flatten(), nn.Linear(9 * CHANNELS, 2))
    return held_in_one_pass(network, images(), 2)


def _report(trial: NormTrial) -> str | None:
    network, x = trial.network(), images()
    layout = layout_of(network)
    if not layout.s:
        if trial.method.sends_statistics:
            raise Broken("it merges statistics, but the layer has no running_mean and running_var")
        return "it has no statistics"
    network(x)
    first = collect(network, layout, clients=2)
    expect(first.rows, x, (2, layout.s), "the report of two clients")
    begin(network, SIZES)
    network(x)
    again = collect(network, layout, clients=2)
    if not (torch.equal(first.rows, again.rows) and torch.equal(first.counts, again.counts)):
        raise Differs("the same batch reports something else in the next round: begin must forget the last one")
    found, there = first.counts[:, first.counts.any(0)].double(), [x[0, 0].numel() * size for size in SIZES]
    if not torch.equal(found, torch.tensor(there).double()[:, None].expand_as(found)):
        return f"fact: it counts {found[:, 0].tolist()} values per channel, where there are {there}"
    return _moved(trial, layout, first.rows)


def _moved(trial: NormTrial, layout: Layout, rows: Tensor) -> str | None:
    """A fact: what is reported as a variance is far larger of inputs that lie farther from zero."""
    network = trial.network()
    network(images() + 100)
    moved = collect(network, layout, clients=2).rows
    before, after = (found[:, layout.variance_mask()].abs().max() for found in (rows, moved))
    if not float(after) > 10 * float(before) + 10:
        return None
    return (
        f"fact: the second statistic grows from {float(before):.3g} to {float(after):.3g} if inputs move by 100; the "
        "server takes it for a variance, not for E[x²]"
    )


def _unseen(trial: NormTrial) -> str | None:
    """Forwards of an attack on training images, or of a second gradient, are no part of what a client reports."""
    network, x = trial.network(), images()
    layout = layout_of(network)
    if not layout.s:
        return "it has no statistics"
    network(x)
    alone = collect(network, layout, clients=2)
    begin(network, SIZES)
    network(x)
    with unseen(network):
        network(x + 3)
    beside = collect(network, layout, clients=2)
    if not (torch.equal(alone.rows, beside.rows) and torch.equal(alone.counts, beside.counts)):
        raise Broken("while unseen is set a training forward changes the report (StatisticsLayer.unseen)")
    return None


def _as_client(trial: NormTrial) -> str | None:
    """Training examples are attacked as the client's own model sees them, with the statistics it has so far."""
    network, x = trial.network(), images()
    layout = layout_of(network)
    if not layout.s or isinstance(trial.method, OneMachineNorm):
        return "it has no statistics" if not layout.s else "one machine has no single client"
    begin(network, None)
    network(x)
    served = network.eval()(x)
    with seen_by_client(network):
        seen = network(x)
    if not torch.equal(network(x), served):
        raise Broken("after as_client was set evaluation is another than before (StatisticsLayer.as_client)")
    report = collect(network.train(), layout)
    write_statistics(network, layout, report.rows[0])
    own = network.eval()(x)
    if torch.allclose(seen, own, rtol=1e-6, atol=1e-9):
        return None
    whose = "the server's statistics" if torch.equal(seen, served) else "others than the statistics it reports"
    return f"fact: while as_client is set it evaluates with {whose}"


def _merge(trial: NormTrial) -> str | None:
    network, x = trial.network(), images()
    layout, method = layout_of(network), trial.method
    if not method.sends_statistics:
        return "clients send no statistics"
    network(x)
    reports = collect(network, layout, clients=2)
    previous = layout.initial_statistics(x)
    with untouched(**{"reports.rows": reports.rows, "reports.counts": reports.counts, "previous": previous}):
        messages = method.messages(reports, previous, layout.layers)
    expect(messages, x, (2, layout.s), "messages")
    with untouched(messages=messages, counts=reports.counts, previous=previous):
        merged = method.merge(messages, reports.counts, previous, layout.layers, PlainMean())
    new = expect(merged, previous, (layout.s,), "the merged statistics")
    own_memory(new, "the merged statistics", messages)
    lowest = float(new[layout.variance_mask()].min())
    if not lowest >= 0:
        raise Broken(f"a merged variance is {lowest:g}")
    if isinstance(method, OneMachineNorm) or not bool(reports.counts.any()):
        return None
    listening = _Listening()
    method.merge(messages, reports.counts, previous, layout.layers, listening)
    return None if listening.asked else "fact: it never asks defense.mixed, so that no rule defends its statistics"


def _order(trial: NormTrial) -> str | None:
    """A server merges what clients sent, not whose it is: honest clients come first, and nobody may make use of it."""
    network, method = trial.network(), trial.method
    layout = layout_of(network)
    if not method.sends_statistics or isinstance(method, OneMachineNorm):
        return "clients send no statistics" if not method.sends_statistics else "one machine has no clients"
    network(images())
    reports, draw = collect(network, layout, clients=2), torch.Generator().manual_seed(2)
    previous = layout.initial_statistics(reports.rows)
    sent = method.messages(reports, previous, layout.layers)[:1]
    messages = sent * (1 + 0.5 * torch.rand(9, sent.shape[1], generator=draw, dtype=sent.dtype))
    messages[-1] *= 8
    counts, order = reports.counts[:1].expand(9, -1).clone(), torch.randperm(9, generator=draw)
    one, other = (
        method.merge(messages[o], counts[o], previous, layout.layers, PlainMean()) for o in (torch.arange(9), order)
    )
    if not torch.allclose(one, other, rtol=1e-6, atol=1e-9):
        raise Differs("the merged statistics depend on the order in which clients' messages stand")
    return None


class _Listening(StatisticsAggregation):
    """The plain mean, which notices whether it is asked at all."""

    asked = False

    def mixed(self, basis: Tensor, *, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        self.asked = True
        return PlainMean().mixed(basis, weights=weights)


def _phases(trial: NormTrial) -> str | None:
    wrong = [t for t in range(10) if type(trial.method.frozen(t, 10)) is not bool]
    if wrong:
        raise Broken(f"frozen({wrong[0]}, 10) is no bool")
    return None


def _copies(trial: NormTrial) -> str | None:
    network, x = trial.network().eval(), images()
    for other in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
        if not torch.equal(other(x), network(x)):
            raise Differs("a copy of the layer gives another output")
    return None


LAWS = (
    *FIRST,
    Law("shape, dtype and device", "the output is like the input, for [b C H W] and [b C], in both modes", _outputs),
    Law("constant input", "constant inputs give finite outputs", _constant),
    Law("inputs untouched", "no forward writes to the input, to parameters or to statistics", _inputs),
    Law("gradient", "the gradient of the input is that of finite differences", _gradient, waivable=True),
    Law("served", "in evaluation outputs and gradients of the input are of that image alone", _served),
    Law("entries", "every entry is typed, statistics lie in a StatisticsLayer, and the scheme fits the layer", _tags),
    Law("clients apart", "clients in one forward get what each gets alone", _apart),
    Law("gradient rows", "the clients' affine gradients add up to the ordinary one", _rows),
    Law(
        "clients in one pass",
        "served together, at one model or their own, clients have the gradients and reports of each alone",
        _in_one_pass,
    ),
    Law("report", "clients report rows in the layout's order, each round anew", _report),
    Law("unseen", "while unseen is set, training forwards leave no trace in the report", _unseen),
    Law("as client", "as_client is over with its pass; a fact: whether it evaluates as the client reports", _as_client),
    Law("merge", "messages and merged statistics are like the rows; variances are at least 0", _merge),
    Law("clients in any order", "the merged statistics do not depend on the order of the messages", _order),
    Law("phases", "frozen(round, rounds) is a bool", _phases),
    Law("copies", "pickles and copies of the layer are the same layer", _copies),
    *COMMON,
)


def check_norm(method: str | Norm | type[Norm], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """The contract of a normalization scheme, law by law.

    >>> all(check.passed for check in check_norm("gn", groups=2))
    True
    """
    return run(LAWS, NormTrial(built("norm", method, params)), limit=limit)
