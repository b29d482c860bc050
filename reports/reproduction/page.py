"""The page that holds what papers claim beside what was measured: Markdown, HTML, LaTeX and JSON of the same facts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustfl.records import plain

from ..store import sweep_leftovers, write_atomic
from ..tables import latex_escape as tex
from ..tables import markdown_escape as md
from ..tables import markdown_table as table
from .protocols import SCALES, Item, Paper, ScaleName, Statement
from .verdicts import ORDER, Evidence, Finding, Side

HEAD = ("Claim", "The paper's number", "Measured", "Verdict")


@dataclass(frozen=True)
class Entry:
    """One table or figure on the page; ``figures`` are files beside it."""

    paper: Paper
    item: Item
    scale: ScaleName
    evidence: Evidence
    findings: tuple[Finding, ...]
    figures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``fbn/figure3``."""
        return f"{self.paper.name}/{self.item.id}"

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"robustfl reproduce {self.name} --scale {self.scale}"

    @property
    def reduced(self) -> str:
        """The respects in which it is smaller than in the paper, and why the claims should survive it."""
        scale = self.item.at(self.scale)
        if scale is None or not scale.reduced:
            return ""
        return f"Reduced: {scale.reduced}" + (f" Why the claim should survive it: {scale.why}" if scale.why else "")

    @property
    def state(self) -> str:
        """The share of it that has run, and its cost."""
        if self.item.missing:
            return self.item.missing
        scale = self.item.at(self.scale)
        planned = len(self.evidence.planned)
        if not planned:
            if scale is None and any(f.statement.compute for f in self.findings):
                return "Computed, without training."
            needs = next((at.needs for at in (scale, *map(self.item.at, SCALES)) if at is not None), "")
            words = "Nothing has run." if scale is not None else f"Nothing to run at the {self.scale} scale."
            return words + (f" It needs {needs}." if needs else "")
        words = f"{self.evidence.done} of {planned} cells have run"
        for device, count in sorted(self.evidence.elsewhere.items()):
            words += f", {count} of them on {device}"
        if self.evidence.seconds:
            words += f", {_hours(self.evidence.seconds)} of computing"
        if self.evidence.done < planned:
            wanting = self.evidence.lacking or (scale.needs if scale is not None else "")
            words += f"; missing: {wanting}" if wanting else ""
        return words + "."


@dataclass(frozen=True)
class Page:
    """All entries, those with contradicted claims first."""

    entries: tuple[Entry, ...]
    version: str

    @property
    def ordered(self) -> tuple[Entry, ...]:
        """Entries with a contradiction first, in the papers' order otherwise."""
        return tuple(sorted(self.entries, key=lambda e: not any(f.verdict == "contradicted" for f in e.findings)))

    @property
    def counts(self) -> dict[str, int]:
        """The number of statements with each verdict."""
        found = Counter(f.verdict for e in self.entries for f in e.findings)
        return {verdict: found[verdict] for verdict in ORDER if found[verdict]}

    @property
    def summary(self) -> str:
        """One sentence about all statements."""
        total = sum(self.counts.values())
        parts = ", ".join(f"{n} {verdict}" for verdict, n in self.counts.items())
        if not total:
            return "No statement."
        ran = {f.comparison for e in self.entries for f in e.findings if f.seeds}
        made = sum(1 for e in self.entries for f in e.findings if f.seeds)
        from_runs = f" {made} of them come from runs, which make {len(ran)} comparisons." if made else ""
        return f"{total} statements about {len(self.entries)} tables and figures: {parts}.{from_runs}"


def rows_of(entry: Entry) -> list[tuple[Finding, tuple[str, str, str, str]]]:
    """The table of an entry, contradicted claims first."""
    ranked = sorted(entry.findings, key=lambda f: ORDER.index(f.verdict))
    return [(f, (claim_words(f), paper_words(entry, f), measured_words(f), verdict_words(f))) for f in ranked]


def claim_words(finding: Finding) -> str:
    """The statement with its bound."""
    if finding.verdict == "not comparable":
        return finding.statement.says
    bound = finding.statement.bound
    return f"{finding.statement.says} ({bound})" if bound else finding.statement.says


def paper_words(entry: Entry, finding: Finding) -> str:
    """The published numbers of both sides."""
    found = [entry.paper.find(p, entry.item.id) for p in finding.statement.published]
    return " / ".join(claim.text for claim in found) if found else "in words or drawn"


def measured_words(finding: Finding) -> str:
    """Both sides' means and seeds, and the difference with its interval."""
    statement = finding.statement
    if statement.compute and finding.difference is not None:
        return f"{finding.difference:.6g}"
    if finding.difference is None:
        return "–"
    parts = [_side_words(finding.left, statement)]
    if finding.right is not None:
        parts.append(_side_words(finding.right, statement))
    words = " / ".join(parts)
    if finding.right is not None:
        words += f"; difference {finding.difference:+.{_digits(statement)}f}"
    if finding.low is not None and finding.high is not None:
        words += f" [{finding.low:.{_digits(statement)}f}, {finding.high:.{_digits(statement)}f}]"
    return f"{words}; {finding.seeds} seed{'' if finding.seeds == 1 else 's'}"


def _side_words(side: Side, statement: Statement) -> str:
    assert side.mean is not None
    digits = _digits(statement)
    values = sorted(side.values.values())
    spread = f" ({values[0]:.{digits}f}–{values[-1]:.{digits}f})" if len(values) > 1 else ""
    chosen = f" at {side.chosen}" if side.chosen else ""
    return f"{side.mean:.{digits}f}{spread}{chosen}"


def _digits(statement: Statement) -> int:
    return 1 if statement.percent else 3


def verdict_words(finding: Finding) -> str:
    """The verdict with its reason."""
    words = f"{finding.verdict}: {finding.reason}" if finding.reason else finding.verdict
    return f"{words}. Tried: {finding.statement.tried}" if finding.statement.tried else words


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# --- forms -----------------------------------------------------------------------------------------------------------


def to_markdown(page: Page) -> str:
    """The page as Markdown."""
    lines = ["# What the papers claim, beside what robustfl measures", "", md(page.summary), ""]
    for entry in page.ordered:
        lines += [f"## {md(entry.name)}: {md(entry.item.title)}", "", md(entry.paper.citation), ""]
        if entry.findings:
            lines += [table(HEAD, "llll", [[*map(md, cells)] for _, cells in rows_of(entry)]), ""]
        paragraphs = [md(text) for text in (entry.reduced, entry.state) if text]
        paragraphs += [f"![{md(entry.item.title)}]({name})" for name in entry.figures if name.endswith(".png")]
        lines += [line for text in (*paragraphs, f"Repeat it: `{entry.command}`") for line in (text, "")]
    return "\n".join(lines)


def to_latex(page: Page) -> str:
    """One table per entry that has statements; needs booktabs."""
    lines = ["% needs \\usepackage{booktabs}"]
    for entry in (e for e in page.ordered if e.findings):
        lines += [r"\begin{table*}[t]", rf"\caption{{{tex(f'{entry.name}: {entry.item.title}. {entry.state}')}}}"]
        lines += [
            r"\centering\small",
            r"\begin{tabular}{p{.34\linewidth}p{.14\linewidth}p{.3\linewidth}p{.14\linewidth}}",
        ]
        lines += [r"\toprule", " & ".join(map(tex, HEAD)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(tex, cells)) + r" \\" for _, cells in rows_of(entry)]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def to_json(page: Page) -> str:
    """The page for machines: every statement with its numbers per seed and the keys of its cells."""
    return json.dumps(plain({"version": page.version, "entries": [_entry(e) for e in page.entries]}), indent=1) + "\n"


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name, "title": entry.item.title, "scale": entry.scale, "command": entry.command,
        "state": entry.state, "cells": len(entry.evidence.planned), "done": entry.evidence.done,
        "seconds": entry.evidence.seconds, "statements": [_finding(entry, f) for f in entry.findings],
    }  # fmt: skip


def _finding(entry: Entry, finding: Finding) -> dict[str, Any]:
    def side(of: Side | None) -> dict[str, Any] | None:
        return None if of is None else {"values": of.values, "mean": of.mean, "keys": of.keys, "chosen": of.chosen}

    statement = finding.statement
    return {
        "id": statement.id, "says": statement.says, "bound": statement.bound, "verdict": finding.verdict,
        "reason": finding.reason, "paper": paper_words(entry, finding), "left": side(finding.left),
        "right": side(finding.right), "difference": finding.difference, "low": finding.low, "high": finding.high,
        "seeds": finding.seeds, "tried": statement.tried,
    }  # fmt: skip


def to_html(page: Page) -> str:
    """The page as one file that works from the disk."""
    from ..site.writing import TEMPLATES, template_environment

    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    facts = {"page": page, "head": HEAD, "rows_of": rows_of, "style": style}
    return template_environment().get_template("reproduction.html").render(**facts)


def write_page(page: Page, folder: str | Path) -> list[Path]:
    """Write the page in every form into ``folder``; returns the files."""
    forms = {"md": to_markdown, "html": to_html, "tex": to_latex, "json": to_json}
    texts = {Path(folder) / f"reproduction.{suffix}": form(page) for suffix, form in forms.items()}
    sweep_leftovers(folder)
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)
