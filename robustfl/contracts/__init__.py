"""The contracts between rooms: read this package first, a page for each kind of method.

Letters: ``n`` clients of a round, ``h`` honest, ``f`` Byzantine, ``m`` kept rows, ``d`` trainable entries,
``s`` statistics entries, ``L`` normalization layers, ``b`` batch, ``C`` channels, ``c`` classes.

A method is a frozen dataclass whose fields are its hyper-parameters (declared with ``parameters.param``), plus one
method. Facts about it are class variables, stated once and printed by ``robustfl list`` and ``robustfl show``; in
``paper``, ``@key`` stands for a paper in ``papers.toml``, and any other text for itself.
"""

from robustfl.contracts.attack import Attack, Channel, ColumnAttack, Evasion, Forged, Knowledge, Rehearsal, View
from robustfl.contracts.data import Arrays, Dataset, Model, Partition
from robustfl.contracts.defense import Aggregated, Aggregator, Context, Propagation, Step
from robustfl.contracts.method import Method
from robustfl.contracts.norm import (
    BranchedLayer,
    BranchedNorm,
    Layers,
    LockstepLayer,
    LockstepNorm,
    Norm,
    NormLayer,
    OneMachineNorm,
    Reducer,
    Reports,
    StatisticsAggregation,
    StatisticsLayer,
    StatisticsPass,
    StatisticsSlices,
    Tag,
)
from robustfl.contracts.training import Algorithm, Asked, Contrast, Gradients, LocalWork, Objective, ServerWork, Task

__all__ = [
    "Aggregated", "Aggregator", "Algorithm", "Arrays", "Asked", "Attack", "BranchedLayer", "BranchedNorm", "Channel",
    "ColumnAttack", "Context", "Contrast", "Dataset", "Evasion", "Forged", "Gradients", "Knowledge", "Layers",
    "LocalWork", "LockstepLayer", "LockstepNorm", "Method", "Model", "Norm", "NormLayer", "Objective", "OneMachineNorm",
    "Partition", "Propagation", "Reducer", "Rehearsal", "Reports", "ServerWork", "StatisticsAggregation",
    "StatisticsLayer", "StatisticsPass", "StatisticsSlices", "Step", "Tag", "Task", "View",
]  # fmt: skip
