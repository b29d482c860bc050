"""Byzantine attacks: one file per attack on the messages clients send (SPEC §3)."""

from .alie import ALIE
from .foe import FOE
from .gaussian import Gaussian
from .inf import Inf
from .ipm import IPM
from .label_flip import LabelFlip
from .nan import NaN
from .none import NoAttack
from .opt_alie import OptALIE
from .opt_foe import OptFOE
from .sf import SignFlip

__all__ = [
    "ALIE",
    "FOE",
    "IPM",
    "Gaussian",
    "Inf",
    "LabelFlip",
    "NaN",
    "NoAttack",
    "OptALIE",
    "OptFOE",
    "SignFlip",
]
