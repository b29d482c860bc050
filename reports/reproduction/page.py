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
from ..tables import markdown_table
from .protocols import SCALES, Item, Paper, ScaleName, Statement, in_print
from .verdicts import ORDER, Evidence, Finding, Side

HEAD = ("Claim", "The paper's number", "Measured", "Verdict")
FIRST = ("Claim", "In print", "Here", "Verdict", "Repeat it")


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
        return f"{self.paper.name}/{self.item.id}"

    @property
    def command(self) -> str:
        return f"robustfl reproduce {self.name} --scale {self.scale}"

    @property
    def ranked(self) -> list[Finding]:
        """Its findings, contradicted claims first."""
        return sorted(self.findings, key=lambda f: ORDER.index(f.verdict))

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table: a line a finding, under ``HEAD``."""
        return [(_claim(f), self.published(f.statement), _measured(f), _verdict(f)) for f in self.ranked]

    def published(self, statement: Statement) -> str:
        """The paper's numbers for both sides of a statement."""
        found = [in_print(self.paper.find(p, self.item.id)) for p in statement.published]
        return " / ".join(found) or "in words or drawn"

    @property
    def reduced(self) -> str:
        """The respects in which it is smaller than in the paper, and why the claims should survive it."""
        scale = self.item.at(self.scale)
        if scale is None or not scale.reduced:
            return ""
        return f"Reduced: {scale.reduced}" + (f" Why the claim should survive it: {scale.why}" if scale.why else "")

    @property
    def needs(self) -> str:
        """The requirements of a run, or why there is none."""
        scale = self.item.at(self.scale)
        if scale is not None or self.item.missing:
            return self.item.missing if scale is None else scale.needs
        if any(s.compute for s in self.item.statements_at(self.scale)):
            return "computed, nothing to run"
        for name in SCALES:
            if (other := self.item.at(name)) is not None:
                return f"only at the {name} scale" + (f": {other.needs}" if other.needs else "")
        return f"no {self.scale} protocol"

    def seconds_left(self, pace: float) -> float | None:
        """The computing that is left, with one worker on a machine ``pace`` times as slow as the reference."""
        scale, left = self.item.at(self.scale), len(self.evidence.planned) - len(self.evidence.ran)
        if scale is None:
            return 0.0 if any(s.compute for s in self.item.statements_at(self.scale)) else None
        return left * scale.seconds * pace if scale.seconds or not left else None

    @property
    def state(self) -> str:
        """The share of it that has run, and its cost."""
        scale, evidence = self.item.at(self.scale), self.evidence
        if self.item.missing:
            return self.item.missing
        if scale is None and any(f.statement.compute for f in self.findings):
            return "Computed, without training."
        if not evidence.planned:
            needs = next((at.needs for at in (scale, *map(self.item.at, SCALES)) if at is not None), "")
            words = "Nothing has run." if scale is not None else f"Nothing to run at the {self.scale} scale."
            return words + (f" It needs {needs}." if needs else "")
        done, planned = len(evidence.ran), len(evidence.planned)
        parts = [f"{done} of {planned} cells have run"]
        parts += [f"{count} of them on {device}" for device, count in sorted(evidence.elsewhere.items())]
        parts += [f"{_hours(evidence.seconds)} of computing"] if evidence.seconds else []
        left = (planned - done) * scale.seconds if scale is not None else 0
        parts += [f"about {_hours(left)} left on one core"] if left else []
        missing = done < planned and (evidence.lacking or (scale.needs if scale is not None else ""))
        return ", ".join(parts) + (f"; missing: {missing}" if missing else "") + "."


@dataclass(frozen=True)
class Page:
    """All entries, those with contradicted claims first."""

    entries: tuple[Entry, ...]
    version: str

    @property
    def ordered(self) -> list[Entry]:
        """Entries with a contradiction first, in the papers' order otherwise."""
        return sorted(self.entries, key=lambda e: not any(f.verdict == "contradicted" for f in e.findings))

    @property
    def headlines(self) -> dict[str, list[tuple[str, ...]]]:
        """By citation the few claims that matter most, a line each under ``FIRST``."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for entry in self.entries:
            for f in (f for f in entry.findings if f.statement.headline):
                line = (f.statement.says, entry.published(f.statement), _measured(f), f.verdict, entry.name)
                found.setdefault(entry.paper.citation, []).append(line)
        return found

    @property
    def summary(self) -> str:
        """One sentence about all statements."""
        findings = [f for entry in self.entries for f in entry.findings]
        if not findings:
            return "No statement."
        counts = Counter(f.verdict for f in findings)
        parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict])
        ran = [f.comparison for f in findings if f.seeds]
        from_runs = f" {len(ran)} of them come from runs, which make {len(set(ran))} comparisons." if ran else ""
        about = f"{len(self.entries)} tables and figures" if len(self.entries) > 1 else "one table or figure"
        return f"{len(findings)} statements about {about}: {parts}.{from_runs}"


def _claim(finding: Finding) -> str:
    says, bound = finding.statement.says, finding.statement.bound
    return f"{says} ({bound})" if bound and finding.verdict != "not comparable" else says


def _measured(finding: Finding) -> str:
    """Both sides' means and seeds, and the difference with its interval."""
    if finding.difference is None:
        return "–"
    if finding.statement.compute:
        return f"{finding.difference:.6g}"
    digits = 1 if finding.statement.percent else 3
    words = " / ".join(_side(side, digits) for side in (finding.left, finding.right) if side is not None)
    if finding.right is not None:
        words += f"; difference {finding.difference:+.{digits}f}"
    if finding.low is not None and finding.high is not None:
        words += f" [{finding.low:.{digits}f}, {finding.high:.{digits}f}]"
    return f"{words}; {finding.seeds} seed{'' if finding.seeds == 1 else 's'}"


def _side(side: Side, digits: int) -> str:
    values = sorted(side.values.values())
    spread = f" ({values[0]:.{digits}f}–{values[-1]:.{digits}f})" if len(values) > 1 else ""
    return f"{side.mean:.{digits}f}{spread}" + (f" at {side.chosen}" if side.chosen else "")


def _verdict(finding: Finding) -> str:
    words = f"{finding.verdict}: {finding.reason}" if finding.reason else finding.verdict
    return f"{words}. Tried: {finding.statement.tried}" if finding.statement.tried else words


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_HOW = (
    "Percent, as mean over seeds (lowest–highest), and the difference with its 95 % interval. Where networks and data "
    "are reduced, levels are lower than in print; the tables below say where and how, and hold every claim."
)


# --- forms -----------------------------------------------------------------------------------------------------------


def to_markdown(page: Page) -> str:
    """The page as Markdown."""
    lines = ["# What the papers claim, beside what robustfl measures", "", md(page.summary), ""]
    if page.headlines:
        lines += ["## Paper by paper", "", md(_HOW), ""]
    for citation, rows in page.headlines.items():
        cells = [[*map(md, row[:-1]), f"`robustfl reproduce {row[-1]}`"] for row in rows]
        lines += [f"**{md(citation)}**", "", markdown_table(FIRST, "lllll", cells), ""]
    for entry in page.ordered:
        parts = [f"## {md(entry.name)}: {md(entry.item.title)}", md(entry.paper.citation)]
        parts += [markdown_table(HEAD, "llll", [[*map(md, row)] for row in entry.rows])] if entry.findings else []
        parts += [md(text) for text in (entry.reduced, entry.state) if text]
        parts += [f"![{md(entry.item.title)}]({name})" for name in entry.figures if name.endswith(".png")]
        lines += [line for text in (*parts, f"Repeat it: `{entry.command}`") for line in (text, "")]
    return "\n".join(lines)


def to_latex(page: Page) -> str:
    """One table per entry that has statements; needs booktabs."""
    sides = "".join(rf"p{{{width}\linewidth}}" for width in (".34", ".14", ".3", ".14"))
    lines = ["% needs \\usepackage{booktabs}"]
    for entry in (e for e in page.ordered if e.findings):
        lines += [r"\begin{table*}[t]", rf"\caption{{{tex(f'{entry.name}: {entry.item.title}. {entry.state}')}}}"]
        lines += [r"\centering\small", rf"\begin{{tabular}}{{{sides}}}"]
        lines += [r"\toprule", " & ".join(map(tex, HEAD)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(tex, row)) + r" \\" for row in entry.rows]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def to_html(page: Page) -> str:
    """The page as one file that works from the disk."""
    from ..site.writing import TEMPLATES, template_environment

    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return template_environment().get_template("reproduction.html").render(
        page=page, head=HEAD, first=FIRST, how=_HOW, style=style
    )  # fmt: skip


def to_json(page: Page) -> str:
    """The page for machines: every statement with its numbers per seed and the keys of its cells."""
    return json.dumps(plain({"version": page.version, "entries": [_entry(e) for e in page.entries]}), indent=1) + "\n"


def _entry(entry: Entry) -> dict[str, Any]:
    evidence = entry.evidence
    return {
        "name": entry.name, "title": entry.item.title, "scale": entry.scale, "command": entry.command,
        "state": entry.state, "cells": len(evidence.planned), "done": len(evidence.ran), "seconds": evidence.seconds,
        "statements": [_finding(entry, f) for f in entry.findings],
    }  # fmt: skip


def _finding(entry: Entry, finding: Finding) -> dict[str, Any]:
    s, sides = finding.statement, {"left": finding.left, "right": finding.right}
    told = {name: of and {"values": of.values, "mean": of.mean, "keys": of.keys, "chosen": of.chosen}
            for name, of in sides.items()}  # fmt: skip
    return {
        "id": s.id, "says": s.says, "bound": s.bound, "verdict": finding.verdict, "reason": finding.reason,
        "paper": entry.published(s), **told, "difference": finding.difference, "low": finding.low,
        "high": finding.high, "seeds": finding.seeds, "tried": s.tried,
    }  # fmt: skip


def write_page(page: Page, folder: str | Path) -> list[Path]:
    """Write the page in every form into ``folder``; returns the files."""
    forms = {"md": to_markdown, "html": to_html, "tex": to_latex, "json": to_json}
    texts = {Path(folder) / f"reproduction.{suffix}": form(page) for suffix, form in forms.items()}
    sweep_leftovers(folder)
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)
