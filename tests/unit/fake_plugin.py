"""The source of a plug-in that works, for tests of what is done with plug-ins."""

from __future__ import annotations


def attack_plugin(name: str, body: str = "return view.honest[: view.f]") -> str:
    """A file with one attack, which does what ``body`` says; by default it sends honest rows."""
    return f'''
from dataclasses import dataclass
import os
import torch
from robustfl.contracts import Attack
from robustfl.registry import register

@register("{name}", version=1)
@dataclass(frozen=True)
class Plugin(Attack):
    """A plug-in."""
    def forge(self, view, *, generator):
        {body}
'''
