"""The golden runner itself: a wrong number fails, and nothing expected is skipped."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from drivers import driver
from golden_cases import OURS, Arithmetic, answered, compare, load

# Scores order the rows of Krum, and no rule reports more than the order it leads to; the HBN paper's Bessel factor
# counts samples, which is exact for vectors only and not what is done here.
NOT_ANSWERED = {"scores_sum", "var_samples_literal"}


def test_every_expected_number_is_computed() -> None:
    for own in load(OURS):
        found = driver(own)(own, Arithmetic(torch.float64))
        assert answered(found, own.expected) == answered(own.expected, own.expected) - NOT_ANSWERED, own


@pytest.mark.parametrize(("found", "expected", "equal"), [
    (1.0 + 3e-9, 1.0, False),
    (1.0 + 1e-9, 1.0, True),
    (1e6 + 1e-4, 1e6, True),
    (math.nan, math.nan, True),
    (math.nan, 1.0, False),
    (1.0, math.nan, False),
    (math.inf, -math.inf, False),
    (torch.tensor([math.inf, 2.0]), [math.inf, 2], True),
    (torch.tensor([1.0, 2.0]), [1.0, 2.5], False),
    (torch.tensor([1.0, 2.0]), [1.0], False),
    (torch.tensor(1.0), [1.0], False),
    ([[1.0], [2.0, 3.0]], [[1.0], [2.0, 4.0]], False),
    ({"a": {"b": 1.0}}, {"a": {"b": 2.0}}, False),
    ({"selected": [1, 2]}, {"selected": [1, 3]}, False),
    ({"selected": [2, 1], "more": 0}, {"selected": [1, 2], "unknown": 5}, True),
    ({"neighbours": [[2, 1]]}, {"neighbours": [[1, 2]]}, True),
])  # fmt: skip
def test_numbers_pass_if_they_are_equal(found: object, expected: object, equal: bool) -> None:
    assert (compare(found, expected, 1e-9) == []) == equal


def test_a_case_of_another_name_is_computed_like_the_one_that_looks_the_same() -> None:
    for known in load(OURS):
        renamed = replace(known, name=f"held_out_{known.name}")
        assert driver(renamed) is driver(known), known.name
