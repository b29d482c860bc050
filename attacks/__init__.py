"""Attacks: Byzantine ones on messages (training time) and evasion ones on inputs (test time)."""

from . import byzantine, evasion
from .byzantine.alie import supporters, z_max
from .byzantine.search import linear_search
from .byzantine.sight import forge_statistics

__all__ = ["byzantine", "evasion", "forge_statistics", "linear_search", "supporters", "z_max"]
