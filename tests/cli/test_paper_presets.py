"""The presets of papers that need data from elsewhere, on made data in the real layout."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robustfl.cli import invoke
from robustfl.data.fedbn import DIGITS, DOMAINNET, DOMAINNET_CLASSES
from robustfl.scenarios import Scenario, grid, preset_names

# Presets are cut down to a few rounds here, in which some of their settings do nothing.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TINY = ["seed=0", "train_evasion=pgd(steps=1)", "model=digits(channels=(2,2,2), hidden=(4,4))"]
ONE = ["rounds=1", 'evasions=["pgd(steps=1)"]']
HALF = ["clients=10", "at=ratio(rho=0.5)"]
ON_DIGITS: dict[str, tuple[int, list[str]]] = {
    "fedrbn-digits": (9, [*ONE, *HALF]),
    "fedrbn-ablation": (4, [*ONE, *HALF]),
    "fedrbn-attacks": (3, ["rounds=2", "evaluate_every=1", *HALF, "ra_limit=1",
                           'evasions=["pgd(steps=1)", "mia(steps=1)", "lsa(rounds=1)"]']),
    "fedrbn-free": (4, ["clients=10", 'at=["ratio(rho=0.5, domains=3)", "ratio(rho=0.5, domains=3)", "all", "all"]',
                        "rounds=[1, 1, 1, 1]", 'evasions=["pgd(steps=1)"]']),
    "fedrbn-batches": (10, [*ONE, "clients=10", "at=ratio(rho=0.5, domains=3)"]),
    "fedrbn-figure1": (6, [*ONE, "clients=10", 'at=["ratio(rho=0.5)", "all"]']),
    "fedrbn-figure8": (4, [*ONE, "clients=10", "at=ratio(rho=0.5, domains=3)", "participation=[0.2, 1.0]"]),
    "fedrbn-figure9": (6, [*ONE, "clients=[10, 15]", "at=ratio(rho=0.5)", "user_sizes=dirichlet(least=8)",
                           "domain_share=1", 'algorithm=["fedavg(local_steps=2)", "fedavg(local_steps=1)"]']),
    "fedrbn-representations": (6, [*ONE, "clients=10", 'at=["all", "ratio(rho=0.5)"]']),
    "fedrbn-figure3": (6, [*ONE, "domain_share=0.5", 'at=["users(ids=(0,))", "all"]']),
}  # fmt: skip
ON_DOMAINNET = {"fedrbn-domainnet": 8, "fedrbn-ablation-domainnet": 4, "fedrbn-figure10": 3}
WSM = ["model=mlp(hidden=(8,))", "seed=0", "clients=12", "validation=0.3", "evaluate_every=1", "tail=1"]
ON_ARCHIVES: dict[str, tuple[int, list[str]]] = {
    "wsm-table31": (6, ["rounds=[1, 1, 1]", "participation=[0.1, 0.1, 0.1]", "schedule.lr=0.1"]),
    "wsm-table32": (12, ["rounds=1"]),
    "wsm-norms": (2, ["rounds=2", "schedule.lr=0.1", "forgetting=[1, 2]", "participation=0.5",
                      'model=["mlp(hidden=(8,))", "mlp(hidden=(8,))", "mlp(hidden=(8,))"]', "objective=wsm"]),
    "wsm-figure22": (2, ["rounds=3", "forgetting=[1, 2]", "participation=0.5"]),
    "wsm-figure33": (8, ["rounds=1"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def fedbn_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedBN's prepared Digits: ten pickled training parts and a test set per domain, of unequal sizes and shapes."""
    root = tmp_path_factory.mktemp("digits")
    generator = np.random.default_rng(0)
    for number, domain in enumerate(DIGITS):
        shape = {"MNIST": (28, 28), "USPS": (16, 16)}.get(domain, (28, 28, 3))
        folder = root / "digits" / domain
        (folder / "partitions").mkdir(parents=True)
        sizes = {f"partitions/train_part{i}.pkl": 7 + number for i in range(10)} | {"test.pkl": 5 + number}
        for name, count in sizes.items():
            x = generator.integers(256, size=(count, *shape), dtype=np.uint8)
            (folder / name).write_bytes(pickle.dumps((x, np.arange(count) % 10), protocol=4))
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DomainNet's ten classes as FedBN lists them: pickled paths and names beside the images."""
    root = tmp_path_factory.mktemp("domainnet")
    generator = np.random.default_rng(0)
    for domain in DOMAINNET:
        for part, count in (("train", 25), ("test", 5)):
            paths, names = [], [DOMAINNET_CLASSES[i % 10] for i in range(count)]
            for i, name in enumerate(names):
                path = root / "DomainNet" / domain / name / f"{part} {i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(generator.integers(256, size=(9, 12, 3), dtype=np.uint8)).save(path)
                paths.append(str(path.relative_to(root)))
            (root / f"DomainNet/{domain}_{part}.pkl").write_bytes(pickle.dumps((paths, names)))
    return root


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10, CIFAR-100 and EMNIST by class as archives, in miniature."""
    root = tmp_path_factory.mktemp("archives")
    generator = np.random.default_rng(0)
    for name, side, channels, classes in (
        ("cifar10", 32, 3, 10),
        ("cifar100", 32, 3, 100),
        ("emnist-byclass", 28, 1, 62),
    ):
        x = generator.integers(256, size=(10 * classes, side, side, channels), dtype=np.uint8)
        y = np.arange(10 * classes) % classes
        np.savez(root / f"{name}.npz", train_x=x, train_y=y, test_x=x[:20], test_y=y[:20])
    return root


def ran(preset: str, settings: list[str], root: Path) -> list[dict[str, Any]]:
    """The records of the preset with these settings, all of them finished."""
    grid(Scenario.load(preset, settings=settings), jobs=0, root=root)
    records = [json.loads(f.read_text()) for f in (Path("runs") / preset / "cells").glob("*.json")]
    assert {(r["status"], r["reason"]) for r in records} == {("done", None)}
    return records


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def by_default(presets: Iterable[str], *chosen: str) -> list[Any]:
    """All but the chosen ones with the marker ``slow``."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in presets]


@pytest.mark.parametrize("preset", by_default(ON_DIGITS, "fedrbn-free"))
def test_presets_on_fedbns_digits_run_to_the_end(preset: str, fedbn_digits: Path) -> None:
    cells, settings = ON_DIGITS[preset]
    records = ran(preset, [*TINY, *settings], fedbn_digits)
    assert len(records) == cells
    for record in records:
        users = record["labels"]["clients"]
        assert len(record["metrics"]["per_user"]["sa"]) == users
        assert len(record["certificates"]["selection"]["values"]) == record["labels"]["rounds"]
        assert {"sa", "ra_worst"} < set(record["metrics"]["groups"]["selected"])


@pytest.mark.slow
def test_the_preset_of_fine_tuning_runs_to_the_end(fedbn_digits: Path) -> None:
    three = ['norm=["dual-bn(local=true)", "naive-bn", "naive-bn"]', 'objective=["pnc", "at", "at"]',
             'propagation=["fedrbn", "none", "none"]',
             'finetune=["none", "none", "st(rounds=1, frozen=5)"]']  # fmt: skip
    records = ran(
        "fedrbn-table8",
        [*TINY, "rounds=2", 'evasions=["pgd(steps=1)"]', "clients=10", "at=ratio(rho=0.5, domains=3)", *three],
        fedbn_digits,
    )
    assert sorted(r["labels"]["finetune"] for r in records) == ["none", "none", "st(rounds=1, frozen=5)"]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ON_DOMAINNET)
def test_presets_on_domainnet_run_to_the_end(preset: str, pictures: Path) -> None:
    smaller = [f"domainnet(domain={domain}, size=24)" for domain in DOMAINNET]
    records = ran(preset, [*TINY, *ONE, "clients=12", "at=ratio(rho=0.5)", f"domains={json.dumps(smaller)}"], pictures)
    assert len(records) == ON_DOMAINNET[preset]
    assert {r["labels"]["rotate"] for r in records} == {30}
    assert all("selected" in r["metrics"]["groups"] for r in records)


@pytest.mark.parametrize("preset", by_default(ON_ARCHIVES, "wsm-table31"))
def test_presets_of_the_wsm_thesis_run_to_the_end(preset: str, archives: Path) -> None:
    cells, settings = ON_ARCHIVES[preset]
    records = ran(preset, [*WSM, *settings], archives)
    assert len(records) == cells
    if preset == "wsm-figure22":
        assert all(list(r["certificates"]["forgetting"]) == ["1", "2"] for r in records)


PAPERS = [name for name in preset_names() if name.startswith(("fedrbn-", "wsm-"))]


@pytest.mark.parametrize("preset", by_default(PAPERS, "fedrbn-domainnet", "wsm-table32"))
def test_a_dry_run_without_the_data_lists_the_cells_and_says_what_is_missing(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["grid", preset, "--dry-run", "--data-root", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "to run" in told
    assert "refused" not in told
    assert "No estimate: " in told
