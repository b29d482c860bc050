"""The engine: it knows the contracts and never a method by name."""

from robustfl.federation.engine import RoundRecord, State, initial_state, train
from robustfl.federation.experiment import Experiment, Settings

__all__ = ["Experiment", "RoundRecord", "Settings", "State", "initial_state", "train"]
