"""Steps before aggregation, one file per method."""

from .nnm import NearestNeighborMixing

__all__ = ["NearestNeighborMixing"]
