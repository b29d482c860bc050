"""Aggregation rules, one file per method."""

from .alignins import AlignIns
from .auror import Auror
from .centered_clipping import CenteredClipping
from .cge import ComparativeElimination
from .clipped_clustering import ClippedClustering, Clustering
from .coordinatewise import MeaMed, Mean, Median, Phocas, TrimmedMean
from .deepsight import DeepSight
from .flame import Flame, WeakDP
from .flare import FLARE
from .foundationfl import FoundationFL
from .freqfed import FreqFed
from .gas import GradientSplitting
from .geometric_median import GeometricMedian, HuberLoss, RobustFederatedAveraging
from .krum import Bulyan, Krum, MultiKrum
from .lasa import LayerAdaptiveSparsified
from .mean_of_medians import MeanOfMedians
from .monna import NearestNeighborAveraging
from .multi_metrics import MultiMetrics
from .predictions import Flanders, FLDetector
from .rflbat import RFLBAT
from .signguard import SignGuard
from .signs import RobustLearningRate, SignMajorityVote
from .spectral import CovarianceFilter, DivideAndConquer
from .subsets import MinimumDiameterAveraging, SmallestMaximumEigenvalue
from .trust import FLTrust, FoolsGold

__all__ = [
    "FLARE",
    "RFLBAT",
    "AlignIns",
    "Auror",
    "Bulyan",
    "CenteredClipping",
    "ClippedClustering",
    "Clustering",
    "ComparativeElimination",
    "CovarianceFilter",
    "DeepSight",
    "DivideAndConquer",
    "FLDetector",
    "FLTrust",
    "Flame",
    "Flanders",
    "FoolsGold",
    "FoundationFL",
    "FreqFed",
    "GeometricMedian",
    "GradientSplitting",
    "HuberLoss",
    "Krum",
    "LayerAdaptiveSparsified",
    "MeaMed",
    "Mean",
    "MeanOfMedians",
    "Median",
    "MinimumDiameterAveraging",
    "MultiKrum",
    "MultiMetrics",
    "NearestNeighborAveraging",
    "Phocas",
    "RobustFederatedAveraging",
    "RobustLearningRate",
    "SignGuard",
    "SignMajorityVote",
    "SmallestMaximumEigenvalue",
    "TrimmedMean",
    "WeakDP",
]
