"""The papers' published numbers, protocols that re-measure them, and the page that holds one against the other."""

from __future__ import annotations

from .claims import PAPERS, Claim, claims
from .measures import Evidence
from .page import Entry, Page
from .protocols import Item, Paper, Plot, Run, Scale, Statement, find_items, paper, papers
from .verdicts import Finding, judge

__all__ = [
    "PAPERS", "Claim", "Entry", "Evidence", "Finding", "Item", "Page", "Paper", "Plot", "Run", "Scale", "Statement",
    "claims", "find_items", "judge", "paper", "papers",
]  # fmt: skip
