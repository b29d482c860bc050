"""The benchmark: a fixed protocol that tunes every contestant alike, then measures it under AutoByz."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from robustfl.defenses import parse_pipeline
from robustfl.errors import RobustflError, UsageError, closest, some
from robustfl.records import CellResult, digest, labels_of, plain
from robustfl.registry import describe, entries
from robustfl.reports.published import publish
from robustfl.reports.published.board import carried
from robustfl.reports.store import Store
from robustfl.specs import parse

from .cell import Cell
from .expand import asked, expand, fingerprints, key_of, resolve
from .grid import Results
from .methods import canonical_method
from .protocol import NAMED, SEARCHED, WHO, Protocol, Tier, protocol, scenario_to_run
from .run_options import WARNING, unheard
from .spec import Scenario, is_axis, name_of

RunGrid = Callable[..., Results]
"""``run_grid`` with everything set but the scenario and its ``facts``."""


@dataclass(frozen=True)
class Contestant:
    """A defense, a norm and an algorithm (and what else a tier varies), before it is tuned."""

    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Its name on boards: its methods in the order of ``WHO``."""
        return " · ".join(value for _, value in self.settings)

    def of(self, setting: str) -> str:
        """One of its methods."""
        return dict(self.settings)[setting]

    @classmethod
    def named(cls, name: str, entry: Mapping[str, Any]) -> Contestant:
        """The contestant that a board names with its search."""
        who = [setting for setting in WHO if setting in entry["search"][0]]
        return cls(tuple(zip(who, name.split(" · "), strict=True)))


def contestants(scenario: Scenario, wanted: Sequence[str] = ()) -> tuple[Contestant, ...]:
    """The contestants of a tier; of them those that ``wanted`` names, and new ones that it names in full.

    A wish is ``DEFENSE[/NORM[/ALGORITHM]]``; a part that is left out or ``*`` takes all of the tier's. A defense, norm
    or algorithm that the tier does not have joins if it is a method of this installation. Raises ``UsageError`` with
    the nearest name otherwise.
    """
    fixed = {name: scenario.values(name)[0] for name in scenario.cell if name not in (*WHO, "attack")}
    varied = {name: scenario.cell[name] for name in WHO if name in scenario.cell}
    reduced = scenario.model_copy(update={"cell": {**fixed, **varied}})
    who = [name for name in WHO if name in NAMED or is_axis(name, scenario.cell.get(name))]
    all_of_it = tuple(dict.fromkeys(Contestant(tuple((n, str(getattr(c, n))) for n in who)) for c in expand(reduced)))
    if not wanted:
        return all_of_it
    return tuple(dict.fromkeys(c for wish in wanted for c in _matching(wish, all_of_it)))


def _matching(wish: str, known: Sequence[Contestant]) -> list[Contestant]:
    parts = [part.strip() for part in wish.split("/")]
    if not all(parts) or len(parts) > 3:
        raise UsageError(f"contestant {wish!r} must be DEFENSE, DEFENSE/NORM or DEFENSE/NORM/ALGORITHM")
    choices: dict[str, list[str]] = {}
    for name, part in itertools.zip_longest(NAMED, parts, fillvalue="*"):
        have = list(dict.fromkeys(c.of(name) for c in known))
        choices[name] = have if part == "*" else [_method(name, part, have)]
    found = [c for c in known if all(c.of(name) in options for name, options in choices.items())]
    if found:
        return found
    rest = dict(known[0].settings[3:])
    return [
        Contestant((*zip(choices, combination, strict=True), *rest.items()))
        for combination in itertools.product(*choices.values())
    ]


def _method(kind: str, part: str, have: Sequence[str]) -> str:
    """The method that a part of a wish names. Raises ``UsageError`` with the nearest name."""
    try:
        return part if part in have else canonical_method(kind, part)
    except UsageError as error:
        known = [*have, *(e.name for e in entries(kind))]
        raise UsageError(f"contestant: no {kind} {part!r} ({error}); {closest(part, known)}") from None


# --- tuning ----------------------------------------------------------------------------------------------------------


def configurations(contestant: Contestant, rules: Protocol) -> tuple[dict[str, Any], ...]:
    """The settings that a contestant tries, equally many for every contestant: its methods with a learning rate."""
    base = dict(contestant.settings)
    options = _own_values(base["defense"], rules)
    rates = rules.coarse if len(options) > 1 else rules.rates
    tried = [
        {**base, "defense": defense, SEARCHED: {"kind": "constant", "lr": lr}} for lr in rates for defense in options
    ]
    assert len(tried) == rules.budget, f"{contestant.name} has {len(tried)} configurations"
    return tuple(tried)


def _own_values(defense: str, rules: Protocol) -> list[str]:
    """The defense with every value of its first part that has parameters to tune and was not given any."""
    steps = [describe(part) for part in parse_pipeline(defense).parts]
    for i, step in enumerate(steps):
        name, given = parse(step)
        if name in rules.own and not given:
            ((parameter, values),) = rules.own[name].items()
            made = ["+".join([*steps[:i], f"{name}({parameter}={value})", *steps[i + 1 :]]) for value in values]
            return [canonical_method("defense", spec) for spec in made]
    return [defense]


def tuning_scenario(tier: Tier, scenario: Scenario, chosen: Sequence[Contestant], rules: Protocol) -> Scenario:
    """Every configuration of the contestants under every tuning attack, on validation data of honest clients.

    Raises ``UsageError`` for a setting with several values that the tuning leaves open: it chooses by one number.
    """
    cell = {k: v for k, v in scenario.cell.items() if k not in WHO} | dict(tier.tuning)
    for name, value in cell.items():
        if name not in ("attack", SEARCHED) and is_axis(name, value) and len(value) > 1:
            raise UsageError(f"bench: {name}={value!r} has several values, and the tuning tries one; name one")
    cell |= {"evasions": [], "ra_limit": None, "evaluate_every": cell["rounds"]}
    tried = [configuration for contestant in chosen for configuration in configurations(contestant, rules)]
    return _zipped(scenario, f"{scenario.name}-tuning", cell, tried)


def _zipped(
    scenario: Scenario, name: str, cell: Mapping[str, Any], tried: Sequence[Mapping[str, Any]],
    exclude: Sequence[Mapping[str, Any]] = (),
) -> Scenario:  # fmt: skip
    axes = {setting: [settings[setting] for settings in tried] for setting in tried[0]}
    fixed = {n: scenario.cell[n] for n in WHO if n in scenario.cell and n not in axes}
    about = {"name": name, "description": scenario.description, "plugins": scenario.plugins}
    tasks = [group for group in scenario.zip if all(name in cell and is_axis(name, cell[name]) for name in group)]
    return Scenario.of(
        {**about, "cell": {**cell, **fixed, **axes}, "zip": [*map(list, tasks), list(axes)], "exclude": list(exclude)}
    )


@dataclass(frozen=True)
class Search:
    """The search for one contestant: per configuration its validation accuracy under every attack.

    ``None`` stands for a training that diverged or was refused, and ``reason`` says why if all were. ``key`` is one of
    the keys of all trainings.
    """

    contestant: Contestant
    knowledge: str
    tried: tuple[tuple[dict[str, Any], dict[str, float | None]], ...]
    reason: str = ""
    key: str = ""

    @property
    def best(self) -> int:
        """The place of the chosen configuration: the highest worst case over attacks, of equal ones the first."""
        return max(range(len(self.tried)), key=lambda i: (self.worst(i), -i))

    def worst(self, i: int) -> float:
        """The worst case of a configuration over the tuning attacks; -1 if one has no number."""
        return min(-1.0 if value is None else value for value in self.tried[i][1].values())

    @property
    def undecided(self) -> str:
        """The reason why no configuration is better than another, so that the first is taken; empty if one is."""
        if self.worst(self.best) >= 0:
            return ""
        return self.reason or "every configuration diverged or was refused under some attack"

    @classmethod
    def of(cls, contestant: Contestant, known: Mapping[str, Any], rules: Protocol) -> Search:
        """The search of a contestant's configurations that a board carries (``as_dict``)."""
        scores = [dict(one["validation"]) for one in known["search"]]
        tried = tuple(zip(configurations(contestant, rules), scores, strict=True))
        return cls(contestant, known["knowledge"], tried, known.get("reason", ""), known["key"])

    def as_dict(self) -> dict[str, Any]:
        """The search as boards carry it."""
        tried = [
            {**labels_of(settings), "validation": scores, "worst": None if self.worst(i) < 0 else self.worst(i)}
            for i, (settings, scores) in enumerate(self.tried)
        ]
        found: dict[str, Any] = {"knowledge": self.knowledge, "chosen": self.best, "search": tried}
        more = {"reason": self.reason, "key": self.key}
        return found | {name: value for name, value in more.items() if value}


def kept_searches(
    tier: Tier, scenario: Scenario, chosen: Sequence[Contestant], rules: Protocol, *, out: str | Path,
    root: str | Path | None = None,
) -> dict[str, Search]:  # fmt: skip
    """The searches in the description of the final store, such as one made of a board, by contestant.

    A search counts if its trainings would have the same keys today: with other code of its methods, other settings or
    other data it runs again.
    """
    known = Store(Path(out) / scenario.name).description().get("benchmark", {}).get("contestants", {})
    told = [contestant for contestant in chosen if contestant.name in known]
    found = {}
    for contestant, (key, _) in zip(told, _keys(tier, scenario, told, rules, root).values(), strict=True):
        if known[contestant.name].get("key") == key:
            found[contestant.name] = Search.of(contestant, known[contestant.name], rules)
    return found


Tried = list[dict[str, str]]
"""The keys of the trainings of every configuration, by attack."""


def _keys(
    tier: Tier, scenario: Scenario, chosen: Sequence[Contestant], rules: Protocol, root: str | Path | None
) -> dict[str, tuple[str, Tried]]:
    """By contestant the keys of its tuning, after one of them all."""
    trials = tuning_cells(tier, scenario, chosen, rules) if chosen else {}
    known = fingerprints([cell for own in trials.values() for tried in own for cell in tried.values()], root)
    found = {}
    for name, own in trials.items():
        keys = [{attack: key_of(resolve(c, known[c])) for attack, c in tried.items()} for tried in own]
        found[name] = digest([sorted(tried.values()) for tried in keys]), keys
    return found


def searches(
    tier: Tier, scenario: Scenario, chosen: Sequence[Contestant], rules: Protocol, *, out: str | Path,
    root: str | Path | None = None,
) -> dict[str, Search]:  # fmt: skip
    """The searches of contestants, by name, from the tuning store.

    A training that diverged or was refused counts as lower than any accuracy. Raises ``RobustflError`` if one failed,
    and ``UsageError`` if one ended without a validation accuracy: nothing can be chosen by those.
    """
    keys = _keys(tier, scenario, chosen, rules, root)
    store = Store(Path(out) / tuning_scenario(tier, scenario, chosen, rules).name)
    records = {r.key: r for r in store.load().results}
    found, all_of_it = {}, list[tuple[str, CellResult | None]]()
    for contestant in chosen:
        (key, trials), tried, reasons = keys[contestant.name], [], list[str]()
        for settings, trained in zip(configurations(contestant, rules), trials, strict=True):
            own = {attack: records.get(of) for attack, of in trained.items()}
            tried.append((settings, {attack: validated(record) for attack, record in own.items()}))
            reasons += [_first_line(r) for r in own.values() if r is not None and r.reason]
            words = " · ".join(map(str, labels_of(settings).values()))
            all_of_it += [(f"{words} under {attack}", record) for attack, record in own.items()]
        lost = all(value is None for _, scores in tried for value in scores.values())
        reason = reasons[0] if lost and reasons else ""
        found[contestant.name] = Search(
            contestant, parse_pipeline(contestant.of("defense")).knowledge, tuple(tried), reason, key
        )
    _refuse_unmeasured(all_of_it, store.folder)
    return found


def _refuse_unmeasured(trainings: Sequence[tuple[str, CellResult | None]], folder: Path) -> None:
    """Raise an error if a training of the tuning, by its name, has neither a number nor a reason to have none."""
    failed: dict[str, list[str]] = {}
    for name, record in trainings:
        if record is None or record.status == "failed":
            failed.setdefault("it did not run" if record is None else _first_line(record), []).append(name)
    if failed:
        count = sum(map(len, failed.values()))
        listed = "".join(f"\n  {some(names)}: {reason}" for reason, names in failed.items())
        raise RobustflError(
            f"{count} of {len(trainings)} trainings of the tuning failed, so nothing is chosen, and there is no board:"
            f"{listed}\nThe same command runs them again and goes on; everything on them: robustfl report {folder}"
        )
    empty = [name for name, record in trainings if record and record.status == "done" and validated(record) is None]
    if empty:
        raise UsageError(
            f"{some(empty)}: no honest client has validation data, so nothing can be chosen; give validation a larger "
            "share"
        )


def _first_line(record: CellResult) -> str:
    """The reason of a cell without a number, without its traceback."""
    return str(record.reason).partition("\n")[0]


def tuning_cells(
    tier: Tier, scenario: Scenario, chosen: Sequence[Contestant], rules: Protocol
) -> dict[str, list[dict[str, Cell]]]:
    """Per contestant, and for each of its configurations, the cell that tries it under every tuning attack."""
    tuning = tuning_scenario(tier, scenario, chosen, rules)
    by_settings: dict[str, dict[str, Cell]] = {}
    for cell in expand(tuning):
        by_settings.setdefault(_settings_of(cell), {})[cell.attack] = cell
    return {
        contestant.name: [
            by_settings[_settings_of(Cell.of({**_fixed(tuning), **settings}))]
            for settings in configurations(contestant, rules)
        ]
        for contestant in chosen
    }


def _fixed(scenario: Scenario) -> dict[str, Any]:
    zipped = {name for group in scenario.zip for name in group}
    return {k: v for k, v in scenario.cell.items() if k not in zipped and k != "attack"}


def _settings_of(cell: Cell) -> str:
    return repr([(name, getattr(cell, name)) for name in (*WHO, SEARCHED)])


def validated(record: CellResult | None) -> float | None:
    """The mean accuracy of honest clients on their validation data after the last round; None without a number."""
    if record is None or record.status != "done" or record.metrics is None:
        return None
    byzantine = set(record.certificates.get("byzantine", ()))
    found = enumerate(record.metrics.per_client.get("sa", []))
    values = [value for k, value in found if value is not None and k not in byzantine]
    return fmean(values) if values else None


# --- the tier --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """One run of a tier: the results of the final cells, and what every contestant's tuning came to."""

    results: Results
    searches: Mapping[str, Search] = field(default_factory=dict)


def final_scenario(
    scenario: Scenario, found: Mapping[str, Search], near: Sequence[str] = (), seeds: Sequence[int] = ()
) -> Scenario:
    """The tier's cells with every contestant in its chosen configuration; ``seeds`` are further ones of those ``near``.

    These are names of contestants.
    """
    chosen = {name: search.tried[search.best][0] for name, search in found.items()}
    cell = {k: v for k, v in scenario.cell.items() if k not in WHO}
    if not (near and seeds):
        return _zipped(scenario, scenario.name, cell, list(chosen.values()))
    far = [
        {k: v for k, v in settings.items() if k in WHO} | {"seed": list(seeds)}
        for name, settings in chosen.items() if name not in near
    ]  # fmt: skip
    cell["seed"] = [*scenario.values("seed"), *seeds]
    return _zipped(scenario, scenario.name, cell, list(chosen.values()), far)


def more_seeds(tier: Tier, changed: Sequence[str], scenario: Scenario) -> tuple[int, ...]:
    """The seeds that rows near the first run beside the tier's own; none where seeds or attacks were changed."""
    own = {name_of(setting) for setting in changed}
    if own & {"seed", "attack"} or not tier.near:
        return ()
    return tuple(range(len(scenario.values("seed")), tier.near))


def near_first(results: Results) -> list[str]:
    """The contestants that the results do not tell from the first, itself among them; none without a test."""
    from robustfl.reports.benchmark.data import measured  # loads pandas, which a worker has no use for

    records, protocol = results.records(), carried(Store(results.folder).description())
    board = measured(publish(records, name="near", protocol=protocol), records)
    compared = board.compared
    if not compared.results:
        return []
    near = {compared.reference, *(c.labels for c in compared.results if not c.significant)}
    found = [board.search(row) for row in board.rows if row.labels in near]
    return [name for name, entry in protocol["benchmark"]["contestants"].items() if entry in found]


def attacked_row(
    scenario: Scenario, settings: Mapping[str, Any], attacks: Sequence[str], scope: str, seeds: Sequence[int] = ()
) -> Scenario:
    """The tier's cells of a contestant with these settings, under attacks beside AutoByz that forge ``scope``.

    ``seeds`` are those it runs beside the tier's.
    """
    cell = {k: v for k, v in scenario.cell.items() if k not in WHO}
    cell |= {"attack": list(attacks), "scope": scope, "seed": [*scenario.values("seed"), *seeds]}
    return _zipped(scenario, f"{scenario.name}-beat", cell, [settings])


def planned_scenarios(
    tier: Tier, *, wanted: Sequence[str] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> tuple[Scenario, Scenario]:
    """The grids that ``bench`` would run: the tuning, and the final cells with every first configuration for the best.

    What the search chooses instead differs in learning rate and the defense's own parameters.
    """
    rules, scenario = protocol(), scenario_to_run(tier, settings).beside(plugins)
    chosen = contestants(scenario, wanted)
    first = {one.name: Search(one, "", ((configurations(one, rules)[0], {"none": None}),)) for one in chosen}
    return tuning_scenario(tier, scenario, chosen, rules), final_scenario(scenario, first)


def undecided_words(found: Mapping[str, Search]) -> list[str]:
    """The contestants for whom nothing could be chosen, in a sentence per reason."""
    names: dict[str, list[str]] = {}
    for name, search in found.items():
        if search.undecided:
            names.setdefault(search.undecided, []).append(name)
    return [
        f"nothing could be chosen for {some(own)}, whose final cells have the first configuration: {reason}"
        for reason, own in names.items()
    ]


def bench(
    tier: Tier,
    run: RunGrid,
    *,
    wanted: Sequence[str] = (),
    settings: Sequence[str] = (),
    out: str | Path = "runs",
    root: str | Path | None = None,
    plugins: Sequence[str] = (),
    on_note: Callable[[str], None] = unheard,
) -> Benchmark:
    """Tune the contestants of a tier, then measure them under AutoByz: ``run`` is ``run_grid`` but for the scenario.

    Both parts are ordinary grids with stores of their own (``bench-d-tuning``, ``bench-d``), so that an interrupted
    benchmark resumes, also in a store made of a board: a search that this carries does not run again
    (``kept_searches``). The final store's description, and every board made of it, carries the protocol's version, what
    ``settings`` changed of it, and every contestant's whole search. Before the final cells run, ``on_note`` hears for
    whom nothing could be chosen. Raises ``RobustflError`` if a training of the tuning failed.
    """
    rules, scenario = protocol(), scenario_to_run(tier, settings).beside(plugins)
    ensemble = asked(scenario)
    chosen = contestants(scenario, wanted)
    kept = kept_searches(tier, scenario, chosen, rules, out=out, root=root)
    rest = [contestant for contestant in chosen if contestant.name not in kept]
    if rest:
        run(tuning_scenario(tier, scenario, rest, rules))
        kept |= searches(tier, scenario, rest, rules, out=out, root=root)
    found = {contestant.name: kept[contestant.name] for contestant in chosen}
    for words in undecided_words(found):
        on_note(WARNING + words)
    facts = {
        "benchmark": {
            "tier": tier.name, "title": tier.title, "version": rules.version, "changed": list(settings),
            "autobyz": ensemble.version if ensemble else None, "budget": rules.budget, "statistic": tier.statistic,
            "tuning": plain(dict(tier.tuning)),
            "contestants": {name: search.as_dict() for name, search in found.items()},
        }
    }  # fmt: skip
    results = run(final_scenario(scenario, found), facts=facts)
    seeds = more_seeds(tier, settings, scenario)
    if seeds and not results.lost and not results.statuses.get("failed"):
        near = near_first(results)
        on_note(f"{len(near)} of {len(found)} rows are not told from the first and run {len(seeds)} more seeds")
        facts["benchmark"]["near"] = near
        results = run(final_scenario(scenario, found, near, seeds), facts=facts)
    return Benchmark(results, found)
