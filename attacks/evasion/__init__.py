"""Evasion attacks: test-time perturbations in pixel space [0, 1]."""

from .accounts import masking
from .apgd import APGDCE, APGDT, checkpoints, relative_checkpoints
from .corruptions import Corruption
from .ensembles import AutoAttack, Worst
from .fab_t import FABT
from .losses import dlr, targeted_dlr
from .lsa import LSA
from .pgd import FGSM, MIA, PGD
from .square import Square, p_at

__all__ = [
    "APGDCE", "APGDT", "FABT", "FGSM", "LSA", "MIA", "PGD", "AutoAttack", "Corruption", "Square", "Worst",
    "checkpoints", "dlr", "masking", "p_at", "relative_checkpoints", "targeted_dlr",
]  # fmt: skip
