"""Pickles of plain arrays, as FedBN publishes its data.

A pickle runs nothing but the constructors of arrays. NumPy does not check their arguments, and a damaged file may
crash it: take these files from their publisher.
"""

from __future__ import annotations

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from robustfl.errors import UsageError, reason

_ADMITTED: dict[str, Any] = {  # by the names of numpy 2; before, ``numpy._core`` was ``numpy.core``
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy._core.multiarray._reconstruct": np.zeros(1).__reduce__()[0],
    "numpy._core.multiarray.scalar": np.float64(0).__reduce__()[0],
    "numpy._core.numeric._frombuffer": np.zeros(1).__reduce_ex__(5)[0],
    "_codecs.encode": codecs.encode,  # bytes, as protocols before 3 store them
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that finds the constructors of arrays, and no other name."""

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get(f"{module.replace('numpy.core.', 'numpy._core.')}.{name}")
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}; only NumPy arrays, numbers and text are allowed")
        return found


def read_pickle(path: Path) -> Any:
    """Read a pickle of arrays, numbers and text; raises ``UsageError`` for any other, before any of it runs."""
    try:
        with open(path, "rb") as file:
            return _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise UsageError(f"{path} is not a pickle of arrays: {reason(error)}") from error
