"""Holding a board against the protocol that it says it follows: attacks complete, tuning within budget, its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from robustfl.autobyz import Asked, asked_of
from robustfl.defenses import parse_pipeline
from robustfl.errors import UsageError, some
from robustfl.records import LATER, CellResult, canonical, completed, plain, text_without
from robustfl.reports.published import Board
from robustfl.reports.published.agreement import settings_apart

from .bench import Contestant, Search, attacked_row, configurations, final_scenario, more_seeds
from .cell import Cell
from .expand import asked as ensemble_asked
from .expand import expand, labels
from .protocol import Protocol, protocol_of, scenario_to_run
from .spec import Scenario

_OLD = {"statistic": "final"}
"""What boards of earlier versions do not say."""
Labels = Mapping[str, Any]


def apart_from_protocol(board: Board, records: Sequence[CellResult] | None = None) -> list[str]:
    """The faults in a board's word that it counts AutoByz and follows the protocol; none if it gives no word.

    ``records`` are the board's, where somebody has made them already.
    """
    said = board.protocol or {}
    try:
        asked, facts = asked_of(said), said.get("benchmark")
        if asked is None and facts is None:
            return []
        known = board.records() if records is None else records
        found = [] if asked is None else list(_missing_members([r.labels for r in known], asked))
        return found + ([] if facts is None else list(_apart(known, facts, asked)))
    except UsageError as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"what it says of its protocol has another form: {type(error).__name__}: {error}"]


def words_of(board: Board) -> str:
    """The protocol that a board says it follows, with what was changed; empty without one."""
    said = board.protocol or {}
    facts, asked = said.get("benchmark"), asked_of(said)
    parts = [] if asked is None else [f"AutoByz version {asked.ensemble.version} complete"]
    if facts is not None:
        parts.append(f"tier {facts['tier']}, {len(facts['contestants'])} contestants tuned within the budget")
        if facts["changed"]:
            parts.append(f"not the whole protocol, which it says: {', '.join(facts['changed'])}")
    return "; ".join(parts)


def _missing_members(present: Sequence[Labels], asked: Asked) -> Iterator[str]:
    """Members that a contestant did not meet with some seed, of those that met any attack with it."""
    met: dict[str, set[tuple[Any, Any]]] = {}
    names: dict[str, str] = {}
    for cell in present:
        if cell["attack"] == "none":
            continue
        place = text_without(cell, "attack", "scope")
        names[place] = f"{cell['defense']}, {cell['norm']}, seed {cell['seed']}"
        met.setdefault(place, set()).add((cell["attack"], cell["scope"]))
    for place, attacks in met.items():
        members = asked.ensemble.by_cell(asked.scope)
        missing = [member.label for cell, member in members.items() if cell not in attacks]
        if missing:
            yield f"{names[place]}: AutoByz without {some(missing)}"


def _apart(records: Sequence[CellResult], facts: Labels, asked: Asked | None) -> Iterator[str]:
    """What is not as a tier of the protocol has it."""
    rules = protocol_of(facts["version"])
    tier = rules.tier(facts["tier"])
    scenario = scenario_to_run(tier, facts["changed"])
    ensemble = ensemble_asked(scenario)
    if ensemble is not None and asked is None:
        yield "it does not say which attacks count as AutoByz"
    if ensemble is None and asked is not None:
        yield "it counts AutoByz, which did not run"
    right = {
        "title": tier.title, "budget": rules.budget, "tuning": plain(dict(tier.tuning)),
        "autobyz": ensemble.version if ensemble else None, "statistic": tier.statistic,
    }  # fmt: skip
    for name, value in right.items():
        if facts.get(name, _OLD.get(name)) != value:
            yield f"its {name} is {facts.get(name)!r}, the protocol's {value!r}"
    found: dict[str, Search] = {}
    for name, entry in facts["contestants"].items():
        contestant = Contestant.named(name, entry)
        scores = [tried["validation"] for tried in entry["search"]]
        tried = tuple(zip(configurations(contestant, rules), scores, strict=False))
        search = Search(contestant, parse_pipeline(contestant.of("defense")).knowledge, tried)
        wrong = list(_search_apart(search, entry, tuple(tier.tuning["attack"]), rules))
        yield from (f"{name}: {words}" for words in wrong)
        if not wrong:
            found[name] = search
    if len(found) < len(facts["contestants"]):
        return
    near, seeds = facts.get("near", []), more_seeds(tier, facts["changed"], scenario)
    if near and not seeds:
        yield f"it names rows near the first, {some(near)}, and its tier runs no more seeds for these"
    if strange := [name for name in near if name not in found]:
        yield f"it names {some(strange)} as near the first, and has no such row"
    wanted = expand(final_scenario(scenario, found, near, seeds))
    wanted += _challenges(scenario, found, facts.get("beaten", []), dict.fromkeys(near, seeds))
    yield from _cells_apart(wanted, records)


def _challenges(
    scenario: Scenario, found: Mapping[str, Search], beaten: Sequence[Labels], more: Mapping[str, Sequence[int]]
) -> list[Cell]:
    """The cells of attacks that were run on rows to beat them; ``more`` are further seeds of rows."""
    cells = []
    for one in beaten:
        if one["contestant"] not in found:
            raise UsageError(f"it names attacks on {one['contestant']!r}, which is no contestant of its")
        search, seeds = found[one["contestant"]], more.get(one["contestant"], ())
        cells += expand(attacked_row(scenario, search.tried[search.best][0], [one["attack"]], one["scope"], seeds))
    return cells


def _search_apart(search: Search, entry: Labels, attacks: tuple[str, ...], rules: Protocol) -> Iterator[str]:
    """What a contestant's entry says of its ``search``, and should not."""
    tried = [one["validation"] for one in entry["search"]]
    if len(tried) != rules.budget:
        yield f"tuned on {len(tried)} configurations; the budget is {rules.budget}"
        return
    if any(set(scores) != set(attacks) for scores in tried):
        yield f"tuned under other attacks than {', '.join(attacks)}"
        return
    scores = [score for one in tried for score in one.values() if score is not None]
    if not all(0 <= score <= 1 for score in scores):
        yield "a score of its search is no accuracy"
    reason = entry.get("reason", "")
    if not isinstance(reason, str) or bool(reason) == bool(scores):
        yield f"its reason is {reason!r}: a search says why if it has no score, and only then"
    by_rules, compared = plain(search.as_dict()), ("knowledge", "chosen", "search")
    for path, theirs, ours in settings_apart({n: entry[n] for n in compared}, {n: by_rules[n] for n in compared}):
        yield f"its {path} is {theirs!r}, by the protocol {ours!r}"


def _cells_apart(wanted: Iterable[Cell], records: Sequence[CellResult]) -> Iterator[str]:
    """Cells that the tier has and the board lacks, the other way round, and those that the board has under two keys."""
    asked = {canonical(cell.model_dump(mode="json")): labels(cell) for cell in wanted}
    found = [(canonical(completed(r.cell["cell"], LATER)), r.labels) for r in records]
    here, counted = dict(found), Counter(text for text, _ in found)
    for words, cells in (
        ("lacks", [asked[k] for k in asked.keys() - here.keys()]),
        ("has what the tier does not:", [here[k] for k in here.keys() - asked.keys()]),
        ("has more than one cell of", [here[k] for k, count in counted.items() if count > 1]),
    ):
        if cells:
            yield f"it {words} " + some(
                sorted(f"{c['defense']}, {c['norm']}, {c['attack']}, seed {c['seed']}" for c in cells)
            )
