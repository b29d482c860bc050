"""Changes of the benchmark's protocol that a run refuses: they would do nothing."""

from __future__ import annotations

from collections.abc import Sequence

from robustfl.errors import UsageError


def refuse_changes(settings: Sequence[str], *, named: Sequence[str], searched: str) -> None:
    """Raise ``UsageError`` for ``settings`` of a tier under which its run would not be what its board says.

    ``named`` are the settings that names of contestants give, ``searched`` is the one that the search tries.
    """
    for setting in settings:
        name = setting.partition("=")[0].strip().partition(".")[0]
        if name in named:
            wanted = "[/".join(each.upper() for each in named) + "]" * (len(named) - 1)
            raise UsageError(
                f"--set {setting}: every contestant brings its own {name}; name those that shall run with "
                f"--contestant {wanted}"
            )
        if name == searched:
            raise UsageError(
                f"--set {setting}: the search tries values of {name} and chooses one for every contestant; "
                f"`robustfl grid bench/TIER` runs a tier's cells without a search, with any {name}"
            )
