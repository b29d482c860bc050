"""FedTAN in the engine and out of it: the gradient of the union of all batches, and nothing less under attack."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from robustfl.federation import train
from robustfl.federation.statistics import lockstep
from robustfl.registry import create
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import refusal
from robustfl.vectors import layout_of
from tests.passes import shared_gradients


def network(norm: str) -> nn.Sequential:
    torch.manual_seed(3)
    made = create("norm", norm)
    layers = [
        nn.Conv2d(2, 5, 3, padding=1),
        made.layer(5),
        nn.ReLU(),
        nn.Conv2d(5, 4, 3, padding=1),
        made.layer(4),
        nn.Tanh(),
    ]
    model = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(4 * 16, 6), made.layer(6), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    for i, p in enumerate(model.parameters()):
        p.data = torch.sin(torch.arange(p.numel(), dtype=torch.float64) + i).view_as(p) / 2
    return model.train()


def averaged(norm: str, sizes: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(sizes), 2, 4, 4, generator=generator, dtype=torch.float64)
    for k, part in enumerate(torch.split(x, list(sizes))):
        part += 2 * k  # heterogeneous clients
    y = torch.randint(3, (sum(sizes),), generator=generator)
    model = network(norm)
    layout = layout_of(model)
    rows = torch.empty(len(sizes), layout.d, dtype=torch.float64)
    shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    with lockstep(model, lambda kind, rows: shares.to(rows.dtype) @ rows):
        shared_gradients(model, layout, x, y, sizes, out=rows)
    return shares @ rows


def merged(sizes: tuple[int, ...]) -> torch.Tensor:
    """Autograd on one machine with torch's own batch normalization."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(sizes), 2, 4, 4, generator=generator, dtype=torch.float64)
    for k, part in enumerate(torch.split(x, list(sizes))):
        part += 2 * k
    y = torch.randint(3, (sum(sizes),), generator=generator)
    model = network("naive-bn")
    for i, layer in enumerate(model):
        if hasattr(layer, "running_mean"):
            kind = nn.BatchNorm1d if i > 6 else nn.BatchNorm2d
            plain = kind(layer.channels).double()
            plain.weight.data, plain.bias.data = layer.weight.data, layer.bias.data
            model[i] = plain
    F.cross_entropy(model(x), y).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("sizes", [(4, 4, 4), (6, 3, 5)], ids=["equal", "unequal"])
def test_averaged_gradient_is_that_of_the_merged_batch(sizes: tuple[int, ...]) -> None:
    central = merged(sizes)
    torch.testing.assert_close(averaged("fedtan", sizes), central, rtol=1e-10, atol=1e-10)
    for other in ("fedavg-alg2", "naive-bn"):
        assert float((averaged(other, sizes) - central).norm() / central.norm()) > 0.1


def settings(**more: object) -> Cell:
    base = {"evasions": [], "clients": 5, "batch": 8, "rounds": 4, "dtype": "float64", "partition": "classes(k=4)"}
    return Cell.of({**base, "algorithm": "dsgd(momentum=0)", **more})


def run(cell: Cell) -> tuple[torch.Tensor, torch.Tensor]:
    last = None
    for record in train(build(cell).experiment):
        last = record.state
    assert last is not None
    return last.theta.clone(), last.statistics.clone()


@pytest.mark.parametrize("algorithm", ["dsgd(momentum=0)", "fedavg(local_steps=1, weighting=uniform)"])
def test_one_step_a_round_is_centralised_training(algorithm: str) -> None:
    """Parameters and running statistics, on clients that share hardly a class."""
    theta, statistics = run(settings(norm="fedtan", algorithm=algorithm))
    expected = run(settings(norm="centralised-bn"))
    if algorithm.startswith("dsgd"):  # the same batches
        torch.testing.assert_close(theta, expected[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(statistics, expected[1], rtol=1e-10, atol=1e-10)
    else:
        assert theta.shape == expected[0].shape


def test_first_of_several_steps_is_shared_and_the_others_are_local() -> None:
    one, two = (run(settings(norm="fedtan", algorithm=f"fedavg(local_steps={n})", rounds=1))[0] for n in (1, 2))
    local = run(settings(norm="naive-bn", algorithm="fedavg(local_steps=2)", rounds=1))[0]
    assert not torch.equal(one, two)
    assert not torch.equal(two, local)


def test_second_phase_of_fedtan_ii_freezes_statistics_and_goes_on_training() -> None:
    cell = settings(norm="fedtan-ii(switch_round=2)", algorithm="fedavg(local_steps=2)")
    seen = [(r.state.theta.clone(), r.state.statistics.clone()) for r in train(build(cell).experiment)]
    assert not torch.equal(seen[0][1], seen[1][1])
    assert torch.equal(seen[1][1], seen[3][1])
    assert not torch.equal(seen[2][0], seen[3][0])


ATTACKED = {"norm": "fedtan", "clients": 6, "f": 1, "scope": "statistics", "rounds": 1, "partition": "iid"}


@pytest.mark.parametrize("target", ["mean", "var", "both"])
def test_attackers_reach_every_exchange_and_a_robust_rule_takes_most_of_it_back(target: str) -> None:
    honest = run(settings(**{**ATTACKED, "attack": "none"}))[0]
    hit = {**ATTACKED, "attack": "foe(eta=30)", "target": target}
    plain, defended = (run(settings(**hit, defense=d))[0] for d in ("mean", "trimmed-mean"))
    assert not torch.equal(plain, honest)
    assert float((defended - honest).norm()) < float((plain - honest).norm())


def test_attack_on_updates_alone_leaves_the_exchanges_honest() -> None:
    hit = {**ATTACKED, "attack": "foe(eta=30)", "scope": "update"}
    assert torch.equal(run(settings(**hit))[1], run(settings(**{**hit, "attack": "none"}))[1])


@pytest.mark.parametrize("other", [{"algorithm": "fedsam"}, {"algorithm": "moon"}, {"objective": "at", "at": "all"}])
def test_pairs_that_make_no_sense_are_refused(other: dict[str, str]) -> None:
    reason = refusal(Cell.of({"norm": "fedtan", "algorithm": "fedavg", **other}))
    assert reason is not None
    assert "plain pass" in reason
