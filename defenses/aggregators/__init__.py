"""Aggregation rules, one file per method."""

from .bulyan import Bulyan
from .caf import CovarianceFilter
from .centered_clipping import CenteredClipping
from .cge import ComparativeElimination
from .clipped_clustering import ClippedClustering
from .dnc import DivideAndConquer
from .flame import Flame
from .flanders import Flanders
from .fldetector import FLDetector
from .fltrust import FLTrust
from .foolsgold import FoolsGold
from .gas import GradientSplitting
from .geometric_median import GeometricMedian
from .huber import HuberLoss
from .krum import Krum, MultiKrum
from .lasa import LayerAdaptiveSparsified
from .mda import MinimumDiameterAveraging
from .meamed import MeaMed
from .mean import Mean
from .mean_of_medians import MeanOfMedians
from .median import Median
from .monna import NearestNeighborAveraging
from .phocas import Phocas
from .rfa import RobustFederatedAveraging
from .rlr import RobustLearningRate
from .sign_majority import SignMajorityVote
from .signguard import SignGuard
from .smea import SmallestMaximumEigenvalue
from .trimmed_mean import TrimmedMean

__all__ = [
    "Bulyan",
    "CenteredClipping",
    "ClippedClustering",
    "ComparativeElimination",
    "CovarianceFilter",
    "DivideAndConquer",
    "FLDetector",
    "FLTrust",
    "Flame",
    "Flanders",
    "FoolsGold",
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
    "NearestNeighborAveraging",
    "Phocas",
    "RobustFederatedAveraging",
    "RobustLearningRate",
    "SignGuard",
    "SignMajorityVote",
    "SmallestMaximumEigenvalue",
    "TrimmedMean",
]
