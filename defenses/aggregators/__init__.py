"""Aggregation rules, one file per method."""

from .centered_clipping import CenteredClipping
from .geometric_median import GeometricMedian
from .krum import Krum, MultiKrum
from .mean import Mean
from .median import Median
from .trimmed_mean import TrimmedMean

__all__ = ["CenteredClipping", "GeometricMedian", "Krum", "Mean", "Median", "MultiKrum", "TrimmedMean"]
