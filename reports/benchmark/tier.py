"""A tier of the benchmark as a page: who holds out under AutoByz, at what cost, how sure that is, how it was tuned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robustfl.autobyz import TITLE

from ..board import Row
from ..columns import costs, percent_text, rank_text, remarks
from ..table_cell import TableCell, member_text
from ..tables import MARKDOWN, code
from ..tables import markdown_escape as escape
from ..tables import markdown_table as table
from .beaten import beaten_table
from .cross_chosen import bound_text
from .data import Facts, Measured, percent

_KNOWN_TO_BE_BEATEN = (
    f"**{TITLE} is not the worst case.** Versions 1 and 2 are known to be beaten by 20 points on average: twelve small "
    "attacks lower the 25 best rows of tier D under version 2 by 19.8 points on average, by 57 at most. With f = 3 of "
    "10, γ = 0.5 and naive batch norm, five seeds each, `alie(z=1.5, sign=1)`, an attack of the zoo, takes `phocas` "
    "from 74.5 to 40.5 % and `meamed` from 76.6 to 51.6 %. Version 3 holds that attack and others like it."
)
_MEMBERS_ONLY = (
    f"**{TITLE} is not the worst case.** A number under it is that of the worst of its members; an attack of anybody's "
    "that goes lower [joins the row](protocol.md)."
)


def caveat(version: int | None) -> str:
    """The words on how much numbers under a version of AutoByz, or of the protocol that counts it, say."""
    return _KNOWN_TO_BE_BEATEN if version in (1, 2) else _MEMBERS_ONLY


def tier_page(it: Measured, *, reading: str = "") -> str:
    """The page in Markdown; ``reading`` is what people say of the board."""
    head = (
        f"# {it.heading}\n\n{escape(it.conditions)}. Protocol version {it.facts['version']}, {TITLE} version "
        f"{it.facts['autobyz']}. {changed_words(it.facts)}[The rules](protocol.md); how [{TITLE}](autobyz.md) was "
        "chosen; [all tiers](index.md)."
    )
    claims = it.compared.verdict if it.compared.results else ""
    parts = [
        head,
        caveat(it.facts["autobyz"]),
        f"Board: {it.download}. Computed with {_software(it)}.",
        f"## Ranking\n\n{_ranking(it)}",
        f"{escape(claims)} {escape(it.board.caption)}\n\n{escape(' '.join(it.board.notes))}",
        "\n".join(f"- <sup>{mark}</sup> {escape(text)}" for mark, text in remarks(it.board)),
        _tasks(it),
        f"## What it says\n\n{reading}" if reading else "",
        beaten_table(it),
        f"## Accuracy and cost\n\n{_pareto(it)}",
        f"## How every contestant was tuned\n\n{_tuning(it)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def changed_words(facts: Facts) -> str:
    """The settings that a run changed of the protocol, in words; empty if none."""
    changed = facts.get("changed") or []
    if not changed:
        return ""
    settings = ", ".join(map(code, changed))
    return f"**Not the whole protocol**: this run changed {settings}. "


def _software(it: Measured) -> str:
    known = it.published.environment
    versions = [f"{name} {' and '.join(found)}" for name, found in known.versions.items()]
    versions += [f"commit {' and '.join(_commit_words(c) for c in known.commits)}"] if known.commits else []
    where = " and ".join(known.processors or known.devices) or "an unnamed device"
    return escape(f"{', '.join(versions)} on {where}")


def _commit_words(commit: str) -> str:
    """The first letters of a commit, with the mark of changed files."""
    short, dash, modified = commit.partition("-")
    return f"{short[:12]}{dash}{modified}"


def _ranking(it: Measured) -> str:
    ra = [it.robust_title] if it.robust else []
    told = ["is told"] if it.tells else []
    head = ["rank", "contestant", f"SA under {TITLE}", "at least", "per seed", *ra, "SA, no attack", "points lost",
            "worst member", *told, "time", "peak MiB", "MiB sent a round"]  # fmt: skip
    lines = []
    for row in it.rows:
        other = it.robust_rows.get(row.labels)
        cells = [
            it.clean(row).text(spread=False), it.lost(row), member_text(row.members, row.member_seeds),
            *([_known(it, row)] if told else []), it.cost(row), costs(row)[1],
            f"{it.traffic[row.labels]:.2f}" if row.labels in it.traffic else "–",
        ]  # fmt: skip
        first = [rank_text(row), escape(it.name(row)), MARKDOWN.place(row.worst), bound_text(row.worst)]
        first += [MARKDOWN.place(it.per_seed(row))]
        first += [MARKDOWN.place(other.worst) if other else "–"] if it.robust else []
        lines.append([*first, *map(escape, cells)])
    words = (
        "*points lost*: against the unattacked mean with the same norm. *MiB sent a round*: every client's upload and "
        "one broadcast of the model and the norm's statistics in float32, without what an algorithm or a propagation "
        "sends beside them."
    )
    words = (
        f"*SA under {TITLE}*: under the member with the lowest mean on the other seeds, seed by seed. *at least*: the "
        f"mean over seeds is above it with 95 % confidence. *per seed*: under the lowest member of each seed. {words}"
    )
    words = f"*is told*: what the defense knows beside the rows it aggregates. {words}" if told else words
    columns = "".join("l" if h in ("contestant", "worst member", "is told") else "r" for h in head)
    return f"{table([escape(h) for h in head], columns, lines)}\n\n{words}"


def _known(it: Measured, row: Row) -> str:
    """The words on what a defense is told; ``f declared`` stays in one line."""
    return str(it.search(row).get("knowledge", "–")).replace("f declared", "f\N{NO-BREAK SPACE}declared")


def decided(search: Facts) -> bool:
    """True if a search chose: its best configuration has a number under every tuning attack."""
    return search["search"][search["chosen"]]["worst"] is not None


def _tasks(it: Measured) -> str:
    """SA, and RA, under AutoByz task by task, where there are several."""
    if len(it.board.tasks) <= len(it.board.metrics):
        return ""
    metrics = ["sa", *([it.robust] if it.robust else [])]
    blocks = list(dict.fromkeys(s.block for s in it.board.tasks))
    found = {(s.metric, s.block): {r.labels: r.worst for r in s.rows} for s in it.board.tasks}
    lines = []
    for row in it.rows:
        places = [[found[m, block].get(row.labels, TableCell()) for m in metrics] for block in blocks]
        told = [escape(" / ".join(place.text(spread=False) for place in each)) for each in places]
        lines.append([escape(it.name(row)), *told])
    what = f"SA / {it.robust_title}" if it.robust else f"SA under {TITLE}"
    shown = table(["contestant", *map(escape, blocks)], "l" + "r" * len(blocks), lines)
    return f"## Task by task\n\n{escape(what)}.\n\n{shown}"


def _pareto(it: Measured) -> str:
    """The contestants that nobody beats both ways, the fastest first."""
    if not it.pareto:
        return "No contestant has both a number under attack and a time."
    listed = [f"{k}. {escape(it.name(r))}: {percent(r.worst)}, {it.cost(r)}" for k, r in enumerate(it.pareto, 1)]
    return "Nobody is both better under attack and faster than these:\n\n" + "\n".join(listed)


def _tuning(it: Measured) -> str:
    """Every configuration's worst case on validation data, the chosen one in bold."""
    heads = ["contestant", "configurations: worst validation accuracy over the tuning attacks, %"]
    lines = []
    for name, found in it.facts.get("contestants", {}).items():
        shown = []
        for i, tried in enumerate(found["search"]):
            text = escape(f"{configuration(tried, name.split(' · ')[0])}: {percent_text(tried['worst'])}")
            shown.append(f"**{text}**" if i == found["chosen"] and decided(found) else text)
        why = f" ({escape(found['reason'])})" if found.get("reason") else ""
        lines.append([escape(name), f"{'; '.join(shown)}{why}"])
    return f"{tuning_words(it.facts)}\n\n{table(heads, 'll', lines)}"


def tuning_words(facts: Facts) -> str:
    """The rules of tuning, in words."""
    tuning = ", ".join(f"{name} = {_listed(value)}" for name, value in facts.get("tuning", {}).items())
    return (
        f"{facts.get('budget')} configurations each ({escape(tuning)}), one seed, chosen by the worst case on "
        "validation data of honest clients; –: some attack left no number."
    )


def _listed(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def configuration(tried: Facts, defense: str) -> str:
    """One configuration that was tried: the defense where it is another than the contestant's, and the rate."""
    own = tried["defense"] if tried["defense"] != defense else ""
    rate = str(tried["schedule"]).removeprefix("constant(").rstrip(")")
    return " ".join(filter(None, [own, rate]))
