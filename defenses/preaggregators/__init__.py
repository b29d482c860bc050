"""Steps before aggregation, one file per method."""

from .clipping import AdaptiveRobustClipping, Clipping
from .mixing import Bucketing, NearestNeighborMixing

__all__ = ["AdaptiveRobustClipping", "Bucketing", "Clipping", "NearestNeighborMixing"]
