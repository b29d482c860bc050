"""The golden runner itself: a wrong number fails, and nothing expected is skipped."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drivers import driver
from golden_cases import OURS, Arithmetic, BadFile, Case, answered, compare, load

# Scores order the rows of Krum, and no rule reports more than the order it leads to; the HBN paper's Bessel factor
# counts samples, which is exact for vectors only and not what is done here.
NOT_ANSWERED = {"scores_sum", "var_samples_literal"}


def test_every_expected_number_is_computed() -> None:
    for own in load(OURS):
        found = driver(own)(own, Arithmetic(torch.float64))
        assert answered(found, own.expected) == answered(own.expected, own.expected) - NOT_ANSWERED, own


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (1.0 + 3e-9, 1.0),
        (float("nan"), 1.0),
        (1.0, float("nan")),
        (float("inf"), -float("inf")),
        (torch.tensor([1.0, 2.0]), [1.0, 2.5]),
        (torch.tensor([1.0, 2.0]), [1.0]),
        (torch.tensor(1.0), [1.0]),
        ([[1.0], [2.0, 3.0]], [[1.0], [2.0, 4.0]]),
        ({"a": {"b": 1.0}}, {"a": {"b": 2.0}}),
        ({"selected": [1, 2]}, {"selected": [1, 3]}),
    ],
)
def test_a_difference_is_found(found: object, expected: object) -> None:
    assert compare(found, expected, 1e-9)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (1.0 + 1e-9, 1.0),
        (1e6 + 1e-4, 1e6),
        (math.nan, math.nan),
        (torch.tensor([math.inf, 2.0]), [math.inf, 2]),
        ({"selected": [2, 1], "more": 0}, {"selected": [1, 2], "unknown": 5}),
        ({"neighbours": [[2, 1]]}, {"neighbours": [[1, 2]]}),
    ],
)
def test_equal_numbers_pass(found: object, expected: object) -> None:
    assert compare(found, expected, 1e-9) == []


def test_an_unknown_kind_of_case_is_an_error_and_no_expected_failure() -> None:
    with pytest.raises(LookupError, match=r"'new_rule' of section 4\.99"):
        driver(Case("f", "new_rule", "4.99", {}, {}, {}, 1e-10))


def test_numbers_that_are_not_finite_are_read_from_strings(tmp_path: Path) -> None:
    case = {"name": "a", "spec": "4.1", "inputs": {"X": [["nan", 1.0]]}, "params": {"init": "mean", "tau": "inf"}}
    content = {"format": 1, "cases": [{**case, "expected": {"y": ["-inf"]}}]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    (read,) = load(tmp_path)
    assert math.isnan(read.inputs["X"][0][0])
    assert read.params == {"init": "mean", "tau": math.inf}
    assert read.expected == {"y": [-math.inf]}
    assert read.tol == 1e-10


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "cases": []}', '{"format": 1, "cases": [{"name": "a"}]}'])
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BadFile, match=r"x\.json"):
        load(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"holds no \*\.json files"):
        load(tmp_path)


def test_a_case_of_another_name_is_computed_like_the_one_that_looks_the_same() -> None:
    for known in load(OURS):
        renamed = replace(known, name=f"held_out_{known.name}")
        assert driver(renamed) is driver(known), known.name
