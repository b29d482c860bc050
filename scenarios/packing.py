"""The engine's state as plain tensors, for checkpoints: what goes in comes out bit for bit.

Random draws need no place here: every stream is named by its round (``randomness``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robustfl.federation import Experiment, State, initial_state

_OWN = ("theta", "statistics", "memory", "root")  # with the clients' entries and the server's: the engine's memory
_PLAIN = (bool, int, float, str, type(None))


def packed(experiment: Experiment, state: State) -> dict[str, Any]:
    """Everything the next round needs: nested dicts of tensors and plain values.

    Raises ``TypeError`` where a method keeps anything else, which could not be loaded again safely.
    """
    content: dict[str, Any] = {name: getattr(state, name) for name in _OWN}
    content |= {
        "round": state.round,
        "smallest_variance": state.smallest_variance,
        "previous": state.previous,
        "server": dict(state.server),
        "attack": {channel: dict(kept) for channel, kept in state.attack.items()},
        "defense": dict(state.defense),
        "personal": None,
        "buffers": dict(experiment.model.named_buffers()),
    }
    if state.personal is not None:
        content["personal"] = {"parameters": state.personal.parameters, "statistics": state.personal.statistics}
    found: dict[str, Any] = _plain(content, "state")
    return found


def unpacked(experiment: Experiment, content: Mapping[str, Any], *, limit: int) -> State:
    """The state again, in the engine's own memory, or in files beyond ``limit`` bytes.

    Raises ``ValueError`` for one of another experiment.
    """
    try:
        return _unpacked(experiment, content, limit)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"it does not fit this cell: {error}") from None


def _unpacked(experiment: Experiment, content: Mapping[str, Any], limit: int) -> State:
    start = initial_state(experiment, limit=limit)
    buffers = dict(experiment.model.named_buffers())
    personal = content["personal"] or {}
    places = {name: (getattr(start, name), content[name]) for name in _OWN}
    places |= {f"server {k}": (v, content["server"].get(k)) for k, v in start.server.items()}
    places |= {
        f"personal {k}": (getattr(start.personal, k, None), personal.get(k)) for k in ("parameters", "statistics")
    }
    places |= {f"buffer {k}": (v, content["buffers"].get(k)) for k, v in buffers.items()}
    for name, (into, value) in places.items():
        _check(name, into, value)
    if not 0 <= content["round"] <= experiment.settings.end:
        raise ValueError(f"round {content['round']} of {experiment.settings.end}")
    with torch.no_grad():
        for into, value in places.values():
            if into is not None:
                into.copy_(value)
    return replace(
        start, round=content["round"], smallest_variance=content["smallest_variance"], previous=content["previous"],
        attack=content["attack"], defense=content["defense"],
    )  # fmt: skip


def _check(name: str, into: Tensor | None, value: Tensor | None) -> None:
    if (into is None) != (value is None):
        raise ValueError(f"{name} is {'not expected' if into is None else 'missing'}")
    if into is not None and value is not None and (into.shape != value.shape or into.dtype != value.dtype):
        raise ValueError(f"{name} is {value.dtype} {tuple(value.shape)}, not {into.dtype} {tuple(into.shape)}")


def _plain(value: Any, where: str) -> Any:
    """The same with tensors that own no more memory than they show: a view would take its whole storage along."""
    if isinstance(value, Tensor):
        value = value.detach()
        return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where} {k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v, where) for v in value)
    if type(value) not in _PLAIN:
        raise TypeError(f"{where} holds {type(value).__name__}; methods may keep tensors, numbers and texts")
    return value
