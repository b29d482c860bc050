"""robustfl: a benchmark instrument for Byzantine and adversarial robustness in federated learning.

The public surface (importing it does not import torch until one of these is used)::

    robustfl.attack("alie", z=1.5)                 # Attack:   .forge(view, generator=g)
    robustfl.forge("alie", honest, f=3)            # [h d] -> [f d]
    robustfl.defense("nnm+trimmed-mean")           # callable: (X [n d], f=3) -> [d]; .stateful
    robustfl.evasion("pgd", eps="8/255", steps=7)  # Evasion:  .perturb(model, x, y)
    robustfl.norm("fbn", momentum=0.1)             # Norm
    robustfl.Scenario.load("quickstart")           # preset name or path
    robustfl.grid(scenario, out="runs", jobs=4)    # Results (a pandas frame inside)
    robustfl.run({"attack": "alie", "f": 3})       # CellResult: .metrics.sa, .metrics.ra
    robustfl.evaluate(model, "cifar10")            # Evaluation: .sa, .ra, .worst of a model of one's own
    robustfl.leaderboard("runs/quickstart")        # pandas.DataFrame
    robustfl.verify("board.json", cells=3)         # Verification: .agrees, .checks
    robustfl.load_model("runs/quickstart", key)    # the trained model of a cell, a torch module
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("robustfl.attacks") is None:
    raise ImportError(
        "robustfl is being imported from a checkout that is not installed; "
        "in the folder with pyproject.toml run: pip install -e ."
    )

_HOMES = {
    "attack": "robustfl.api",
    "forge": "robustfl.api",
    "defense": "robustfl.api",
    "evasion": "robustfl.api",
    "norm": "robustfl.api",
    "evaluate": "robustfl.evaluation.own_model",
    "register": "robustfl.registry",
    "param": "robustfl.parameters",
    "Scenario": "robustfl.scenarios",
    "grid": "robustfl.scenarios",
    "run": "robustfl.scenarios.single",
    "verify": "robustfl.scenarios",
    "load_model": "robustfl.scenarios.kept_models",
    "leaderboard": "robustfl.reports",
}
__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    __version__: str
    from robustfl.api import attack as attack
    from robustfl.api import defense as defense
    from robustfl.api import evasion as evasion
    from robustfl.api import forge as forge
    from robustfl.api import norm as norm
    from robustfl.evaluation.own_model import evaluate as evaluate
    from robustfl.parameters import param as param
    from robustfl.registry import register as register
    from robustfl.reports import leaderboard as leaderboard
    from robustfl.scenarios import Scenario as Scenario
    from robustfl.scenarios.grid import grid as grid
    from robustfl.scenarios.kept_models import load_model as load_model
    from robustfl.scenarios.single import run as run
    from robustfl.scenarios.verify import verify as verify


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # slow to import

        try:
            return version("robustfl")
        except PackageNotFoundError:
            return "0+unknown"
    raise AttributeError(f"module 'robustfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
