"""What methods return, where the engine receives it: a wrong kind is named with the method, the member and the form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import robustfl
from robustfl import registry
from robustfl.contracts import Aggregated, Aggregator, Attack, Evasion, Forged
from robustfl.engine.statistics import collect
from robustfl.errors import RobustflError
from robustfl.layout import layout_of
from robustfl.norms.layers import ServerBatchNorm
from robustfl.results import received
from robustfl.scenarios import run_cell
from robustfl.scenarios.cell import Cell

pytestmark = pytest.mark.usefixtures("clean_registry")
CELL = {"model": "mlp(hidden=(4,))", "norm": "none", "clients": 4, "f": 1, "rounds": 1, "batch": 4, "ra_limit": 4,
        "evasions": [], "dataset": "digits(limit=200, test_limit=20)"}  # fmt: skip
RETURNED: dict[str, Callable[[Tensor], Any]] = {}


@dataclass(frozen=True)
class OddAttack(Attack):
    """Sends what is to be tried."""

    poisons_data: ClassVar[bool] = True
    needs_own: ClassVar[bool] = True

    def forge(self, view: Any, *, generator: torch.Generator) -> Any:
        return RETURNED.get("forge", Tensor.clone)(view.honest[: view.f])

    def poison(self, x: Tensor, y: Tensor, **rest: Any) -> Any:
        return RETURNED.get("poison", lambda x: (x, y))(x)

    def constrain(self, gradient: Tensor, moved: Tensor, **rest: Any) -> Any:
        return RETURNED.get("constrain", Tensor.clone)(gradient)


@dataclass(frozen=True)
class OddRule(Aggregator):
    """Returns what is to be tried."""

    def aggregate(self, X: Tensor, *, f: int, context: Any) -> Any:
        return RETURNED.get("aggregate", lambda X: X.mean(0))(X)

    def min_clients(self, f: int) -> int:
        return 1


@dataclass(frozen=True)
class OddEvasion(Evasion):
    """Returns what is to be tried."""

    def perturb(self, model: Any, x: Tensor, y: Tensor, *, generator: Any = None) -> Any:
        return RETURNED.get("perturb", Tensor.clone)(x)


KINDS = {"attack": OddAttack, "defense": OddRule, "evasions": OddEvasion}
WRONG: list[tuple[str, str, Callable[[Tensor], Any], str]] = [
    ("attack", "forge", lambda rows: [rows], "returned list, not a tensor (1, "),
    ("attack", "forge", lambda rows: rows[:0], "returned a tensor (0, "),
    ("attack", "forge", lambda rows: rows.double(), "of torch.float64 on cpu, not a tensor (1, "),
    ("attack", "forge", lambda rows: rows * float("nan"), "returned entries that are not finite"),
    ("attack", "forge", lambda rows: rows.mul_(2), "wrote to what it was shown; it must work on a copy"),
    ("attack", "poison", lambda x: x, "returned Tensor, not a pair (images, labels)"),
    ("attack", "poison", lambda x: (x[:1], x), "returned a tensor (1, "),
    ("attack", "constrain", lambda gradient: gradient[:1], "returned a tensor (1,)"),
    ("defense", "aggregate", lambda X: None, "returned NoneType, not a tensor ("),
    ("defense", "aggregate", lambda X: X, "returned a tensor (4, "),
    ("defense", "aggregate", lambda X: X[0].clone().requires_grad_(), "which requires a gradient (return it with .det"),
    ("defense", "aggregate", lambda X: X[0].to_sparse(), "torch.sparse_coo"),
    ("defense", "aggregate", lambda X: X[0] / 0, "returned entries that are not finite"),
    ("defense", "aggregate", lambda X: Aggregated(X[0].mul_(2)), "wrote to what it was shown"),
    ("evasions", "perturb", lambda x: x[:1], "returned a tensor (1, "),
    ("evasions", "perturb", lambda x: x.numpy(), "returned ndarray, not a tensor ("),
    ("evasions", "perturb", lambda x: x.mul_(0.5), "wrote to what it was shown"),
]


@pytest.mark.parametrize(("kind", "member", "made", "words"), WRONG, ids=[f"{m}-{w[:20]}" for _, m, _, w in WRONG])
def test_a_wrong_kind_is_named_with_the_method_and_the_member(kind, member, made, words, monkeypatch):
    registry.register("odd")(KINDS[kind])
    settings = CELL | {kind: ["odd"] if kind == "evasions" else "odd"}
    assert run_cell(Cell.of(settings), fingerprint="x").status == "done"
    monkeypatch.setitem(RETURNED, member, made)
    record = run_cell(Cell.of(settings), fingerprint="x")
    first = str(record.reason).splitlines()[0]
    assert record.status == "failed"
    assert first.startswith(f"RobustflError: {kind.removesuffix('s')} 'odd' (")
    assert f"{member}() " in first
    assert words in first


def test_built_in_methods_are_looked_at_alike() -> None:
    like, mean = torch.zeros(2), robustfl.defense("mean").aggregator
    with pytest.raises(RobustflError, match=r"defense 'mean': aggregate\(\) returned a tensor \(3,\)"):
        received(torch.zeros(3), like, mean, "aggregate()")


def test_what_overflows_on_huge_rows_and_what_is_exempt_may_be_infinite() -> None:
    made, like, rule = torch.tensor([[torch.inf, 1.0]]), torch.zeros(1, 2), robustfl.defense("mean").aggregator
    for huge in ([[2e19, 0.0]], [[1.0, 0.0], [1.5e19, 1.5e19]]):  # an entry, and a length that none of them has
        assert received(made, like, rule, "aggregate()", torch.tensor(huge)) is made
    for attack in ("nan", "timed(attack=nan, start=2)", "timed(inf)"):
        assert received(made, like, robustfl.attack(attack), "forge()", torch.zeros(1)) is made
    for shown in (torch.tensor([[1e19, 0.0]]), torch.zeros(0, 2), torch.tensor([[1e19]], dtype=torch.float64)):
        with pytest.raises(RobustflError, match="returned entries that are not finite"):
            received(made, like, rule, "aggregate()", shown)


def test_a_state_comes_through() -> None:
    made = Forged.of(Forged(torch.zeros(1, 2), {"a": torch.ones(1)}))
    assert received(made.rows, torch.zeros(1, 2), robustfl.attack("sf"), "forge()") is made.rows


@pytest.mark.parametrize(
    "change",
    [
        lambda mean, variance, counts: (mean[0], variance[0], counts[:1]),
        lambda mean, variance, counts: (mean.double(), variance.double(), counts),
        lambda mean, variance, counts: (mean, variance, torch.cat([counts, counts])),
        lambda mean, variance, counts: (mean, variance, counts - 1),
        lambda mean, variance, counts: (mean, variance.clone().requires_grad_(True), counts),
        lambda mean, variance, counts: (mean, variance),
    ],
    ids=["one row", "float64", "more counts", "negative counts", "with a gradient", "no counts"],
)
def test_a_report_of_another_form_names_its_layer(change: Any) -> None:
    class Other(ServerBatchNorm):
        def report(self) -> Any:
            return change(*super().report())

    network = torch.nn.Sequential(Other(4, eps=1e-5))
    with pytest.raises(RobustflError, match=r"Other.report\(\) returned"):
        collect(network, layout_of(network))
