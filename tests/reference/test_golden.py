"""Every golden case through the public surface; ``--golden DIR`` takes the files of another folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drivers import driver
from golden_cases import OURS, Arithmetic, Case, answered, compare, load

# Counting and scheduling: there is no tensor whose dtype could matter.
WITHOUT_TENSORS = {"1.12", "5.8", "6.1", "6.2", "6.3"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("--golden")
    folder = Path(metafunc.config.invocation_params.dir, given) if given else OURS
    pairs = [(case, on) for case in load(folder) for on in _settings(case)]
    metafunc.parametrize(("case", "on"), pairs, ids=[f"{case}-{on}" for case, on in pairs])


def _settings(case: Case) -> list[Arithmetic]:
    settings = [Arithmetic(torch.float64)]
    if case.spec not in WITHOUT_TENSORS:
        settings.append(Arithmetic(torch.float32))
        if torch.cuda.is_available():
            settings.append(Arithmetic(torch.float64, "cuda"))
    return settings


def test_golden(case: Case, on: Arithmetic) -> None:
    found = driver(case)(case, on)
    assert answered(found, case.expected), f"nothing of {sorted(case.expected)} was computed"
    wrong = compare(found, case.expected, on.tolerance(case))
    assert not wrong, "\n".join(wrong[:20])
