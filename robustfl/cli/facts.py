"""Everything known about a method, read off its class: for ``list``, ``show`` and the page of all methods."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from robustfl.contracts import Method
from robustfl.papers import spelled_out
from robustfl.parameters import allowed
from robustfl.registry import KINDS, Entry, entries
from robustfl.testing import laws

_OWN_LINES = {"kind", "name", "version", "paper", "cost", "exempt"}
KNOWLEDGE = {
    "blind": "the attackers' own rows alone",
    "partial": "the attackers' own rows, in place of the honest ones",
    "omniscient": "every honest row",
    "defense": "every honest row and the server's aggregation",
}


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter as it is declared."""

    name: str
    type: str
    default: str
    allowed: str
    doc: str


@dataclass(frozen=True)
class Facts:
    """One method; ``facts`` are label and text in the order of printing."""

    kind: str
    name: str
    version: int
    origin: str
    summary: str
    doc: str
    parameters: tuple[Parameter, ...]
    facts: Mapping[str, str]


def facts_of(entry: Entry) -> Facts:
    """Facts that the class of a registered method states about itself."""
    doc = inspect.getdoc(entry.cls) or ""
    return Facts(
        kind=entry.kind,
        name=entry.name,
        version=entry.version,
        origin=entry.origin,
        summary=summary(doc),
        doc=doc,
        parameters=tuple(map(_parameter, dataclasses.fields(entry.cls))),  # type: ignore[arg-type]
        facts=_facts(entry.cls),
    )


def summary(doc: str) -> str:
    """The first paragraph of a docstring as a sentence, also where an equation goes on with it.

    >>> summary("Signed steps, projected:\\n\\n``x + g``")
    'Signed steps, projected.'
    """
    return re.sub(r"(; then|[:,;])$", ".", doc.split("\n\n")[0].replace("\n", " ").replace("``", ""))


def _parameter(field: dataclasses.Field[Any]) -> Parameter:
    default = "required" if field.default is dataclasses.MISSING else repr(field.default)
    # Without ``from __future__ import annotations`` the annotation is a class and not its text.
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return Parameter(field.name, kind, default, allowed(field), field.metadata.get("doc", ""))


def _facts(cls: type[Method]) -> dict[str, str]:
    found = {"paper": spelled_out(cls.paper)} | _declared(cls)
    found |= {"clients needed": _clients(cls), "cost": cls.cost}
    found["tested"] = ", ".join(law.name for law in laws(cls) if law.name not in cls.exempt)
    found |= {f"exempt from {law!r}": reason for law, reason in cls.exempt.items()}
    return {label: text for label, text in found.items() if text}


def _declared(cls: type[Method]) -> dict[str, str]:
    """The method's contract, where its kind has several, and that one's class variables; False goes without saying."""
    found = {}
    contracts = [base for base in reversed(cls.__mro__) if base.__module__.startswith("robustfl.contracts.")]
    if len(contracts) > 2:  # Method, the kind's own, and one beside it
        found["contract"] = contracts[-1].__name__
    for base in contracts:
        for name, annotation in vars(base).get("__annotations__", {}).items():
            if "ClassVar" not in str(annotation) or name in _OWN_LINES or name.startswith("_"):
                continue
            value = getattr(cls, name)
            if name == "knowledge":
                found[name] = f"{value}: {KNOWLEDGE.get(value, '')}"
            elif isinstance(value, (bool, str, int, float)) and value:
                found[name.replace("_", " ")] = "yes" if value is True else str(value)
    return found


def _clients(cls: type[Method]) -> str:
    """The number of clients a defense needs, read off its own rule at f = 0..3."""
    if not hasattr(cls, "min_clients"):
        return ""
    try:
        needs = [cls().min_clients(f) for f in range(4)]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return ""
    return ", ".join(f"{need} for f={f}" for f, need in enumerate(needs))


# --- the page of all methods -----------------------------------------------------------------------------------------

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
