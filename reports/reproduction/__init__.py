"""The papers' published numbers, protocols that re-measure them, and the page that holds one against the other."""

from __future__ import annotations

from .page import Entry, Page
from .protocols import PAPERS, Claim, Item, Paper, Plot, Run, Scale, Statement, claims, find_items, paper, papers
from .verdicts import Evidence, Finding, judge

__all__ = [
    "PAPERS", "Claim", "Entry", "Evidence", "Finding", "Item", "Page", "Paper", "Plot", "Run", "Scale", "Statement",
    "claims", "find_items", "judge", "paper", "papers",
]  # fmt: skip
