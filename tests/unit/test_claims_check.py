"""Claims of records that their own settings contradict."""

from __future__ import annotations

from typing import Any

import pytest
from fake_store import record

from robustfl.records import CellResult
from robustfl.scenarios.claims_check import false_claims, unexplained

KRUM: dict[str, Any] = {"defense": "krum", "attack": "sf", "clients": 10, "f": 4}
"""It takes 11 clients with four attackers."""


def said(status: str = "done", no_effect: bool = False, **settings: Any) -> CellResult:
    made = record(status=status)
    certificates = {"no_effect": True} if no_effect else {}
    return made.model_copy(update={"cell": {"cell": settings}, "certificates": certificates})


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (said(**KRUM), "it says done, where such a cell is refused: krum"),
        (said("diverged", **KRUM), "it says diverged, where such a cell is refused"),
        (said(no_effect=True, attack="sf", f=2), "it says that its attack has no effect, which nothing"),
        (said("refused", **KRUM), None),
        (said(attack="sf", f=2), None),
        (said(attack="alie", f=2, clients=10), None),
        (said(no_effect=True, attack="alie", f=2, clients=10), None),
        (said(no_effect=True, attack="somebody's-own", f=2), None),
    ],
)
def test_what_a_record_claims_of_its_settings_is_held_against_them(claim: CellResult, words: str | None) -> None:
    found = false_claims([claim])
    assert found == [] if words is None else words in found[0]


def test_of_many_false_claims_the_first_are_told() -> None:
    assert len(false_claims([said(**KRUM)] * 5)) == 5
    found = false_claims([said(**KRUM)] * 7)
    assert len(found) == 6
    assert found[-1] == "and 2 more like these"


@pytest.mark.parametrize(
    ("claim", "unknown"),
    [
        (said("refused", **KRUM), False),
        (said("refused", attack="sf", f=2), True),
        (said("refused", attack="somebody's-own"), True),
        (said(attack="sf", f=2), False),
    ],
)
def test_only_a_run_can_tell_of_a_refusal_that_no_setting_explains(claim: CellResult, unknown: bool) -> None:
    assert unexplained(claim) is unknown
