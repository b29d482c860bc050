"""Numeric kernels on stacks of rows ``[n d]``: torch only, bound by memory traffic, no knowledge of methods.

Rows must be finite. On the CPU a C compiler, where there is one, makes medians, trimmed means and deviations faster
(see ``native``); without one the results are the same bit for bit. On a GPU Triton does for large stacks (``fused``).
"""

from robustfl.kernels.gram import CentredGram, at_hand, centred_gram, last_bits, products_with, squared_distances
from robustfl.kernels.order import RankMean, mean_and_std, median_rule, tame_rank_mean, trimmed_mean_rule

__all__ = [
    "CentredGram", "RankMean", "at_hand", "centred_gram", "last_bits", "mean_and_std", "median_rule", "products_with",
    "squared_distances", "tame_rank_mean", "trimmed_mean_rule",
]  # fmt: skip
