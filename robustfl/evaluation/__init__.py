"""Standard and robust accuracy of a model, per class and per user; forgetting; traffic and computation."""

from robustfl.evaluation.accuracy import (
    Accuracy,
    Forgetting,
    evaluation_batch,
    forgetting,
    limit_doubt,
    mean_over_users,
    robust_accuracy,
    standard_accuracy,
)
from robustfl.evaluation.costs import ProductCounter, Traffic, macs_per_epoch, traffic

__all__ = [
    "Accuracy", "Forgetting", "ProductCounter", "Traffic", "evaluation_batch", "forgetting",
    "limit_doubt", "macs_per_epoch", "mean_over_users", "robust_accuracy", "standard_accuracy", "traffic",
]  # fmt: skip
