"""Objectives: what a client's gradient of a batch is the gradient of."""

from robustfl.objectives.adversarial import AdversarialTraining, FedRob, FreeAdversarialTraining, PseudoNoiseCalibration
from robustfl.objectives.cross_entropy import WSM, CrossEntropy

__all__ = [
    "WSM", "AdversarialTraining", "CrossEntropy", "FedRob", "FreeAdversarialTraining", "PseudoNoiseCalibration",
]  # fmt: skip
