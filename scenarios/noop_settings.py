"""Attacks and settings that change nothing, as far as that is known before training: three tables of rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from robustfl.attacks.evasion.accounts import odd_radius, short_way
from robustfl.contracts import Algorithm, BranchedNorm, OneMachineNorm, Tag
from robustfl.records import measured_in

from .cell import Cell, of_each
from .expand import idle_rules, repeated
from .spec import Scenario, is_axis


class Facts:
    """The cell (``c``), its methods (``m``), its numbers (``s``), and what follows from them, for rules and words."""

    def __init__(self, cell: Cell) -> None:
        self.c, self.m, self.s = c, m, s = cell, cell.methods, cell.settings
        self.rounds, self.planned = (f"{n} round{'s' if n > 1 else ''}" for n in (s.end, c.rounds))
        self.forges, self.leaves = c.f > 0 and m.attack.forges, c.f > 0 and m.attack.leaves_statistics
        self.no_statistics = self.forges and not m.norm.sends_statistics and m.propagation is None
        self.silent, self.branched = m.norm.private >= {Tag.WEIGHT, Tag.AFFINE}, isinstance(m.norm, BranchedNorm)
        self.trains = bool(c.adversarial) and m.objective.needs_adversaries
        self.selects = bool(c.adversarial) and c.select == "validation"  # by the robust accuracy of AT users
        why = f"with objective = {c.objective!r}" if c.adversarial else f"at = {c.at!r},"
        self.nobody, self.others = f"{why} nobody trains adversarially", c.clients - len(c.adversarial)
        handed_on = m.propagation is not None and not m.propagation.propagation.every_round and c.scope == "statistics"
        self.attacked = 1 if handed_on else s.end
        self.where = "statistics that are handed on for tests alone" if handed_on else self.rounds


Rule = tuple[str, Callable[[Facts], Any], str]
"""Settings (of which those at their default are not told; none: all are), when they change nothing, and the words.

Words are a format of the facts, of what the condition ``found``, and of ``it``, such as ``f = 0 changes nothing``.
"""
ATTACKS: tuple[Rule, ...] = (
    ("", lambda x: 0 in (x.c.f, x.s.attackers),
     "f = {c.f}: nobody attacks, though the attack is {c.attack}; give f, such as --set f=3"),
    ("", lambda x: x.silent, "{c.attack} reaches nobody: with {c.norm} clients send nothing"),
    ("", lambda x: x.forges and x.c.scope == "statistics" and x.m.norm.frozen(0, x.c.rounds),
     "{c.attack} has no effect: {c.norm} sends no statistics in {planned}"),
    ("", lambda x: not any(map(x.m.attack.on, range(x.s.end))),
     "{c.attack} has no effect: it does not begin in {rounds}"),
    ("", lambda x: x.m.attack.strength and x.s.attackers and not x.m.algorithm.weighted and x.m.propagation is None
     and x.m.attack.certificate(x.s.participants, x.s.attackers).get(x.m.attack.strength) == 0,
     "{c.attack} has no effect with n = {s.participants} and f = {s.attackers}: its {m.attack.strength} is 0, so the "
     "attackers send the honest mean"),  # with weights or a propagation the plain mean that they send is another one
)  # fmt: skip
SETTINGS: tuple[Rule, ...] = (
    ("target", lambda x: x.c.scope == "update", "{it}: with scope = 'update' attackers leave statistics alone"),
    ("scope target", lambda x: x.c.f and not x.forges and x.m.attack.poisons_data,
     "{it}: {c.attack} forges no message, it poisons data"),
    ("target", lambda x: x.no_statistics, "{it}: {c.norm} sends no statistics"),
    ("target", lambda x: x.leaves, "{it}: {c.attack} forges no statistics"),
    ("scope", lambda x: x.leaves and x.c.scope == "statistics",
     "scope = 'statistics': {c.attack} forges updates alone, so what is left of it is poisoned data"),
    ("quota attackers_data byzantine", lambda x: x.c.f == 0, "{it}: f = 0"),
    ("quota", lambda x: x.c.participation == 1, "{it}: every client takes part in every round"),
    ("quota", lambda x: x.s.attackers and x.c.f_declared == x.c.f != x.s.attackers and x.c.defense != "mean",
     "quota = true: {s.attackers} of {c.participants} attack in every round, and the defense is told f = {c.f}; "
     "f_declared={s.attackers} tells it what it meets"),
    ("byzantine", lambda x: x.others == (0 if x.c.byzantine == "at" else x.c.clients),
     "{it}: with at = {c.at!r} that is everybody"),
    ("branch", lambda x: not x.branched, "{it}: {c.norm} has no branches"),
    ("", lambda x: x.c.branch != "clean" and x.branched and not x.trains,
     "branch = {c.branch!r} tests the adversarial branch of {c.norm}, which nobody trains; branch = 'clean' tests the "
     "other one"),
    ("", lambda x: x.c.branch != "clean" and x.branched and x.trains and x.others and x.m.propagation is None
     and x.m.norm.private >= {Tag.MEAN, Tag.VARIANCE},
     "branch = {c.branch!r}: {others} of {c.clients} users never train the adversarial branch of {c.norm} that they "
     "are tested through, and without a propagation nobody gives them its statistics"),
    ("norm", lambda x: x.c.branch == "clean" and not x.trains and not getattr(x.m.norm, "share_affine", True),
     "norm = {c.norm!r}: share_affine=False changes nothing: nobody trains the adversarial branch"),
    ("train_evasion", lambda x: x.trains and not x.selects and not x.m.objective.asks_evasion,
     "{it}: {c.objective} makes adversarial examples of its own"),
    ("train_evasion", lambda x: not x.trains and not x.selects, "{it}: {nobody}"),
    ("propagation", lambda x: not x.trains, "{it}: {nobody}"),
    ("at", lambda x: x.c.adversarial and not (x.trains or x.selects or x.m.finetune) and x.c.byzantine == "any",
     "{it}: {nobody}"),
    ("", lambda x: [at for at in x.c.schedule.milestones if at >= x.c.rounds],
     "schedule: milestones {found} are never reached in {planned}, nor are the rates after them"),
    ("", lambda x: x.c.schedule.kind == "geometric" and 1 in (x.c.rounds, x.c.schedule.factor),
     "schedule: factor = {c.schedule.factor:g} changes no rate in {planned}"),
    ("norm", lambda x: x.m.norm.frozen(0, x.c.rounds),
     "norm = {c.norm!r} freezes the statistics before the first round: mean 0 and variance 1, or a file's"),
    ("norm", lambda x: _unreached(x.c.rounds, x.m.norm), "norm = {c.norm!r} in {planned}: {found}"),
    ("algorithm", lambda x: _unreached(x.s.end, x.m.algorithm), "algorithm = {c.algorithm!r} in {rounds}: {found}"),
    ("objective", lambda x: _unreached(x.s.end, x.m.objective), "objective = {c.objective!r} in {rounds}: {found}"),
    ("attack", lambda x: x.c.f and _unreached(x.attacked, x.m.attack), "attack = {c.attack!r} in {where}: {found}"),
    ("", lambda x: _unreached(x.s.end, *x.m.defense.parts), "defense = {c.defense!r} in {rounds}: {found}"),
    ("defense", lambda x: isinstance(x.m.norm, OneMachineNorm),
     "{it}: {c.norm} is one machine, whose rows are all the same"),
    ("defense", lambda x: x.silent, "{it}: with {c.norm} clients send nothing"),
    ("", lambda x: x.silent and type(x.m.algorithm).server_step is not Algorithm.server_step,
     "algorithm = {c.algorithm!r}: its server changes nothing: with {c.norm} clients send it nothing"),
    ("evaluate_ra ra_limit", lambda x: not x.c.evasions, "{it}: evasions = []"),
    ("select evaluate_ra", lambda x: not any(measured_in(t, x.s.end, x.c.evaluate_every, x.c.tail)
                                             for t in range(1, x.s.end)),
     "{it}: of {rounds} only the last is evaluated (evaluate_every = {c.evaluate_every})"),
    ("", lambda x: tuple(filter(None, map(odd_radius, x.m.evasions))), "evasions: {found}"),
    ("", lambda x: tuple(filter(None, map(short_way, x.m.evasions))), "evasions: {found}"),
    ("", lambda x: odd_radius(x.m.train_evasion), "train_evasion: {found}"),  # its way may well be a short one
    ("precision", lambda x: x.c.precision == "tf32" and x.c.dtype != "float32",
     "{it}: it shortens products of float32, and dtype = {c.dtype!r}"),
    ("", lambda x: (share := x.c.participation * x.c.clients) and abs(share - x.s.participants) > 1e-6 and share,
     "participation = {c.participation:g} of {c.clients} clients is {found:g}; {s.participants} take part"),
    ("", lambda x: x.c.tail > x.s.end, "tail = {c.tail} is more than {rounds}: the mean is over all of them"),
)  # fmt: skip
"""The first rule about a setting that holds is told; without a setting, every one."""
SCOPES: tuple[Rule, ...] = (("scope", lambda x: x.no_statistics, "{it}: {c.norm} sends no statistics"),)
"""The rule about a scope that is an axis: its cells are the same training."""
PARAMETERS: tuple[tuple[str, str, Callable[[Any, int], Any], str], ...] = (
    ("fldetector", "window", lambda p, t: t < p.window + 2 and p.window + 2,
     "{it} judges nobody before round {found}, so it is the mean"),
    ("flanders", "window", lambda p, t: t < 3, "nobody is judged before round 3, so it is the mean"),
    ("flanders", "window", lambda p, t: 3 <= t < p.window + 2 and p.window != type(p).window, "{it} is never full"),
    ("bucketing", "s", lambda p, t: p.s == 1, "{it} changes nothing: every bucket is one row"),
    ("hbn", "lam", lambda p, t: t == 1, ""),
    ("fedtan-ii", "switch_round", lambda p, t: t <= p.switch_round, "{it} is never reached, so it is fedtan"),
    ("fixbn", "switch", lambda p, t: not p.frozen(t - 1, t), "{it} is never reached, so it is naive-bn"),
    ("pnc", "warmup", lambda p, t: p.lam and t <= p.warmup, "{it} never ends: ST users train on clean inputs only"),
    ("fedacg fedavgm", "server_momentum", lambda p, t: t == 1, "{it} changes nothing: there is none yet"),
    ("crfl", "sigma", lambda p, t: t == 1, "{it} covers no model: the last round adds no noise"),
    ("moon", "mu", lambda p, t: t == 1, "{it} changes nothing: nobody has a previous model, and it is fedavg"),
    ("", "keep_momentum", lambda p, t: t == 1, ""),
    ("mimic", "warm_up", lambda p, t: t <= p.warm_up != type(p).warm_up, "{it} never ends, so no target is final"),
    ("poisonedfl", "decay period level least", lambda p, t: t <= p.period, ""),
    ("lazy", "source", lambda p, t: t == 1, "there is no old message yet, so attackers send what they computed"),
    ("lazy", "period", lambda p, t: 1 < t <= p.period, ""),
    ("timed", "every", lambda p, t: p.every > 1 and p.start < min(p.stop or t, t) <= p.start + p.every,
     "{it} comes to no second attack"),
    ("timed", "stop", lambda p, t: p.start < t <= p.stop, ""),
    ("rop", "location reference", lambda p, t: t == 1, ""),
    ("neurotoxin", "ratio", lambda p, t: t == 1, "{it} changes nothing: there is no last aggregate yet"),
)  # fmt: skip
"""Methods (none: all), parameters, when those of a method ``p`` come to nothing in a training of ``t`` rounds, words.

Without words the parameter changes nothing, and is not told at its default.
"""


def _unreached(rounds: int, *methods: Any) -> tuple[str, ...]:
    """The parameters of methods, and of the attacks that they wrap, that come to nothing in so many rounds."""
    layers, told = list(methods), []
    for p in layers:
        layers += [p.inner] if getattr(p, "inner", None) else []
        own = p.name if type(p).__module__.startswith("robustfl.") else ""  # a plug-in of another kind may be so called
        for names, parameters, when, words in PARAMETERS:
            for name in parameters.split() if not names or own in names.split() else []:
                value = getattr(p, name, None)
                given = value if words else value != getattr(type(p), name, None)
                if given and (found := when(p, rounds)):
                    it = f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                    told.append((words or "{it} changes nothing").format(it=it, found=found))
    return tuple(told)


def _said(rules: Iterable[Rule], cell: Cell) -> Iterator[str]:
    """The words of the rules that hold, one for every setting."""
    facts, told = Facts(cell), set()
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
    """Why the attack of a cell leaves the honest mean as it is, or None.

    A strength that an attack searches while it runs is in no certificate; the run then measures what it moved.
    """
    attacks = cell.methods.attack.forges or cell.methods.attack.poisons_data
    return next(_said(ATTACKS, cell), None) if attacks else None


def noop_settings(cell: Cell, rules: tuple[Rule, ...] = SETTINGS) -> Iterator[str]:
    """Every setting of a cell that changes no number of it, with the reason."""
    return _said(rules, cell)


def cell_warnings(cells: Iterable[Cell], rules: tuple[Rule, ...] = SETTINGS) -> list[str]:
    """One line for every reason why an attack or a setting of these cells changes nothing, with the number of cells."""
    told = of_each(cells, lambda cell: (no_effect(cell), tuple(noop_settings(cell, rules))))
    attacks = Counter(reason for reason, _ in told if reason is not None)
    settings = Counter(words for _, several in told for words in several)
    counted = {words: f"{words} ({n} cell{'s' if n > 1 else ''})" for words, n in (attacks + settings).items()}
    return [*(f"{counted[words]}; they count in no worst case" for words in attacks), *(counted[w] for w in settings)]


def scenario_warnings(scenario: Scenario, cells: Iterable[Cell]) -> list[str]:
    """One line for everything in a scenario that changes nothing; ``cells`` are those of it that run."""
    rules = SCOPES + SETTINGS if is_axis("scope", scenario.cell.get("scope")) else SETTINGS
    return [*cell_warnings(cells, rules), *idle_rules(scenario), *repeated(scenario)]
