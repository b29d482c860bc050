"""Byzantine attacks on messages or training data: a file for each, or for a family of them."""

from .adaptive import ClippedClusteringAdaptive, SignGuardAdaptive
from .alie import ALIE
from .backdoors import DBA, BadNets, Blended, EdgeCase
from .baseline import Gaussian, Inf, NaN, NoAttack, Random, Zero
from .edge import Edge
from .fang import Fang
from .fitted import A3FL, IBA
from .foe import FOE, IPM, SignFlip
from .hidra import HIDRA
from .mimic import Lazy, Mimic
from .min_max import MinMax, MinSum
from .opt import Opt
from .opt_alie import OptALIE
from .opt_drift import OptDrift
from .opt_foe import OptFOE
from .poisonedfl import PoisonedFL
from .poisoning import DirtyLabels, LabelFlip
from .rop import ROP
from .wrapping import AlterMin, Chameleon, ModelReplacement, Neurotoxin, Partial, Timed

__all__ = [
    "A3FL",
    "ALIE",
    "DBA",
    "FOE",
    "HIDRA",
    "IBA",
    "IPM",
    "ROP",
    "AlterMin",
    "BadNets",
    "Blended",
    "Chameleon",
    "ClippedClusteringAdaptive",
    "DirtyLabels",
    "Edge",
    "EdgeCase",
    "Fang",
    "Gaussian",
    "Inf",
    "LabelFlip",
    "Lazy",
    "Mimic",
    "MinMax",
    "MinSum",
    "ModelReplacement",
    "NaN",
    "Neurotoxin",
    "NoAttack",
    "Opt",
    "OptALIE",
    "OptDrift",
    "OptFOE",
    "Partial",
    "PoisonedFL",
    "Random",
    "SignFlip",
    "SignGuardAdaptive",
    "Timed",
    "Zero",
]
