"""Attacks and settings that change nothing, as far as that is known before training: one table of rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from robustfl.attacks.evasion.accounts import odd_radius, short_way
from robustfl.contracts import Algorithm, OneMachineNorm, Tag
from robustfl.records import measured_in

from .cell import Cell, of_each
from .expand import idle_rules
from .refusals import cell_facts
from .spec import Scenario, is_axis


def facts_of(cell: Cell) -> SimpleNamespace:
    """The facts of a cell with more that rules about settings ask for."""
    x = cell_facts(cell)
    m, s, users = x.m, x.s, x.users
    x.whole, x.planned = (f"{n} round{'s' if n > 1 else ''}" for n in (s.end, x.rounds))
    x.leaves, x.no_statistics = x.f > 0 and m.attack.leaves_statistics, x.forges and not x.sends and not m.propagation
    x.silent, x.tests_at = m.norm.private >= {Tag.WEIGHT, Tag.AFFINE}, x.branch != "clean"
    x.trains, x.selects = bool(users) and m.objective.needs_adversaries, bool(users) and x.select == "validation"
    x.nobody = f"{f'with objective = {x.objective!r}' if users else f'at = {x.at!r},'} nobody trains adversarially"
    return x


Rule = tuple[str, Callable[[Any], Any], str]
"""Settings (only those not at their default are reported; none: always), when they change nothing, and the words: a
format of the facts, of what the condition ``found``, and of ``it``, such as ``f = 0 changes nothing``."""
ATTACKS: tuple[Rule, ...] = (
    ("", lambda x: 0 in (x.f, x.s.attackers),
     "f = {f}: nobody attacks, though the attack is {attack}; give f, such as --set f=3"),
    ("", lambda x: x.silent, "{attack} reaches nobody: with {norm} clients send nothing"),
    ("", lambda x: x.forges and x.scope == "statistics" and x.m.norm.frozen(0, x.rounds),
     "{attack} has no effect: {norm} sends no statistics in {planned}"),
    ("", lambda x: not any(map(x.m.attack.on, range(x.s.end))), "{attack} has no effect: it does not begin in {whole}"),
    ("", lambda x: x.m.attack.strength and x.s.attackers and not x.m.algorithm.weighted and x.m.propagation is None
     and x.m.attack.certificate(x.s.participants, x.s.attackers).get(x.m.attack.strength) == 0,
     "{attack} has no effect with n = {s.participants} and f = {s.attackers}: its {m.attack.strength} is 0, so the "
     "attackers send the honest mean"),  # with weights or a propagation the plain mean that they send is another one
)  # fmt: skip
FIRST: dict[str, Callable[[Any], int]] = {"fldetector": lambda p: p.window + 2, "flanders": lambda p: 3}
"""The round in which a defense judges clients for the first time."""
LOCAL = ("altermin", "chameleon")  # attacks that do something else from local step to local step
SETTINGS: tuple[Rule, ...] = (
    ("target", lambda x: x.scope == "update", "{it}: with scope = 'update' attackers leave statistics alone"),
    ("scope target", lambda x: x.f and not x.forges and x.m.attack.poisons_data,
     "{it}: {attack} forges no message, it poisons data"),
    ("target", lambda x: x.no_statistics, "{it}: {norm} sends no statistics"),
    ("target", lambda x: x.leaves, "{it}: {attack} forges no statistics"),
    ("scope", lambda x: x.leaves and x.scope == "statistics",
     "scope = 'statistics': {attack} forges updates alone, so what is left of it is poisoned data"),
    ("quota attackers_data byzantine", lambda x: x.f == 0, "{it}: f = 0"),
    ("quota", lambda x: x.participation == 1, "{it}: every client takes part in every round"),
    ("quota", lambda x: x.s.attackers and x.f_declared == x.f != x.s.attackers and x.defense != "mean",
     "quota = true: {s.attackers} of {s.participants} attack in every round, and the defense is told f = {f}; "
     "f_declared={s.attackers} tells it what it meets"),
    ("byzantine", lambda x: len(x.s.candidates or ()) == x.clients, "{it}: with at = {at!r} that is everybody"),
    ("branch", lambda x: not x.branched, "{it}: {norm} has no branches"),
    ("", lambda x: x.tests_at and x.branched and not x.trains,
     "branch = {branch!r} tests the adversarial branch of {norm}, which nobody trains; set branch = 'clean'"),
    ("", lambda x: x.tests_at and x.branched and x.trains and x.others and x.m.propagation is None
     and x.m.norm.private >= {Tag.MEAN, Tag.VARIANCE},
     "branch = {branch!r}: {others} of {clients} users never train the adversarial branch of {norm} that they "
     "are tested through, and without a propagation nobody gives them its statistics"),
    ("norm", lambda x: not x.tests_at and not x.trains and not getattr(x.m.norm, "share_affine", True),
     "norm = {norm!r}: share_affine=False changes nothing: nobody trains the adversarial branch"),
    ("train_evasion", lambda x: x.trains and not x.selects and not x.m.objective.asks_evasion,
     "{it}: {objective} makes adversarial examples of its own"),
    ("train_evasion", lambda x: not x.trains and not x.selects, "{it}: {nobody}"),
    ("propagation", lambda x: not x.trains, "{it}: {nobody}"),
    ("at", lambda x: x.byzantine == "any" and not (x.trains or x.selects or x.m.finetune), "{it}: {nobody}"),
    ("", lambda x: [at for at in x.schedule.milestones if at >= x.rounds],
     "schedule: milestones {found} are never reached in {planned}, nor are the rates after them"),
    ("", lambda x: x.schedule.kind == "cosine" and x.rounds == 1, "schedule: cosine changes no rate in {planned}"),
    ("", lambda x: x.schedule.kind == "geometric" and 1 in (x.rounds, x.schedule.factor),
     "schedule: factor = {schedule.factor:g} changes no rate in {planned}"),
    ("norm", lambda x: x.m.norm.frozen(0, x.rounds),
     "norm = {norm!r} freezes the statistics before the first round: mean 0 and variance 1, or a file's"),
    ("norm", lambda x: x.m.norm.name == "fedtan-ii" and x.rounds <= x.m.norm.switch_round,
     "norm = {norm!r}: its switch is never reached in {planned}, so it is fedtan"),
    ("norm", lambda x: x.m.norm.name == "fixbn" and not x.m.norm.frozen(x.rounds - 1, x.rounds),
     "norm = {norm!r}: its switch is never reached in {planned}, so it is naive-bn"),
    ("", lambda x: x.m.objective.name == "pnc" and x.m.objective.lam and x.s.end <= x.m.objective.warmup,
     "objective = {objective!r}: its warm-up never ends in {whole}: ST users train on clean inputs only"),
    ("", lambda x: [first for p in x.m.defense.parts if x.s.end < (first := FIRST.get(p.name, lambda _: 0)(p))],
     "defense = {defense!r} in {whole}: nobody is judged before round {found[0]}, so it is the mean"),
    ("attack", lambda x: x.f and "one_batch" in x.m.algorithm.asks and any(a in x.attack for a in LOCAL),
     "attack = {attack!r} with {algorithm}: of one local step a round only its first stage is left; parameters of the "
     "others change nothing"),
    ("defense", lambda x: "bucketing(s=1)" in x.defense, "defense = {defense!r}: buckets of one row change nothing"),
    ("defense", lambda x: isinstance(x.m.norm, OneMachineNorm), "{it}: {norm} is one machine, all rows are the same"),
    ("defense", lambda x: x.silent, "{it}: with {norm} clients send nothing"),
    ("", lambda x: x.silent and type(x.m.algorithm).server_step is not Algorithm.server_step,
     "algorithm = {algorithm!r}: its server changes nothing: with {norm} clients send it nothing"),
    ("evaluate_ra ra_limit", lambda x: not x.evasions, "{it}: evasions = []"),
    ("select evaluate_ra", lambda x: not any(measured_in(t, x.s.end, x.evaluate_every, x.tail)
                                             for t in range(1, x.s.end)),
     "{it}: of {whole} only the last is evaluated (evaluate_every = {evaluate_every})"),
    ("", lambda x: tuple(words for e in x.m.evasions for words in (odd_radius(e), short_way(e)) if words),
     "evasions: {found}"),
    ("", lambda x: odd_radius(x.m.train_evasion), "train_evasion: {found}"),  # its way may well be a short one
    ("precision", lambda x: x.precision == "tf32" and x.dtype != "float32", "{it}: dtype = {dtype!r}, not float32"),
    ("", lambda x: abs(x.participation * x.clients - x.s.participants) > 1e-6 and x.participation * x.clients,
     "participation = {participation:g} of {clients} clients is {found:g}; {s.participants} take part"),
    ("", lambda x: x.tail > x.s.end, "tail = {tail} is more than {whole}: the mean is over all of them"),
)  # fmt: skip
"""The first rule about a setting that holds is reported; without a setting, every one."""


def noop_settings(cell: Cell, rules: tuple[Rule, ...] = SETTINGS) -> Iterator[str]:
    """Every setting of a cell that changes no number of it, with the reason."""
    facts, told = facts_of(cell), set()
    for settings, when, words in rules:
        for name in settings.split() or [""]:
            value = getattr(cell, name, None)
            given = not name or (name not in told and value != Cell.model_fields[name].default)
            if given and (found := when(facts)):
                told.add(name)
                it = f"{name} = {'true' if value is True else repr(value)} changes nothing"
                for one in found if isinstance(found, tuple) else (found,):
                    yield words.format(**vars(facts), it=it, found=one)


def no_effect(cell: Cell) -> str | None:
    """Why the attack of a cell leaves the honest mean as it is, or None; a strength that it searches is not known."""
    attacks = cell.methods.attack.forges or cell.methods.attack.poisons_data
    return next(noop_settings(cell, ATTACKS), None) if attacks else None


def cell_warnings(cells: Iterable[Cell], rules: tuple[Rule, ...] = SETTINGS) -> list[str]:
    """One line for every reason why an attack or a setting of these cells changes nothing, with the number of cells."""
    told = of_each(cells, lambda cell: (no_effect(cell), tuple(noop_settings(cell, rules))))
    attacks = Counter(reason for reason, _ in told if reason is not None)
    settings = Counter(words for _, several in told for words in several)
    counted = {words: f"{words} ({n} cell{'s' if n > 1 else ''})" for words, n in (attacks + settings).items()}
    ignored = [f"{counted[words]}; boards ignore them unless they give the lowest accuracy" for words in attacks]
    return [*ignored, *(counted[words] for words in settings)]


def scenario_warnings(scenario: Scenario, cells: Iterable[Cell]) -> list[str]:
    """One line for everything in a scenario that changes nothing; ``cells`` are those of it that run."""
    same: Rule = ("scope", lambda x: x.no_statistics, "{it}: {norm} sends no statistics")  # the scopes of an axis
    rules = (same, *SETTINGS) if is_axis("scope", scenario.cell.get("scope")) else SETTINGS
    return [*cell_warnings(cells, rules), *idle_rules(scenario)]
