"""Attacks and settings that change nothing, as far as that is known before training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from robustfl.attacks.evasion.accounts import odd_radius, short_way
from robustfl.contracts import Algorithm, BranchedNorm, OneMachineNorm, Tag
from robustfl.records import canonical, measured_in

from .cell import Cell, of_each
from .expand import idle_rules, repeated
from .spec import Scenario, is_axis

_SENT = frozenset({Tag.WEIGHT, Tag.AFFINE})
"""What clients send updates of, unless it is private."""
_OWN = frozenset({Tag.MEAN, Tag.VARIANCE})
"""What clients keep of a branch."""


def no_effect(cell: Cell) -> str | None:
    """Why the attack of a cell leaves the honest mean as it is, or None.

    Nobody attacks, nobody hears of it, or the attack's certificate has strength 0. A strength that an attack searches
    while it runs is in no certificate; the run then measures what it moved.
    """
    attack, norm = cell.methods.attack, cell.methods.norm
    if not (attack.forges or attack.poisons_data):
        return None
    settings = cell.settings
    n, f = settings.participants, settings.attackers
    if cell.f == 0 or f == 0:
        return f"f = {cell.f}: nobody attacks, though the attack is {cell.attack}; give f, such as --set f=3"
    if norm.private >= _SENT:
        return f"{cell.attack} reaches nobody: with {cell.norm} clients send nothing"
    if attack.forges and cell.scope == "statistics" and norm.sends_statistics and norm.frozen(0, cell.rounds):
        return f"{cell.attack} has no effect: {cell.norm} sends no statistics in {_counted(cell.rounds)}"
    if not any(attack.on(t) for t in range(cell.end)):
        return f"{cell.attack} has no effect: it does not begin in {_counted(cell.end)}"
    if cell.methods.algorithm.weighted or cell.methods.propagation is not None:
        return None  # what is sent is the plain mean, and the mean of all messages is a weighted one
    if f is None or not attack.strength or attack.certificate(n, f).get(attack.strength) != 0:
        return None
    return (
        f"{cell.attack} has no effect with n = {n} and f = {f}: its {attack.strength} is 0, so the attackers send the "
        "honest mean"
    )


def idle_settings(cell: Cell) -> Iterator[str]:
    """Every setting of a cell that changes no number of it, with the reason."""
    yield from _idle_of_attackers(cell)
    yield from _idle_of_users(cell)
    yield from _idle_in_so_few_rounds(cell)
    if cell.precision == "tf32" and cell.dtype != "float32":
        yield f"precision = 'tf32' changes nothing: it shortens products of float32, and dtype = {cell.dtype!r}"
    if cell.evaluate_ra and not cell.evasions:
        yield "evaluate_ra = true changes nothing: evasions = []"
    if cell.ra_limit is not None and not cell.evasions:
        yield f"ra_limit = {cell.ra_limit} changes nothing: evasions = []"
    yield from _idle_radii(cell)
    if cell.schedule.kind == "geometric" and cell.schedule.factor == 1:
        yield "schedule: factor = 1 changes no rate; kind = 'constant' has the same"
    if abs(cell.participation * cell.clients - cell.participants) > 1e-6:
        asked = f"{cell.participation:g} of {cell.clients} clients is {cell.participation * cell.clients:g}"
        yield f"participation = {asked}; {cell.participants} take part"
    if cell.tail > cell.end:
        yield f"tail = {cell.tail} is more than {_counted(cell.end)}: the mean is over all of them"
    if cell.defense != _default("defense") and isinstance(cell.methods.norm, OneMachineNorm):
        yield f"defense = {cell.defense!r} changes nothing: {cell.norm} is one machine, whose rows are all the same"
    if cell.defense != _default("defense") and cell.methods.norm.private >= _SENT:
        yield f"defense = {cell.defense!r} changes nothing: with {cell.norm} clients send nothing"
    if cell.methods.norm.private >= _SENT and type(cell.methods.algorithm).server_step is not Algorithm.server_step:
        yield f"algorithm = {cell.algorithm!r}: its server changes nothing: with {cell.norm} clients send it nothing"


def _idle_radii(cell: Cell) -> Iterator[str]:
    """Radii of 0, and radii in units of 255 where pixels reach from 0 to 1: every image is then within reach."""
    told = {"evasions": cell.methods.evasions, "train_evasion": (cell.methods.train_evasion,)}
    for name, evasion in ((name, one) for name, some in told.items() for one in some):
        if words := odd_radius(evasion):
            yield f"{name}: {words}"
    for words in filter(None, map(short_way, cell.methods.evasions)):  # a training attack may well be a short one
        yield f"evasions: {words}"


def _idle_of_attackers(cell: Cell) -> Iterator[str]:
    """Settings of Byzantine clients. Of cells that nobody attacks only what no attack would need."""
    m = cell.methods
    if cell.target != "mean" and cell.scope == "update":
        yield f"target = {cell.target!r} changes nothing: with scope = 'update' attackers leave statistics alone"
    elif cell.target != "mean" and m.attack.forges and cell.f and not m.norm.sends_statistics and m.propagation is None:
        yield f"target = {cell.target!r} changes nothing: {cell.norm} sends no statistics"
    for name in ("scope", "target"):
        if m.attack.poisons_data and not m.attack.forges and cell.f and getattr(cell, name) != _default(name):
            yield f"{name} = {getattr(cell, name)!r} changes nothing: {cell.attack} forges no message, it poisons data"
    if m.attack.leaves_statistics and cell.f and cell.scope == "statistics":
        yield f"scope = 'statistics': {cell.attack} forges updates alone, so what is left of it is poisoned data"
    if m.attack.leaves_statistics and cell.f and cell.target != "mean" and cell.scope != "update":
        yield f"target = {cell.target!r} changes nothing: {cell.attack} forges no statistics"
    attackers = cell.settings.attackers
    if cell.quota and attackers and cell.f_declared == cell.f != attackers and cell.defense != _default("defense"):
        told = f"{attackers} of {cell.participants} attack in every round, and the defense is told f = {cell.f}"
        yield f"quota = true: {told}; f_declared={attackers} tells it what it meets"
    if cell.quota and (cell.f == 0 or cell.participation == 1):
        why = "f = 0" if cell.f == 0 else "every client takes part in every round"
        yield f"quota = true changes nothing: {why}"
    if cell.attackers_data != "own" and cell.f == 0:
        yield f"attackers_data = {cell.attackers_data!r} changes nothing: f = 0"
    everybody = len(cell.adversarial) == (cell.clients if cell.byzantine == "at" else 0)
    if cell.byzantine != "any" and (cell.f == 0 or everybody):
        why = "f = 0" if cell.f == 0 else f"with at = {cell.at!r} that is everybody"
        yield f"byzantine = {cell.byzantine!r} changes nothing: {why}"


def _idle_of_users(cell: Cell) -> Iterator[str]:
    """Settings of users that train adversarially, and of the branch that is tested."""
    m = cell.methods
    branched, trains = isinstance(m.norm, BranchedNorm), cell.adversarial and m.objective.needs_adversaries
    if cell.branch != "both" and not branched:
        yield f"branch = {cell.branch!r} changes nothing: {cell.norm} has no branches"
    if cell.branch != "clean" and branched and not trains:
        yield (
            f"branch = {cell.branch!r} tests the adversarial branch of {cell.norm}, which nobody trains; with branch = "
            "'clean' the other one is tested"
        )
    elif cell.branch != "clean" and branched and m.norm.private >= _OWN and m.propagation is None:
        others = cell.clients - len(cell.adversarial)
        if others:
            yield (
                f"branch = {cell.branch!r}: {others} of {cell.clients} users never train the adversarial branch of "
                f"{cell.norm} that they are tested through, and without a propagation nobody gives them its statistics"
            )
    elif branched and not trains and not getattr(m.norm, "share_affine", True):
        yield f"norm = {cell.norm!r}: share_affine=False changes nothing: nobody trains the adversarial branch"
    chosen = cell.select == "validation" and bool(cell.adversarial)  # by the robust accuracy of AT users
    why = f"with objective = {cell.objective!r} nobody trains adversarially"
    why = why if cell.adversarial else f"at = {cell.at!r}, nobody trains adversarially"
    if cell.train_evasion != _default("train_evasion") and not chosen and not (trains and m.objective.asks_evasion):
        known = f"{cell.objective} makes adversarial examples of its own" if trains else why
        yield f"train_evasion = {cell.train_evasion!r} changes nothing: {known}"
    if trains:
        return
    if m.propagation is not None:
        yield f"propagation = {cell.propagation!r} changes nothing: {why}"
    if cell.adversarial and cell.byzantine == "any" and m.finetune is None and not chosen:
        yield f"at = {cell.at!r} changes nothing: {why}"


def _idle_in_so_few_rounds(cell: Cell) -> Iterator[str]:
    """What the training ends before it comes to.

    A pilot with ``stop`` has the schedule and the norm's phases of the whole training, and may end before them.
    """
    m, rounds, ends = cell.methods, cell.rounds, cell.end
    late = [at for at in cell.schedule.milestones if at >= rounds]
    if late:
        yield f"schedule: milestones {late} are never reached in {_counted(rounds)}, nor are the rates after them"
    if rounds == 1 and cell.schedule.factor != 1:
        yield f"schedule: factor={cell.schedule.factor:g} changes no rate in {_counted(rounds)}"
    for name, known in (("norm", rounds), ("algorithm", ends), ("objective", ends)):
        if words := getattr(m, name).unreached(known):
            yield f"{name} = {getattr(cell, name)!r} in {_counted(known)}: {words}"
    tests_alone = m.propagation is not None and not m.propagation.propagation.every_round and cell.scope == "statistics"
    if cell.f and (words := m.attack.unreached(1 if tests_alone else ends)):
        where = "statistics that are handed on for tests alone" if tests_alone else _counted(ends)
        yield f"attack = {cell.attack!r} in {where}: {words}"
    for words in filter(None, (part.unreached(ends) for part in m.defense.parts)):
        yield f"defense = {cell.defense!r} in {_counted(ends)}: {words}"
    if any(measured_in(t, cell.end, cell.evaluate_every, cell.tail) for t in range(1, cell.end)):
        return
    why = f"of {_counted(cell.end)} only the last is evaluated (evaluate_every = {cell.evaluate_every})"
    if cell.select == "validation":
        yield f"select = 'validation' changes nothing: {why}"
    if cell.evaluate_ra and cell.evasions:
        yield f"evaluate_ra = true changes nothing: {why}, under attack in any case"


def _counted(rounds: int) -> str:
    return f"{rounds} round{'s' if rounds > 1 else ''}"


def _default(name: str) -> Any:
    return Cell.model_fields[name].default


def effect_warnings(cells: Iterable[Cell]) -> list[str]:
    """One line for every reason why an attack or a setting of these cells changes nothing, with the number of cells."""
    attacks: Counter[str] = Counter()
    settings: Counter[str] = Counter()
    for reason, idle_ones in of_each(cells, lambda cell: (no_effect(cell), tuple(idle_settings(cell)))):
        attacks.update([] if reason is None else [reason])
        settings.update(idle_ones)
    idle = [f"{reason} {_cells(n)}; they count in no worst case" for reason, n in attacks.items()]
    return [*idle, *(f"{reason} {_cells(n)}" for reason, n in settings.items())]


def scenario_warnings(scenario: Scenario, cells: Iterable[Cell]) -> list[str]:
    """One line for everything in a scenario that changes nothing; ``cells`` are those of it that run."""
    cells = list(cells)
    return [*effect_warnings(cells), *idle_rules(scenario), *repeated(scenario), *_alike_in_scope(scenario, cells)]


def _alike_in_scope(scenario: Scenario, cells: Iterable[Cell]) -> Iterator[str]:
    """Norms whose cells differ in their scope alone and train alike, since there are no statistics to forge."""
    if not is_axis("scope", scenario.cell.get("scope")):
        return
    again: Counter[str] = Counter()
    met: set[str] = set()
    for cell in cells:
        m = cell.methods
        if m.attack.forges and cell.f and not m.norm.sends_statistics and m.propagation is None:
            rest = canonical(cell.model_dump(mode="json", exclude={"scope"}))
            again[cell.norm] += rest in met
            met.add(rest)
    for norm, n in again.items():
        if n:
            yield f"scope changes nothing: {norm} sends no statistics, so cells train as others do {_cells(n)}"


def _cells(n: int) -> str:
    return f"({n} cell{'s' if n > 1 else ''})"
