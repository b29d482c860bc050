"""The source of a plug-in that works, for tests of what is done with plug-ins."""

from __future__ import annotations


def attack_plugin(name: str) -> str:
    """A file with one attack, which sends honest rows."""
    return f'''
from dataclasses import dataclass
from robustfl.contracts import Attack
from robustfl.registry import register

@register("{name}", version=1)
@dataclass(frozen=True)
class Plugin(Attack):
    """A plug-in."""
    def forge(self, view, *, generator):
        return view.honest[: view.f]
'''
