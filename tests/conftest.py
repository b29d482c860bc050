"""Options and limits of the whole suite."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors here are tiny: threads would only wait for each other


NIGHTLY = ("boards", "browser", "cluster", "docs", "flower", "fuzz", "hf", "peers", "slow", "survival")
"""The markers of tests that ``.ci/nightly`` runs, a group each; what has none of them runs by default."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite takes all cores, as with ``-n auto``; files and tests that are named run in this process."""
    worker = hasattr(config, "workerinput")  # one of those processes itself: it must start no others
    whole = config.args_source is not config.ArgsSource.ARGS
    if whole and not worker and config.pluginmanager.hasplugin("xdist") and config.option.numprocesses is None:
        config.option.numprocesses = "auto"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test belongs to one tier."""
    groups = [marker for marker in NIGHTLY if item.get_closest_marker(marker)]
    if len(groups) > 1:
        raise pytest.UsageError(f"{item.nodeid} belongs to {' and '.join(groups)}; a test has one of these markers")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--shuffle``: files in random order, and the tests of each."""
    seed = config.option.shuffle
    if seed is None:
        return
    dice, files = random.Random(seed), dict[str, list[pytest.Item]]()
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = list(files)
    dice.shuffle(names)
    items.clear()
    for name in names:
        dice.shuffle(files[name])
        items += files[name]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        metavar="DIR",
        default=None,
        help="run tests/reference on the golden files of DIR (default: tests/reference/golden)",
    )
    parser.addoption(
        "--kills", type=int, metavar="N", default=12, help="kill the grids of tests/survival so often (default: 12)"
    )
    parser.addoption("--shuffle", type=int, metavar="SEED", default=None, help="run the tests in a random order")
    parser.addoption(
        "--inputs", type=int, metavar="N", default=0, help="inputs of each kind in tests/fuzz (default: a few)"
    )


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """Methods registered in a test are gone after it."""
    from robustfl import layer_kinds, registry

    registry.load_plugins()
    before, kinds = {kind: dict(names) for kind, names in registry._entries.items()}, dict(layer_kinds.TABLE)
    yield
    layer_kinds.TABLE.clear()
    layer_kinds.TABLE.update(kinds)
    for kind, names in before.items():
        registry._entries[kind].clear()
        registry._entries[kind].update(names)
    registry._changed()
