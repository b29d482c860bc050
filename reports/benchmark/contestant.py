"""A contestant of the benchmark as a page: all that was measured of it, attack by attack, and how it was tuned."""

from __future__ import annotations

from collections.abc import Sequence

from robustfl.autobyz import TITLE

from ..board import Row, Section, metric_title
from ..columns import note_mark, percent_text
from ..table_cell import TableCell, member_text
from ..tables import MARKDOWN
from ..tables import markdown_escape as escape
from ..tables import markdown_table as table
from .cross_chosen import bound_text
from .data import Facts, Measured, methods_of, percent, ranks_of
from .tier import configuration, decided, rate_of, tuning_words


def contestant_page(it: Measured, row: Row) -> str:
    """The page in Markdown, one folder below the tier's."""
    contestant = it.found[row.labels]
    notes = sorted({n for _, r in contestant.rows for place in r.places for n in place.notes})
    search = it.search(row)
    parts = [
        f"# {escape(it.name(row))}",
        f"A contestant of [{it.heading}](../{it.page}.md): {escape(it.conditions)}.",
        _summary(it, row, search),
        "## Attack by attack\n\n" + "\n\n".join(_tables(it, row)),
        "\n".join(f"- <sup>{note_mark(n)}</sup> {escape(it.board.footnotes[n - 1])}" for n in notes),
        f"## How it was tuned\n\n{_tuning(it.facts, search)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_FAR = "not told from it by a test over all pairs, though the intervals do not meet"


def _summary(it: Measured, row: Row, search: Facts) -> str:
    methods = [f"[{kind} `{name}`](../{method_file(kind, name)})" for kind, name in methods_of(it.found[row.labels])]
    near, apart = ([it.link(r, "../") for r in rows] for rows in it.rivals(row))
    seconds = "" if row.seconds_per_round is None else f"{1000 * row.seconds_per_round:.0f} ms a round"
    slower = "" if it.cost(row) == "–" else f"{it.cost(row)} with the same norm"
    memory = "" if row.peak_memory is None else f"peak memory {row.peak_memory / 2**20:.0f} MiB"
    sent = f"{it.traffic[row.labels]:.2f} MiB sent a round" if row.labels in it.traffic else ""
    facts = {
        f"SA under {TITLE}": f"{percent(row.worst)}, at least {bound_text(row.worst)} %; {ranks_of(it, row)}",
        "under the lowest member of every seed": percent(it.per_seed(row)),
        it.robust_title: it.robust_text(row),
        "SA without attack": percent(it.clean(row)),
        "worst member": member_text(row.members, row.member_seeds),
        "not told from it": ", ".join(near) or "none that is near it",
        **({_FAR: ", ".join(apart)} if apart else {}),
        **({"is told": search.get("knowledge", "–")} if it.tells else {}),
        "learning rate": rate_of(search),
        "cost": ", ".join(filter(None, (seconds, slower, memory, sent))) or "–",
        "methods": ", ".join(methods),
        "board": f"[{it.file}](../boards/{it.file})",
    }
    plain = {"not told from it", _FAR, "methods", "board"}
    return "\n".join(f"- {escape(n)}: {text if n in plain else escape(text)}" for n, text in facts.items())


def _tables(it: Measured, row: Row) -> list[str]:
    """A table per task, their mean first: one line per attack, with every seed."""
    blocks: dict[str, list[tuple[Section, Row]]] = {}
    for section, own in it.found[row.labels].rows:
        blocks.setdefault(section.block, []).append((section, own))
    return [_table(it, block if it.board.task_names else "", found) for block, found in blocks.items()]


def _table(it: Measured, block: str, found: Sequence[tuple[Section, Row]]) -> str:
    metrics = [metric_title(section.metric) for section, _ in found]
    heads = ["attack", *map(escape, [*metrics, *(f"{metric} by seed" for metric in metrics)])]
    members = () if it.board.autobyz is None else it.board.autobyz.members
    lines = []
    for i, attack in enumerate(it.board.attacks):
        places = [row.cells[i] for _, row in found]
        if not any(p.expected for p in places):
            continue
        name = f"**{attack}**" if attack == TITLE else f"{escape(attack)}{' (member)' if attack in members else ''}"
        lines.append([name, *map(MARKDOWN.place, places), *(_seeds(p) for p in places)])
    shown = table(heads, "l" + "r" * len(metrics) + "l" * len(metrics), lines)
    return (f"### {escape(block)}\n\n" if block else "") + shown


def _seeds(place: TableCell) -> str:
    return ", ".join(f"{100 * v:.1f}" for _, v in place.values) or "–"


def _tuning(facts: Facts, search: Facts) -> str:
    if not search:
        return "The board holds no search for it."
    attacks = list(search["search"][0]["validation"])
    lines = []
    for i, tried in enumerate(search["search"]):
        name = escape(configuration(tried, ""))
        values = [*map(percent_text, [*map(tried["validation"].get, attacks), tried["worst"]])]
        lines.append([f"**{name}**" if i == search["chosen"] and decided(search) else name, *values])
    shown = table(["configuration", *map(escape, attacks), "worst"], "lr" + "r" * len(attacks), lines)
    why = f"\n\nNo configuration left a number: {escape(search['reason'])}." if search.get("reason") else ""
    chosen = "In bold: the chosen one." if decided(search) else (
        "Nothing could be chosen, since none has a number under every attack: final cells have the first."
    )  # fmt: skip
    return f"{tuning_words(facts)} {chosen}\n\n{shown}{why}"


def method_file(kind: str, name: str) -> str:
    """The file of a method's page."""
    return f"methods/{kind}-{name}.md"
