"""Normalization schemes: the layer, what a client reports, how the server merges."""

from robustfl.norms.centralised_bn import CentralisedBN
from robustfl.norms.dual import DualBN
from robustfl.norms.fbn import FBN
from robustfl.norms.fbn_hbn_repo import FBNHBNRepo
from robustfl.norms.fedfn import FedFN
from robustfl.norms.fedtan import FedAvgAlgorithm2, FedTAN, FedTANII
from robustfl.norms.fedwon import FedWon
from robustfl.norms.fixbn import FixBN
from robustfl.norms.groups import GN, IN, LN
from robustfl.norms.hbn import HBN
from robustfl.norms.naive_bn import NaiveBN
from robustfl.norms.none import NoNorm
from robustfl.norms.personal import FedBN, SiloBN, SingleNet

__all__ = [
    "FBN",
    "GN",
    "HBN",
    "IN",
    "LN",
    "CentralisedBN",
    "DualBN",
    "FBNHBNRepo",
    "FedAvgAlgorithm2",
    "FedBN",
    "FedFN",
    "FedTAN",
    "FedTANII",
    "FedWon",
    "FixBN",
    "NaiveBN",
    "NoNorm",
    "SiloBN",
    "SingleNet",
]  # fmt: skip
