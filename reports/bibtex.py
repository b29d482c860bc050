"""A method's paper, one line on its class, as BibTeX."""

from __future__ import annotations

import re
import unicodedata

_TAIL = re.compile(r"^(?P<venue>.*?)\s*\b(?P<year>(?:19|20)\d\d)(?:\s*\(.*\))?$")
_ARXIV = re.compile(r"(?:arXiv[ :]*)?\b(\d{4}\.\d{4,5})\b")
_SURNAME = re.compile(r"(?:(?:El|Le|La|De|van|von|de) )?[^\W\d_][\w’'-]*(?: y [^\W\d_]\w+)?")
_SPECIAL = {
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "\\": r"\textbackslash{}",
}


def bibtex(paper: str) -> str:
    """One entry for every citation in ``paper`` (they are separated by ``;``).

    Authors and title get fields of their own where the line tells them apart; the whole line is always in ``note``.

    >>> print(bibtex("Wu & He, Group Normalization, ECCV 2018, arXiv:1803.08494"))
    @misc{wu2018group,
      author = {Wu and He},
      title = {{Group Normalization}},
      howpublished = {ECCV},
      year = {2018},
      eprint = {1803.08494},
      archivePrefix = {arXiv},
      url = {https://arxiv.org/abs/1803.08494},
      note = {Wu \\& He, Group Normalization, ECCV 2018, arXiv:1803.08494}
    }
    """
    return "\n\n".join(_entry(part.strip()) for part in paper.split(";") if part.strip())


def arxiv(paper: str) -> list[str]:
    """The arXiv numbers of a citation, in order."""
    return list(dict.fromkeys(_ARXIV.findall(paper)))


def _entry(line: str) -> str:
    known = _parsed(line)
    number = arxiv(line)
    if number:
        address = f"https://arxiv.org/abs/{number[0]}"
        known |= {"eprint": number[0], "archivePrefix": "arXiv", "url": address}
    fields = {k: v if k == "url" else _escape(v) for k, v in (known | {"note": line}).items()}
    if "title" in fields:
        fields["title"] = f"{{{fields['title']}}}"
    shown = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@misc{{{_key(line, known)},\n{shown}\n}}"


def _parsed(line: str) -> dict[str, str]:
    """Authors, title, venue and year, as far as commas tell them apart."""
    clean = re.sub(r"^(after|as used by|local as in|layout of|ten classes of|code released with) ", "", line)
    parts = re.sub(r",\s*(arXiv[ :]*)?\d{4}\.\d{4,5}.*$", "", clean).split(", ")
    tail = _TAIL.match(parts[-1])
    found = {}
    if tail:
        parts = parts[:-1]
        found = {"howpublished": tail["venue"].strip(), "year": tail["year"]}
    names = _authors(parts)
    if names and len(parts) > names:
        authors = re.sub(r" et al\.$", ", others", ", ".join(parts[:names]))
        authors = re.sub(r"(, | & | and )+", " and ", authors)
        found = {"author": authors, "title": ", ".join(parts[names:])} | found
    return {k: v for k, v in found.items() if v}


def _authors(parts: list[str]) -> int:
    """How many of the leading parts are surnames; the last part never is."""
    for i, part in enumerate(parts[:-1]):
        if part.endswith(" et al.") or re.search(r" (?:&|and) ", part):
            return i + 1
        if not _SURNAME.fullmatch(part):
            return i
    return len(parts) - 1


def _key(line: str, known: dict[str, str]) -> str:
    words = re.findall(r"[a-z0-9]+", _plain(known.get("title", "")))
    first = re.findall(r"[a-z0-9]+", _plain(known.get("author", line)))
    title = next((w for w in words if len(w) > 3), "")
    return f"{first[0] if first else 'paper'}{known.get('year', '')}{title}"


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in text)
