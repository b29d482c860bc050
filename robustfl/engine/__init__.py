"""The engine: what a federation does round by round. It knows contracts, never a method by name."""

from robustfl.engine.experiment import Experiment, FineTuning, Settings
from robustfl.engine.personal import Personal, Privacy, lent
from robustfl.engine.propagation import propagate_statistics
from robustfl.engine.state import LocalModels, RoundRecord, State, initial_state
from robustfl.engine.training import train

__all__ = [
    "Experiment", "FineTuning", "LocalModels", "Personal", "Privacy", "RoundRecord", "Settings", "State",
    "initial_state", "lent", "propagate_statistics", "train",
]  # fmt: skip
