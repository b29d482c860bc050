"""The state of a training run, and the record of each round."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from robustfl.distributed import ALONE, Team
from robustfl.engine.experiment import Experiment
from robustfl.engine.personal import LIMIT, Personal, allocate_client_state


@dataclass(frozen=True)
class State:
    """The state that server and clients carry from round to round.

    ``theta [d]`` is the vector the model's parameters are views of; ``statistics [s]``, on the CPU like all the server
    has to do with statistics, is what the model's layers hold of them; ``memory [N d]`` holds what clients keep between
    rounds (a momentum, a control variate), honest clients first; ``personal`` their private entries; ``server`` what
    the algorithm's server carries; ``attack`` what the attack keeps, by channel; ``previous`` the last aggregate;
    ``root [1 d]`` what the server keeps when it works on data of its own; ``files`` where clients' rows lie if
    they take too much memory; ``smallest_variance`` the least so far. All are the engine's own memory and move with
    the rounds.
    """

    round: int
    theta: Tensor
    statistics: Tensor
    memory: Tensor | None
    defense: dict[str, Tensor] = field(default_factory=dict)
    server: dict[str, Tensor] = field(default_factory=dict)
    personal: Personal | None = None
    attack: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    previous: Tensor | None = None
    root: Tensor | None = None
    files: tuple[mmap.mmap, ...] = ()
    smallest_variance: float = 1.0


@dataclass(frozen=True)
class LocalModels:
    """The honest participants' models after local training, for as long as the round's record is looked at.

    ``received [d]`` and ``before [s]`` are what all started from, ``updates [h d']`` and ``statistics [h s]`` what each
    made of them.
    """

    clients: tuple[int, ...]
    received: Tensor
    before: Tensor
    updates: Tensor
    statistics: Tensor


@dataclass(frozen=True)
class RoundRecord:
    """Facts about a round; the model holds the round's result when it is handed out.

    ``tested`` is the state evaluation should look at, where it differs from the one training goes on from.
    """

    round: int
    loss: float
    facts: dict[str, Any]
    state: State
    tested: State | None = None
    local: LocalModels | None = None


def initial_state(experiment: Experiment, team: Team = ALONE, *, limit: int = LIMIT) -> State:
    """θ as the model has it, statistics (0, 1), empty memories, the same private entries for everybody."""
    e, clients = experiment, experiment.settings.clients
    theta = e.flat
    memory, personal, files = None, None, list[mmap.mmap]()
    if e.algorithm.remembers:
        memory, file = allocate_client_state(theta.new_zeros(e.layout.d), len(team.mine(range(clients))), limit)
        files += [file] if file is not None else []
    if e.privacy.personal:
        personal, more = Personal.initial(e.privacy, e.layout, theta, clients, limit)
        files += more
    return State(
        round=0,
        theta=theta,
        statistics=e.layout.initial_statistics(theta).cpu(),
        memory=memory,
        server=e.algorithm.server_state(theta),
        root=theta.new_zeros((1, e.layout.d)) if e.algorithm.remembers and e.root is not None else None,
        personal=personal,
        files=tuple(files),
    )
