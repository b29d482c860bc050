"""Standard and robust accuracy of a model, per class and per user (SPEC §5.8)."""

from robustfl.evaluation.accuracy import (
    Accuracy,
    evaluation_batch,
    mean_over_users,
    robust_accuracy,
    standard_accuracy,
)

__all__ = ["Accuracy", "evaluation_batch", "mean_over_users", "robust_accuracy", "standard_accuracy"]
