"""The engine: what a federation does round by round. It knows contracts, never a method by name."""

from robustfl.federation.engine import train
from robustfl.federation.experiment import Experiment, FineTuning, Settings
from robustfl.federation.personal import Personal, Privacy, lent
from robustfl.federation.propagation import propagate_statistics
from robustfl.federation.state import LocalModels, RoundRecord, State, initial_state

__all__ = [
    "Experiment", "FineTuning", "LocalModels", "Personal", "Privacy", "RoundRecord", "Settings", "State",
    "initial_state", "lent", "propagate_statistics", "train",
]  # fmt: skip
