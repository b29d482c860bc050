"""An attack of one's own on one row of a benchmark board, in its chosen configuration, on every task and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robustfl.autobyz import named
from robustfl.errors import UsageError, closest
from robustfl.records import CellResult, labels_of, plain
from robustfl.reports.published import Board, publish_described

from .bench import Contestant, attacked_row, configurations, more_seeds
from .methods import canonical_method
from .protocol import protocol, protocol_of, scenario_to_run
from .spec import Scenario


def facts_of(board: Board) -> Mapping[str, Any]:
    """The facts of the benchmark on a board. Raises ``UsageError`` for one of no tier, or of an older protocol."""
    facts = (board.protocol or {}).get("benchmark")
    if facts is None:
        raise UsageError(f"board {board.name!r} is of no tier of the benchmark; make one with `robustfl bench TIER`")
    newest = protocol().version
    if facts["version"] != newest:
        raise UsageError(
            f"board {board.name!r} follows version {facts['version']} of the protocol, which is an archive; rows of "
            f"version {newest} can be beaten"
        )
    return dict(facts)


def row_of(facts: Mapping[str, Any], row: str) -> Contestant:
    """The contestant that ``DEFENSE/NORM[/ALGORITHM]``, or its name on the board, means.

    Raises ``UsageError`` with the nearest one where there is none, and where several are meant.
    """
    known = {name: Contestant.named(name, entry) for name, entry in facts["contestants"].items()}
    parts = [part.strip() for part in row.replace(" · ", "/").split("/")]
    found = [one for one in known.values() if [value for _, value in one.settings][: len(parts)] == parts]
    if len(found) == 1:
        return found[0]
    names = [name.replace(" · ", "/") for name in known]
    if not found:
        raise UsageError(f"no row {row!r} on this board; {closest(row, names)}")
    raise UsageError(f"{row!r} means {len(found)} rows: {', '.join(one.name.replace(' · ', '/') for one in found)}")


def challenge(
    board: Board, row: str, attacks: Sequence[str], *, scope: str = "both", plugins: Sequence[str] = ()
) -> tuple[Contestant, Scenario]:
    """The contestant, and the cells of its row under ``attacks``: the board's tasks, seeds and chosen settings.

    An attack may know whatever an attack can declare to know, as members of AutoByz do. Raises ``UsageError`` for an
    attack that is on the row already, for ``none``, and for AutoByz itself.
    """
    facts = facts_of(board)
    contestant = row_of(facts, row)
    rules = protocol_of(facts["version"])
    tier = rules.tier(facts["tier"])
    scenario = scenario_to_run(tier, facts["changed"]).beside(plugins)
    wanted = []
    for attack in attacks:
        if attack == "none" or named(attack) is not None:
            raise UsageError(f"--attack {attack}: a row is beaten by one attack, registered or of a --plugin")
        wanted.append(canonical_method("attack", attack))
    settings = configurations(contestant, rules)[facts["contestants"][contestant.name]["chosen"]]
    here = {(r.labels["attack"], r.labels["scope"]) for r in records_of(board, settings)}
    for attack in wanted:
        if (attack, scope) in here:
            raise UsageError(f"--attack {attack} with scope = {scope}: the row has been measured under it")
    seeds = more_seeds(tier, facts["changed"], scenario) if contestant.name in facts.get("near", ()) else ()
    return contestant, attacked_row(scenario, settings, wanted, scope, seeds)


def records_of(board: Board, settings: Mapping[str, Any]) -> list[CellResult]:
    """The cells of the row with these settings."""
    labels = plain(labels_of(settings)).items()
    return [r for r in board.records() if all(r.labels[name] == value for name, value in labels)]


def with_challenge(board: Board, contestant: Contestant, records: Sequence[CellResult], *, by: str) -> Board:
    """The board with the attacks' cells in the row, and with who brought them."""
    facts = facts_of(board)
    attacks = dict.fromkeys((str(r.labels["attack"]), str(r.labels["scope"])) for r in records)
    entry = {"contestant": contestant.name, "by": by}
    beaten = [*facts.get("beaten", []), *({**entry, "attack": a, "scope": s} for a, s in attacks)]
    described = {
        "description": board.description, "defaults": board.defaults,
        **(board.protocol or {}), "benchmark": {**facts, "beaten": beaten},
    }  # fmt: skip
    return publish_described(
        [*board.records(), *records], described, name=board.name, tolerance=board.tolerance,
        curves=any(r.curve for r in board.cells),
    )  # fmt: skip
