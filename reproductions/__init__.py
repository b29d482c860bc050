"""Reproductions of papers, a folder each: published numbers, protocol, toys, drawings.

``robustfl reproduce`` finds this package by the entry point ``robustfl.reproductions``; nothing else imports it. A
package of other papers registers there as well and has

* ``PAPERS``, the names of its folders in the order of the page. In each lie ``claims.csv``, a published number a line
  (``reports.reproduction.Claim``), and ``protocol.toml`` (``reports.reproduction.Paper``): for every table and figure
  its runs at each scale, its statements and its plots;
* the functions that ``compute`` of a statement names, relative to the package (``"fbn.clusters.accuracy"``): given its
  ``arguments``, they return the number;
* ``drawings(item, evidence)``: the title and figure of every plot of a table or figure that can be drawn.
"""

from __future__ import annotations

from .drawings import drawings

PAPERS = ("fbn", "wsm", "fedrbn", "hbn", "fedtan", "bucketing")

__all__ = ["PAPERS", "drawings"]
