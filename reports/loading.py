"""From a store to its board: what has run, what is planned, what cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from robustfl.errors import StoreError, UsageError
from robustfl.origins import origins

from .board import Board
from .frame import frame, label_columns
from .ranking import rank_board
from .statistic import counted
from .store import Loaded, Store


def board_of(
    store: Store, *, by: str | None = "partition", statistic: str | None = None, loaded: Loaded | None = None
) -> Board:
    """The board of a store, of the numbers that ``statistic`` names (``counted``).

    Raises ``UsageError`` if it has no cell yet, ``StoreError`` if no file can be read.
    """
    loaded = store.load() if loaded is None else loaded
    problems = [f"{p.path.name}: {p.reason}" for p in loaded.problems]
    if not loaded.results:
        if problems:
            raise StoreError(f"{store.folder}: none of {len(problems)} files is a record; {problems[0]}")
        raise UsageError(f"{str(store.folder)!r} has no finished cell yet; run `robustfl grid`")
    table, words = counted(frame(loaded.results), statistic)
    planned = _planned(store, set(table["key"]), set(label_columns(table)))
    if planned:
        table = pd.DataFrame([*table.to_dict("records"), *planned], columns=table.columns)
    board = rank_board(table, by=by if by is None or by in table else None, problems=problems)
    board = replace(board, caption=f"{board.caption}{words}")
    guests = {name: origin for result in loaded.results for name, origin in origins(result.cell).items()}
    if not guests:
        return board
    plug_ins = "; ".join(f"{name}: {origin}" for name, origin in sorted(guests.items()))
    return replace(board, caption=f"{board.caption} Plug-ins: {plug_ins}.")


def _planned(store: Store, have: set[str], known: set[str]) -> list[dict[str, object]]:
    """The cells that the grid was asked for and that have no record, with status ``missing`` and ``known`` labels."""
    cells = store.description().get("cells", {})
    if not isinstance(cells, dict):
        return []
    return [
        {k: v for k, v in labels.items() if k in known and not isinstance(v, (dict, list))}
        | {"key": key, "status": "missing"}
        for key, labels in sorted(cells.items())
        if key not in have and isinstance(labels, dict)
    ]
