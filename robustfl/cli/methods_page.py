"""``methods.md`` of the documentation: every method of robustfl on one page, from the facts on the classes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from robustfl.cli.facts import Facts, facts_of
from robustfl.registry import KINDS, entries
from robustfl.testing import laws

_TITLES = {
    "attack": "Byzantine attacks", "evasion": "Evasion attacks", "defense": "Defenses", "norm": "Normalization schemes",
    "algorithm": "Algorithms", "objective": "Objectives", "model": "Models", "dataset": "Data sets",
    "partition": "Partitions",
}  # fmt: skip


def page(kind: str | None = None) -> str:
    """The page of all methods that come with robustfl, or of one kind."""
    kinds = [k for k in KINDS if kind in (None, k)]
    groups = {k: [facts_of(e) for e in entries(k) if not e.origin] for k in kinds}
    blocks = ["# Methods", "Written by `robustfl list --markdown` from the classes themselves."]
    for name, found in groups.items():
        if found:
            blocks += [f"## {_TITLES.get(name, name)}", _overview(found), *_laws(name), *map(_section, found)]
    return "\n\n".join(blocks) + "\n"


def _overview(found: Iterable[Facts]) -> str:
    lines = ["| name | what it does |", "| --- | --- |"]
    lines += [f"| [`{f.name}`](#{_anchor(f)}) | {_cell(_text(f.summary))} |" for f in found]
    return "\n".join(lines)


def _laws(kind: str) -> list[str]:
    """The laws that every method of the kind is held to; defenses have several contracts."""
    suites = {laws(e.cls): None for e in entries(kind) if not e.origin}
    blocks = []
    for suite in suites:
        names = [e.name for e in entries(kind) if not e.origin and laws(e.cls) == suite]
        whom = "Each" if len(suites) == 1 else "Of these, " + ", ".join(f"`{n}`" for n in names) + ": each"
        listed = "; ".join(f"*{law.name}*: {law.says}" for law in suite)
        blocks.append(f"{whom} is held to these laws (`robustfl check NAME`): {listed}.")
    return blocks


def _section(facts: Facts) -> str:
    blocks = [f'<a id="{_anchor(facts)}"></a>', f"### {facts.kind} `{facts.name}`", prose(facts.doc)]
    if facts.parameters:
        lines = ["| parameter | type | default | allowed | |", "| --- | --- | --- | --- | --- |"]
        for p in facts.parameters:
            lines.append(
                f"| `{p.name}` | `{_cell(p.type)}` | `{_cell(p.default)}` | {_cell(p.allowed)} | {_cell(p.doc)} |"
            )
        blocks.append("\n".join(lines))
    listed = [f"- version: {facts.version}"]
    listed += [f"- {label}: {_text(value)}" for label, value in facts.facts.items() if label != "tested"]
    return "\n\n".join([b for b in blocks if b] + ["\n".join(listed)])


def prose(doc: str) -> str:
    """The docstring without its table of arguments (printed below as a table) and without its examples."""
    kept = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith((">>>", "Args:")) or not paragraph.strip():
            continue
        indented = all(line.startswith("    ") for line in paragraph.splitlines())
        kept.append(paragraph if indented else _text(paragraph))
    return "\n\n".join(kept)


def _text(text: str) -> str:
    """Double backticks become single ones; outside them Markdown's own signs are taken literally."""
    parts = re.split(r"``(.+?)``", text, flags=re.DOTALL)
    return "".join(f"`{p}`" if i % 2 else re.sub(r"([*_<>\[\]])", r"\\\1", p) for i, p in enumerate(parts))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _anchor(facts: Facts) -> str:
    return f"{facts.kind}-{facts.name}"
