"""The federated algorithms and objectives: their ingredients, formulas and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robustfl.contracts import LocalWork, ServerWork, Task
from robustfl.contracts.norm import ADVERSARIAL, CLEAN, through
from robustfl.engine import State, train
from robustfl.engine.statistics import begin
from robustfl.errors import Refused
from robustfl.registry import create
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell

STEPS = "local_steps=3, weighting=uniform"


def trained(rounds: int = 2, **settings: object) -> State:
    torch.set_num_threads(1)
    base = {
        "evasions": [],
        "clients": 4,
        "batch": 8,
        "dtype": "float64",
        "partition": "dirichlet(alpha=1, min_size=20)",
    }
    last = None
    for record in train(build(Cell.of({**base, "rounds": rounds, **settings})).experiment):
        last = record.state
    return State(last.round, last.theta.clone(), last.statistics.clone(), last.memory, {}, last.server, last.personal)


def test_fednova_tells_that_it_is_fedavg() -> None:
    said = [create("algorithm", spec).caution(6) for spec in ("fednova", "fednova(local_steps=2)")]  # somebody replays
    assert said == ["", ""]
    alike = create("algorithm", "fednova(local_steps=6)").caution(6)
    assert alike == "fednova: every client takes 6 local steps a round, so it is fedavg"


def test_scaffold_keeps_no_variate_for_private_entries() -> None:
    settings = {"algorithm": f"scaffold({STEPS})", "norm": "fedbn"}
    state = trained(2, **settings)
    private = build(Cell.of({"clients": 4, "norm": "fedbn", "dtype": "float64"})).experiment.privacy.private
    assert private is not None
    assert bool((state.memory[:, private] == 0).all())
    assert bool((state.server["variate"][private] == 0).all())


def test_scaffold_warns_of_momentum_and_refuses_to_keep_one() -> None:
    said: list[str] = []
    cell = Cell.of({"clients": 2, "rounds": 1, "algorithm": "scaffold(local_steps=1, momentum=0.9)"})
    list(train(build(cell).experiment, warn=said.append))
    assert any("momentum" in line for line in said)
    with pytest.raises(ValueError, match="control variate"):
        create("algorithm", "scaffold", momentum=0.5, keep_momentum=True)


@pytest.mark.parametrize(
    ("idle", "without", "words"),
    [
        ("fedavg(local_steps=1, momentum=0.9)", "fedavg(local_steps=1)", "fedavg: momentum=0.9 changes nothing"),
        ("fedavg(momentum=0.9)", "fedavg", "fedavg: momentum=0.9 changes nothing"),  # all data make one batch
        ("fedprox(local_steps=1, mu=3)", "fedavg(local_steps=1)", "fedprox: mu=3 changes nothing"),
        ("fedacg(local_steps=1, beta=3)", "fedacg(local_steps=1, beta=0)", "fedacg: beta=3 changes nothing"),
        ("fedmeta(local_steps=2, momentum=0.9)", "fedmeta(local_steps=2)", "fedmeta: momentum=0.9 changes nothing"),
        ("fedavg(local_steps=1, momentum=0.9, keep_momentum=true)", "", ""),
        ("fedavg(local_steps=2, momentum=0.9)", "", ""),
    ],
)
def test_what_one_local_step_leaves_without_effect_is_told(idle: str, without: str, words: str) -> None:
    def end(algorithm: str, said: list[str]) -> torch.Tensor:
        data = "digits(limit=60, test_limit=10)"
        cell = Cell.of({"dataset": data, "clients": 3, "rounds": 2, "algorithm": algorithm})
        *_, last = train(build(cell).experiment, warn=said.append)
        return last.state.theta

    said: list[str] = []
    found = end(idle, said)
    assert said == [f"{words}, since every client takes one local step a round"] * bool(words)
    assert torch.equal(found, end(without or idle.replace("momentum=0.9", "momentum=0.5"), [])) is bool(words)


def test_a_clients_first_message_is_the_same_with_no_memory_and_with_an_empty_one() -> None:
    """In a loop of one's own nobody has to make memories of zeros first."""
    theta = torch.tensor([[3.0, -4.0]])
    for spec in ("dsgd(momentum=0.75)", "fedavg(local_steps=2, momentum=0.5, keep_momentum=true)"):
        found = [
            create("algorithm", spec).local(LocalWork(theta, 0.1, steps=2, gradient=torch.clone, memory=memory))
            for memory in (None, torch.zeros(1, 2))
        ]
        torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(
        create("algorithm", "dsgd(momentum=0.75)").local(LocalWork(theta, 0.1, steps=1, gradient=torch.clone))[0],
        theta / 4,
    )


def test_servers_away_from_their_defaults_by_hand() -> None:
    """Two rounds with the aggregates 1 and 2, from a model of 0."""

    def models(spec: str) -> list[float]:
        algorithm, theta, found = create("algorithm", spec), torch.zeros(1, dtype=torch.float64), []
        state = algorithm.server_state(theta)
        for aggregate in (1.0, 2.0):
            work = ServerWork(theta, torch.tensor([aggregate]).double(), lr=0.1, state=state)
            theta, state = algorithm.server_step(work)
            found.append(float(theta))
        return found

    # m is 1, then 0.5 + 2
    assert models("fedavgm(server_momentum=0.5, server_lr=0.1)") == pytest.approx([0.1, 0.35])
    # m is ½, then ¼ + 1; v is τ²/4 + ¾, then a quarter of that + 3
    first = 0.25 * 0.1**2 + 0.75
    second = 0.25 * first + 3
    steps = [2 * 0.5 / (first**0.5 + 0.1), 2 * 1.25 / (second**0.5 + 0.1)]
    assert models("fedadam(beta1=0.5, beta2=0.25, tau=0.1, server_lr=2)") == pytest.approx([steps[0], sum(steps)])


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_moon_contrasts_with_models_in_evaluation_mode_without_gradients(engine: str) -> None:
    settings = {"clients": 2, "rounds": 1, "evasions": [], "algorithm": "moon(local_steps=2)", "norm": "naive-bn"}
    e = build(Cell.of({**settings, "engine": engine})).experiment
    seen: list[tuple[bool, bool]] = []
    e.model.register_forward_pre_hook(lambda model, _: seen.append((model.training, torch.is_grad_enabled())))
    list(train(e))
    start = seen.index((False, False))  # after what is measured before training
    assert seen[start : start + 6] == [(False, False), (False, False), (True, True)] * 2


def test_scaffolds_server_step_is_scaled_and_its_variate_is_not() -> None:
    """Half of the clients took two and four steps; their estimates lose ``c`` and gain their mean gradient."""
    messages, work = torch.tensor([[-0.4], [-1.6]]).double(), []
    for rate in (1.0, 0.5):
        state = {"variate": torch.ones(1).double()}
        given = ServerWork(
            torch.zeros(1).double(), messages.mean(0), lr=0.1, state=state, steps=(2, 4), clients=4,
            again=lambda make, state=state: make(messages, state).mean(0),
        )  # fmt: skip
        work.append(create("algorithm", f"scaffold(server_lr={rate})").server_step(given))
    assert [float(theta) for theta, _ in work] == pytest.approx([-1.0, -0.5])
    changes = [-1 + 0.4 / (2 * 0.1), -1 + 1.6 / (4 * 0.1)]
    assert [float(s["variate"]) for _, s in work] == pytest.approx([1 + 0.5 * sum(changes) / 2] * 2)


def test_attackers_that_compute_nothing_leave_kept_momenta_alone() -> None:
    """Honest momenta are no part of the stack with local steps: what is sent must not be what is kept."""
    settings = {"norm": "none", "f": 1, "clients": 5, "attack": "sf"}
    kept, fresh = (
        trained(1, algorithm=f"fedavg({STEPS}, momentum=0.9{extra})", **settings).theta
        for extra in (", keep_momentum=true", "")
    )
    assert torch.equal(kept, fresh)  # in the first round there is nothing kept to differ by


@pytest.mark.parametrize(("norm", "left_out"), [("naive-bn", 1), ("hbn", 1), ("gn", 0), ("fbn", 0)])
def test_a_last_batch_of_one_is_left_out_where_it_has_no_variance(norm: str, left_out: int) -> None:
    """And only there; in every epoch it is another sample."""
    cell = Cell.of(
        {"clients": 2, "batch": 16, "norm": norm, "algorithm": "fedavg(epochs=2)", "rounds": 1, "evasions": []}
    )
    e = build(cell).experiment
    parts = tuple(part[:33] for part in e.parts)
    object.__setattr__(e, "parts", parts)
    from robustfl.engine.clients import Clients

    clients = Clients(e, lambda message: None)
    assert clients._batches.usable(0) == 33 - left_out
    assert clients.steps(0) == 2 * (2 if left_out else 3)
    seen = [set(torch.cat([clients._batches.indices(0, s) for s in steps]).tolist()) for steps in ([0, 1], [2, 3])]
    if left_out:
        assert [len(s) for s in seen] == [32, 32]
        assert seen[0] != seen[1]
    for record in train(e):
        assert record.round == 1


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"norm": "naive-bn"}, True),
        ({"norm": "gn"}, False),
        ({"norm": "naive-bn", "algorithm": "dsgd(replacement=true)"}, False),  # full batches of that sample
        ({"norm": "naive-bn", "attack": "sf", "f": 1, "algorithm": "dsgd"}, False),  # an attacker who computes nothing
        ({"norm": "naive-bn", "attack": "label-flip", "f": 1}, True),
    ],
)
def test_a_client_without_a_batch_that_has_a_variance_is_refused_by_its_name_before_training(settings, refused):
    cell = Cell.of({"clients": 3, "batch": 8, "rounds": 1, "algorithm": "fedavg", "evasions": [], "f": 0, **settings})
    e = build(cell).experiment
    poor = min(cell.settings.byzantine(), default=2)
    parts = tuple(part[:1] if k == poor else part for k, part in enumerate(e.parts))
    object.__setattr__(e, "parts", parts)
    if refused:
        with pytest.raises(Refused, match=f"client {poor} trains on batches of 1 sample, and the model normalizes"):
            next(train(e))
    else:
        assert next(train(e)).round == 1


# --- drawing with replacement, weight decay ---------------------------------------------------------------------------


def batches_of(algorithm: str, samples: int = 12) -> list[list[int]]:
    """The indices of client 0's first forty batches of eight."""
    from robustfl.engine.clients import Clients

    chosen = {"algorithm": algorithm, "dataset": f"digits(limit={2 * samples}, test_limit=10)", "evasions": []}
    e = build(Cell.of({"clients": 2, "batch": 8, "norm": "gn", **chosen})).experiment
    assert len(e.parts[0]) == samples
    clients = Clients(e, lambda message: None)
    return [clients._batches.indices(0, step).tolist() for step in range(40)]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "dsgd"])
def test_batches_with_replacement_are_full_and_repeat_samples(algorithm: str) -> None:
    plain, again = batches_of(algorithm), batches_of(f"{algorithm}(replacement=true)")
    assert all(len(set(batch)) == len(batch) for batch in plain)
    assert {len(batch) for batch in plain} == ({8} if algorithm == "dsgd" else {8, 4})
    assert {len(batch) for batch in again} == {8}
    assert any(len(set(batch)) < 8 for batch in again)
    assert {i for batch in again for i in batch} == {i for batch in plain for i in batch}


def test_a_client_with_less_than_a_batch_draws_a_full_one_with_replacement() -> None:
    assert {len(batch) for batch in batches_of("fedavg(replacement=true)", samples=5)} == {8}


EPS = 0.1


def network() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    norm = create("norm", "dual-bn(local=true)").layer(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), norm, nn.Tanh(), nn.Linear(5, 3)).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    for branch, shift in ((norm.clean, 0.5), (norm.adversarial, -0.5)):
        branch.running_mean.fill_(shift)
        branch.running_var.copy_(torch.rand(5, generator=generator, dtype=torch.float64) + 0.1)
    begin(model, None)
    return model.train()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(8, 1, 2, 2, generator=generator, dtype=torch.float64), torch.arange(8) % 3


def task(adversarial: bool, *, round: int = 0) -> Task:
    fgsm = create("evasion", f"fgsm(eps={EPS})")
    return Task(
        round=round, adversarial=adversarial, prior=torch.ones(3) / 3, evasion=fgsm, generator=torch.Generator()
    )


def taken(spec: str, given: Task) -> Tensor:
    model, (x, y) = network(), batch()
    create("objective", spec).backward(model, x, y, given)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])


def loss_of(model: nn.Module, x: Tensor, y: Tensor, branch: str, *, frozen: bool = False) -> Tensor:
    with through(model, branch, frozen=frozen):
        return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("spec", ["at", "free-at", "fedrob"])
def test_st_users_train_on_clean_inputs_alone(spec: str) -> None:
    model, (x, y) = network(), batch()
    alone = gradient(model, loss_of(model, x, y, CLEAN))
    torch.testing.assert_close(taken(spec, task(False)), alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("black_and_white", [False, True])
def test_free_noise_climbs_the_loss_it_has_just_been_trained_on(black_and_white: bool) -> None:
    model, (x, y) = network(), batch()
    x = x.round() if black_and_white else x  # half of the noise leads out of the pixels' range
    given, objective = task(True), create("objective", "free-at(eps=0.05, step=0.04)")
    noise = torch.zeros_like(x)
    for _ in range(3):
        inputs = (x + noise).clamp(0, 1).requires_grad_(True)
        (up,) = torch.autograd.grad(loss_of(model, inputs, y, ADVERSARIAL), inputs)
        noise = (noise + 0.04 * up.sign()).clamp(-0.05, 0.05)
        objective.backward(model, x, y, given)
        assert torch.equal(given.notes["noise"], noise)


def test_fedrob_trains_on_the_affine_map_two_penalised_steps_from_the_identity() -> None:
    model, (x, y), lam = network(), batch(), 0.7
    linear, shift = torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    model.eval()
    for _ in range(2):
        linear, shift = linear.requires_grad_(True), shift.requires_grad_(True)
        loss = loss_of(model, (x.flatten(1) @ linear.T + shift).view(x.shape), y, ADVERSARIAL)
        penalty = lam * ((linear - torch.eye(4)).square().sum() + shift.square().sum())
        up = torch.autograd.grad(loss - penalty, (linear, shift))
        linear, shift = ((old + step / (2 * lam)).detach() for old, step in zip((linear, shift), up, strict=True))
    model.train()
    moved = (x.flatten(1) @ linear.T + shift).view(x.shape)
    expected = gradient(model, loss_of(model, moved, y, ADVERSARIAL))
    torch.testing.assert_close(taken(f"fedrob(lam={lam})", task(True)), expected, rtol=1e-10, atol=1e-12)
