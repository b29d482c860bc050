"""What a record keeps of the clients' batch-norm statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustfl.scenarios import Cell, run_cell
from robustfl.scenarios.evaluate import represented
from robustfl.scenarios.expand import fingerprints
from robustfl.scenarios.portrait import components

SMALL: dict[str, Any] = {
    "model": "digits-cnn(hidden=8)", "norm": "fbn", "clients": 6, "rounds": 1, "batch": 8,
    "evasions": (),
}  # fmt: skip
DOMAINS = ("digits-domain(style=textured)", "digits-domain(style=shifted)")
PROPAGATED = {
    "norm": "dual-bn(local=true)", "algorithm": "fedavg", "objective": "pnc", "propagation": "fedrbn",
    "at": "ratio(rho=0.5)", "domains": DOMAINS, "model": "digits(channels=(4,4,4), hidden=(8,8))",
    "scaling": "unit", "train_evasion": "fgsm",
}  # fmt: skip


def ran(**settings: Any) -> dict[str, Any]:
    """The certificates of one tiny cell, on the handwritten digits unless it has domains."""
    cell = Cell.model_validate(SMALL | settings)
    found = run_cell(cell, fingerprint=fingerprints([cell], None)[cell])
    assert found.status == "done", found.reason
    return found.certificates


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    rows = torch.randn((7, 12), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    placed = components(rows)
    assert placed is not None
    points, shares = placed
    centred = rows.numpy() - rows.numpy().mean(axis=0)
    u, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(points.numpy()), np.abs(u[:, :2] * sizes[:2]), atol=1e-12)
    np.testing.assert_allclose(shares.numpy(), (sizes**2 / (sizes**2).sum())[:2], atol=1e-12)
    assert (points.gather(0, points.abs().argmax(dim=0)[None]) > 0).all()


@pytest.mark.parametrize("rows", [
    torch.ones((4, 3)), torch.tensor([[0.0, 1.0], [float("nan"), 1.0], [2.0, 1.0]]),
    torch.tensor([[0.0, 1.0], [1e200, 1.0], [2.0, 1.0]], dtype=torch.float64),  # their squares are not finite
])  # fmt: skip
def test_equal_and_non_finite_statistics_have_no_picture(rows: torch.Tensor) -> None:
    assert components(rows) is None


def test_honest_participants_reports_are_placed_and_byzantine_ones_are_not() -> None:
    found = ran(attack="sf", f=2, f_declared=2)
    placed = found["bn_statistics"]
    assert sorted([*placed["clients"], *found["byzantine"]]) == [0, 1, 2, 3, 4, 5]
    assert len(placed["points"]) == 4
    assert placed["entries"] == 2 * (16 + 8)


def test_norms_without_statistics_leave_no_picture() -> None:
    assert "bn_statistics" not in ran(norm="gn")


def test_private_statistics_are_those_of_all_clients_by_domain_and_role() -> None:
    placed = ran(**PROPAGATED)["bn_statistics"]
    assert placed["clients"] == [*range(6), *range(6)]
    assert placed["branches"] == ["clean"] * 6 + ["adversarial"] * 6
    assert {g.split(" · ")[0] for g in placed["groups"]} == set(DOMAINS)
    assert {g.split(" · ")[1] for g in placed["groups"]} == {"AT", "ST"}
    alone = ran(**PROPAGATED | {"propagation": "none"})["bn_statistics"]
    adversarial = [g for g, b in zip(alone["groups"], alone["branches"], strict=True) if b == "adversarial"]
    assert adversarial
    assert all(g.endswith("AT") for g in adversarial)


# --- representations of images ----------------------------------------------------------------------------------------

SEEN = {"representations": 5, "evasions": ["fgsm(eps=0.1)"]}


def test_representations_are_of_clean_and_attacked_images_of_every_domain_through_every_branch() -> None:
    seen = ran(**PROPAGATED, **SEEN)["representations"]
    assert seen["entries"] == 8
    assert len(seen["points"]) == len(DOMAINS) * 2 * 2 * 5
    assert set(seen["groups"]) == {f"{d} · {images} images" for d in DOMAINS for images in ("clean", "attacked")}
    assert set(seen["branches"]) == {"clean", "adversarial"}
    points = dict.fromkeys(map(tuple, seen["points"]))
    assert len(points) > len(seen["points"]) / 2
    assert "representations" not in ran()


def test_representations_are_what_the_last_layer_receives() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    x = torch.randn(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(represented(model.train(), x), model[:3](x).detach())
    assert model.training
