"""The study behind AutoByz, and its page: which few attacks come as close to the worst case as the whole zoo."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from robustfl.autobyz import TITLE, Ensemble
from robustfl.errors import UsageError, reason
from robustfl.papers import spelled_out
from robustfl.records import CellResult

from ..board import in_words
from ..columns import percent_text
from ..frame import frame
from ..grouping import NO_ATTACK, values_of
from ..ranking import without_effect
from ..tables import markdown_table

WITHIN = 0.01
"""An attack attains a contestant's worst case if its accuracy is at most this much higher."""
_LAST_BIT = 1e-9
_WHO = ("dataset", "defense", "norm", "partition", "f", "seed")
_HEAD = (*_WHO, "attack", "scope", "status", "sa", "effect")

Contestant = tuple[str, ...]


@dataclass(frozen=True)
class Tried:
    """One attack on one contestant with the final accuracy in [0, 1].

    A training that diverged has accuracy 0; ``effect`` is false where the attack left the honest mean as it was.
    """

    attack: str
    status: str
    sa: float
    effect: bool = True

    @property
    def counts(self) -> bool:
        """True for an attack that was possible and had an effect."""
        return self.status in ("done", "diverged") and self.effect

    def above(self, worst: float) -> float:
        """By how much its accuracy is beyond what still attains the worst case; 0 if it attains it."""
        gap = self.sa - worst
        return gap if gap > WITHIN + _LAST_BIT else 0.0


@dataclass(frozen=True)
class Choice:
    """The chosen attacks in the order of the data: those required, those added, and what they attain."""

    required: Mapping[str, tuple[str, ...]]
    added: tuple[str, ...]
    covered: int
    total: int
    missed: tuple[tuple[Contestant, float], ...]

    @property
    def members(self) -> tuple[str, ...]:
        return (*self.required, *self.added)


def _counted(row: Sequence[Tried]) -> list[Tried]:
    """The attacks on one contestant that count: with an effect, or below all that have one whatever was measured."""
    lowest = min((t.sa for t in row if t.counts), default=0.0)
    return [t for t in row if t.counts or (t.status == "done" and t.sa < lowest - _LAST_BIT)]


class Study:
    """The outcome of every attack on every contestant, from records or from the file made of them."""

    def __init__(self, tried: Mapping[Contestant, Sequence[Tried]], baseline: Mapping[Contestant, float]) -> None:
        self._tried, self._baseline = tried, baseline

    @cached_property
    def attacks(self) -> tuple[str, ...]:
        """All attacks, in the order of the data."""
        return tuple(dict.fromkeys(t.attack for row in self._tried.values() for t in row))

    @cached_property
    def contestants(self) -> dict[Contestant, dict[str, Tried]]:
        """By contestant (dataset, defense, norm, partition, f, seed) the attacks that count, if any does."""
        rows = {who: {t.attack: t for t in _counted(row)} for who, row in self._tried.items()}
        return {who: row for who, row in rows.items() if row}

    def unattacked(self, who: Contestant) -> float | None:
        return self._baseline.get(who)

    def worst(self, who: Contestant) -> float:
        return min(t.sa for t in self.contestants[who].values())

    def attained(self, attack: str) -> int:
        """The number of contestants whose worst case the attack attains."""
        rows = self.contestants.items()
        return sum(attack in row and not row[attack].above(self.worst(who)) for who, row in rows)

    def choose(self, killers: Mapping[str, tuple[str, ...]], limit: int) -> Choice:
        """At most so many attacks: every known killer, then one after another the attack that takes most.

        It takes most from what the set misses of the worst case of all attacks, summed over contestants; it ends when
        nothing more is taken. Raises ``UsageError`` if there is no contestant.
        """
        if not self.contestants:
            raise UsageError("study: no contestant has a number")
        added: list[str] = []
        while len(killers) + len(added) < limit:
            free = [a for a in self.attacks if a not in killers and a not in added]
            left = {a: math.fsum(gap for _, gap in self._missed((*killers, *added, a))) for a in free}
            now = math.fsum(gap for _, gap in self._missed((*killers, *added)))
            best = min(free, key=lambda a: left[a], default=None)
            if best is None or left[best] >= now - _LAST_BIT:
                break
            added.append(best)
        missed, total = self._missed((*killers, *added)), len(self.contestants)
        return Choice(dict(killers), tuple(added), total - len(missed), total, missed)

    def _missed(self, chosen: Sequence[str]) -> tuple[tuple[Contestant, float], ...]:
        """The contestants whose worst case the chosen attacks miss, with by how much."""
        missed = []
        for who, row in self.contestants.items():
            worst = self.worst(who)
            gap = min((row[a].above(worst) for a in chosen if a in row), default=1.0 - worst)
            if gap:
                missed.append((who, gap))
        return tuple(missed)

    def to_csv(self) -> str:
        """The data as a file: one line per cell."""
        out = io.StringIO()
        table = csv.writer(out, lineterminator="\n")
        table.writerow(_HEAD)
        for who, row in self._tried.items():
            if who in self._baseline:
                table.writerow([*who, NO_ATTACK, "", "done", f"{self._baseline[who]:.4f}", ""])
            for t in row:
                attack, _, scope = t.attack.partition(" [")
                accuracy = f"{t.sa:.4f}" if t.status == "done" else ""
                table.writerow([*who, attack, scope.rstrip("]"), t.status, accuracy, "" if t.effect else "none"])
        return out.getvalue()


def study_of(records: Sequence[CellResult]) -> Study:
    """The study of finished records."""
    known = {r.key: r for r in records}
    tried: dict[Contestant, list[Tried]] = defaultdict(list)
    baseline: dict[Contestant, float] = {}
    for line in frame(records).to_dict("records"):
        who = values_of(line, _WHO)
        record = known[str(line["key"])]
        if line["attack"] == NO_ATTACK:
            baseline |= {who: record.metrics.sa} if record.metrics else {}
            continue
        scope = "" if line["scope"] == "both" else f" [{line['scope']}]"
        sa = record.metrics.sa if record.metrics else 0.0
        tried[who].append(Tried(f"{line['attack']}{scope}", record.status, sa, not without_effect(line)))
    ordered = {who: sorted(tried[who], key=lambda t: t.attack) for who in sorted(tried)}
    return Study(ordered, baseline)


def read_study(path: str | Path) -> Study:
    """The study from its file, which may be compressed (``.csv.gz``). Raises ``UsageError`` for a file that is none."""
    tried: dict[Contestant, list[Tried]] = defaultdict(list)
    baseline: dict[Contestant, float] = {}
    try:
        data = Path(path).read_bytes()
        text = (gzip.decompress(data) if Path(path).suffix == ".gz" else data).decode("utf-8")
        for line in csv.DictReader(io.StringIO(text), strict=True):
            if {*line} != {*_HEAD} or None in line.values():
                raise ValueError(f"a line has other columns than {', '.join(_HEAD)}")
            who = tuple(line[name] for name in _WHO)
            sa = _accuracy(line["sa"])
            if line["attack"] == NO_ATTACK:
                baseline[who] = sa
                continue
            label = f"{line['attack']} [{line['scope']}]" if line["scope"] else line["attack"]
            tried[who].append(Tried(label, line["status"], sa, line["effect"] != "none"))
    except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
        raise UsageError(f"{path}: no file of a study ({reason(error)})") from None
    return Study(tried, baseline)


def _accuracy(text: str) -> float:
    """An accuracy in [0, 1]; 0 where a training left none. Raises ``ValueError`` otherwise."""
    value = float(text or 0)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is no accuracy in [0, 1]")
    return value


@dataclass(frozen=True)
class About:
    """The facts of the study beside its cells: the version of AutoByz it is about, known killers, and what was cut.

    ``limit`` is how many members there may be. ``required`` are members whatever the cells say: attacks that published
    work (``papers``) holds against rules, with these.
    """

    version: int
    limit: int
    required: Mapping[str, tuple[str, ...]]
    papers: Mapping[str, str]
    cut: tuple[tuple[str, str], ...]


def about() -> About:
    """The facts of the study, from ``study.toml``."""
    entry = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    killers, cut = entry["killer"], tuple((c["what"], c["words"]) for c in entry["cut"])
    rules, papers = {k["attack"]: tuple(k["rules"]) for k in killers}, {k["attack"]: k["paper"] for k in killers}
    return About(entry["version"], entry["limit"], rules, papers, cut)


# --- the page --------------------------------------------------------------------------------------------------------

_PAGE = """# The study behind AutoByz version {version}

Which attacks must a defense survive? Every paper picks its own. [AutoByz](autobyz.md) is a set that no author picked:
{rule}. This page and the choice are made from
[the data]({name}.csv) by

```bash
robustfl bench {name} --from {name}.csv --page pages
```

which ends with exit code 1 if the data say another choice than AutoByz version {version}. Without `--from` it runs what
is missing of the preset `bench/{name}` first."""

_LIMITED = """at most {limit} attacks: those known to defeat some rule, then one after another the attack that takes
most from what the set misses of the worst case of *all* attacks below, summed over contestants"""


def study_page(study: Study, choice: Choice, ensemble: Ensemble, of: About, name: str) -> str:
    """The page of the study ``name`` in Markdown: choice, what it misses, every attack and contestant, the cuts."""
    head = _PAGE.format(rule=_LIMITED.format(limit=of.limit), version=ensemble.version, name=name)
    parts = [
        f"{head}\n\n{_size(study)}",
        f"## The choice\n\n{_choice(study, choice, of)}",
        f"## Every attack\n\n{_attacks(study, choice)}",
        f"## Every contestant\n\n{_contestants(study, choice)}",
        "## What was cut\n\n" + "\n".join(f"- **{what}**: {words}." for what, words in of.cut),
    ]
    return "\n\n".join(parts) + "\n"


def _size(study: Study) -> str:
    rows = study.contestants
    data = "data × " if _several(study, 0) else ""
    return (
        f"{len(rows)} contestants (rule × norm × {data}heterogeneity) and {len(study.attacks)} attacks: "
        f"{sum(len(row) for row in rows.values())} cells in which an attack was possible and had an effect. "
        "A diverged training has accuracy 0."
    )


def _choice(study: Study, choice: Choice, of: About) -> str:
    lines = []
    for attack in choice.members:
        why = f"attains the worst case of {study.attained(attack)} contestants"
        if attack in choice.required:
            why = f"known to defeat {', '.join(of.required[attack])} ({spelled_out(of.papers[attack])})"
        lines.append([f"`{attack}`", why])
    missed = "; ".join(f"{_who(study, who)} by {100 * gap:.1f} points" for who, gap in choice.missed)
    return (
        f"{markdown_table(['member', 'why'], 'll', lines)}\n\n{TITLE} attains the worst case of {choice.covered} of "
        f"{choice.total} contestants ({choice.covered / choice.total:.1%}). It misses {missed or 'none'}."
    )


def _attacks(study: Study, choice: Choice) -> str:
    found = []
    for attack in study.attacks:
        gaps = [row[attack].sa - study.worst(who) for who, row in study.contestants.items() if attack in row]
        mean = f"{100 * math.fsum(gaps) / len(gaps):.1f}" if gaps else "–"
        found.append((-study.attained(attack), attack, len(gaps), mean))
    heads = ["attack", "member", "attains the worst case of", "of", "mean distance to it (points)"]
    return markdown_table(heads, "llrrr", [
        [f"`{attack}`", "yes" if attack in choice.members else "", str(-count), str(tried), mean]
        for count, attack, tried, mean in sorted(found)
    ])  # fmt: skip


def _contestants(study: Study, choice: Choice) -> str:
    lines = []
    for who, row in study.contestants.items():
        own = {a: row[a] for a in choice.members if a in row}
        clean = percent_text(study.unattacked(who))
        lines.append([_who(study, who), clean, *_least(row), *(_least(own) if own else ["–", "–"])])
    heads = ["contestant", "no attack", "worst case", "by", TITLE, "by"]
    return f"SA in %, one seed.\n\n{markdown_table(heads, 'lrrlrl', lines)}"


def _least(row: Mapping[str, Tried]) -> list[str]:
    """The least accuracy, and the attack that it is under."""
    attack = min(row, key=lambda a: row[a].sa)
    return [f"{100 * row[attack].sa:.1f}", f"`{attack}`"]


def _who(study: Study, who: Sequence[str]) -> str:
    """A contestant in words, with the data and the number of attackers where they are not the same for all."""
    dataset, defense, norm, partition, f, _ = who
    words = [defense, norm, in_words("partition", partition)]
    words += [f"f = {f}"] if _several(study, 4) else []
    words += [re.sub(r"^resized\(dataset='?(\w+).*", r"\1", dataset)] if _several(study, 0) else []
    return " · ".join(words)


def _several(study: Study, place: int) -> bool:
    return len({who[place] for who in study.contestants}) > 1
