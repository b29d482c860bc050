"""The plan of a scenario: every cell resolved once, with its key, and the cells that still have to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustfl.origins import all_origins, origins
from robustfl.records import CellResult, plain
from robustfl.reports.store import Store

from .cell import Cell
from .checkpoint import checkpoint_path
from .expand import expand, fingerprints, key_of, labels, resolve
from .refusals import refusal
from .spec import Scenario


@dataclass(frozen=True)
class ResolvedCell:
    """A cell with the digest of its data and the name of its scenario, its key, and the origins of its plug-ins.

    Made once, in the plan; it pickles, and a worker resolves it again only to see that it is the same cell there.
    """

    cell: Cell
    data: str
    scenario: str
    key: str
    foreign: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, cell: Cell, data: str, scenario: str = "cell") -> ResolvedCell:
        """Resolve a cell on data with this digest."""
        settings = resolve(cell, data)
        return cls(cell, data, scenario, key_of(settings), frozenset(all_origins(settings["methods"])))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, methods and data that the key is made of, as they are here."""
        return resolve(self.cell, self.data)

    @property
    def same_here(self) -> bool:
        """True if the cell has the same key in this process."""
        return key_of(self.settings) == self.key

    @property
    def labels(self) -> dict[str, Any]:
        """The settings as tables print them."""
        return labels(self.cell)

    @property
    def refusal(self) -> str | None:
        """The reason why the cell makes no sense, or None."""
        return refusal(self.cell)

    @property
    def plug_ins(self) -> str:
        """Its plug-ins and where they come from, as messages name them."""
        return "".join(f" [{n}: {o}]" for n, o in origins(self.settings).items()) if self.foreign else ""

    def record(self, **outcome: Any) -> CellResult:
        """The record of the cell with this outcome."""
        known: Mapping[str, Any] = {"cell": plain(self.settings), "labels": self.labels}
        return CellResult(key=self.key, scenario=self.scenario, **known, **outcome)

    def failed(self, reason: str) -> CellResult:
        """The record of the cell where it could not be run to an end, or not at all."""
        return self.record(status="failed", reason=reason)


@dataclass(frozen=True)
class Plan:
    """The cells of a scenario by their keys, and the keys of those that still have to run."""

    scenario: Scenario
    folder: Path
    cells: dict[str, ResolvedCell]
    missing: tuple[str, ...]

    @property
    def begun(self) -> int:
        """The number of missing cells that have a checkpoint to go on from."""
        return sum(checkpoint_path(self.folder, key).is_file() for key in self.missing)

    @property
    def others(self) -> int:
        """The number of cells in the store that are none of this scenario."""
        return len(set(Store(self.folder).keys()) - self.cells.keys())


def plan(scenario: Scenario, *, out: str | Path = "runs", root: str | Path | None = None) -> Plan:
    """Expand a scenario and compare with the store. Fetches data sets that are not there; computes nothing."""
    cells = expand(scenario)
    known = fingerprints(cells, root)
    resolved = (ResolvedCell.of(cell, known[cell], scenario.name) for cell in cells)
    keyed = {one.key: one for one in resolved}
    folder = Path(out) / scenario.name
    finished = Store(folder).done(keyed)
    return Plan(scenario, folder, keyed, tuple(key for key in keyed if key not in finished))
