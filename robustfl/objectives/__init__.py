"""Objectives: what a client's gradient of a batch is the gradient of."""

from robustfl.objectives.adversarial import AdversarialTraining, FreeAdversarialTraining
from robustfl.objectives.cross_entropy import WSM, CrossEntropy
from robustfl.objectives.fedrob import FedRob
from robustfl.objectives.pnc import PseudoNoiseCalibration

__all__ = [
    "WSM", "AdversarialTraining", "CrossEntropy", "FedRob", "FreeAdversarialTraining", "PseudoNoiseCalibration",
]  # fmt: skip
