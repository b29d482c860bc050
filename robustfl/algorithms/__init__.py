"""Federated algorithms: what a client does between two messages, and the server's step."""

from robustfl.algorithms.crfl import CRFL
from robustfl.algorithms.dsgd import DSGD
from robustfl.algorithms.fedacg import FedACG
from robustfl.algorithms.fedadam import FedAdam
from robustfl.algorithms.fedavg import FedAvg
from robustfl.algorithms.fedavgm import FedAvgM
from robustfl.algorithms.fedmeta import FedMeta
from robustfl.algorithms.fednova import FedNova
from robustfl.algorithms.fedprox import FedProx
from robustfl.algorithms.fedsam import FedSAM
from robustfl.algorithms.moon import Moon
from robustfl.algorithms.scaffold import Scaffold
from robustfl.algorithms.schedules import constant, geometric, step

__all__ = [
    "CRFL", "DSGD", "FedACG", "FedAdam", "FedAvg", "FedAvgM", "FedMeta", "FedNova", "FedProx", "FedSAM", "Moon",
    "Scaffold", "constant", "geometric", "step",
]  # fmt: skip
