"""The page of the study behind AutoByz, made from its data alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from robustfl.autobyz import TITLE, Ensemble
from robustfl.papers import spelled_out

from ..board import in_words
from ..columns import percent_text
from .study import About, Choice, Study, Tried

_HEAD = """# The study behind AutoByz version {version}

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
    head = _HEAD.format(rule=_LIMITED.format(limit=of.limit), version=ensemble.version, name=name)
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
    known = {killer.attack: killer for killer in of.killers}
    lines = ["| member | why |", "| --- | --- |"]
    for attack in choice.members:
        if attack in choice.required:
            why = f"known to defeat {', '.join(known[attack].rules)} ({spelled_out(known[attack].paper)})"
        else:
            count = study.attained(attack)
            why = f"attains the worst case of {count} contestants"
        lines.append(f"| `{attack}` | {why} |")
    return "\n".join(lines) + f"\n\n{_attained(study, choice)}"


def _attained(study: Study, choice: Choice) -> str:
    missed = "; ".join(f"{_who(study, who)} by {100 * gap:.1f} points" for who, gap in choice.missed)
    return (
        f"{TITLE} attains the worst case of {choice.covered} of {choice.total} contestants "
        f"({choice.covered / choice.total:.1%}). {f'It misses {missed}.' if missed else 'It misses none.'}"
    )


def _attacks(study: Study, choice: Choice) -> str:
    lines = [
        "| attack | member | attains the worst case of | of | mean distance to it (points) |",
        "| --- | --- | --: | --: | --: |",
    ]
    found = []
    for attack in study.attacks:
        gaps = [row[attack].sa - study.worst(who) for who, row in study.contestants.items() if attack in row]
        mean = 100 * math.fsum(gaps) / len(gaps) if gaps else math.nan
        found.append((-study.attained(attack), attack, len(gaps), mean))
    for count, attack, tried, mean in sorted(found):
        member = "yes" if attack in choice.members else ""
        lines.append(f"| `{attack}` | {member} | {-count} | {tried} | {f'{mean:.1f}' if tried else '–'} |")
    return "\n".join(lines)


def _contestants(study: Study, choice: Choice) -> str:
    lines = [
        f"| contestant | no attack | worst case | by | {TITLE} | by |",
        "| --- | --: | --: | --- | --: | --- |",
    ]
    for who, row in study.contestants.items():
        clean = percent_text(study.unattacked(who))
        own = {a: row[a] for a in choice.members if a in row}
        worst, attained = _least(row), _least(own) if own else "– | –"
        lines.append(f"| {_who(study, who)} | {clean} | {worst} | {attained} |")
    return "SA in %, one seed.\n\n" + "\n".join(lines)


def _least(row: Mapping[str, Tried]) -> str:
    """The least accuracy, and the attack that it is under."""
    attack = min(row, key=lambda a: row[a].sa)
    return f"{100 * row[attack].sa:.1f} | `{attack}`"


def _who(study: Study, who: Sequence[str]) -> str:
    """A contestant in words, with the data and the number of attackers where they are not the same for all."""
    dataset, defense, norm, partition, f, _ = who
    words = [defense, norm, in_words("partition", partition)]
    words += [f"f = {f}"] if _several(study, 4) else []
    words += [re.sub(r"^resized\(dataset='?(\w+).*", r"\1", dataset)] if _several(study, 0) else []
    return " · ".join(words)


def _several(study: Study, place: int) -> bool:
    """True if the contestants differ in this part of what names them."""
    return len({who[place] for who in study.contestants}) > 1
