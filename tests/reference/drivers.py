"""Which driver computes a case: chosen by its section and the longest known beginning of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import drivers_aggregators
import drivers_attacks
import drivers_evasion
import drivers_federation
import drivers_norms
import drivers_training
from golden_cases import OURS, Arithmetic, Case, load

Driver = Callable[[Case, Arithmetic], Mapping[str, Any]]
_DRIVERS: dict[tuple[str, str], Driver] = {}
for _family in (
    drivers_aggregators,
    drivers_attacks,
    drivers_evasion,
    drivers_federation,
    drivers_norms,
    drivers_training,
):
    _DRIVERS.update(_family.DRIVERS)


def driver(case: Case) -> Driver:
    """The driver of ``case``; raises ``LookupError`` for a kind of case that has none.

    A case whose name begins like none of ours is computed like the case of ours in the same section whose inputs,
    parameters and expectations have the most names in common with its own.
    """
    fitting = [prefix for spec, prefix in _DRIVERS if spec == case.spec and case.name.startswith(prefix)]
    if fitting:
        return _DRIVERS[case.spec, max(fitting, key=len)]
    alike = [(_likeness(case, known), known.name) for known in load(OURS) if known.spec == case.spec]
    if not alike:
        raise LookupError(f"no driver for cases like {case.name!r} of section {case.spec}")
    return driver(replace(case, name=max(alike)[1]))


def _likeness(one: Case, other: Case) -> float:
    """Shared names of inputs, parameters and expectations, as a share of all."""
    names = [{*case.inputs, *case.params, *(f"expected {key}" for key in case.expected)} for case in (one, other)]
    return len(names[0] & names[1]) / max(1, len(names[0] | names[1]))
