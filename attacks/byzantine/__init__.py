"""Byzantine attacks on messages or training data: a file for each, or for a family of them."""

from .alie import ALIE
from .badnets import BadNets
from .clipped_clustering_adaptive import ClippedClusteringAdaptive
from .constant import Inf, NaN, Zero
from .dba import DBA
from .dirty_labels import DirtyLabels
from .edge import Edge
from .edge_case import EdgeCase
from .fang import Fang
from .foe import FOE, IPM
from .gaussian import Gaussian
from .hidra import HIDRA
from .label_flip import LabelFlip
from .lazy import Lazy
from .mimic import Mimic
from .min_max import MinMax, MinSum
from .model_replacement import ModelReplacement
from .neurotoxin import Neurotoxin
from .none import NoAttack
from .opt import Opt
from .opt_alie import OptALIE
from .opt_drift import OptDrift
from .opt_foe import OptFOE
from .partial import Partial
from .poisonedfl import PoisonedFL
from .random import Random
from .rop import ROP
from .sf import SignFlip
from .signguard_adaptive import SignGuardAdaptive
from .timed import Timed

__all__ = [
    "ALIE",
    "DBA",
    "FOE",
    "HIDRA",
    "IPM",
    "ROP",
    "BadNets",
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
