"""robustfl in one's own code: what goes in comes out in the same form, and nothing is assumed in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import robustfl
from robustfl.errors import UsageError
from robustfl.randomness import stream

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ROWS = [[1.0, 2.0], [3.0, 5.0], [8.0, 9.0], [4.0, 4.0], [2.0, 6.0]]
MEDIAN = [3.0, 5.0]


def same(one: Any, other: Any) -> bool:
    """Equal in type, dtype, shape, device and values, at every depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def forms(values: list[list[float]]) -> dict[str, list[Any]]:
    """The rows ``values``, each of two numbers, in every form in which a row may come."""
    made: dict[str, list[Any]] = {"numbers": values}
    for dtype in ("float16", "float32", "float64", ">f4"):
        made[f"numpy {dtype}"] = [np.array(row, dtype=dtype) for row in values]
    for device in DEVICES:
        for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            made[f"{kind} {device}"] = [torch.tensor(row, dtype=kind, device=device) for row in values]
    made["layers of Flower"] = [[np.array([[a]], dtype=np.float32), np.array(b)] for a, b in values]
    made["layers"] = [(torch.tensor([a]).double(), torch.tensor([[b]])) for a, b in values]
    return made


@pytest.mark.parametrize("form", forms(ROWS))
def test_a_list_of_rows_gives_a_row_of_their_kind(form: str) -> None:
    assert same(robustfl.defense("median")(forms(ROWS)[form], f=1), forms([MEDIAN])[form][0])


@pytest.mark.parametrize("form", [form for form in forms(ROWS) if form.startswith(("numpy", "torch"))])
def test_a_stack_gives_a_row_of_its_kind(form: str) -> None:
    rows, (expected,) = forms(ROWS)[form], forms([MEDIAN])[form]
    stack = np.stack(rows).astype(rows[0].dtype) if form.startswith("numpy") else torch.stack(rows)
    assert same(robustfl.defense("median")(stack, f=1), expected)


@pytest.mark.parametrize("form", forms(ROWS))
def test_forged_rows_come_in_the_form_of_the_honest_ones(form: str) -> None:
    honest = forms(ROWS)[form]
    assert same(robustfl.forge("sf", honest[1:], f=2), forms([[-4.25, -6.0]] * 2)[form])
    assert same(robustfl.forge("sf", [honest[1], honest[3]], f=0), [])


def test_forge_keeps_a_stack_a_stack() -> None:
    honest = np.array(ROWS, dtype=np.float32)
    forged = robustfl.forge("sf", honest[1:], f=2)
    assert same(forged, np.array([[-4.25, -6.0]] * 2, dtype=np.float32))
    assert robustfl.forge("sf", honest, f=0).shape == (0, 2)


def test_own_rows_may_come_as_arrays_too() -> None:
    sent = robustfl.forge("none", np.array(ROWS), f=1, own=np.array([[7.0, 7.0]]))
    assert same(sent, np.array([[7.0, 7.0]]))


def test_layers_are_one_vector_to_the_rule() -> None:
    """Krum takes one client's whole model, also where layer by layer another one would be nearer."""
    rows = torch.randn(6, 5, generator=stream(0, "rows"))
    layered = [[row[:2].numpy(), row[2:].reshape(3, 1).numpy()] for row in rows]
    whole, parts = robustfl.defense("krum")(rows, f=1), robustfl.defense("krum")(layered, f=1)
    assert parts[0].tolist() + parts[1].flatten().tolist() == whole.tolist()


@pytest.mark.parametrize("rule", ["trimmed-mean", "mean", "nnm+krum"])
def test_f_has_no_default(rule: str) -> None:
    with pytest.raises(TypeError, match="'f'"):
        robustfl.defense(rule)(torch.zeros(5, 2))  # type: ignore[call-overload]


def test_the_rule_an_attack_optimises_against_may_be_a_name() -> None:
    honest = torch.randn(7, 4, generator=stream(0, "honest"))
    by_name = robustfl.forge("opt-foe", honest, f=2, defense="nnm+krum")
    assert torch.equal(by_name, robustfl.forge("opt-foe", honest, f=2, defense=robustfl.defense("nnm+krum")))
    with pytest.raises(UsageError, match="did you mean 'krum'"):
        robustfl.forge("opt-foe", honest, f=2, defense="krumm")


# --- rules that remember ---------------------------------------------------------------------------------------------


def test_centered_clipping_goes_on_from_the_state_it_handed_back() -> None:
    rule, state, seen = robustfl.defense("centered-clipping", tau=1), None, []
    for _ in range(3):
        aggregate, state = rule.stateful(np.full((3, 1), 5.0), f=1, state=state)
        seen.append(aggregate.item())
    assert seen == [1.0, 2.0, 3.0]
    assert rule(np.full((3, 1), 5.0), f=1).item() == 1.0


def test_foolsgold_remembers_clients_by_their_numbers() -> None:
    """Clients 1 and 2 sent the same in round one, and lose their weight in round two wherever their rows stand."""
    rule, (x, y, z) = robustfl.defense("foolsgold"), torch.eye(3).tolist()
    _, state = rule.stateful([x, [100 * v for v in y], [100 * v for v in y]], f=2, clients=[7, 1, 2])
    remembered, _ = rule.stateful([z, x, y], f=1, clients=[2, 7, 1], state=state)
    afresh, _ = rule.stateful([z, x, y], f=1, clients=[2, 7, 1])
    assert (remembered, afresh) == (x, pytest.approx([1 / 3] * 3))


def test_a_rule_without_memory_hands_back_no_state() -> None:
    aggregate, state = robustfl.defense("nnm+median").stateful(ROWS, f=1)
    assert (len(aggregate), dict(state)) == (2, {})


@pytest.mark.parametrize("reference", [[1.0, 0.0], np.array([1.0, 0.0]), torch.tensor([1.0, 0.0])])
def test_the_servers_own_row_may_come_in_any_form(reference: Any) -> None:
    assert len(robustfl.defense("fltrust")(ROWS, f=1, reference=reference)) == 2
