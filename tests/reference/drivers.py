"""Which driver computes a case: chosen by its section and the longest known beginning of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import drivers_aggregators
import drivers_attacks
import drivers_evasion
import drivers_federation
import drivers_later
import drivers_norms
import drivers_partition
from golden_cases import Arithmetic, Case

Driver = Callable[[Case, Arithmetic], Mapping[str, Any]]
_DRIVERS: dict[tuple[str, str], Driver] = {}
for _family in (
    drivers_aggregators,
    drivers_attacks,
    drivers_evasion,
    drivers_federation,
    drivers_later,
    drivers_norms,
    drivers_partition,
):
    _DRIVERS.update(_family.DRIVERS)


def driver(case: Case) -> Driver:
    """The driver of ``case``; raises ``LookupError`` for a kind of case that has none."""
    fitting = [prefix for spec, prefix in _DRIVERS if spec == case.spec and case.name.startswith(prefix)]
    if not fitting:
        raise LookupError(f"no driver for cases like {case.name!r} of section {case.spec}")
    return _DRIVERS[case.spec, max(fitting, key=len)]
