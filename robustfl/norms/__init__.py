"""Normalization schemes: the layer, what a client reports, how the server merges."""

from robustfl.norms.batch_norm import CentralisedBN, DualBN, FedBN, FixBN, NaiveBN, SiloBN, SingleNet
from robustfl.norms.fbn import FBN, FBNHBNRepo
from robustfl.norms.groups import GN, IN, LN
from robustfl.norms.hbn import HBN
from robustfl.norms.lockstep import FedAvgAlgorithm2, FedTAN, FedTANII
from robustfl.norms.normalizer_free import FedFN, FedWon, NoNorm

__all__ = [
    "FBN", "GN", "HBN", "IN", "LN", "CentralisedBN", "DualBN", "FBNHBNRepo", "FedAvgAlgorithm2", "FedBN", "FedFN",
    "FedTAN", "FedTANII", "FedWon", "FixBN", "NaiveBN", "NoNorm", "SiloBN", "SingleNet",
]  # fmt: skip
