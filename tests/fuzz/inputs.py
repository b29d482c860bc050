"""What may come in: junk of every JSON kind, texts close to right ones, files with a few bytes changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from robustfl.registry import entries
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.methods import METHODS


class Fuzz(Protocol):
    """``fuzz(inputs, body)``: see the fixture of that name."""

    def __call__(self, inputs: SearchStrategy[Any], body: Callable[[Any], None], *, slow: bool = False) -> None: ...


WORDS = [
    "", "a", "..", "../x", "/", "none", "mean", "nnm+median", "pgd", "alie", "alie(z=1)", "alie(z=)", "foe(eta=1e999)",
    "opt(attack=opt(attack=foe))", "bucketing(s=0)+krum", "+", "a+b", "ratio(rho=2)", "gamma(gamma=nan)", "\x00", "é",
    "npz:/nowhere.npz", "8/255", "1/0", "mlp(hidden=())", "mlp(hidden=(0,))", "timed(attack=sf)", "[", "{", "'", "%s",
    "nan", "inf", "alie(z=1,z=2)", "opt(" * 200, "[" * 5000, "7" * 5000, "1\nseed=3", "a\x1b[2K", "\u202eb", "=1+1",
    "a\ud800", "step", "true", "100000000000000000000",
]  # fmt: skip
NUMBERS = [0, 1, 2, 3, -1, 10, 2**31, 2**63, 10**30, 0.0, 0.5, 1.0, -0.5, 1e-300, 1e300]
words = st.one_of(st.sampled_from(WORDS), st.text(max_size=12))
plain = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.floats(), st.integers(), words)
junk = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=5
)
names = st.sampled_from(
    [e.name for kind in ("attack", "norm", "algorithm", "evasion", "defense") for e in entries(kind)]
)
specs = st.one_of(
    words, names, st.builds("{}({}={})".format, names, st.sampled_from(["eps", "z", "attack", "s", "x"]), words),
    st.builds("{}+{}".format, names, names),
)  # fmt: skip


@st.composite
def cells(draw: st.DrawFn) -> dict[str, Any]:
    """Cell settings, some right, some wrong, some unknown."""
    chosen: dict[str, Any] = {}
    for field in draw(st.lists(st.sampled_from([*Cell.model_fields, "rouns", "schedule"]), max_size=4)):
        right = specs if field in METHODS or field in ("evasions", "domains", "propagation", "at") else plain
        value = st.one_of(right, st.lists(right, max_size=3), junk)
        if field == "schedule":
            value = st.one_of(value, st.dictionaries(st.sampled_from(["kind", "lr", "values", "milestones"]), junk))
        chosen[field] = draw(value)
    return chosen


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Scenarios as a user may write them."""
    data: dict[str, Any] = {"cell": draw(st.one_of(cells(), cells(), cells(), junk))}
    extra = {
        "name": words, "description": junk, "plugins": st.one_of(junk, st.lists(words, max_size=2)),
        "exclude": st.one_of(junk, st.lists(cells(), max_size=2)),
        "scales": st.dictionaries(words, cells(), max_size=2),
        "zip": st.one_of(junk, st.lists(st.lists(st.sampled_from(list(Cell.model_fields)), max_size=2), max_size=2)),
        "whatever": junk,
    }  # fmt: skip
    for key in draw(st.lists(st.sampled_from(sorted(extra)), max_size=2, unique=True)):
        data[key] = draw(extra[key])
    return data


def toml(value: Any) -> str:
    """Any data as TOML, as far as TOML has it (no nulls; lone surrogates cannot be written)."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(k))} = {toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(v) for v in value if v is not None) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    text = json.dumps(str(value).encode("utf-8", "replace").decode())
    return re.sub(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..", "?", text).replace("\x7f", "?")


def document(data: dict[str, Any]) -> str:
    """A whole TOML file."""
    return "\n".join(f"{k} = {toml(v)}" for k, v in data.items() if v is not None)


@st.composite
def damaged(draw: st.DrawFn, whole: Sequence[bytes]) -> bytes:
    """One of some right files with a few bytes changed, cut off or put in; or junk."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60))
    data = bytearray(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = draw(st.binary(max_size=8))
        else:
            del data[at : at + draw(st.integers(1, 8))]
    return bytes(data)


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> Any:
    """JSON data with some of its nodes replaced by junk or dropped."""
    data = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        node: Any = data
        while isinstance(node, (dict, list)) and node:
            key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], (dict, list)) or not node[key] or draw(st.integers(0, 3)) == 0:
                if draw(st.integers(0, 3)) == 0:
                    del node[key]
                else:
                    node[key] = draw(junk)
                break
            node = node[key]
    return data
