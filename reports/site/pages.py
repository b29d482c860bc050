"""The parts of the site's pages beside its tables: heatmaps, curves, bars, certificates, recipes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from robustfl.origins import named_methods
from robustfl.papers import bibtex, spelled_out
from robustfl.records import CellResult

from ..axes import text, values_of
from ..board import Board, Row, in_words, metric_title, natural, row_name
from ..captions import in_plain_words
from ..contestants import Contestant, Entry, slug_of
from ..estimate import Estimate
from ..figures.layout import simple_first
from ..loading import by_labels
from ..recipe import command, scenario_toml
from ..tables.columns import rank_text
from ..tradeoff import Breakdown, breakdowns, looks
from .charts import LOOKS, Chart, bubbles, line_chart
from .tables import Notes, Value, value

MAX_CURVES = 12
MAX_BUBBLES = 2500
CERTIFICATES = {
    "attack_shift": "attack moved the mean by",
    "statistics_shift": "attack moved the statistics by",
    "defense_shift": "result off the honest mean by",
    "smallest_variance": "smallest variance served",
    "dropped": "rows dropped",
}


Shaded = tuple[Value, str]
"""A place with its share of a bar or of a colour, in [0, 1]; empty where a word stands."""


def heat_grids(board: Board, notes: Notes) -> list[tuple[str, list[tuple[str, str, list[Shaded]]]]]:
    """Attack × defense for every metric, task, norm and setting of the other labels; the mean over tasks first.

    A grid has a title and a line per defense: its name, its page, its places.
    """
    grids = []
    for section in board.sections:
        groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in section.rows:
            groups[tuple(v for n, v in zip(board.label_names, row.labels, strict=True) if n != "defense")].append(row)
        names = [n for n in board.label_names if n != "defense"]
        for group, rows in sorted(groups.items(), key=lambda item: natural(" ".join(item[0]))):
            where = _condition(board, section.block)
            title = " · ".join(filter(None, [section.metric_title, row_name(names, group), where]))
            ordered = sorted(rows, key=lambda r: simple_first(board.label(r, "defense", "all")))
            lines = [(board.label(r, "defense", "all"), slug_of(r.labels), _shaded(r.places, notes)) for r in ordered]
            grids.append((title, lines))
    return grids


def _shaded(places: Sequence[Estimate], notes: Notes) -> list[Shaded]:
    return [(value(p, notes), "" if p.shown is None else f"{p.shown:.3f}") for p in places]


# --- a contestant ----------------------------------------------------------------------------------------------------


def facts_of(board: Board, contestant: Contestant, notes: Notes, papers: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the page of a contestant shows, by the names in its template.

    ``papers`` maps ``"defense nnm"`` and the like to methods' lines ``paper``.
    """
    looks = {a: i for i, a in enumerate(board.attacks)}
    curves = _curves(board, contestant, looks)
    records = contestant.records
    certificates, certificate = _certificate(board, contestant)
    return {
        "contestant": contestant,
        "ranks": [
            (
                " · ".join(filter(None, [s.metric_title, _condition(board, s.block)])),
                rank_text(r),
                value(r.worst, notes),
            )
            for s, r in contestant.rows
        ],
        "metrics": [metric_title(m) for m in board.metrics],
        "bars": _bars(board, contestant, notes),
        "curves": curves[:MAX_CURVES],
        "curves_left_out": max(0, len(curves) - MAX_CURVES),
        "breakdown": _breakdown(board, contestant),
        "certificates": certificates,
        "certificate": certificate,
        "facts": _facts(records),
        "recipe": scenario_toml(records, name=contestant.slug) if records else "",
        "example": command(records[0], records, file=f"{contestant.slug}.toml") if records else "",
        "cells": [_cell_line(r) for r in records],
        "papers": _papers(records, papers),
        "warnings": list(dict.fromkeys(str(w) for r in records for w in r.certificates.get("warnings") or [])),
        "has_more_than_one_f": "f" in board.task_names,
        "looks": looks,
    }


def _condition(board: Board, block: str) -> str:
    """The task of a table in words; empty on a board with one task."""
    return block if board.task_names else ""


def _bars(board: Board, contestant: Contestant, notes: Notes) -> list[tuple[str, list[tuple[str, list[Shaded]]]]]:
    """Accuracy per attack under each condition."""
    by_block: dict[str, dict[str, Row]] = defaultdict(dict)
    for section, row in contestant.rows:
        by_block[section.block][section.metric] = row
    bars = []
    for block, rows in by_block.items():
        lines = []
        for i, attack in enumerate((*board.attacks, "worst case")):
            places = [rows[m].places[i] if m in rows else Estimate() for m in board.metrics]
            lines.append((attack, _shaded(places, notes)))
        bars.append((_condition(board, block) or "all cells", lines))
    return bars


def _curves(board: Board, contestant: Contestant, looks: Mapping[str, int]) -> list[Chart]:
    groups: dict[str, dict[str, list[CellResult]]] = defaultdict(lambda: defaultdict(list))
    for entry in contestant.entries:
        if entry.record.curve:
            groups[entry.block][entry.attack].append(entry.record)
    charts = []
    for block, attacks in sorted(groups.items(), key=lambda item: natural(item[0])):
        series = [(a, looks.get(a, 0), _mean_curve(attacks[a])) for a in looks if a in attacks]
        kept = [(name, look, points) for name, look, points in series if len(points) > 1]
        title = _condition(board, block) or "all cells"
        if kept:
            charts.append(line_chart(title, kept, x_label="round", y_label="SA (%)", unit="round "))
    return charts


def _mean_curve(records: Sequence[CellResult]) -> list[tuple[float, float]]:
    """Mean SA over the records (seeds) that have the round; a diverged one counts as long as it was finite."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for point in record.curve:
            if math.isfinite(point.sa):
                rounds[point.round].append(100 * point.sa)
    return [(float(t), fmean(v)) for t, v in sorted(rounds.items())]


def _breakdown(board: Board, contestant: Contestant) -> list[Chart]:
    known: dict[str, dict[str, int]] = defaultdict(dict)
    own = tuple(label for _, label in contestant.labels)
    return [breakdown_chart(found, known[found.against]) for found in breakdowns(board, own)]


def breakdown_chart(found: Breakdown, known: dict[str, int], note: str = "") -> Chart:
    """Breakdown curves as a drawing; a line has the look that it has, or gets, in ``known``."""
    own = looks([name for name, _ in found.lines], known, LOOKS)
    series = [(name or "all", look, points) for look, (name, points) in zip(own, found.lines, strict=True)]
    title = f"{metric_title(found.metric)}, worst case{note}"
    return line_chart(
        title, series, x_label=found.label, y_label="worst case (%)", dots=True, unit=f"{found.against} = "
    )


def _certificate(board: Board, contestant: Contestant) -> tuple[list[str], list[tuple[str, ...]]]:
    """The headings of the certificates the records have; per condition and attack their means, smallest variances."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in contestant.entries:
        place = _condition(board, entry.block), entry.attack
        for name in CERTIFICATES:
            found = entry.record.certificates.get(name)
            if isinstance(found, (int, float)) and math.isfinite(found):
                groups[place][name].append(float(found))
    known = [name for name in CERTIFICATES if any(name in values for values in groups.values())]
    order = {attack: i for i, attack in enumerate(board.attacks)}
    lines = []
    for (where, attack), values in sorted(groups.items(), key=lambda g: (natural(g[0][0]), order.get(g[0][1], 0))):
        shown = []
        for name in known:
            summary = min if name == "smallest_variance" else fmean
            shown.append(f"{summary(values[name]):.3g}" if name in values else "–")
        lines.append((where, attack, *shown))
    return [CERTIFICATES[name] for name in known], lines


def _facts(records: Sequence[CellResult]) -> list[tuple[str, str]]:
    """The tests, the machines and the software; several values are all named."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        certificates = record.certificates
        found["tested"].append(in_plain_words(str(certificates.get("evaluation") or "")))
        found["test samples"].append(text(record.metrics.samples) if record.metrics else "")
        found["trainable parameters"].append(text(certificates.get("trainable")))
        found["processor"].append(record.timing.device)
        found["commit"].append(" then ".join(record.timing.commits))
        found["device"].append(str(certificates.get("device") or ""))
        found["source"].append(str(certificates.get("source") or ""))
        versions = certificates.get("versions")
        for name, version in versions.items() if isinstance(versions, Mapping) else ():
            found[name].append(str(version))
    distinct = {k: [v for v in dict.fromkeys(vs) if v and v != "–"] for k, vs in found.items()}
    return [(k, ", ".join(v)) for k, v in distinct.items() if v]


def _cell_line(record: CellResult) -> tuple[str, ...]:
    """Key, condition, attack, seed, status, SA of one record."""
    labels = record.labels
    accuracy = "–" if record.metrics is None else f"{100 * record.metrics.sa:.2f}"
    partition = in_words("partition", text(labels.get("partition")))
    return (record.key, partition, *values_of(labels, ("f", "attack", "seed")), record.status, accuracy)


def _papers(records: Sequence[CellResult], papers: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Method, citation and BibTeX of everything the contestant is made of and was attacked with."""
    named: dict[str, None] = {}
    for record in records:
        for axis, method in sorted(named_methods(record.cell), key=lambda pair: pair[0]):
            named[f"{KIND.get(axis, axis)} {method['name']}"] = None
    first = ("defense", "preaggregator", "norm", "algorithm", "objective", "propagation", "attack", "evasion")
    order = {kind: i for i, kind in enumerate(first)}
    ordered = sorted(named, key=lambda n: (order.get(n.split()[0], len(order)), natural(n)))
    return [(n, spelled_out(papers[n]), bibtex(papers[n], key=n)) for n in ordered if papers.get(n)]


KIND = {
    "evasions": "evasion", "train_evasion": "evasion", "domains": "dataset", "propagation": "defense",
    "statistics_defense": "defense",
}  # fmt: skip


def label_plots(results: Sequence[CellResult]) -> tuple[list[Chart], int]:
    """One drawing of the label distribution per data set and partition (lowest seed), and how many are too large."""
    chosen: dict[tuple[str, str, str], list[list[int]]] = {}
    for record in by_labels((r for r in results if r.label_counts), "seed"):
        dataset, partition = values_of(record.labels, ("dataset", "partition"))
        chosen.setdefault((dataset, partition, str(len(record.label_counts))), record.label_counts)
    charts, large = [], 0
    for (dataset, partition, clients), counts in sorted(chosen.items(), key=lambda item: natural(str(item[0]))):
        if sum(map(len, counts)) > MAX_BUBBLES:
            large += 1
            continue
        charts.append(bubbles(f"{dataset} · {in_words('partition', partition)} · {clients} clients", counts))
    return charts, large


def state_words(entries: Sequence[Entry]) -> str:
    """Who measured: the sources of merged records, in words; empty where all are the store's own."""
    sources = {re.sub(r"\s+", " ", str(s)) for e in entries if (s := e.record.certificates.get("source"))}
    return ", ".join(sorted(sources))
