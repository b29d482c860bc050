"""Federated algorithms: what a client does between two messages, and the server's step."""

from robustfl.algorithms.dsgd import DSGD
from robustfl.algorithms.fedavg import FedAvg
from robustfl.algorithms.schedules import constant, geometric, step

__all__ = ["DSGD", "FedAvg", "constant", "geometric", "step"]
