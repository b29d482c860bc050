"""The numbers of a cell as the engine takes them."""

from __future__ import annotations

from robustfl.federation import Settings

from .methods import method
from .spec import Cell


def settings_of(cell: Cell) -> Settings:
    """The federation's settings."""
    at, tuning = cell.adversarial, method("finetune", cell.finetune)
    pool = None
    if cell.byzantine != "any":
        pool = sorted(at) if cell.byzantine == "at" else [k for k in range(cell.clients) if k not in at]
    return Settings(
        clients=cell.clients,
        f=cell.f,
        f_declared=cell.f_declared,
        rounds=cell.rounds,
        batch=cell.batch,
        participation=cell.participation,
        scope=cell.scope,
        target=cell.target,
        seed=cell.seed,
        engine=cell.engine,
        candidates=None if pool is None else tuple(pool),
        quota=cell.quota,
        precision=cell.precision,
        finetuning=None if tuning is None else tuning.of(cell.rounds, cell.clients, at),
    )
