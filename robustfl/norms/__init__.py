"""Normalization schemes: the layer, what a client reports, how the server merges."""

from robustfl.norms.centralised_bn import CentralisedBN
from robustfl.norms.fbn import FBN
from robustfl.norms.fixbn import FixBN
from robustfl.norms.gn import GN
from robustfl.norms.instance import IN
from robustfl.norms.ln import LN
from robustfl.norms.naive_bn import NaiveBN
from robustfl.norms.none import NoNorm

__all__ = ["FBN", "GN", "IN", "LN", "CentralisedBN", "FixBN", "NaiveBN", "NoNorm"]
