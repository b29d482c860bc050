"""The front page of the benchmark: which defense to use, at what cost, how sure that is; tiers, rules, how to cite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from robustfl.autobyz import TITLE

from ..board import Row
from ..tables import markdown_escape as escape
from ..tables import markdown_table as table
from .data import Measured, best, percent, ranks_of
from .tier import caveat, changed_words

QUESTION = "Which defense should I use with batch norm, at what cost, and how sure is that?"


def front_page(boards: Sequence[Measured], *, tiers: Mapping[str, str], left_out: Sequence[str], reading: str) -> str:
    """The page in Markdown.

    ``tiers`` are all there are with what they are about, ``left_out`` is what is said of boards that are not shown,
    ``reading`` what people say of the boards.
    """
    newest = max((it.facts["version"] for it in boards), default=0)
    words = caveat({it.facts["autobyz"] for it in boards})
    parts = [
        f"# The benchmark\n\n*{QUESTION}*\n\n{words}\n\n{_short(boards, newest)}",
        reading,
        *(_tier(it, newest) for it in boards),
        _tiers(boards, tiers),
        "\n".join(f"- Not shown: {escape(words)}" for words in left_out),
        _MEASURED,
        _cite(boards),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _short(boards: Sequence[Measured], newest: int) -> str:
    """A line per tier: the first contestant with batch statistics, what it costs and how sure that is."""
    robust = [f"RA under {TITLE}"] if any(it.robust for it in boards) else []
    heads = ["data", "first with batch norm", f"SA under {TITLE}", "SA, no attack", *robust, "time", "how sure"]
    lines = []
    for it in boards:
        older = "" if it.facts["version"] == newest else "an older protocol"
        where = f"[{escape(it.facts['title'])}]({it.page}.md)"
        data = ", ".join(filter(None, (where, escape(it.attackers), escape(it.spread), older)))
        first = best(r for r in it.rows if it.of(r, "norm") in it.with_statistics)
        if first is None:
            lines.append([data, "no contestant has a number", *"–" * (len(heads) - 2)])
            continue
        cells = [percent(first.worst), percent(it.clean(first), spread=False)]
        cells += [it.robust_text(first)] if robust else []
        told = map(escape, [*cells, it.cost(first), _sure(it, first)])
        lines.append([data, f"**{it.link(first)}**", *told])
    return f"{table(heads, 'll' + 'r' * (len(heads) - 3) + 'l', lines)}\n\n{_below(boards)}"


def _below(boards: Sequence[Measured]) -> str:
    """The words below the first table."""
    scales = dict.fromkeys("the plain mean's" if it.yardstick == "mean" else "the fastest row's" for it in boards)
    parts = dict.fromkeys(it.facts["title"] for it in boards if it.facts["changed"])
    words = [
        f"A line is about one kind of data and says nothing of others. SA and RA under {TITLE} are those of its worst "
        "attack, which is chosen for every seed on the others.",
        f"Time is that of a round, as a multiple of {' or '.join(scales)} with the same norm." if scales else "",
        "How sure: the ranks that a test over all pairs of the board leaves open, and how many others it does not tell "
        "from the first. The more rows, the fewer it tells apart: near it are those whose intervals meet its own.",
        f"Only a part of the protocol has run: {escape(', '.join(parts))}." if parts else "",
    ]
    return " ".join(filter(None, words))


def _sure(it: Measured, row: Row) -> str:
    """The ranks that a contestant may have, how many the test does not tell from it, and how many are also near."""
    near, apart = it.rivals(row)
    rivals = len(near) + len(apart)
    if len(it.rows) < 2:
        return "nothing to compare with"
    meets = f", of which {len(near)} near it" if apart else ""
    told = f"not told from {rivals} other{'' if rivals == 1 else 's'}{meets}" if rivals else "told from all others"
    return f"{ranks_of(it, row)}; {told}"


def _tier(it: Measured, newest: int) -> str:
    """The first contestant of every norm, those with batch statistics first, and who has no number."""
    norms = sorted(dict.fromkeys(it.of(r, "norm") for r in it.rows), key=lambda n: n not in it.with_statistics)
    heads = [f"SA under {TITLE}", *([it.robust_title] if it.robust else []), "SA, no attack", "time", "how sure"]
    lines = []
    for norm in norms:
        for row, why in _firsts(it, norm):
            robust = [it.robust_text(row)] if it.robust else []
            cells = [percent(row.worst), *robust, percent(it.clean(row)), it.cost(row), _sure(it, row)]
            lines.append([escape(norm), f"{it.link(row, apart=('norm',))}{why}", *map(escape, cells)])
    told = [f"Norms with batch statistics: {', '.join(f'`{n}`' for n in norms if n in it.with_statistics) or 'none'}."]
    lost = [f"{it.link(r)} ({_state(r)})" for r in it.rows if not r.worst.exact]
    told += [f"Last, without a number under attack: {', '.join(lost)}."] if lost else []
    version = it.facts["version"]
    older = "" if version == newest else (
        f"**Protocol version {version}**, which counts {TITLE} version {it.facts['autobyz']}: later attacks may lower "
        "these numbers. "
    )  # fmt: skip
    head = f"## {it.heading}\n\n{escape(it.conditions)}. {older}{changed_words(it.facts)}[Everything]({it.page}.md)."
    shown = table(["norm", "first", *map(escape, heads)], "ll" + "r" * (len(heads) - 1) + "l", lines)
    return f"{head}\n\n{shown}\n\n{' '.join(told)}"


def _state(row: Row) -> str:
    return "only a bound" if row.worst.is_number else escape(row.worst.status)


def _firsts(it: Measured, norm: str) -> list[tuple[Row, str]]:
    """The first of a norm by SA, and the first by RA where that is another one and RA tells any rows apart."""
    own = [r for r in it.rows if it.of(r, "norm") == norm and r.worst.exact]
    if not own:
        return []
    ranked = [r for r in it.robust_rows.values() if r.worst.exact]
    apart = any(r.ranks != (1, len(ranked)) for r in ranked)
    robust = {r.labels: r.worst.mean or 0.0 for r in ranked} if apart else {}
    first = max(own, key=lambda r: robust.get(r.labels, -1.0))  # of equal ones the first by SA
    return [(own[0], ""), *([(first, " (first by RA)")] if first is not own[0] else [])]


def _tiers(boards: Sequence[Measured], tiers: Mapping[str, str]) -> str:
    lines = []
    for name, title in tiers.items():
        shown = [it for it in boards if it.tier == name]
        if not shown:
            lines.append([name, escape(title), "–", "not run yet"])
        for it in shown:
            part = " (not the whole protocol)" if it.facts["changed"] else ""
            lines.append([f"[{it.page}]({it.page}.md)", f"{escape(title)}{part}", str(len(it.rows)), it.download])
    shown_as = table(["tier", "what", "contestants", "board"], "llrl", lines)
    return f"## Tiers and boards\n\n{shown_as}"


_MEASURED = f"""## How it is measured

- [The protocol](protocol.md) fixes data, clients, models, seeds and budgets, so that nothing is left to choose: every
  contestant is tuned with the same budget on validation data, then measured.
- [{TITLE}](autobyz.md) is the attack: the worst per seed of a fixed set that no author picked.
  [The study](study.md) chose the set; how it fares [where it was not chosen](heldout.md) is known, too.
- What is refused or diverges stays on the board, last. What cannot be told apart shares its ranks.
- What papers claim, beside what is measured here: [reproduction](../evidence/reproduction.md).
- Anybody can run a tier or one contestant of it, [check](../checking.md) a board, and [submit](../submit.md) one."""


def _cite(boards: Sequence[Measured]) -> str:
    """How to cite the boards: whose they are, of which version, their digests."""
    versions = sorted({v for it in boards for v in it.published.environment.versions.get("robustfl", [])})
    said = "; ".join(f"tier {it.tier}, board {it.published.digest[:12]}" for it in boards)
    fields = {
        "author": "{The robustfl developers}",
        "title": "{robustfl: a benchmark instrument for Byzantine and adversarial robustness in federated learning}",
        "version": ", ".join(versions), "note": said,
    }  # fmt: skip
    listed = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items() if value)
    words = "Cite the methods, too: their pages have the BibTeX."
    return f"## How to cite\n\n```bibtex\n@software{{robustfl,\n{listed}\n}}\n```\n\n{words}"
