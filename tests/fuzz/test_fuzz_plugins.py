"""What a plug-in returns: whatever it is, the cell has a record, and no number that is none."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from inputs import Fuzz, junk

from robustfl import registry
from robustfl.contracts import Aggregated, Aggregator, Attack, Evasion, Forged
from robustfl.errors import RobustflError
from robustfl.records import CellResult
from robustfl.registry import register
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import key_of, resolve
from robustfl.torch_settings import Snapshot, restored

pytestmark = pytest.mark.fuzz
RETURNED: dict[str, Any] = {}


def made(like: torch.Tensor) -> Any:
    """What is to be returned, where it depends on what came in."""
    RETURNED["change"]()
    value = RETURNED["value"]
    return value(like) if callable(value) else value


@dataclass(frozen=True)
class FuzzAttack(Attack):
    """Returns anything."""

    def forge(self, view: Any, *, generator: torch.Generator) -> Any:
        return made(view.honest[: view.f])


@dataclass(frozen=True)
class FuzzDefense(Aggregator):
    """Returns anything."""

    def aggregate(self, X: torch.Tensor, *, f: int, context: Any) -> Any:
        return made(X[0])

    def min_clients(self, f: int) -> int:
        return 1


@dataclass(frozen=True)
class FuzzEvasion(Evasion):
    """Returns anything."""

    def perturb(self, model: Any, x: torch.Tensor, y: torch.Tensor, *, generator: Any = None) -> Any:
        return made(x)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """For these tests alone: others go through all methods there are."""
    known = {"attack": FuzzAttack, "defense": FuzzDefense, "evasion": FuzzEvasion}
    for kind, cls in known.items():
        register(f"fuzz-{kind}", version=1)(cls)
    yield
    for kind in known:
        del registry._entries[kind][f"fuzz-{kind}"]


TENSORS: list[Any] = [
    lambda x: x, lambda x: x.double(), lambda x: x * math.nan, lambda x: x * math.inf, lambda x: x[:0],
    lambda x: x.to(torch.complex64), lambda x: x.to_sparse(), lambda x: x.to("meta"), lambda x: x.numpy(),
    lambda x: x.bool(), lambda x: x.mul_(2), lambda x: x.requires_grad_(), lambda x: x.expand(2, *x.shape),
    lambda x: x[None], lambda x: x / 0, lambda x: x.new_empty(2**60), lambda x: [x], lambda x: x + 5,
    lambda x: Forged(x, {"a": x}), lambda x: Forged(x, {1: object()}), lambda x: Forged(None),
    lambda x: Forged(x, None),
    lambda x: Aggregated(x, {"a": x}, {"a_shift": "b"}), lambda x: Aggregated(x, facts={"dropped": x}),
    lambda x: Aggregated(x, facts={"dropped": 10**400, "n": math.nan, "b": True}),
    lambda x: Aggregated(x, facts={"n": 10**400, 5: 1, "a_shift": 10**300}), lambda x: Aggregated(None, None, None),
    lambda x: (_ for _ in ()).throw(KeyError("x")), lambda x: (_ for _ in ()).throw(StopIteration),
    lambda x: (_ for _ in ()).throw(AssertionError), lambda x: raised(SystemExit(0)), lambda x: raised(MemoryError()),
    lambda x: raised(GeneratorExit()), lambda x: raised(type("Odd", (BaseException,), {})()),
    lambda x: raised(RecursionError()), lambda x: raised(OSError()), lambda x: raised(EOFError()),
]  # fmt: skip
CHANGES: list[Callable[[], Any]] = [
    lambda: None, lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_grad_enabled(False),
    lambda: torch.manual_seed(0), lambda: np.random.seed(0), lambda: random.seed(0),
    lambda: torch.set_default_device("meta"), lambda: torch.set_num_threads(3), lambda: np.seterr(all="raise"),
    lambda: torch.set_flush_denormal(True), lambda: setattr(torch.backends.cudnn, "benchmark", True),
]  # fmt: skip


def raised(error: BaseException) -> None:
    raise error


def test_fields(fuzz: Fuzz) -> None:
    """Whatever a method's version and defaults are, it has a key or a sentence."""
    types = st.sampled_from([int, float, str, Any, torch.Tensor, object, tuple[float, ...], "Nope", "list["])
    odd = st.sampled_from([object(), torch.zeros(2), print, lambda: 1, [1], (1.0, ()), {"a": 1}, float("nan"), 10**400])

    def body(given: tuple[Any, Any, Any]) -> None:
        version, hint, default = given
        try:
            cls = make_dataclass("Odd", [("z", hint, field(default=default))], bases=(FuzzAttack,), frozen=True)
        except (TypeError, ValueError):  # Python itself refuses it
            return
        with contextlib.suppress(RobustflError):
            register("fuzz-fields", version=version)(cls)
            key_of(resolve(Cell.of({"attack": "fuzz-fields", "f": 1}), "0"))
        registry._entries["attack"].pop("fuzz-fields", None)

    fuzz(st.tuples(st.one_of(st.just(1), junk, odd), types, st.one_of(junk, odd)), body)


def test_returned_values(fuzz: Fuzz, capsys: pytest.CaptureFixture[str]) -> None:
    base = {
        "model": "mlp(hidden=(4,))", "clients": 3, "f": 1, "f_declared": 0, "batch": 4, "rounds": 2, "evasions": [],
        "evaluate_every": 1, "ra_limit": 4,
    }  # fmt: skip
    settings = {
        "attack": {"attack": "fuzz-attack"}, "defense": {"defense": "fuzz-defense"},
        "evasion": {"evasions": ["fuzz-evasion"]},
    }  # fmt: skip

    def body(given: tuple[str, Callable[[], Any], Any]) -> None:
        who, RETURNED["change"], RETURNED["value"] = given
        before = Snapshot()
        record = run_cell(Cell.of({**base, **settings[who]}), fingerprint="0")
        assert (before.settings(), before.generators()) == ([], [])
        assert record.status in ("done", "failed", "diverged")
        assert CellResult.model_validate_json(record.model_dump_json()).status == record.status
        if record.metrics is not None:
            assert all(0 <= v <= 1 for v in (record.metrics.sa, *record.metrics.ra.values()))
        if record.status == "failed":
            assert record.reason

    values = st.one_of(st.sampled_from(TENSORS), junk)
    with restored():
        fuzz(st.tuples(st.sampled_from(sorted(settings)), st.sampled_from(CHANGES), values), body, slow=True)
