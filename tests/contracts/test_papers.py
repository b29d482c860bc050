"""Papers are cited in one form: ``Authors, Title, Venue Year, arXiv:ID``, several of them parted by semicolons."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from robustfl.cli.methods_page import page
from robustfl.registry import KINDS, entries

# What a paper is to the method may stand before it, where in the paper or a remark after it.
LEADS = "after|code released with|as used by|as averaged by|local as in|layout of|ten classes of"
AFTER = r"|, (Algorithms?|Sections?|Tables?) [\w-]+| \([^()]+\)"
FORM = re.compile(
    rf"(?:(?:{LEADS}) )?(?P<text>\w[^&]+, (?:[A-Z][\w &-]+ )?(?P<year>(?:19|20)\d\d)), "
    rf"arXiv:(?P<id>\d\d(?:0[1-9]|1[0-2])\.\d{{4,5}})(?:{AFTER})"
)
ID = re.compile(r"\b\d{4}\.\d{4,5}\b")
CITED = [
    pytest.param(cited, id=f"{kind}-{entry.name}-{ID.findall(cited)[0]}")
    for kind in KINDS
    for entry in entries(kind)
    if not entry.origin
    for cited in entry.cls.paper.split("; ")
    if ID.search(cited)
]


@pytest.mark.parametrize("cited", CITED)
def test_a_paper_on_arxiv_has_the_one_form(cited: str) -> None:
    found = FORM.fullmatch(cited)
    assert found, f"{cited!r} is not 'Authors, Title, Venue Year, arXiv:ID'"
    assert "et al" not in cited
    assert int(found["year"]) >= 2000 + int(found["id"][:2]), "older than its preprint"


def test_a_paper_reads_the_same_wherever_it_is_cited() -> None:
    texts = defaultdict(set)
    for param in CITED:
        found = FORM.fullmatch(param.values[0])
        assert found
        texts[found["id"]].add(found["text"])
        texts[found["text"]].add(found["id"])
    assert {key: several for key, several in texts.items() if len(several) > 1} == {}


def test_no_other_spelling_of_an_id_is_on_the_page_of_methods() -> None:
    text = page()
    assert len(re.findall(rf"arXiv:{ID.pattern}", text)) > len(CITED)
    assert re.findall(rf"[^\n]{{0,40}}(?<!arXiv:){ID.pattern}", text) == []
