"""Federated algorithms: what a client does between two messages, and the server's step."""

from robustfl.algorithms.fedavg import DSGD, FedAvg, FedNova
from robustfl.algorithms.local_objectives import FedMeta, FedProx, FedSAM, Moon, Scaffold
from robustfl.algorithms.private import CRFL, LocalDP, PrivateDSGD
from robustfl.algorithms.schedules import constant, cosine, geometric, step
from robustfl.algorithms.server_optimizers import FedACG, FedAdam, FedAvgM

__all__ = [
    "CRFL", "DSGD", "FedACG", "FedAdam", "FedAvg", "FedAvgM", "FedMeta", "FedNova", "FedProx", "FedSAM",
    "LocalDP", "Moon", "PrivateDSGD", "Scaffold", "constant", "cosine", "geometric", "step",
]  # fmt: skip
