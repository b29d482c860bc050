"""Flower with robustfl's defenses and attacks: a strategy for servers, attackers for simulations.

``RobustStrategy`` aggregates what Flower's clients send by any defense. ``attacker`` makes clients Byzantine who see
nothing but their own message; ``Attacked`` wraps any strategy with attackers who see all. Needs the extra ``[flower]``.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("flwr") is None or find_spec("flwr.serverapp") is None:
    raise ImportError(
        "robustfl.flower needs Flower 1.22 or newer: pip install 'flwr[simulation]>=1.22' "
        "(or, in robustfl's checkout, pip install -e '.[flower]')"
    )

from robustfl.flower.attackers import Attacked, attacker, numbered
from robustfl.flower.strategy import RobustStrategy

__all__ = ["Attacked", "RobustStrategy", "attacker", "numbered"]
