"""Private parts, users and propagation: what stays with whom, and who is tested how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robustfl.contracts import Tag
from robustfl.contracts.norm import ADVERSARIAL, CLEAN, through
from robustfl.engine import train
from robustfl.engine.personal import Personal, Privacy, lent
from robustfl.engine.statistics import begin
from robustfl.evaluation import macs_per_epoch
from robustfl.layout import layout_of
from robustfl.registry import create
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import Built, build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import key_of, resolve
from robustfl.scenarios.methods import at_users

DOMAINS = [f"digits-domain(style={style})" for style in ("clean", "textured", "shifted")]


def cell(**more: object) -> Cell:
    base = {"evasions": [], "clients": 4, "batch": 16, "rounds": 1, "dtype": "float64", "ra_limit": 20,
            "algorithm": "fedavg(local_steps=2)", "train_evasion": "pgd(steps=1)"}  # fmt: skip
    return Cell.of({**base, **more})


def trained(**more: object) -> tuple[Built, object]:
    torch.set_num_threads(1)
    built = build(cell(**more))
    last = None
    for record in train(built.experiment):
        last = record
    return built, last.state


# --- private parts ---------------------------------------------------------------------------------------------------


def test_server_never_moves_private_entries_and_attackers_cannot_reach_them() -> None:
    seen = []
    for attack in ("none", "foe(eta=50)"):
        built, state = trained(norm="fedbn", f=1, attack=attack, clients=5)
        e = built.experiment
        private = e.layout.tagged(e.norm.private)
        initial = build(cell(norm="fedbn", clients=5)).experiment.flat
        assert torch.equal(state.theta[private], initial[private])
        seen.append(state.personal.parameters.clone())
        honest = [k for k in range(5) if k not in e.settings.byzantine()]
    assert torch.equal(seen[0][honest], seen[1][honest])


@pytest.mark.parametrize("where", ["parameters", "statistics"])
def test_an_entry_that_overflows_is_in_the_sum_of_its_client_and_of_all(where: str) -> None:
    own = Personal(torch.ones(3, 2), torch.ones(3, 4))
    getattr(own, where)[1, 0] = torch.inf
    assert [bool(own.sum(clients).isfinite()) for clients in (None, [0, 2], [1])] == [False, True, False]


@pytest.mark.parametrize("tag", [Tag.MEAN, Tag.VARIANCE])
@pytest.mark.parametrize(("kind", "own"), [("naive-bn", True), ("gn", False)])
def test_clients_have_statistics_of_their_own_where_one_kind_is_private_and_layers_keep_any(tag, kind, own):
    norm = create("norm", kind)
    layout = layout_of(nn.Sequential(nn.Linear(2, 4), norm.layer(4)))
    privacy = Privacy.of(SimpleNamespace(private=frozenset({tag})), layout, torch.device("cpu"))  # type: ignore[arg-type]
    assert privacy.statistics is own
    assert privacy.personal is own


def test_a_model_that_is_lent_comes_back_also_after_an_error() -> None:
    theta = torch.ones(3)
    with pytest.raises(KeyError), lent(theta, torch.zeros(3)):
        raise KeyError(theta)
    assert theta.tolist() == [1, 1, 1]


# --- branches --------------------------------------------------------------------------------------------------------


def test_branches_collect_apart_and_a_frozen_one_nothing() -> None:
    layer = create("norm", "dual-bn").layer(2).double()
    model = torch.nn.Sequential(layer).train()
    x = torch.randn(8, 2, dtype=torch.float64) * 3 + 1
    begin(model, None)
    with through(model, ADVERSARIAL, frozen=True):
        frozen = model(x)
    assert torch.equal(frozen, model.eval()(x))
    model.train()
    with through(model, CLEAN):
        model(x)
    assert layer.clean.report()[2].tolist() == [8]
    assert layer.adversarial.report()[2].tolist() == [0]
    assert layer.branch == CLEAN


def test_separate_affine_parts_are_not_shared() -> None:
    together, apart = (create("norm", f"dual-bn(share_affine={s})").layer(3) for s in ("true", "false"))
    assert together.clean.weight is together.adversarial.weight
    assert apart.clean.weight is not apart.adversarial.weight


# --- adversarial users -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", set()),
        ("all", set(range(8))),
        ("ratio(rho=0.5)", {0, 1, 4, 5}),
        ("ratio(rho=0.25, domains=1)", {0}),
        ("domains(first=1)", {0, 1, 2, 3}),
        ("users(ids=(2, 7))", {2, 7}),
        ("users(ids=3)", {3}),
    ],
)
def test_rules_name_users(rule: str, expected: set[int]) -> None:
    assert at_users(rule, [4, 4]) == expected


def test_ratio_is_one_of_every_domains_own_users() -> None:
    assert at_users("ratio(rho=0.5)", [4, 1, 3]) == {0, 1, 5}
    assert at_users("domains(first=2)", [4, 1, 3]) == {0, 1, 2, 3, 4}


def test_domains_with_unequally_many_users_are_settings_of_their_own() -> None:
    cell = Cell.of({"domains": DOMAINS, "domain_users": [1, 4, 2], "at": "ratio(rho=0.5)"})
    assert (cell.clients, cell.users, cell.adversarial) == (7, (1, 4, 2), {1, 2, 5})
    assert [len(part) for part in build(cell).tests] == [355, 88, 88, 88, 88, 177, 177]
    equal = Cell.of({"domains": DOMAINS, "clients": 6})
    same = Cell.of({"domains": DOMAINS, "domain_users": [2, 2, 2], "user_sizes": "equal"})
    assert key_of(resolve(equal, "x")) == key_of(resolve(same, "x"))
    assert resolve(cell, "x")["cell"]["domain_users"] == [1, 4, 2]


def test_schemes_without_layers_need_none() -> None:
    assert build(cell(norm="none", model="mlp(hidden=())")).experiment.layout.s == 0


# --- FedRBN ----------------------------------------------------------------------------------------------------------


def test_byzantine_clients_come_from_the_named_users() -> None:
    for which, expected in (("at", {0, 1, 2}), ("st", {3, 4, 5, 6, 7})):
        for seed in range(5):
            e = build(cell(clients=8, at="users(ids=(0, 1, 2))", f=2, byzantine=which, seed=seed)).experiment
            assert e.settings.byzantine() <= expected


# --- domains ---------------------------------------------------------------------------------------------------------


def test_users_train_and_are_tested_on_their_own_domain() -> None:
    built = build(cell(domains=DOMAINS, clients=6, validation=0.25))
    e = built.experiment
    each = len(e.train) // 3
    for k, (part, held, test) in enumerate(zip(e.parts, built.validation, built.tests, strict=True)):
        domain = k // 2
        for index, size in ((part, each), (held, each), (test, len(built.test) // 3)):
            assert bool(((index // size) == domain).all())
        assert not set(part.tolist()) & set(held.tolist())
    assert built.domain_of == (0, 0, 1, 1, 2, 2)
    assert len({int(i) for part in e.parts for i in part}) == sum(len(p) for p in e.parts)


def test_means_over_users_domains_and_roles() -> None:
    record = run_cell(
        cell(
            domains=DOMAINS,
            clients=6,
            model="simple-cnn",
            norm="fedbn",
            objective="at",
            at="ratio(rho=0.5)",
            evasions=["fgsm"],
        ),
        fingerprint="x",
    )
    assert record.status == "done", record.reason
    metrics = record.metrics
    users = metrics.per_user["sa"]
    assert metrics.sa == pytest.approx(sum(users) / 6)
    assert metrics.groups[f"domain {DOMAINS[1]}"]["sa"] == pytest.approx((users[2] + users[3]) / 2)
    assert metrics.groups["AT users"]["fgsm"] == pytest.approx(sum(metrics.per_user["fgsm"][k] for k in (0, 2, 4)) / 3)
    macs = record.certificates["macs_per_epoch"]
    assert macs["AT"] > 2 * macs["ST"]
    assert macs["mean"] == pytest.approx((macs["AT"] + macs["ST"]) / 2)


def test_an_at_user_costs_two_passes_and_seven_steps_and_calibration_doubles_an_st_user() -> None:
    """The costs that docs/propagation.md tells of the Digits network, here of FedBN's 28×28 images in batches of 2."""
    page = " ".join((Path(__file__).parents[2] / "docs/propagation.md").read_text(encoding="utf-8").split())
    shared = {
        "domains": ["resized(dataset='digits-domain(limit=50, test_limit=10)', size=28)"], "clients": 5, "batch": 2,
        "model": "digits", "norm": "dual-bn(local=true)", "algorithm": "fedavg", "at": "ratio(rho=0.2)",
        "propagation": "fedrbn", "train_evasion": "pgd(steps=7)", "scaling": "unit",
    }  # fmt: skip
    costs = [macs_per_epoch(build(Cell.of({**shared, "objective": o})).experiment) for o in ("pnc(lam=0)", "pnc")]
    forward = 28**2 * 64 * 75 + 14**2 * 64 * 1600 + 7**2 * 128 * 1600 + 7**2 * 128 * 2048 + 2048 * 512 + 512 * 10
    at, st, calibrated = (cost / (10 * forward) for cost in (costs[0]["AT"], costs[0]["ST"], costs[1]["ST"]))
    assert f"Digits network ({forward / 1e6:.1f} million) an ST user costs {st:.2f} F per image" in page
    assert f"both branches run, {calibrated:.2f} F; an AT user costs {at:.2f} F, two training passes" in page
    assert f"are thus {at / st:.2f} (λ = 0), and of ST with λ > 0 to ST without {calibrated / st:.2f}." in page


def test_the_work_of_users_with_unequal_data_is_that_on_their_own_images() -> None:
    settings = {
        "dataset": "digits", "partition": "dirichlet(alpha=0.3)", "clients": 4, "batch": 2, "model": "mlp",
        "norm": "none", "algorithm": "fedavg", "objective": "at", "at": "users(ids=(0,))", "train_evasion": "fgsm",
    }  # fmt: skip
    whole = build(Cell.of(settings)).experiment
    equal = replace(whole, parts=tuple(part[:10] for part in whole.parts))
    found, each, sizes = macs_per_epoch(whole), macs_per_epoch(equal), [len(part) for part in whole.parts]
    assert max(sizes) > 2 * min(sizes)
    assert found["AT"] == pytest.approx(each["AT"] / 10 * sizes[0])
    assert found["ST"] == pytest.approx(each["ST"] / 10 * sum(sizes[1:]) / 3)
    assert found["mean"] == pytest.approx((found["AT"] + 3 * found["ST"]) / 4)


def test_a_cell_with_domains_survives_a_round_trip() -> None:
    first = cell(domains=DOMAINS, clients=6, at="all", propagation="fedrbn+mean")
    assert Cell.of(first.model_dump(mode="json")) == first
    assert first.propagation == "fedrbn"


# --- forgetting and the server's data --------------------------------------------------------------------------------


def test_the_servers_data_are_no_clients_data_and_move_the_trusted_rule() -> None:
    plain = build(cell(defense="fltrust", server_samples=50, norm="gn")).experiment
    held = set(plain.root.tolist())
    assert len(held) == 50
    assert not any(held & set(part.tolist()) for part in plain.parts)
    one, two = (
        trained(defense="fltrust", server_samples=n, norm="gn", f=1, attack="sf", clients=5)[1].theta for n in (50, 60)
    )
    assert not torch.equal(one, two)
