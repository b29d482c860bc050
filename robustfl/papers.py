"""The papers behind the methods, from ``papers.toml``; methods cite them by key. No torch here: reports read it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CITED = re.compile(r"(?<![\w@.])@([a-z]+\d{4}[a-z0-9]+)\b")
_TYPES = {"booktitle": "inproceedings", "journal": "article", "institution": "techreport", "howpublished": "misc"}
_SPECIAL = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\~{}",
            "^": r"\^{}", "\\": r"\textbackslash{}"}  # fmt: skip


@dataclass(frozen=True)
class Paper:
    """One paper. ``place`` is the BibTeX field that its ``venue`` belongs in; both are empty for preprints."""

    key: str
    authors: tuple[str, ...]
    title: str
    year: int
    venue: str = ""
    place: str = ""
    arxiv: str = ""

    def __str__(self) -> str:
        """The citation: ``Authors, Title, Venue Year, arXiv:ID``."""
        number = f", arXiv:{self.arxiv}" if self.arxiv else ""
        return f"{', '.join(self.authors)}, {self.title}, {f'{self.venue} {self.year}'.strip()}{number}"

    def bibtex(self) -> str:
        """The BibTeX entry.

        >>> print(papers()["wu2018group"].bibtex())
        @inproceedings{wu2018group,
          author = {Wu and He},
          title = {{Group Normalization}},
          booktitle = {ECCV},
          year = {2018},
          eprint = {1803.08494},
          archivePrefix = {arXiv},
          url = {https://arxiv.org/abs/1803.08494}
        }
        """
        authors = (f"{{{_escape(name)}}}" if " " in name else _escape(name) for name in self.authors)
        fields = {"author": " and ".join(authors), "title": f"{{{_escape(self.title)}}}"}
        fields |= {self.place: _escape(self.venue)} if self.venue else {}
        fields["year"] = str(self.year)
        if self.arxiv:
            fields |= {"eprint": self.arxiv, "archivePrefix": "arXiv", "url": f"https://arxiv.org/abs/{self.arxiv}"}
        return _entry(_TYPES.get(self.place, "misc"), self.key, fields)


@cache
def papers() -> Mapping[str, Paper]:
    """All papers by key."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {key: _paper(key, dict(fields)) for key, fields in found.items()}


def _paper(key: str, fields: dict[str, object]) -> Paper:
    place = next((name for name in _TYPES if name in fields), "")
    venue = str(fields.pop(place, ""))
    authors = fields.pop("authors")
    assert isinstance(authors, list)
    return Paper(key, tuple(authors), venue=venue, place=place, **fields)  # type: ignore[arg-type]


def cited(line: str) -> tuple[Paper, ...]:
    """The papers that a method's line ``paper`` cites, each once.

    >>> [paper.key for paper in cited("@ba2016layer; after @wu2018group, Section 3")]
    ['ba2016layer', 'wu2018group']
    """
    keys = dict.fromkeys(_CITED.findall(line))
    return tuple(papers()[key] for key in keys if key in papers())


def spelled_out(line: str) -> str:
    """A method's line ``paper`` with every key replaced by the paper's citation; other text stays.

    >>> spelled_out("after @wu2018group, Section 3")
    'after Wu, He, Group Normalization, ECCV 2018, arXiv:1803.08494, Section 3'
    """
    known = papers()
    return _CITED.sub(lambda found: str(known.get(found[1], found[0])), line)


def bibtex(line: str, *, key: str) -> str:
    """BibTeX for a method's line ``paper``: the entries of the papers it cites, and a note under ``key`` for the rest.

    >>> print(bibtex("My thesis, 2024", key="attack mine"))
    @misc{attack-mine,
      note = {My thesis, 2024}
    }
    """
    entries = [paper.bibtex() for paper in cited(line)]
    rest = "; ".join(part for part in map(str.strip, line.split(";")) if part and not cited(part))
    if rest:
        entries.append(_entry("misc", re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-"), {"note": _escape(rest)}))
    return "\n\n".join(entries)


def _entry(kind: str, key: str, fields: Mapping[str, str]) -> str:
    shown = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@{kind}{{{key},\n{shown}\n}}"


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in text)
