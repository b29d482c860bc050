"""The front page of the benchmark: who holds out best under AutoByz, at what cost, how sure that is; what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from robustfl.autobyz import TITLE

from ..tables import markdown_escape as escape
from ..tables import markdown_table as table
from .cross_chosen import bound_text
from .data import Measured, percent
from .tier import caveat, changed_words

_QUESTION = "Which defense, with which norm, at what cost, and how sure is that?"
SHOWN = 5
"""Rows of a board on the front page; the first of every norm follows, where it is none of them."""


def front_page(
    boards: Sequence[Measured], *, version: int, tiers: Mapping[str, str], left_out: Sequence[str], reading: str
) -> str:
    """The page in Markdown.

    ``version`` is the protocol's newest; ``tiers`` are all there are with what they are about, ``left_out`` is what is
    said of boards that are not shown, ``reading`` what people say of the boards.
    """
    new = [it for it in boards if it.facts["version"] == version]
    old = [it for it in boards if it.facts["version"] != version]
    parts = [
        f"# The benchmark\n\n*{_QUESTION}*\n\n{caveat(version)}",
        *map(_first_rows, new),
        "" if new else f"No board of protocol version {version} has been run yet.",
        _SURE if new else "",
        reading,
        _archive(old) if old else "",
        _tiers(new, tiers, version),
        "\n".join(f"- Not shown: {escape(words)}" for words in left_out),
        _MEASURED,
        _cite(boards),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _first_rows(it: Measured) -> str:
    """The first rows of a board and the first of every norm: accuracy, what is lost, time, what the test says."""
    first_of = {it.of(row, "norm"): row.labels for row in reversed(it.rows)}
    rows = [row for i, row in enumerate(it.rows) if i < SHOWN or row.labels in first_of.values()]
    robust = [it.robust_title] if it.robust else []
    heads = ["defense · norm", f"SA under {TITLE}", "at least", "points lost", *robust, "time", "p against the first"]
    lines = []
    for row in rows:
        cells = [percent(row.worst), bound_text(row.worst), it.lost(row)]
        cells += [it.robust_text(row)] if it.robust else []
        lines.append([escape(it.name(row)), *map(escape, [*cells, it.cost(row), it.p_against_first(row)])])
    shown = table(list(map(escape, heads)), "l" + "r" * (len(heads) - 1), lines)
    head = f"## [{escape(it.heading)}]({it.page}.md)\n\n{escape(it.conditions)}. {changed_words(it.facts)}"
    return f"{head}{len(it.rows)} rows.\n\n{shown}"


_SURE = (
    f"*SA under {TITLE}*: under its worst member, chosen for every seed on the others; the mean over seeds lies above "
    "*at least* with 95 % confidence. *points lost*: against the unattacked mean with the same norm. *p against the "
    "first*: paired over seeds, Holm over the rows; above 0.05 a row is not told from the first. A board is about one "
    "kind of data and says nothing of others."
)


def _archive(boards: Sequence[Measured]) -> str:
    """The boards of earlier versions of the protocol, and why they are not to be read as worst cases."""
    lines = [
        [f"[{it.page}]({it.page}.md)", escape(it.facts["title"]), str(it.facts["version"]), str(len(it.rows)),
         it.download]
        for it in boards
    ]  # fmt: skip
    words = caveat(min(it.facts["version"] for it in boards))
    shown = table(["board", "what", "protocol", "rows", "file"], "llrrl", lines)
    return f"## Archive: boards of earlier versions\n\n{words}\n\n{shown}"


def _tiers(boards: Sequence[Measured], tiers: Mapping[str, str], version: int) -> str:
    lines = []
    for name, title in tiers.items():
        own = [it for it in boards if it.tier == name]
        lines += [[f"[{it.page}]({it.page}.md)", escape(title), str(len(it.rows)), it.download] for it in own]
        lines += [] if own else [[name, escape(title), "–", "not run yet"]]
    return f"## Tiers of version {version}\n\n{table(['tier', 'what', 'rows', 'board'], 'llrl', lines)}"


_MEASURED = f"""## How it is measured

- [The protocol](protocol.md) fixes data, clients, models, seeds and budgets, so that nothing is left to choose: every
  contestant is tuned with the same budget on validation data, then measured.
- [{TITLE}](autobyz.md) is the attack, a fixed set that no author picked; [the study](study-3.md) chose it.
- What is refused or diverges stays on the board, last.
- Every attack, seed and row of a board: `robustfl report bench-d.json.gz`.
- What papers claim, beside what is measured here: [reproduction](../evidence/index.md).
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
    words = "Cite the methods, too: `robustfl show METHOD` has the BibTeX."
    return f"## How to cite\n\n```bibtex\n@software{{robustfl,\n{listed}\n}}\n```\n\n{words}"
