"""Evasion attacks: test-time perturbations in pixel space [0, 1]."""

from .fgsm import FGSM
from .pgd import PGD

__all__ = ["FGSM", "PGD"]
