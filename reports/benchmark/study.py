"""The study behind AutoByz: which few attacks come as close to the worst case as the whole zoo, on every contestant."""

from __future__ import annotations

import csv
import gzip
import io
import math
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from robustfl.errors import UsageError, reason
from robustfl.records import CellResult

from ..frame import frame
from ..grouping import NO_ATTACK, values_of
from ..ranking import without_effect

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
        """All chosen attacks."""
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
        """The accuracy of a contestant that nobody attacks."""
        return self._baseline.get(who)

    def worst(self, who: Contestant) -> float:
        """The zoo's worst case of a contestant."""
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
        for line in csv.DictReader(io.StringIO(_text(Path(path))), strict=True):
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


def _text(path: Path) -> str:
    """The text of a file, compressed if its name ends in ``.gz``."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def _accuracy(text: str) -> float:
    """An accuracy in [0, 1]; 0 where a training left none. Raises ``ValueError`` otherwise."""
    value = float(text or 0)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is no accuracy in [0, 1]")
    return value


@dataclass(frozen=True)
class Killer:
    """An attack that published work holds against rules, which is a member whatever the cells say."""

    attack: str
    rules: tuple[str, ...]
    paper: str


@dataclass(frozen=True)
class About:
    """The facts of the study beside its cells: the version of AutoByz it is about, known killers, and what was cut.

    ``limit`` is how many members there may be.
    """

    version: int
    limit: int
    killers: tuple[Killer, ...] = ()
    cut: tuple[tuple[str, str], ...] = ()

    @property
    def required(self) -> dict[str, tuple[str, ...]]:
        """By attack the rules that it is known to defeat."""
        return {killer.attack: killer.rules for killer in self.killers}


def about() -> About:
    """The facts of the study, from ``study.toml``."""
    entry = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    killers = tuple(Killer(k["attack"], tuple(k["rules"]), k["paper"]) for k in entry["killer"])
    return About(entry["version"], entry["limit"], killers, tuple((c["what"], c["words"]) for c in entry["cut"]))
