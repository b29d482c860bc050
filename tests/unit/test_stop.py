"""A training that stops early is the beginning of the whole one: phases and schedules are those of all rounds."""

from __future__ import annotations

from typing import Any

import pytest

from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.scenarios import Cell, run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.run import _traffic

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=300)", "partition": "gamma(gamma=0)", "model": "mlp(hidden=(16,))", "clients": 5, "f": 1,
    "attack": "sf", "defense": "median", "rounds": 6, "batch": 16, "evaluate_every": 2, "evasions": [],
    "schedule": {"kind": "geometric", "lr": 0.1, "factor": 0.5},
}  # fmt: skip


def ran(**settings: Any) -> CellResult:
    return run_cell(Cell.of({**SMALL, **settings}), fingerprint="x")


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "fixbn"},  # frozen from round 3 on; of two rounds it would be from round 1 on
        {"norm": "none", "algorithm": "crfl(sigma=0.05)"},  # no noise after the last round
        {"norm": "hbn", "algorithm": "fedavg(local_steps=2)", "participation": 0.6},
    ],
    ids=lambda settings: str(settings["norm"]),
)
def test_it_has_what_the_whole_training_has_in_that_round(settings: dict[str, Any]) -> None:
    whole, part = ran(**settings), ran(**settings, stop=2)
    assert whole.status == part.status == "done", (whole.reason, part.reason)
    then = next(p for p in whole.curve if p.round == 2)
    assert (part.metrics.sa, part.metrics.loss) == (then.sa, then.loss)
    assert [p.round for p in part.curve] == [2]
    assert part.key != whole.key


def test_the_traffic_is_that_of_the_rounds_that_are_run() -> None:
    whole, part = (
        _traffic(build(Cell.of({**SMALL, "norm": "fixbn", **more})).experiment) for more in ({}, {"stop": 2})
    )
    alone = _traffic(build(Cell.of({**SMALL, "norm": "naive-bn", "rounds": 2})).experiment)
    assert part == alone
    assert part["mebibytes"] < whole["mebibytes"] / 2


def test_forgetting_is_measured_where_it_stops() -> None:
    settings = {**SMALL, "validation": 0.2, "algorithm": "fedavg(local_steps=2)", "norm": "none"}
    assert Cell.of({**settings, "forgetting": True, "stop": 2}).forgetting_rounds == {2}
    with pytest.raises(UsageError, match="from 1 to 2"):
        Cell.of({**settings, "forgetting": [1, 3], "stop": 2})
