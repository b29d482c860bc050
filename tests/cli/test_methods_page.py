"""The page of all methods is what the classes say."""

from __future__ import annotations

import re

import pytest

from robustfl.cli import invoke
from robustfl.cli.facts import facts_of, page
from robustfl.registry import KINDS, entries, lookup


def test_every_method_is_on_the_page_once_and_linked() -> None:
    text = page()
    for kind in KINDS:
        for entry in entries(kind):
            if not entry.origin:
                assert text.count(f'<a id="{kind}-{entry.name}"></a>') == 1
                assert text.count(f"(#{kind}-{entry.name})") == 1


def test_tables_have_as_many_cells_as_columns() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", page(), flags=re.MULTILINE)
    assert len(tables) > len(KINDS)
    for found in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in found.splitlines()}) == 1


def test_one_kind_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["list", "norms", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "### norm `fbn`" in out
    assert "### attack" not in out


def test_show_tells_needs_knowledge_and_what_is_tested(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["show", "alie"]) == 0
    out = capsys.readouterr().out
    assert "knowledge: omniscient: every honest row" in out
    assert "inputs untouched" in out
    assert invoke(["show", "krum"]) == 0
    assert "clients needed: 3 for f=0, 5 for f=1" in capsys.readouterr().out


def test_exemptions_are_shown_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = lookup("attack", "sf")
    monkeypatch.setattr(entry.cls, "exempt", {"finite": "for a test"})
    monkeypatch.setattr(entry.cls, "cost", "h d")
    facts = facts_of(entry).facts
    assert facts["exempt from 'finite'"] == "for a test"
    assert facts["cost"] == "h d"
    assert "finite" not in facts["tested"]


@pytest.mark.parametrize("kind", ["attack", "evasion", "defense", "algorithm"])
def test_every_method_says_what_it_costs(kind: str) -> None:
    assert [e.name for e in entries(kind) if not e.cls.cost and not e.origin] == []
