"""A method as a page of the benchmark: its equation, its paper, and every result that it has on any board."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from robustfl.autobyz import TITLE
from robustfl.papers import bibtex

from ..board import Row
from ..columns import rank_text
from ..grouping import NO_ATTACK
from ..table_cell import member_text
from ..tables import markdown_escape as escape
from ..tables import markdown_table as table
from .contestant import method_file
from .data import Measured, methods_of

Method = tuple[str, str]


@dataclass(frozen=True)
class About:
    """The words of a method's class on it.

    ``text`` is its description with the equation and ``facts`` are label and text, in Markdown; ``paper`` is its line
    of citations.
    """

    text: str
    paper: str
    facts: Mapping[str, str]


AboutOf = Callable[[str, str], About | None]
"""From a kind and a name to what is known of the method; None for one that is not installed here."""


def method_pages(boards: Sequence[Measured], about: AboutOf) -> dict[str, str]:
    """The pages of all methods of the boards, by their file."""
    users: dict[Method, list[tuple[Measured, Row]]] = {}
    attacks: dict[Method, list[tuple[Measured, str]]] = {}
    for it in boards:
        for row in it.rows:
            for method in methods_of(it.found[row.labels]):
                users.setdefault(method, []).append((it, row))
        for attack in it.board.attacks:
            if attack not in (NO_ATTACK, TITLE):
                attacks.setdefault(("attack", attack_name(attack)), []).append((it, attack))
    pages = {m: _results(found) for m, found in users.items()} | {m: _struck(found) for m, found in attacks.items()}
    return {method_file(*method): _page(method, about(*method), results) for method, results in sorted(pages.items())}


def attack_name(label: str) -> str:
    """The registered name in a label.

    >>> attack_name("foe(eta=10) [update]")
    'foe'
    """
    return re.split(r"[( ]", label)[0]


def _page(method: Method, about: About | None, results: str) -> str:
    kind, name = method
    parts = [f"# {kind.capitalize()} {name}"]
    if about is None:
        parts.append("A plug-in that was not installed where this page was written.")
    else:
        parts.append(about.text)
        parts.append("\n".join(f"- {label}: {text}" for label, text in about.facts.items()))
        entries = bibtex(about.paper, key=f"{kind} {name}") if about.paper else ""
        parts.append(f"## BibTeX\n\n```bibtex\n{entries}\n```" if entries else "")
    parts.append(f"## Results in the [benchmark](../index.md)\n\n{results}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _results(found: Sequence[tuple[Measured, Row]]) -> str:
    """Every contestant that the method is part of."""
    heads = ["tier", "rank", "contestant", "SA, no attack", f"SA under {TITLE}", f"RA under {TITLE}", "worst member"]
    lines = []
    for it, row in found:
        other = it.robust_rows.get(row.labels)
        cells = [
            it.clean(row).text(spread=False), row.worst.text(), other.worst.text() if other else "not measured",
            member_text(row.members, row.member_seeds), it.cost(row),
        ]  # fmt: skip
        first = [f"[{it.page}](../{it.page}.md)", f"{rank_text(row)} of {len(it.rows)}", it.link(row, "../")]
        lines.append([*first, *map(escape, cells)])
    return table([*heads, "time"], "lrlrrrlr", lines)


def _struck(found: Sequence[tuple[Measured, str]]) -> str:
    """Every contestant under the attack, and how often it was the worst member."""
    heads = ["tier", "attack", "contestant", "SA under it", f"SA under {TITLE}", "seeds in which it is the worst"]
    lines = []
    for it, attack in found:
        place = it.board.attacks.index(attack)
        for row in it.rows:
            own = row.cells[place]
            times, total = dict(row.members).get(attack, 0), row.member_seeds
            cells = [own.text(), row.worst.text(), f"{times}/{total}" if total else "–"]
            first = [f"[{it.page}](../{it.page}.md)", escape(attack), it.link(row, "../")]
            lines.append([*first, *map(escape, cells)])
    return table(heads, "lllrrr", lines)
