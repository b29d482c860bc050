"""From a scenario to its cells: axes, zipped axes, exclusions, refusals and keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robustfl.autobyz import NAME, Ensemble, named
from robustfl.contracts import Aggregator
from robustfl.data import data_root
from robustfl.errors import UsageError
from robustfl.records import KEY_VERSION, LATER, digest, labels_of
from robustfl.registry import KINDS, load_file, lookup, reread_session
from robustfl.specs import parse

from .cell import LISTS, Cell, canonical_users, setting
from .methods import LISTED, METHODS, PIPELINES, SAME, TEXTS, canonical_method, canonical_methods, identified
from .spec import Scenario, is_axis, specs_of, tables_of

ENGINE_VERSION = 1
"""Raised when numbers of cells in general change beyond rounding; for narrower faults a method's version is."""
MOST_CELLS = 200_000
CELL_BYTES = 2500  # of a planned cell and its key, measured
SCOPE = Cell.model_fields["scope"].default


def expand(scenario: Scenario) -> list[Cell]:
    """All cells of a scenario in the order of its axes, the last varying fastest; duplicates appear once."""
    for plugin in scenario.plugins:
        load_file(plugin)
    reread_session()
    axes = {field: list(_options(field, value)) for field, value in scenario.cell.items()}
    for field in axes:
        if field not in Cell.model_fields:
            Cell.of({field: axes[field][0]})
    asked(scenario)
    cells = list(dict.fromkeys(cell for cell, rules in _matched(scenario, axes) if not rules))
    if not cells:
        raise UsageError(f"scenario {scenario.name!r} has no cells: its exclude rules drop every combination")
    return cells


def idle_rules(scenario: Scenario) -> list[str]:
    """One line for every exclusion of a scenario that drops no cell, though all that it names is an axis.

    What has a single value may have been narrowed to it, and a rule about others is not wrong then.
    """
    axes = {field: list(_options(field, value)) for field, value in scenario.cell.items()}
    open_ones = {field for field, options in axes.items() if len(options) > 1}
    asked = [place for place, rule in enumerate(scenario.exclude) if rule.keys() <= open_ones]
    met = {place for _, rules in _matched(scenario, axes) for place in rules} if asked else set()
    idle = [scenario.exclude[place] for place in asked if place not in met]
    return ["exclude: no cell has " + ", ".join(f"{k} = {v!r}" for k, v in rule.items()) for rule in idle]


def _matched(scenario: Scenario, axes: dict[str, list[Any]]) -> Iterator[tuple[Cell, list[int]]]:
    """Every combination of the axes with the places of the exclusions that match it."""
    rules, seeded = [_rule(rule) for rule in scenario.exclude], _Seeded()
    for combination in _combinations(scenario, axes):
        for settings, ensemble in _members(combination):
            cell = seeded(settings)
            yield cell, [place for place, rule in enumerate(rules) if _matches(rule, cell, ensemble)]


class _Seeded:
    """Cells from settings; of those that differ in nothing but a seed seen before, one is checked."""

    def __init__(self) -> None:
        self._checked: dict[tuple[int, ...], tuple[Mapping[str, Any], Cell]] = {}
        self._seeds: set[int] = set()

    def __call__(self, settings: Mapping[str, Any]) -> Cell:
        seed = settings.get("seed", Cell.model_fields["seed"].default)
        key = tuple(id(value) for name, value in settings.items() if name != "seed")
        if key not in self._checked or type(seed) is not int or seed not in self._seeds:
            self._checked[key] = settings, Cell.of(settings)  # kept, so that no other value gets its identity
            self._seeds.add(seed)
        cell = self._checked[key][1]
        return cell.model_copy(update={"seed": seed}) if type(seed) is int else cell


def _combinations(scenario: Scenario, axes: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    zipped: dict[str, tuple[str, ...]] = {}
    for names in scenario.zip:
        for name in names:
            if name not in axes:
                raise UsageError(f"zip: {name!r} is no axis of this scenario; its cell settings are {', '.join(axes)}")
            if name in zipped:
                raise UsageError(f"zip: {name!r} appears twice")
            zipped[name] = tuple(names)
        lengths = {name: len(axes[name]) for name in names}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"zip: axes must have one length, not {lengths}")
    groups = list(dict.fromkeys(zipped.get(name, (name,)) for name in axes))
    columns = [list(zip(*(axes[name] for name in group), strict=True)) for group in groups]
    asked = math.prod(len(column) for column in columns)
    if asked > MOST_CELLS:
        raise UsageError(
            f"scenario {scenario.name!r} asks for {asked} combinations; a grid takes at most {MOST_CELLS}, whose plan "
            f"holds {MOST_CELLS * CELL_BYTES / 2**30:.1f} GiB. Run it in pieces, such as --set seed=[0,1]: they meet "
            "in one store"
        )
    order = list(itertools.chain.from_iterable(groups))
    for choice in itertools.product(*columns):
        yield dict(zip(order, itertools.chain.from_iterable(choice), strict=True))


def _options(field: str, value: Any) -> Iterator[Any]:
    """The values of one axis. A list is an axis; for settings that are lists themselves, a list of lists is."""
    if field in LISTS:
        yield from (_listed(field, one) for one in (value if is_axis(field, value) else [value]))
        return
    options = value if isinstance(value, list) else [value]
    if not options:
        raise UsageError(f"{field}=[] is an empty axis; leave {field} out or give it a value")
    for option in options:
        if field == "schedule":
            yield from tables_of("schedule", _schedule(option), but=("values", "milestones"))
        elif field in (*TEXTS, *PIPELINES, "at"):
            yield from specs_of(field, option) if isinstance(option, Mapping) else [_name(option)]
        else:
            yield option


def _listed(field: str, value: Any) -> Any:
    """A list of methods, those that are tables as specs."""
    if not isinstance(value, list) or not any(isinstance(item, Mapping) for item in value):
        return value
    return [spec for item in value for spec in (specs_of(field, item) if isinstance(item, Mapping) else [item])]


def _name(option: Any) -> Any:
    """A method's name where TOML reads a number: the attacks ``nan`` and ``inf``."""
    return str(option) if isinstance(option, float) and str(option) in ("nan", "inf") else option


def _schedule(option: Any) -> Mapping[str, Any]:
    """A schedule as a table, also where it is written as boards write it: ``constant(lr=0.1)``."""
    if isinstance(option, str):
        kind, fields = parse(option)
        return {"kind": kind, **fields}
    if not isinstance(option, Mapping):
        raise UsageError(f"schedule={option!r} must be a table such as {{ kind = 'constant', lr = 0.1 }}")
    return option


class _Bare(str):
    """A method written without parameters: it stands for the method with whatever parameters."""

    __slots__ = ()

    def stands_for(self, held: object) -> bool:
        return isinstance(held, str) and (held == self or held.split("(")[0] == self)


def _matches(rule: Mapping[str, list[Any]], cell: Cell, ensemble: str) -> bool:
    """True if all entries match; ``"alie"`` matches every ``alie``, ``"foe(eta=3)"`` only the one with the default.

    ``ensemble`` is the set of attacks that the cell stands for, if any: as an attack, it matches too.
    """
    for field, options in rule.items():
        held = [getattr(cell, field)] + ([cell.statistics_rule] if field == "statistics_defense" else [])
        held += [ensemble] if field == "attack" else []
        held += [cell.users] if field == "domain_users" else []
        held += [tuple(sorted(cell.forgetting_rounds))] if field == "forgetting" else []
        if not any(o.stands_for(h) if isinstance(o, _Bare) else h == o for o in options for h in held):
            return False
    return True


def _rule(rule: Mapping[str, Any]) -> dict[str, list[Any]]:
    """An exclusion: per setting the values of which one must match. Raises ``UsageError`` for one that no cell has."""
    if not rule:
        raise UsageError("exclude: a rule without entries would drop every cell")
    try:
        return {field: [_resolved(field, o) for o in _options(field, value)] for field, value in rule.items()}
    except UsageError as error:
        raise UsageError(f"exclude: {error}") from None


def _resolved(field: str, option: Any) -> Any:
    """One option of an exclusion in the form in which cells hold it; a bare name stays one."""
    if field == "schedule":
        return Cell.of({field: option}).schedule
    if field in LISTED:
        return canonical_methods(field, option)
    if field in TEXTS or field == "statistics_defense":
        return _bare_or_whole(field, option)
    if field == "domain_users":
        canonical_users(option)
        return tuple(option)
    found = setting(field, option)
    return tuple(sorted(set(found))) if isinstance(found, tuple) else found  # rounds of forgetting, as cells hold them


def _bare_or_whole(field: str, option: Any) -> str:
    """A method without parameters as such, and any other as cells hold it."""
    if field == "attack" and (ensemble := named(option)) is not None:
        return ensemble.spec if "(" in option else _Bare(option)
    kind = "evasion" if field == "train_evasion" else "defense" if field in PIPELINES else field
    if kind not in KINDS or not isinstance(option, str) or any(sign in option for sign in "(+:") or option == SAME:
        found = canonical_method(field, option)
        return found if "(" in str(option) else _Bare(found)
    if not issubclass(lookup(kind, option).cls, Aggregator) and kind == "defense":
        canonical_method(field, option)  # a step alone is no defense, and says so
    return _Bare(option)


# --- AutoByz: one value of the axis ``attack`` that stands for a cell per member --------------------------------------


def asked(scenario: Scenario) -> Ensemble | None:
    """The ensemble that a scenario's attacks name, or None.

    Raises ``UsageError`` for two versions of it and for a scope with several values, since members forge channels of
    their own.
    """
    attacks = scenario.cell.get("attack")
    listed = attacks if isinstance(attacks, list) else [attacks]
    specs = (spec for o in listed for spec in (specs_of("attack", o) if isinstance(o, Mapping) else [o]))
    found = {ensemble for spec in specs if (ensemble := named(spec)) is not None}
    if len(found) > 1:
        raise UsageError(f"attack: {NAME} in {len(found)} versions; a scenario takes one")
    scope = scenario.cell.get("scope")
    if found and is_axis("scope", scope):
        raise UsageError(
            f"scope={scope!r}: beside attack={NAME!r}, whose members forge channels of their own, one value"
        )
    return next(iter(found), None)


def _members(settings: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The settings of every cell that these settings stand for, with the ensemble's spec where they name one."""
    ensemble = named(settings.get("attack"))
    if ensemble is None:
        yield dict(settings), ""
        return
    scope = settings.get("scope", SCOPE)
    for attack, channel in ensemble.by_cell(scope):
        yield {**settings, "attack": attack, "scope": channel}, ensemble.spec


# --- identity --------------------------------------------------------------------------------------------------------


def fingerprints(cells: list[Cell], root: str | Path | None, *, download: bool = True) -> dict[Cell, str]:
    """The digest of every cell's data, and of the file of its initial weights. Raises ``DataMissing``."""
    known: dict[str, str] = {}
    found: dict[Cell, str] = {}
    for cell in cells:
        names, methods = cell.domains or (cell.dataset,), cell.methods
        for name, dataset in zip(names, methods.datasets, strict=True):
            if name not in known:
                known[name] = dataset.fingerprint(data_root(root), download=download)
        weights = () if methods.init is None else (f"weights:{methods.init.digest(data_root(root))}",)
        found[cell] = "+".join((*(known[name] for name in names), *weights))
    return found


def resolve(cell: Cell, fingerprint: str) -> dict[str, Any]:
    """The cell with every method's version and parameters and the data's digest: what the key is made of.

    A setting in ``LATER`` is left out at its default.
    """
    told = {
        "domains": cell.domains, "train_evasion": cell.adversarial, "propagation": cell.propagation != "none",
        "statistics_defense": cell.statistics_defense != SAME,
    }  # fmt: skip
    methods = {}
    for name in (*METHODS, "evasions", *(name for name, has in told.items() if has)):
        text = getattr(cell, name)
        methods[name] = [identified(name, item) for item in text] if name in LISTED else identified(name, text)
    settings = {k: v for k, v in cell.model_dump(mode="json").items() if k not in LATER or v != LATER[k]}
    return {
        "key_version": KEY_VERSION, "engine": ENGINE_VERSION, "cell": settings, "methods": methods, "data": fingerprint,
    }  # fmt: skip


def key_of(resolved: Mapping[str, Any]) -> str:
    """The cell's key."""
    return digest(dict(resolved))


def labels(cell: Cell) -> dict[str, Any]:
    """A cell as tables print it, in JSON data: every setting, methods as specs."""
    return labels_of(cell.model_dump(mode="json"))


def default_labels() -> dict[str, Any]:
    """The labels of the cell of all defaults."""
    return labels(Cell.of({}))
