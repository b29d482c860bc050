"""The benchmark's site: a front page and a page per board in Markdown, from the boards alone.

The same boards and words give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from robustfl.autobyz import TITLE, Member
from robustfl.errors import UsageError

from ..board import Row
from ..columns import costs, percent_text, rank_text, remarks
from ..published.files import write_board
from ..store import write_atomic
from ..table_cell import TableCell, member_text
from ..tables import MARKDOWN, code
from ..tables import markdown_escape as escape
from ..tables import markdown_table as table
from .cross_chosen import bound_text
from .data import Facts, Measured, percent

MARK = "---\n# Written by `robustfl bench site` from the boards: do not edit.\nhide: [toc]\n---\n\n"
"""The beginning of every page, for mkdocs and people."""
READING = "interpretation"
"""What people say of the boards, by hand: a file of this name becomes part of the front page, one with a tier's page
behind a dash, as ``interpretation-d-2.md``, part of that page."""
SHOWN = 5
"""Rows of a board on the front page; the first of every norm follows, where it is none of them."""


@dataclass(frozen=True)
class Shown:
    """A board to show, and the file that it was read from, if any: the site offers a copy of it."""

    measured: Measured
    source: Path | None = None


def write_benchmark(
    boards: Sequence[Shown], folder: Path, *, version: int, tiers: Mapping[str, str], left_out: Sequence[str] = ()
) -> list[Path]:
    """Write the site of these boards into ``folder``, the front page first; returns the files.

    ``version`` is the protocol's newest: boards of earlier ones stand in the archive. ``tiers`` are all that there are,
    with what they are about; ``left_out`` is what is said of boards that are not shown. Boards of one tier that changed
    the protocol in different ways stand side by side, in the order given. Raises ``UsageError`` for two of one tier
    that changed it alike.
    """
    shown = _numbered(sorted(boards, key=lambda b: [*tiers].index(b.measured.tier)))
    found = [b.measured for b in shown]
    reading = _said(folder, READING)
    pages = {"index.md": _front_page(found, version=version, tiers=tiers, left_out=left_out, reading=reading)}
    pages |= {f"{it.page}.md": _tier_page(it, _said(folder, f"{READING}-{it.page}")) for it in found}
    for name, text in pages.items():
        write_atomic(folder / name, MARK + text)
    written = [folder / name for name in pages]
    for board in shown:
        file = folder / "boards" / board.measured.file
        if board.source is None:
            write_board(board.measured.published, file)
        else:
            write_atomic(file, board.source.read_bytes())
        written.append(file)
    return written


def _said(folder: Path, name: str) -> str:
    """The words of people in a file of the folder; empty without one."""
    file = folder / f"{name}.md"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _numbered(boards: Sequence[Shown]) -> list[Shown]:
    """The boards, those of one tier counted, each with the suffix of its file."""
    made: list[Shown] = []
    for board in boards:
        it = board.measured
        own = [b.measured for b in made if b.measured.tier == it.tier]
        for other in own:
            if sorted(other.facts["changed"]) == sorted(it.facts["changed"]):
                digests = " and ".join(b.published.digest[:12] for b in (other, it))
                raise UsageError(
                    f"bench site: two boards of tier {it.tier} that changed the protocol alike ({digests}): give the "
                    "one to show"
                )
        zipped = board.source is not None and board.source.name.endswith(".gz")
        number, suffix = len(own) + 1, ".json.gz" if zipped else ".json"
        known = (number, suffix) == (it.number, it.suffix)
        made.append(board if known else replace(board, measured=replace(it, number=number, suffix=suffix)))
    return made


Column = tuple[str, str, Callable[[Row], str]]
"""A column of a table of rows: its heading, its side (``l`` or ``r``), a row's place in it, in Markdown."""


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    heads, sides, places = zip(*columns, strict=True)
    return table([*map(escape, heads)], "".join(sides), [[place(row) for place in places] for row in rows])


def _escaped(words: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: escape(words(row))


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(filter(None, parts)) + "\n"


# --- words that pages share ------------------------------------------------------------------------------------------

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


def _caveat(version: int | None) -> str:
    """The words on how much numbers under a version of AutoByz, or of the protocol that counts it, say."""
    return _KNOWN_TO_BE_BEATEN if version in (1, 2) else _MEMBERS_ONLY


def changed_words(facts: Facts) -> str:
    """The settings that a run changed of the protocol, in words; empty if none."""
    settings = ", ".join(map(code, facts.get("changed") or []))
    return f"**Not the whole protocol**: this run changed {settings}. " if settings else ""


# --- the front page --------------------------------------------------------------------------------------------------


def _front_page(
    boards: Sequence[Measured], *, version: int, tiers: Mapping[str, str], left_out: Sequence[str], reading: str
) -> str:
    """Who holds out best under AutoByz, at what cost, how sure that is; what there is."""
    new = [it for it in boards if it.facts["version"] == version]
    old = [it for it in boards if it.facts["version"] != version]
    question = "*Which defense, with which norm, at what cost, and how sure is that?*"
    return _joined([
        f"# The benchmark\n\n{question}\n\n{_caveat(version)}",
        *map(_first_rows, new),
        "" if new else f"No board of protocol version {version} has been run yet.",
        _SURE if new else "",
        reading,
        _archive(old) if old else "",
        _tiers(new, tiers, version),
        "\n".join(f"- Not shown: {escape(words)}" for words in left_out),
        _MEASURED,
        _cite(boards),
    ])  # fmt: skip


def _first_rows(it: Measured) -> str:
    """The first rows of a board and the first of every norm: accuracy, what is lost, time, what the test says."""
    first_of = {it.of(row, "norm"): row.labels for row in reversed(it.rows)}
    rows = [row for i, row in enumerate(it.rows) if i < SHOWN or row.labels in first_of.values()]
    told: list[Column] = [
        ("defense · norm", "l", it.name), (f"SA under {TITLE}", "r", lambda row: percent(row.worst)),
        ("at least", "r", lambda row: bound_text(row.worst)), ("points lost", "r", it.lost),
        *([(it.robust_title, "r", it.robust_text)] if it.robust else []),
        ("time", "r", it.cost), ("p against the first", "r", it.p_against_first),
    ]  # fmt: skip
    shown = _table(rows, [(head, side, _escaped(words)) for head, side, words in told])
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
    words = _caveat(min(it.facts["version"] for it in boards))
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


# --- the page of a board ---------------------------------------------------------------------------------------------


def _tier_page(it: Measured, reading: str) -> str:
    """Who holds out under AutoByz, at what cost, how sure that is, how it was tuned."""
    return _joined([
        f"# {it.heading}\n\n{escape(it.conditions)}. Protocol version {it.facts['version']}, {TITLE} version "
        f"{it.facts['autobyz']}. {changed_words(it.facts)}[The rules](protocol.md); how [{TITLE}](autobyz.md) was "
        "chosen; [all tiers](index.md).",
        _caveat(it.facts["autobyz"]),
        f"Board: {it.download}. Computed with {_software(it)}.",
        f"## Ranking\n\n{_ranking(it)}",
        f"{escape(it.compared.claims)} {escape(it.board.caption)}\n\n{escape(' '.join(it.board.notes))}",
        "\n".join(f"- <sup>{mark}</sup> {escape(text)}" for mark, text in remarks(it.board)),
        _tasks(it),
        f"## What it says\n\n{reading}" if reading else "",
        _beaten(it),
        f"## Accuracy and cost\n\n{_pareto(it)}",
        f"## How every contestant was tuned\n\n{_tuning(it)}",
    ])  # fmt: skip


def _software(it: Measured) -> str:
    known = it.published.environment
    versions = [f"{name} {' and '.join(found)}" for name, found in known.versions.items()]
    versions += [f"commit {' and '.join(map(_commit_words, known.commits))}"] if known.commits else []
    where = " and ".join(known.processors or known.devices) or "an unnamed device"
    return escape(f"{', '.join(versions)} on {where}")


def _commit_words(commit: str) -> str:
    """The first letters of a commit, with the mark of changed files."""
    short, dash, modified = commit.partition("-")
    return f"{short[:12]}{dash}{modified}"


def _ranking(it: Measured) -> str:
    def known(row: Row) -> str:
        """What a defense is told; ``f declared`` stays in one line."""
        return escape(str(it.search(row).get("knowledge", "–")).replace("f declared", "f\N{NO-BREAK SPACE}declared"))

    def robust(row: Row) -> str:
        other = it.robust_rows.get(row.labels)
        return MARKDOWN.place(other.worst) if other else "–"

    shown = _table(it.rows, [
        ("rank", "r", rank_text), ("contestant", "l", _escaped(it.name)),
        (f"SA under {TITLE}", "r", lambda row: MARKDOWN.place(row.worst)),
        ("at least", "r", lambda row: bound_text(row.worst)),
        ("per seed", "r", lambda row: MARKDOWN.place(it.per_seed(row))),
        *([(it.robust_title, "r", robust)] if it.robust else []),
        ("SA, no attack", "r", lambda row: escape(it.clean(row).text(spread=False))),
        ("points lost", "r", it.lost),
        ("worst member", "l", lambda row: escape(member_text(row.members, row.member_seeds))),
        *([("is told", "l", known)] if it.tells else []),
        ("time", "r", it.cost), ("peak MiB", "r", lambda row: costs(row)[1]),
        ("MiB sent a round", "r", lambda row: f"{it.traffic[row.labels]:.2f}" if row.labels in it.traffic else "–"),
    ])  # fmt: skip
    words = (
        f"*SA under {TITLE}*: under the member with the lowest mean on the other seeds, seed by seed. *at least*: the "
        "mean over seeds is above it with 95 % confidence. *per seed*: under the lowest member of each seed. *points "
        "lost*: against the unattacked mean with the same norm. *MiB sent a round*: every client's upload and one "
        "broadcast of the model and the norm's statistics in float32, without what an algorithm or a propagation sends "
        "beside them."
    )
    told = "*is told*: what the defense knows beside the rows it aggregates. " if it.tells else ""
    return f"{shown}\n\n{told}{words}"


def _tasks(it: Measured) -> str:
    """SA, and RA, under AutoByz task by task, where there are several."""
    if len(it.board.tasks) <= len(it.board.metrics):
        return ""
    metrics = ["sa", *([it.robust] if it.robust else [])]
    found = {(s.metric, s.block): {r.labels: r.worst for r in s.rows} for s in it.board.tasks}

    def places(block: str, row: Row) -> str:
        each = [found[m, block].get(row.labels, TableCell()) for m in metrics]
        return escape(" / ".join(place.text(spread=False) for place in each))

    shown = _table(it.rows, [
        ("contestant", "l", _escaped(it.name)),
        *((block, "r", partial(places, block)) for metric, block in found if metric == "sa"),
    ])  # fmt: skip
    what = f"SA / {it.robust_title}" if it.robust else f"SA under {TITLE}"
    return f"## Task by task\n\n{escape(what)}.\n\n{shown}"


def _beaten(it: Measured) -> str:
    """Who lowered which row; empty where nobody did."""
    lines = []
    for entry in it.facts.get("beaten", []):
        row = it.row(it.table("sa"), entry["contestant"])
        open_to = it.board.autobyz.scope if it.board.autobyz else entry["scope"]
        label = Member(entry["attack"], "" if entry["scope"] == open_to else entry["scope"]).label
        place = row.cells[it.board.attacks.index(label)].text() if label in it.board.attacks else "–"
        lines.append([*map(escape, [it.name(row), label, entry.get("by") or "–", place, row.worst.text()])])
    words = "Attacks beside the members of AutoByz that were run on single rows, and count in these:"
    shown = table(["contestant", "attack", "by", "SA under it", "SA now"], "lllrr", lines)
    return f"## Rows beaten by others\n\n{words}\n\n{shown}" if lines else ""


def _pareto(it: Measured) -> str:
    """The contestants that nobody beats both ways, the fastest first."""
    if not it.pareto:
        return "No contestant has both a number under attack and a time."
    listed = [f"{k}. {escape(it.name(r))}: {percent(r.worst)}, {it.cost(r)}" for k, r in enumerate(it.pareto, 1)]
    return "Nobody is both better under attack and faster than these:\n\n" + "\n".join(listed)


def _tuning(it: Measured) -> str:
    """Every configuration's worst case on validation data; the chosen one in bold, if its number says that it is."""
    lines = []
    for name, found in it.facts.get("contestants", {}).items():
        shown = []
        for i, tried in enumerate(found["search"]):
            text = escape(f"{_configuration(tried, name.split(' · ')[0])}: {percent_text(tried['worst'])}")
            shown.append(f"**{text}**" if i == found["chosen"] and tried["worst"] is not None else text)
        why = f" ({escape(found['reason'])})" if found.get("reason") else ""
        lines.append([escape(name), f"{'; '.join(shown)}{why}"])
    tuning = ", ".join(f"{name} = {_listed(value)}" for name, value in it.facts.get("tuning", {}).items())
    words = (
        f"{it.facts.get('budget')} configurations each ({escape(tuning)}), one seed, chosen by the worst case on "
        "validation data of honest clients; –: some attack left no number."
    )
    heads = ["contestant", "configurations: worst validation accuracy over the tuning attacks, %"]
    return f"{words}\n\n{table(heads, 'll', lines)}"


def _listed(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _configuration(tried: Facts, defense: str) -> str:
    """One configuration that was tried: the defense where it is another than the contestant's, and the rate."""
    own = tried["defense"] if tried["defense"] != defense else ""
    rate = str(tried["schedule"]).removeprefix("constant(").rstrip(")")
    return " ".join(filter(None, [own, rate]))
