"""Papers' published numbers, protocols that re-measure them, and the page that holds one against the other."""

from __future__ import annotations

from .page import Entry, Page
from .protocols import Claim, Item, Paper, Part, Run, Scale, Selector, Statement, claims, find_items, paper, papers
from .verdicts import Evidence, Finding, judge, matches, number

__all__ = [
    "Claim", "Entry", "Evidence", "Finding", "Item", "Page", "Paper", "Part", "Run", "Scale", "Selector", "Statement",
    "claims", "find_items", "judge", "matches", "number", "paper", "papers",
]  # fmt: skip
