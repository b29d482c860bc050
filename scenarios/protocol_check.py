"""Holding a board against the protocol that it says it follows: attacks complete, tuning within budget, its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from robustfl.autobyz import Asked, asked_of
from robustfl.defenses import parse_pipeline
from robustfl.errors import UsageError, some
from robustfl.records import LATER, CellResult, canonical, completed, labels_of, plain, text_without
from robustfl.reports.published import Board

from .bench import Search, attacked_row, configurations, final_scenario, more_seeds
from .cell import Cell
from .expand import asked as ensemble_asked
from .expand import expand, labels
from .protocol import Protocol, protocol_of, scenario_to_run
from .spec import Scenario
from .tuning_check import contestant_of

_SCORES = ("validation", "worst")
_BEFORE = labels_of(LATER)
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
        contestant = contestant_of(name, entry)
        scores = [tried["validation"] for tried in entry["search"]]
        tried = tuple(zip(configurations(contestant, rules), scores, strict=False))
        search = Search(contestant, entry["knowledge"], tried)
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
    yield from _cells_apart([labels(cell) for cell in wanted], [r.labels for r in records])
    yield from _settings_apart(wanted, records)


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
    tried = [{k: v for k, v in one.items() if k not in _SCORES} for one in entry["search"]]
    if len(tried) != rules.budget:
        yield f"tuned on {len(tried)} configurations; the budget is {rules.budget}"
        return
    if tried != [plain(labels_of(settings)) for settings, _ in search.tried]:
        yield "tuned on other configurations than those of the protocol"
    if any(set(one["validation"]) != set(attacks) for one in entry["search"]):
        yield f"tuned under other attacks than {', '.join(attacks)}"
        return
    scores = [v for one in entry["search"] for v in one["validation"].values() if v is not None]
    if not all(0 <= score <= 1 for score in scores):
        yield "a score of its search is no accuracy"
    said = [-1.0 if one["worst"] is None else one["worst"] for one in entry["search"]]
    if said != [search.worst(i) for i in range(len(said))]:
        yield "a worst case of its search is not the worst of its scores"
    if type(entry["chosen"]) is not int or entry["chosen"] != search.best:
        yield f"chose configuration {entry['chosen']}, where {search.best} has the highest worst case"
    if "reason" in entry and not isinstance(entry["reason"], str):
        yield "its reason is no text"
        return
    if "reason" in entry and scores:
        yield f"it says why its search came to nothing, which it did not: {entry['reason']!r}"
    if not scores and not entry.get("reason"):
        yield "its search has no score, and no reason is given: nothing was measured to choose by"
    known = parse_pipeline(search.contestant.of("defense")).knowledge
    if search.knowledge != known:
        yield f"is told {known}, not {search.knowledge}"


def _cells_apart(wanted: Iterable[Labels], present: Sequence[Labels]) -> Iterator[str]:
    """Cells that the tier has and the board lacks, the other way round, and those that the board has under two keys."""
    asked, here = ({_text(cell): cell for cell in cells} for cells in (wanted, present))
    for words, found in (
        ("lacks", [asked[k] for k in asked.keys() - here.keys()]),
        ("has what the tier does not:", [here[k] for k in here.keys() - asked.keys()]),
    ):
        if found:
            yield f"it {words} {_named(found)}"
    counted = Counter(map(_text, present))
    twice = [cell for text, cell in here.items() if counted[text] > 1]
    if twice:
        yield f"it has more than one cell of {_named(twice)}"


def _settings_apart(wanted: Iterable[Cell], records: Iterable[CellResult]) -> Iterator[str]:
    """Cells with the labels of the tier's and other settings: labels round learning rates."""
    right = {_text(labels(cell)): canonical(cell.model_dump(mode="json")) for cell in wanted}
    strange = [
        record.labels
        for record in records
        if (text := _text(record.labels)) in right and canonical(completed(record.cell["cell"], LATER)) != right[text]
    ]
    if strange:
        yield f"it has other settings than the tier's behind the labels of {_named(strange)}"


def _text(found: Labels) -> str:
    """Labels as one text, with those of settings that came later than the board."""
    return canonical(_BEFORE | dict(found))


def _named(cells: Iterable[Labels]) -> str:
    """Some of the cells, in words."""
    return some(sorted(f"{c['defense']}, {c['norm']}, {c['attack']}, seed {c['seed']}" for c in cells))
