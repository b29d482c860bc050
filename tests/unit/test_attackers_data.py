"""Data of attackers and the server: priors of poisoned labels, statistics of poisoned images, images held once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robustfl.engine import train
from robustfl.engine.clients import Clients
from robustfl.objectives.cross_entropy import wsm_loss
from robustfl.scenarios import Cell
from robustfl.scenarios.build import build


def cell(**settings: Any) -> Cell:
    return Cell.of(
        {
            "dataset": "digits(limit=200)", "partition": "dirichlet(alpha=0.3, min_size=5)", "norm": "none",
            "model": "digits-cnn", "clients": 4, "f": 1, "rounds": 1, "batch": 16, "evasions": (),
            "defense": "mean", "schedule": {"kind": "constant", "lr": 0.1}, **settings,
        }
    )  # fmt: skip


def shares(settings: Cell, round: int = 0) -> tuple[torch.Tensor, torch.Tensor, int]:
    """What clients weigh their classes by, the shares of their right labels, and the attacker."""
    e = build(settings).experiment
    ids = list(range(settings.clients))
    (attacker,) = e.byzantine
    return Clients(e, lambda _: None).priors(ids, (1,) * len(ids), round), e.priors, attacker


def test_attackers_weigh_their_classes_by_the_labels_they_train_on() -> None:
    found, right, attacker = shares(cell(objective="wsm", attack="label-flip"))
    expected = right.clone()
    expected[attacker] = right[attacker].flip(0)
    assert not torch.allclose(expected, right)
    torch.testing.assert_close(found, expected)


def test_attackers_who_are_off_have_their_right_labels() -> None:
    late = cell(objective="wsm", attack="timed(attack=label-flip, start=1)", rounds=2)
    off, right, attacker = shares(late)
    on = shares(late, round=1)[0]
    torch.testing.assert_close(off, right)
    torch.testing.assert_close(on[attacker], right[attacker].flip(0))


def test_labels_drawn_anew_leave_no_class_out() -> None:
    found, right, attacker = shares(cell(objective="wsm", attack="dirty-labels"))
    assert float((right[attacker] - 0.1).abs().max()) > 0.08
    assert float((found[attacker] - 0.1).abs().max()) < 0.05


def test_other_objectives_and_attacks_leave_the_shares_alone() -> None:
    for settings in ({"objective": "ce", "attack": "label-flip"}, {"objective": "wsm", "attack": "sf"}):
        found, right, _ = shares(cell(**settings))
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_round_of_wsm_with_flipped_labels_by_hand(engine: str) -> None:
    settings = cell(objective="wsm", attack="label-flip", algorithm="dsgd(momentum=0)", engine=engine, dtype="float64")
    e = build(settings).experiment
    clients = Clients(e, lambda _: None)
    rows = []
    for k in range(settings.clients):
        x, y, _ = clients.batches([k], 0, 0)  # labels of the attacker are flipped here
        counts = torch.bincount(e.train.y[e.parts[k]], minlength=10).double()
        prior = (counts.flip(0) if k in e.byzantine else counts) / counts.sum()
        loss = wsm_loss(e.model.train()(x), y, prior).mean()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(e.model.parameters()))]))
    expected = e.flat.clone() - 0.1 * torch.stack(rows).mean(0)
    *_, last = train(build(settings).experiment)
    torch.testing.assert_close(last.state.theta, expected, rtol=0, atol=1e-12)


def test_hbns_first_update_is_the_first_with_anybody_honest() -> None:
    settings = cell(
        norm="hbn", algorithm="fedavg(local_steps=1)", clients=10, f=4, participation=0.1, rounds=12,
        partition="iid", dataset="digits", seed=0,
    )  # fmt: skip
    e = build(settings).experiment
    begins = next(t for t in range(12) if not e.byzantine.issuperset(e.settings.sample(t)))
    assert begins > 0
    found = {r.round: r.state.statistics.clone() for r in train(e)}
    variances = found[begins + 1][e.layout.variance_mask()]
    assert float(variances.mean()) < 0.6  # with λ of later rounds, 0.01, ninety-nine hundredths of the initial 1 stay


@pytest.mark.parametrize("norm", ["hbn", "hbn(stats_mode=eval)"])
def test_attackers_collect_statistics_of_the_images_that_they_poison(norm: str) -> None:
    stamped = cell(norm=norm, attack="badnets(fraction=1, size=4)", algorithm="fedavg")
    e = build(stamped).experiment
    (attacker,) = e.byzantine
    clients, clean = Clients(e, print), Clients(build(cell(norm=norm, algorithm="fedavg")).experiment, print)
    found, unstamped = ([c.statistics([k], 0, e.flat[None]).rows for k in range(4)] for c in (clients, clean))
    images = clean._images
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean, "_images", lambda index: (e.attack.trigger(images(index)[0]), images(index)[1]))
        stamps = clean.statistics([attacker], 0, e.flat[None]).rows
    assert [torch.equal(*pair) for pair in zip(found, unstamped, strict=True)] == [k != attacker for k in range(4)]
    assert torch.equal(found[attacker], stamps)


def test_the_servers_images_are_each_once() -> None:
    settings = cell(
        dataset="digits(limit=400)", partition="iid", clients=8, f=3, attackers_data="copied", server_samples=200,
        defense="fltrust", statistics_defense="median", attack="sf",
    )  # fmt: skip
    e = build(settings).experiment
    assert len(set(e.root.tolist())) == 200
    assert not any(set(e.root.tolist()) & set(part.tolist()) for part in e.parts)


@pytest.mark.parametrize("f", [1, 3])
def test_who_copies_an_honest_client_sees_nothing_of_what_it_holds_out(f: int) -> None:
    settings = cell(clients=4 + f, f=f, attackers_data="copied", validation=0.25, server_samples=20, defense="fltrust",
                    statistics_defense="median", attack="sf")  # fmt: skip
    built = build(settings)
    e, held = built.experiment, [set(part.tolist()) for part in built.validation]
    trained = [set(part.tolist()) for part in e.parts]
    attackers = settings.settings.byzantine()
    honest = [k for k in range(4 + f) if k not in attackers]
    assert all(held)
    assert not set.union(*held) & set.union(*trained)
    assert not set.union(*held) & set(e.root.tolist())
    for attacker in attackers:
        assert any((trained[attacker], held[attacker]) == (trained[k], held[k]) for k in honest)
