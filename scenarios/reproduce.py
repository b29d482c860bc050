"""Measure a paper's table or figure again: run what is missing of its protocol, and gather what has run."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from robustfl.errors import DataMissing
from robustfl.records import CellResult
from robustfl.reports.reproduction import Entry, Evidence, Item, Paper, Run, Scale, find_items, judge
from robustfl.reports.reproduction.protocols import SCALES, ScaleName
from robustfl.reports.reproduction.verdicts import Planned
from robustfl.reports.store import Store
from robustfl.torch_settings import standard_settings

from .cell import Cell
from .expand import expand, fingerprints, labels
from .grid import Results
from .plan import ResolvedCell
from .refusals import refusal
from .spec import Scenario

Keys = Mapping[Cell, Sequence[str]]
"""The cells of a scenario that are not refused with the keys each may have, that of the data here first."""


def scenario_of(run: Run) -> Scenario:
    """The scenario that a protocol runs."""
    return Scenario.load(run.preset, settings=run.settings)


def entry(
    paper: Paper, item: Item, scale: ScaleName, *,
    out: str | Path = "runs", root: str | Path | None = None, records: Iterable[CellResult] | None = None,
) -> Entry:  # fmt: skip
    """The measured part of a table or figure, judged; from the stores under ``out`` or from ``records``."""
    evidence = gather(item.at(scale), out=out, root=root, records=records)
    return Entry(paper, item, scale, evidence, judge(item.statements_at(scale), evidence, paper.compute))


def gather(
    scale: Scale | None, *,
    out: str | Path = "runs", root: str | Path | None = None, records: Iterable[CellResult] | None = None,
) -> Evidence:  # fmt: skip
    """The cells of a protocol with their records, those of its own store or of the stores beside it.

    A record counts if its key is that of a cell as this installation would run it: the data's fingerprint may come from
    the data here or from the record itself, so that a board can be read without the data.
    """
    given = None if records is None else list(records)
    planned, found, stale, lacking = list[Planned](), dict[str, CellResult](), set[str](), ""
    for run in scale.runs if scale is not None else ():
        scenario = scenario_of(run)
        own = Store(Path(out) / scenario.name)
        stored = given if given is not None else list(own.load().results)
        keys, missing = _keys(scenario, stored, root, local=given is None)
        lacking = lacking or missing
        if given is None:
            stored += _beside(own, keys)
        by_key = {record.key: record for record in stored}
        for cell, options in keys.items():
            key = next((k for k in options if k in by_key), options[0] if options else "")
            planned.append(Planned(labels(cell), key))
            found |= {key: by_key[key]} if key in by_key else {}
        unasked = [r for r in stored if r.key not in _all_of(keys) and r.scenario == scenario.name]
        stale |= _stale(run, unasked, root, local=given is None) if unasked else set()
    return Evidence(tuple(planned), found, len(stale), lacking)


def _stale(run: Run, unasked: Sequence[CellResult], root: str | Path | None, *, local: bool) -> set[str]:
    """The keys of records that neither the whole preset asks for, of which a table may show a part, nor a run of it."""
    whole = Run(preset=run.preset, settings=tuple(s for s in run.settings if s.startswith("scale=")))
    scales = [at for _, item in find_items(None) for at in map(item.at, SCALES) if at is not None]
    left = {record.key for record in unasked}
    for each in dict.fromkeys([whole, *(other for at in scales for other in at.runs if other.preset == run.preset)]):
        left -= _all_of(_keys(scenario_of(each), unasked, root, local=local)[0])
    return left


def _keys(
    scenario: Scenario, stored: Sequence[CellResult], root: str | Path | None, *, local: bool
) -> tuple[Keys, str]:
    """The keys of a scenario, and why its data give none."""
    cells = [cell for cell in expand(scenario) if refusal(cell) is None]
    known, lacking = dict[Cell, str](), ""
    if local:
        try:
            known = fingerprints(cells, root, download=False)
        except DataMissing as error:
            lacking = str(error)
    seen = sorted({str(record.cell.get("data")) for record in stored} - {"None"})
    prints = {cell: [known[cell]] if cell in known else seen for cell in cells}
    return {cell: [ResolvedCell.of(cell, of).key for of in prints[cell]] for cell in prints}, lacking


def _all_of(keys: Keys) -> set[str]:
    return {key for options in keys.values() for key in options}


def _beside(own: Store, keys: Keys) -> list[CellResult]:
    """The records that the stores beside a store have of cells that it lacks: equal keys are equal cells."""
    asked = _all_of(keys)
    missing, found = asked - own.done(asked), dict[str, CellResult]()
    for cells in sorted(own.folder.parent.glob("*/cells")):
        other = Store(cells.parent)
        found |= {key: other.read(key) for key in other.done(missing - found.keys())}
    return [found[key] for key in sorted(found)]


def run_missing(
    scale: Scale, run: Callable[[Scenario], Results], *,
    on_note: Callable[[str], None], out: str | Path = "runs", root: str | Path | None = None,
) -> bool:  # fmt: skip
    """Run what no store under ``out`` has of every scenario of a protocol, and say if a cell failed.

    A scenario that lacks its data is named, and the others go on.
    """
    failed = False
    for scenario in map(scenario_of, scale.runs):
        own = Store(Path(out) / scenario.name)
        copied = [own.commit(record) for record in _beside(own, _keys(scenario, (), root, local=True)[0])]
        if copied:
            on_note(f"{scenario.name}: {len(copied)} cells were in other stores under {out}")
        try:
            results = run(scenario)
            failed |= bool(results.statuses.get("failed") or results.lost)
        except DataMissing as error:
            on_note(f"{scenario.name}: {error}")
    return failed


def pace() -> float:
    """Seconds of a piece of work on one thread here, the least of three, to those on the protocols' machine, 0.55."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((64, 16, 32, 32), generator=generator)
    kernel = torch.randn((32, 16, 3, 3), generator=generator, requires_grad=True)

    def work() -> None:
        torch.nn.functional.conv2d(images, kernel, padding=1).sum().backward()  # type: ignore[no-untyped-call]

    with standard_settings():
        torch.set_num_threads(1)
        return min(timeit.repeat(work, number=20, repeat=3)) / 0.55
