"""Cells that make no sense, as far as that is known before any data is loaded: one table of rules."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from robustfl.contracts import BranchedNorm, LockstepNorm, OneMachineNorm, Tag
from robustfl.contracts.norm import mixes_examples

from .cell import Cell


def cell_facts(cell: Cell) -> SimpleNamespace:
    """The settings of a cell, its methods (``m``), its numbers (``s``), and what follows from them, for rules."""
    m, s, users = cell.methods, cell.settings, cell.adversarial
    x = SimpleNamespace(m=m, s=s, users=users, **{name: getattr(cell, name) for name in Cell.model_fields})
    x.others, x.rule, x.sends = x.clients - len(users), m.defense.aggregator, m.norm.sends_statistics
    x.present = s.participants if m.finetune is None else min(len(users), x.others)  # the fewest clients of a round
    x.forges, x.poisons = x.f > 0 and m.attack.forges, x.f > 0 and m.attack.poisons_data
    x.branched, x.lockstep = isinstance(m.norm, BranchedNorm), isinstance(m.norm, LockstepNorm)
    x.one_machine, x.one_step = isinstance(m.norm, OneMachineNorm), "one_batch" in m.algorithm.asks
    return x


def refusal(cell: Cell) -> str | None:
    """Why the cell makes no sense, or None."""
    facts = cell_facts(cell)
    return next((words for rule in RULES if (words := rule(facts))), None)


def _moves_frozen_layers(x: Any) -> bool:
    """True if weight decay, or what is carried from round to round, moves layers without a gradient."""
    algorithm = x.m.algorithm
    carried = bool(algorithm.remembers) or bool(algorithm.server_state(torch.zeros(1)))
    return carried or bool(getattr(algorithm, "weight_decay", 0))


def _clients(x: Any) -> str | None:
    here = "this cell has" if x.s.participants == x.clients else f"of {x.clients} clients a round has"
    reason: str | None = x.m.defense.refusal(x.present, x.f_declared, here=here)
    return reason


def _reference(x: Any) -> str | None:
    """Why a defense that compares with an update of the server's own has not enough to compare with."""
    shared = x.sends and x.m.statistics_defense is None
    beside = (x.sends and x.one_machine) or x.m.norm.private or x.lockstep or "aggregates" in x.m.algorithm.asks
    if not (x.rule.needs_reference and (shared or beside)):
        return None
    helps = "" if beside else "; give statistics a rule of their own, such as statistics_defense='median'"
    return f"{x.defense} compares updates with the server's own, and {x.norm} with {x.algorithm} sends more{helps}"


def _statistics(x: Any) -> str | None:
    """Why the pipeline for statistics cannot merge them, or has none to merge."""
    m, given, what = x.m, x.m.statistics_defense is not None, f"statistics_defense={x.statistics_defense!r}"
    if not x.sends:
        instead = "its users send each other statistics: name a rule in 'propagation', such as 'fedrbn+trimmed-mean'"
        why = "nothing would be defended" if m.propagation is None else instead
        return f"{what}: {x.norm} sends the server no statistics; {why}" if given else None
    if x.one_machine:
        return f"{what} has nothing to merge: {x.norm} is one machine" if given else None
    if getattr(m.norm, "joint", False) and m.statistics_rule.by_columns:
        rule = m.statistics_rule.describe()
        return f"{x.norm}: joint=True changes nothing: {rule} takes statistics column by column, without a step"
    if (reason := m.statistics_rule.statistics_refusal(x.present, x.f_declared)) is None:
        return None
    own = f"on statistics, {reason}; give them a rule of their own, such as statistics_defense='median'"
    return f"{what}: {reason}" if given else own


def _forgetting(x: Any) -> str | None:
    plan = x.m.norm.statistics_pass
    needs = {
        "validation > 0": x.validation,
        f"an algorithm with local steps (not {x.algorithm})": not x.one_step,
        f"a common model (not {x.norm})": not x.m.norm.private,
        f"statistics of the model itself (not {x.norm}, whose tests collect others)":
            plan is None or plan.refreshes == "none",
    }  # fmt: skip
    missing = " and ".join(words for words, there in needs.items() if not there)
    return f"forgetting compares local models on the clients' validation data: it needs {missing}" if missing else None


def _propagation(x: Any) -> str | None:
    """Why nobody's statistics can be propagated."""
    m, at = x.m, len(x.users)
    if not x.branched or not m.norm.private & {Tag.MEAN, Tag.VARIANCE}:
        return f"{x.propagation} propagates private statistics between branches: use dual-bn(local=true) as norm"
    if m.propagation.propagation.compares and at and not m.objective.trains_clean:
        why = f"AT users train no clean branch with objective={x.objective!r}"
        way = "take objective='at', or a propagation that weighs all alike, such as fedrbn(similarity=uniform)"
        return f"{x.propagation} weighs users by the statistics of their clean branch: {why}; {way}"
    if at and x.users <= x.s.byzantine():
        return f"all {at} AT users are Byzantine: there is nothing honest to propagate"
    reason: str | None = m.propagation.refusal(at, min(x.f_declared, at))
    return reason


def _pool(x: Any) -> int:
    """The number of users that Byzantine ones are drawn from."""
    return len(x.users) if x.byzantine == "at" else x.others


RULES: tuple[Callable[[Any], Any], ...] = (
    lambda x: x.precision == "bf16" and x.dtype != "float32" and (
        f"precision='bf16' shortens float32, not dtype={x.dtype!r}; use dtype='float32' or precision='full'"),
    lambda x: 2 * x.f >= x.clients and x.f > 0 and (
        f"f={x.f} of {x.clients} clients: fewer than half may be Byzantine (f ≤ {(x.clients - 1) // 2})"),
    lambda x: x.m.finetune and x.m.finetune.rounds >= x.rounds and (
        f"finetune={x.finetune!r} leaves AT users no round of rounds={x.rounds}; at most {x.rounds - 1} can be the "
        "others'"),
    lambda x: x.m.finetune and not 0 < len(x.users) < x.clients and (
        f"finetune={x.finetune!r} needs AT users and ST users; at={x.at!r} makes {len(x.users)} of {x.clients} clients "
        "AT users"),
    lambda x: x.m.finetune and (x.f or x.participation < 1) and (
        f"finetune={x.finetune!r} is defined without Byzantine clients and with full participation (f=0, "
        "participation=1)"),
    lambda x: x.m.finetune and x.one_step and (
        f"finetune={x.finetune!r} needs an algorithm with local steps, not {x.algorithm}"),
    lambda x: x.m.finetune and x.m.finetune.frozen and _moves_frozen_layers(x) and (
        f"finetune={x.finetune!r}: the weight decay, or what {x.algorithm} carries from round to round, would move "
        "frozen layers; use frozen=0 or plain local steps"),
    _clients,
    lambda x: x.rule.needs_reference and not x.server_samples and (
        f"{x.defense} compares with an update of the server's own; give it data with 'server_samples'"),
    lambda x: x.rule.sees_representations and not x.server_samples and (
        f"{x.defense} compares what models make of the server's images; give it some with 'server_samples'"),
    lambda x: x.rule.weighted and not x.m.algorithm.weighted and (
        f"{x.defense}: weighted=True changes nothing: all clients weigh alike with {x.algorithm}; leave it out, or use "
        "local steps and weighting=samples"),
    lambda x: "examples" in x.m.algorithm.asks and mixes_examples(x.m.norm.layer(16)) and (
        f"{x.m.algorithm.name} clips the gradient of every example, and with norm={x.norm} it depends on the others of "
        "its batch; use a norm without batch statistics, such as none, gn, ln or fedwon"),
    lambda x: "examples" in x.m.algorithm.asks and not x.m.objective.plain and (
        f"{x.m.algorithm.name} clips the gradient of every example, which objective={x.objective} does not give one by "
        "one; use ce or wsm"),
    lambda x: x.f and x.m.attack.trains and x.lockstep and (
        f"{x.attack} follows a loss of its own, and with {x.norm} all clients take the first step together"),
    lambda x: x.one_machine and not (
        x.present == x.clients and x.m.objective.plain and x.one_step and not x.forges and not x.poisons) and (
        f"{x.norm} is one machine on all data: it needs full participation, one plain batch a round, no attack"),
    lambda x: x.forges and x.scope == "statistics" and not x.sends and x.m.propagation is None and (
        f"{x.norm} sends no statistics, so {x.attack} has nothing to forge with scope='statistics'"),
    _reference,
    lambda x: x.across and not x.m.norm.private and (
        f"across=true tests users' own models on other domains, and with {x.norm} they have none of their own"),
    lambda x: x.select == "validation" and not (x.validation and x.evaluate_every) and (
        "select='validation' takes the best of the evaluated rounds on the clients' validation data: it needs "
        f"validation > 0 and evaluate_every > 0 (here {x.validation:g} and {x.evaluate_every})"),
    _statistics,
    lambda x: x.forgetting and _forgetting(x),
    lambda x: x.m.objective.needs_adversaries and not x.users and (
        f"{x.objective} needs users that train adversarially; name them with 'at', such as at='ratio(rho=0.2)'"),
    lambda x: x.m.objective.replays > 1 and x.one_step and (
        f"{x.objective} replays batches, and {x.algorithm} takes one step a round"),
    lambda x: "contrast" in x.m.algorithm.asks and not x.m.objective.plain and (
        f"{x.algorithm} adds to the loss of one clean forward, which {x.objective} has not"),
    lambda x: x.lockstep and (x.m.algorithm.asks & {"again", "contrast"} or not x.m.objective.plain) and (
        f"{x.norm} takes its first step in one plain pass of all clients, and "
        f"{x.algorithm if x.m.objective.plain else x.objective} needs more than that"),
    lambda x: x.m.objective.needs_branches and not x.branched and (
        f"{x.objective} needs a norm with branches, such as dual-bn(local=true); {x.norm} has none"),
    lambda x: x.byzantine != "any" and _pool(x) < x.f and (
        f"f={x.f} Byzantine clients among the {_pool(x)} {x.byzantine.upper()} users"),
    lambda x: x.m.propagation and _propagation(x),
)  # fmt: skip
"""Each gives the reason why a cell is refused, or nothing; the first reason counts."""
