"""Every golden case through the public surface: ``pytest tests/reference --golden DIR``.

Cases are told apart by the section of the specification they cite, never by their data, so any folder of files of
the same form can be run. A case whose method does not exist yet is an expected failure that names the method.
"""

from __future__ import annotations

import json
from pathlib import Path

import drivers_adversarial
import drivers_aggregators
import drivers_attacks
import drivers_data
import drivers_norms
import drivers_training
import pytest
from cases import MODES, Case, Mode, NotThereYet, compare, read_folder

import robustfl.registry

CHAPTERS = {
    1: drivers_training.run,
    2: drivers_norms.run,
    3: drivers_attacks.run,
    4: drivers_aggregators.run,
    5: drivers_adversarial.run,
    6: drivers_data.run,
}
# What no public function hands out; the case's other keys pin the method down.
NOT_YIELDED = {"scores_sum", "gamma", "z", "target"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        folder: Path = metafunc.config.getoption("golden")
        cases = list(read_folder(folder))
        if not cases:
            raise pytest.UsageError(f"--golden {folder}: no *.json with cases there")
        both = [(c, m) for c in cases for m in MODES if m.name == "float64" or c.section[0] != 6]
        metafunc.parametrize(("case", "mode"), both, ids=[f"{c.file}/{c.name}-{m.name}" for c, m in both])


def check(case: Case, mode: Mode) -> set[str]:
    """Run the case; the names of the expected leaves that were compared."""
    compared, wrong = compare(case.expected, CHAPTERS[case.section[0]](case, mode), mode.tolerance(case))
    assert not wrong, "\n".join(wrong[:8])
    assert compared, f"nothing to compare: the driver yields none of {', '.join(case.expected)}"
    return set(compared)


def test_golden_case(case: Case, mode: Mode) -> None:
    robustfl.registry.load_plugins()
    try:
        check(case, mode)
    except NotThereYet as missing:
        pytest.xfail(str(missing))


def leaves(value: object, path: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {path}
    return {leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}" if path else key)}


def test_every_expected_key_of_our_own_cases_is_compared() -> None:
    for case in read_folder(Path(__file__).parent / "golden"):
        try:
            missed = leaves(case.expected) - check(case, MODES[0])
        except NotThereYet:
            continue
        assert missed <= NOT_YIELDED, f"{case.file}/{case.name}"


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ([1.0, 2.0], [1.0, 2.1]),
        ([1.0, 2.0], [1.0]),
        ([[1.0], [2.0]], [[1.0], 2.0]),
        (1.0, float("nan")),
        (float("nan"), 1.0),
        (float("inf"), float("-inf")),
        ([{"x": 1.0}], [{"x": 2.0}]),
    ],
)
def test_a_wrong_number_is_caught(expected: object, got: object) -> None:
    assert compare({"y": expected}, {"y": got}, 1e-10)[1]
    assert compare({"y": expected}, {"y": expected}, 1e-10) == (["y"], [])


def test_other_folders_and_non_finite_numbers_are_read(tmp_path: Path) -> None:
    case = {"name": "average", "spec": "4.1", "inputs": {"X": [[1.0], [3.0]]}, "params": {}, "expected": {"y": [2.0]}}
    odd = case | {"inputs": {"X": [["nan"], [3.0]]}, "expected": {"y": [3.0]}}
    (tmp_path / "anything.json").write_text(json.dumps({"format": 1, "cases": [case, odd]}))
    for one in read_folder(tmp_path):
        assert check(one, MODES[0]) == {"y"}
    wrong = case | {"expected": {"y": [2.5]}}
    (tmp_path / "anything.json").write_text(json.dumps({"format": 1, "cases": [wrong]}))
    with pytest.raises(AssertionError, match=r"expected 2\.5, got 2\.0"):
        check(next(read_folder(tmp_path)), MODES[0])


def test_a_missing_method_is_named() -> None:
    from cases import need

    with pytest.raises(NotThereYet, match="method no-such-rule is not there yet"):
        need("defense", "no-such-rule")
    assert need("defense", "average", "mean") == "mean"
