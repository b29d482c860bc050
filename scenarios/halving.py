"""The cheap mode of AutoByz: members that after a third of the rounds cannot be the worst any more do not go on.

One step of successive halving (Jamieson, Talwalkar, AISTATS 2016): every member runs on the first seed for a third of
the rounds; those within the ensemble's margin of the worst run to the end on all seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from robustfl.autobyz import Ensemble
from robustfl.errors import UsageError
from robustfl.records import CellResult, canonical
from robustfl.reports.store import Store

from .cell import Cell
from .ensemble import SCOPE, asked
from .expand import expand
from .grid import Results, plan
from .spec import Scenario, is_axis

SHARE = 3
"""The part of the rounds after which members are compared: one in so many."""
RunGrid = Callable[..., Results]


def first_part(scenario: Scenario) -> Scenario:
    """The scenario with its first seed, to stop after a third of its rounds, with AutoByz as its only attack, unless
    zipped: schedules and phases are those of the whole training.

    Forgetting is left out: it decides nothing, and may ask for rounds that a third has not. Raises ``UsageError`` where
    the scenario names no AutoByz, has fewer than three rounds, or zips its seed.
    """
    ensemble = asked(scenario)
    if ensemble is None:
        raise UsageError(
            f"scenario {scenario.name!r}: the cheap mode is for attack = 'autobyz', which it does not name"
        )
    group = next((list(group) for group in scenario.zip if "seed" in group), None)
    if group is not None:
        raise UsageError(
            f"zip={group!r}: the cheap mode compares attacks on the first seed and takes no zipped one; leave seed out "
            "of zip, or run the grid without the cheap mode"
        )
    cell = {name: value for name, value in scenario.cell.items() if name != "forgetting"}
    if cell.get("stop") is not None:
        raise UsageError(
            f"stop={cell['stop']!r}: the cheap mode stops after a third of the rounds by itself; leave it out"
        )
    several, thirds = is_axis("rounds", cell.get("rounds")), [_third(r) for r in scenario.values("rounds")]
    cell |= {"stop": thirds if several else thirds[0], "seed": scenario.values("seed")[0]}
    if not any("attack" in group for group in scenario.zip):
        cell["attack"] = ensemble.spec
    zipped = tuple(tuple(name for name in group if name != "forgetting") for group in scenario.zip)
    if several:
        alone = () if any("rounds" in group for group in zipped) else (("rounds",),)
        zipped = tuple((*group, "stop") if "rounds" in group else group for group in (*zipped, *alone))
    return scenario.model_copy(update={"name": f"{scenario.name}-third", "cell": cell, "zip": zipped})


def _third(rounds: Any) -> int:
    if type(rounds) is not int or rounds < SHARE:
        raise UsageError(f"rounds={rounds!r}: the cheap mode looks at a third of them and needs at least {SHARE}")
    return math.ceil(rounds / SHARE)


def dropped(scenario: Scenario, early: Mapping[Cell, CellResult], ran: Iterable[Cell] = ()) -> set[Cell]:
    """The cells of AutoByz's members that need not run, by what their first parts (``first_part``) came to.

    Other attacks are neither compared nor dropped. A member stays if it diverged or failed, is refused, has no record,
    or is within the margin of the worst member of its row in any metric that boards rank; one that is known to have no
    effect goes, unless all are such. One of whose cells in a row some ``ran`` to the end stays with all of them.
    """
    ensemble = asked(scenario)
    assert ensemble is not None
    scope = scenario.cell.get("scope", SCOPE)
    members = ensemble.by_cell(scope)
    late = {cell: (_row(cell), member_name(cell)) for cell in expand(scenario) if (cell.attack, cell.scope) in members}
    compared = set(late.values())
    rows: dict[str, dict[str, CellResult]] = defaultdict(dict)
    for cell, record in early.items():
        row, member = _row(cell), member_name(cell)
        if (row, member) in compared:
            rows[row][member] = record
    out = {(row, member) for row, records in rows.items() for member in hopeless(records, ensemble)}
    out -= {late[cell] for cell in ran if cell in late}
    return {cell for cell, place in late.items() if place in out}


def member_name(cell: Cell) -> str:
    """A member by its attack and scope, among the cells of one row."""
    return f"{cell.attack} {cell.scope}"


def _row(cell: Cell) -> str:
    """What tells one row of a board from another, and its task; all members and seeds of a row have one."""
    return canonical(cell.model_dump(mode="json", exclude={"attack", "scope", "seed", "stop", "forgetting"}))


def hopeless(records: Mapping[str, CellResult], ensemble: Ensemble) -> set[str]:
    """The members that need not go on, by the records of the first parts of one row.

    They are compared by the last round and, where one is selected, by that: boards rank either.
    """
    from robustfl.reports.frame import frame, ranked_metrics  # with pandas, which no worker needs
    from robustfl.reports.statistic import counted

    table = frame(records.values())
    lines = dict(zip(records, table.to_dict("records"), strict=True))
    idle = {name for name, line in lines.items() if line.get("certificates.no_effect") is True}
    done = {name for name, line in lines.items() if line["status"] == "done" and name not in idle}
    if not done and not any(line["status"] in ("diverged", "failed") for line in lines.values()):
        return set()
    lost = any(line["status"] == "diverged" for line in lines.values())
    near = set[str]()
    for found in () if lost else (table, counted(table)[0]):
        for metric in ranked_metrics(found):
            numbers = {name: value for name, value in zip(records, found[metric], strict=True) if name in done}
            near |= {name for name, value in numbers.items() if value <= min(numbers.values()) + ensemble.margin}
    return (done - near) | idle


def cheap_words(ensemble: Ensemble) -> str:
    """The words of a caption on the cheap mode."""
    return (
        "Cheap mode: members ran on the first seed for a third of the rounds; those more than "
        f"{100 * ensemble.margin:g} points above the worst were dropped, and the others ran to the end on every seed."
    )


def cheap_grid(
    scenario: Scenario, run: RunGrid, *, out: str | Path, root: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Results:  # fmt: skip
    """Run a scenario with AutoByz in the cheap mode: ``run`` is ``run_grid`` with everything set but the scenario.

    The first parts are ordinary cells in a store of their own (``<name>-third``); both stores resume.
    """
    ensemble = asked(scenario)
    begun = first_part(scenario)
    run(begun)
    assert ensemble is not None
    gone = dropped(scenario, _records(begun, out, root), _records(scenario, out, root))
    said = {**(facts or {}), "autobyz": {"cheap": cheap_words(ensemble), "seed": begun.cell.get("seed", 0)}}
    return run(scenario, left_out=frozenset(gone), facts=said)


def _records(scenario: Scenario, out: str | Path, root: str | Path | None) -> dict[Cell, CellResult]:
    known = {record.key: record for record in Store(Path(out) / scenario.name).load().results}
    if not known:  # as before every first run: planning takes keys of all cells
        return {}
    cells = plan(scenario, out=out, root=root).cells
    return {cell: known[key] for key, cell in cells.items() if key in known}
