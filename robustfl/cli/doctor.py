"""``robustfl doctor``: is everything there, and what to do if not."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import click

from robustfl.cli.options import DATA_ROOT, FORMAT, Command
from robustfl.cli.printing import as_json, console, say, table
from robustfl.errors import DataMissing
from robustfl.provenance import commit, instruction_set, processor

_PACKAGES = ("robustfl", "torch", "torchvision", "numpy", "scipy", "pandas", "seaborn", "joblib", "pydantic")


@click.command(cls=Command, short_help="Check installation, devices and data sets; fetch data.")
@DATA_ROOT
@click.option("--fetch", multiple=True, metavar="DATASET", help="Download and decode a data set.")
@FORMAT
def doctor(*, root: str | None, fetch: tuple[str, ...], form: str) -> int:
    """Check the installation, devices, compiler and data sets; download data with --fetch."""
    import torch

    from robustfl import data
    from robustfl.contracts import Dataset
    from robustfl.registry import entries
    from robustfl.scenarios.run_options import cores

    place = data.data_root(root)
    for name in fetch:
        dataset = data.dataset_from_spec(name)
        say(f"fetching {name} into {place} …", err=True)
        dataset.load(place, download=True)
    packages = {name: _version(name) for name in _PACKAGES}
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit(),
        "processor": f"{processor()}, {instruction_set()}",
        "cores": cores(),
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "c_compiler": shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"),
        "data_root": str(place),
        "data_root_writable": os.access(next(p for p in (place, *place.parents) if p.exists()), os.W_OK),
        "datasets": {},
    }
    for entry in entries("dataset"):
        try:
            dataset = cast(Dataset, entry.cls())
        except (TypeError, ValueError):
            continue  # needs a path
        try:
            found["datasets"][entry.name] = "ready " + dataset.fingerprint(place, download=False)[:12]
        except DataMissing:
            found["datasets"][entry.name] = f"not there; robustfl doctor --fetch {entry.name}"
        except Exception as error:  # one broken data set must not hide the state of the others
            found["datasets"][entry.name] = f"broken: {error}"
    if form == "json":
        as_json(found)
    else:
        _print(found)
    return 0 if all(packages.values()) else 1


def _print(found: dict[str, Any]) -> None:
    rows = [["python", found["python"]], *([k, v or "MISSING"] for k, v in found["packages"].items())]
    rows += [
        ["commit", found["commit"]],
        ["processor", found["processor"]],
        ["cores", found["cores"]],
        ["cuda", ", ".join(found["cuda"]) or "none: everything runs on the CPU"],
        ["C compiler", found["c_compiler"] or "none: aggregation runs without its compiled kernels, slower"],
        ["data root", found["data_root"] + ("" if found["data_root_writable"] else "  (not writable: no cache)")],
    ]
    rows += [[f"data {k}", v] for k, v in found["datasets"].items()]
    console().print(table(["", ""], rows))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
