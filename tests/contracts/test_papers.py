"""Every paper is stored once, complete, and cited by its key; citations and BibTeX are made from that."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

from robustfl.cli.facts import facts_of, page
from robustfl.papers import Paper, bibtex, cited, papers, spelled_out
from robustfl.registry import KINDS, entries

PAPERS = list(papers().values())
METHODS = [e for kind in KINDS for e in entries(kind) if not e.origin]
CITING = [e for e in METHODS if e.cls.paper]
# Methods that no paper describes: values that break a server, the smallest networks, a plain split, files.
OF_NO_PAPER = {
    "attack": {"inf", "nan", "none", "random", "zero"}, "norm": {"none"}, "model": {"digits-cnn", "domains-cnn"},
    "dataset": {"hf", "imagefolder", "npz"}, "partition": {"iid"},
}  # fmt: skip
# What a paper is to the method may stand before its key, where in the paper or a remark after it.
LEADS = "after|code released with|as used by|as averaged by|local as in|layout of|ten classes of"
LINE = re.compile(rf"(?:(?:{LEADS}) )?@[a-z0-9]+(?:, (?:Algorithms?|Sections?|Tables?) [\w-]+| \([^()]+\))?")
ID = re.compile(r"\b\d{4}\.\d{4,5}\b")


def test_a_method_has_a_paper_unless_nobody_wrote_one() -> None:
    without: dict[str, set[str]] = {}
    for entry in METHODS:
        if not entry.cls.paper:
            without.setdefault(entry.kind, set()).add(entry.name)
    assert without == OF_NO_PAPER


def test_a_method_cites_stored_papers() -> None:
    for entry in CITING:
        parts = entry.cls.paper.split("; ")
        assert all(LINE.fullmatch(part) for part in parts), (entry.name, entry.cls.paper)
        assert len(cited(entry.cls.paper)) == len(parts), f"{entry.cls.paper} names a key that papers.toml lacks"
        assert facts_of(entry).facts["paper"] == spelled_out(entry.cls.paper)
        assert "@" not in spelled_out(entry.cls.paper)


def test_entries_are_complete() -> None:
    for paper in PAPERS:
        complete(paper)


def complete(paper: Paper) -> None:
    assert paper.authors, paper.key
    assert all(re.fullmatch(r"[^\W\d_][\w’' -]+", name) for name in paper.authors)
    assert "et al" not in str(paper)
    assert paper.title == paper.title.strip(" ,.") != ""
    assert 1990 <= paper.year <= 2030
    assert paper.venue or paper.arxiv
    if paper.arxiv:
        assert re.fullmatch(r"\d\d(0[1-9]|1[0-2])\.\d{4,5}", paper.arxiv)
        assert paper.year >= 2000 + int(paper.arxiv[:2]), "older than its preprint"
    first = spelled_out(paper.authors[0]).lower().replace(" ", "").replace("-", "").replace("ö", "o")
    assert paper.key.startswith(f"{first}{paper.year}")


def test_one_key_is_one_paper_and_somebody_cites_it() -> None:
    for what in ("title", "arxiv"):
        several = Counter(getattr(paper, what).lower() for paper in PAPERS if getattr(paper, what))
        assert [value for value, n in several.items() if n > 1] == []
    assert {paper.key for entry in CITING for paper in cited(entry.cls.paper)} == set(papers())


def test_the_bibtex_of_every_method_is_complete_and_well_formed() -> None:
    for entry in CITING:
        well_formed(entry)


def well_formed(entry: Any) -> None:
    written = bibtex(entry.cls.paper, key=f"{entry.kind} {entry.name}").split("\n\n")
    assert len(written) == len(cited(entry.cls.paper))
    for one in written:
        assert re.fullmatch(r"@[a-z]+\{[a-z]+\d{4}[a-z0-9]+,\n(?:  \w+ = \{.+\},\n)+  \w+ = \{.+\}\n\}", one), one
        assert {"author", "title", "year"} <= set(re.findall(r"^  (\w+) = ", one, flags=re.MULTILINE))
        depth = 0
        for sign in re.sub(r"\\[{}]", "", one):
            depth += (sign == "{") - (sign == "}")
            assert depth >= 0
        assert depth == 0


def test_authors_title_and_place_are_fields_of_their_own() -> None:
    found = bibtex("@elmhamdi2018hidden", key="defense bulyan")
    assert found.startswith("@inproceedings{elmhamdi2018hidden,")
    assert "author = {{El Mhamdi} and Guerraoui and Rouault}" in found
    assert "title = {{The Hidden Vulnerability of Distributed Learning in Byzantium}}" in found
    assert "booktitle = {ICML}" in found
    assert "year = {2018}" in found
    kinds = {key: papers()[key].bibtex().partition("{")[0] for key in ("lecun1998gradient", "krizhevsky2009learning")}
    assert kinds == {"lecun1998gradient": "@article", "krizhevsky2009learning": "@techreport"}


def test_plain_text_of_a_plug_in_is_a_note_and_never_read_as_more() -> None:
    found = bibtex("A } b & 100% _ \\, ICML 2020; as @wu2018group", key="attack Mine <b>")
    mine, known = found.split("\n\n")[::-1]
    assert mine == "@misc{attack-mine-b,\n  note = {A \\} b \\& 100\\% \\_ \\textbackslash{}, ICML 2020}\n}"
    assert known == papers()["wu2018group"].bibtex()
    assert spelled_out("ask me@mail2020.org or @nobody2020x") == "ask me@mail2020.org or @nobody2020x"
    assert bibtex("", key="attack none") == ""


def test_papers_are_read_without_torch() -> None:
    code = "import sys, robustfl.papers as p; p.papers(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_arxiv_number_has_one_spelling_on_the_page_of_methods() -> None:
    text = page()
    assert len(re.findall(rf"arXiv:{ID.pattern}", text)) > len(CITING)
    assert re.findall(rf"[^\n]{{0,40}}(?<!arXiv:){ID.pattern}", text) == []
