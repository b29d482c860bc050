"""Data sets by the text a scenario holds."""

from __future__ import annotations

from typing import cast

from robustfl.contracts import Dataset
from robustfl.errors import UsageError
from robustfl.registry import create


def dataset_from_spec(text: str) -> Dataset:
    """The data set of ``"mnist"``, ``"mnist(limit=1000)"``, ``"npz(path=my.npz)"`` or ``"npz:my.npz"``.

    >>> dataset_from_spec("npz:my.npz").path
    'my.npz'
    """
    head, colon, path = text.partition(":")
    if colon and head.strip() == "npz":
        if not path.strip():
            raise UsageError(f"data set {text!r}: a path is missing; write npz:PATH")
        return cast(Dataset, create("dataset", "npz", path=path.strip()))
    if text.strip().endswith(".npz") and "(" not in text:
        raise UsageError(f"unknown dataset {text!r}; a file is written npz:{text.strip()}")
    return cast(Dataset, create("dataset", text))
