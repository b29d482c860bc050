"""The contracts of algorithms and objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor, nn

from robustfl.contracts import Algorithm, Asked, Contrast, LocalWork, Objective, ServerWork, Task
from robustfl.norms.dual import DualBatchNorm
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.testing.common import COMMON, FIRST, built
from robustfl.testing.guards import Broken, Differs, expect, own_memory, same, tensor, untouched
from robustfl.testing.suite import LIMIT, Check, Law, Trial, run

D, CLIENTS, LR = 5, 3, 0.1


# --- algorithms ------------------------------------------------------------------------------------------------------


@dataclass
class _Batches:
    """Gradients of ``½‖θ - goal_k‖²`` with a noise that differs from batch to batch, as clients would compute them."""

    goals: Tensor
    noise: float
    asks: frozenset[str]
    taken: int = 0
    at: list[Tensor] = field(default_factory=list)

    def gradient(self, at: Tensor, contrast: Contrast | None = None, /) -> Tensor:
        if contrast is not None and "contrast" not in self.asks:
            raise Broken("gradient was given a contrast, but asks does not name 'contrast'")
        self.taken += 1
        found = self.again(at)
        if contrast is not None:  # the models stand for their representations
            own = at.detach().clone().requires_grad_(True)
            contrast.term(own, *(m.detach() for m in contrast.models)).sum().backward()  # type: ignore[no-untyped-call]
            found = found if own.grad is None else found + own.grad
        return found

    def again(self, at: Tensor) -> Tensor:
        """The same batch once more."""
        if tuple(at.shape) != tuple(self.goals.shape):
            raise Broken(f"gradients were asked for at {tuple(at.shape)}, not at models {tuple(self.goals.shape)}")
        self.at.append(at)
        draw = torch.randn(64, D, generator=stream(0, "batches"), dtype=torch.float64)[self.taken % 64]
        return at - self.goals + self.noise * draw.to(at)


@dataclass(frozen=True)
class _Round:
    """The state after two rounds."""

    messages: Tensor
    memory: Tensor | None
    theta: Tensor
    state: Mapping[str, Tensor]
    taken: int


@dataclass(frozen=True)
class _Training(Trial[Algorithm]):
    """An algorithm, and three clients with a quadratic loss of their own each."""

    def steps(self, method: Algorithm) -> int:
        count: Any = method.steps(40, 16)
        if type(count) is not int or count < 1:
            raise Broken(f"steps(40, 16) is {count!r}; a whole number of batches ≥ 1 is needed")
        return count

    def goals(self, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(CLIENTS, D, generator=stream(0, "goals"), dtype=torch.float64).to(dtype)

    def train(
        self, method: Algorithm, *, rounds: int = 2, goals: Tensor | None = None, noise: float = 0.1, case: int = 0
    ) -> _Round:
        """``rounds`` rounds from the model ``(1, 1, …)`` with the mean in the place of a defense."""
        goals = self.goals() if goals is None else goals
        theta = torch.full((D,), 1.0 + case, dtype=goals.dtype)
        state: Mapping[str, Tensor] = method.server_state(theta)
        for name, value in state.items():
            expect(value, theta, (D,), f"server_state's {name!r}")
        memory, taken = torch.zeros_like(goals), 0
        messages = torch.zeros_like(goals)
        for _ in range(rounds):
            batches = _Batches(goals, noise, frozenset(method.asks))
            messages, kept = self.local(method, theta, state, memory, batches)
            memory = memory if kept is None else kept.clone()
            theta, state = self.serve(method, theta, messages, state)
            taken += batches.taken
        return _Round(messages, memory if method.remembers else None, theta, state, taken)

    def local(
        self, method: Algorithm, theta: Tensor, state: Mapping[str, Tensor], memory: Tensor, batches: _Batches
    ) -> tuple[Tensor, Tensor | None]:
        """Messages and what clients keep, from work that holds what the algorithm asks for and no more."""
        received = method.broadcast(theta.clone(), state)
        start = expect(received, theta, (D,), "what broadcast returns").expand(len(batches.goals), -1)
        held: dict[str, Tensor | None] = {"theta": start, "memory": memory}
        with untouched(**{f"work.{name}": value for name, value in held.items()}):
            made: Any = method.local(
                LocalWork(
                    theta=start,
                    lr=LR,
                    steps=self.steps(method),
                    gradient=batches.gradient,
                    memory=memory if method.remembers else None,
                    server=state,
                    again=batches.again if "again" in method.asks else None,
                )
            )
        if not (isinstance(made, tuple) and len(made) == 2):
            raise Broken(f"local returned {type(made).__name__}; messages and what clients keep (or None) are needed")
        messages = expect(made[0], start, tuple(start.shape), "the messages")
        if made[1] is None:
            return messages, None
        if not method.remembers:
            raise Broken("local returns something to keep, but remembers is False, so it would be lost")
        return messages, expect(made[1], start, tuple(start.shape), "what clients keep")

    def serve(
        self, method: Algorithm, theta: Tensor, messages: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The server's step with the mean of the messages."""
        aggregate, size = messages.mean(0), self.steps(method)

        def again(make: Callable[[Tensor, Mapping[str, Tensor]], Tensor]) -> Tensor:
            return make(messages, state).mean(0)

        shown = {"theta": theta, "aggregate": aggregate, **{f"state[{k!r}]": v for k, v in state.items()}}
        with untouched(**{f"work.{name}": value for name, value in shown.items()}):
            made: Any = method.server_step(
                ServerWork(
                    theta, aggregate, LR, state, again if "aggregates" in method.asks else None,
                    [size] * len(messages), len(messages),
                    generator=torch.Generator().manual_seed(0) if "draws" in method.asks else None,
                )
            )  # fmt: skip
        if not (isinstance(made, tuple) and len(made) == 2):
            raise Broken(f"server_step returned {type(made).__name__}; the model and the server's state are needed")
        if set(made[1]) != set(state):
            raise Broken(f"the server's state was {sorted(state)} and is {sorted(made[1])} a round later")
        return expect(made[0], theta, (D,), "the server's new model"), made[1]

    def outcome(self, method: Algorithm, case: int = 0) -> tuple[Tensor, ...]:
        found = self.train(method, case=case)
        kept = () if found.memory is None else (found.memory,)
        return (found.messages, *kept, found.theta, *(found.state[k] for k in sorted(found.state)))


def _asks(trial: _Training) -> str | None:
    allowed = set(get_args(Asked))
    unknown = sorted(set(trial.method.asks) - allowed)
    if unknown:
        raise Broken(f"asks names {unknown[0]!r}; it may name {', '.join(sorted(allowed))}")
    return ", ".join(sorted(trial.method.asks)) or "nothing beyond gradients and one aggregate"


def _steps(trial: _Training) -> str | None:
    method = trial.fresh()
    for samples, batch in ((40, 16), (16, 16), (3, 16), (1, 1)):
        count: Any = method.steps(samples, batch)
        if type(count) is not int or count < 1:
            raise Broken(f"steps({samples}, {batch}) is {count!r}; a whole number of batches ≥ 1 is needed")
        if count > 1 and "one_batch" in method.asks:
            raise Broken(f"asks names 'one_batch', and steps({samples}, {batch}) is {count}")
    told, taken = trial.steps(method), trial.train(method, rounds=1).taken
    if taken > told:
        raise Broken(f"local takes {taken} batches, steps says {told}; the engine counts and pays by steps")
    return f"{taken} of {told} batches" if taken < told else f"{told} for 40 samples in batches of 16"


def _kinds(trial: _Training) -> str | None:
    single = trial.train(trial.fresh(), goals=trial.goals(dtype=torch.float32))
    exact = trial.train(trial.fresh(), goals=trial.goals(dtype=torch.float32).double())
    error = float((single.theta.double() - exact.theta).abs().max())
    if not error <= 1e-4:
        raise Differs(f"float32 and float64 differ by {error:.2g} after two rounds")
    return None


def _clients_apart(trial: _Training) -> str | None:
    """A norm over all rows, or a sum over the wrong axis, mixes clients that train in one call."""
    method, goals = trial.fresh(), trial.goals()
    together = trial.train(method, rounds=1).messages
    alone = torch.cat([trial.train(method, rounds=1, goals=goals[k : k + 1]).messages for k in range(CLIENTS)])
    off = float((together - alone).abs().max())
    if off > 1e-9:
        raise Differs(
            f"a client's message depends on the other rows (by up to {off:.2g}); norms and sums are over the last "
            "dimension (gradient.norm(dim=-1, keepdim=True))"
        )
    return None


def _own_messages(trial: _Training) -> str | None:
    method, goals = trial.fresh(), trial.goals()
    theta = torch.ones(D, dtype=torch.float64)
    state = method.server_state(theta)
    memory = torch.zeros_like(goals)
    messages, kept = trial.local(method, theta, state, memory, _Batches(goals, 0.1, frozenset(method.asks)))
    own_memory(messages, "the messages", theta, memory)
    if kept is not None:
        own_memory(kept, "what clients keep", theta, memory)
    return None


def _learns(trial: _Training) -> str | None:
    goals = trial.goals()
    best = goals.mean(0)
    start = float((torch.ones(D, dtype=torch.float64) - best).norm())
    end = float((trial.train(trial.fresh(), rounds=40, noise=0.0).theta - best).norm())
    if not end < start:
        raise Broken(
            f"40 rounds on a convex quadratic, without attackers, take the model from {start:.3g} to {end:.3g} from "
            "the optimum; is a sign wrong?"
        )
    return f"from {start:.3g} to {end:.3g} from a quadratic's optimum in 40 rounds"


ALGORITHM_LAWS = (
    *FIRST,
    Law("asks", "what it wants beyond gradients has a name", _asks),
    Law("steps", "steps(samples, batch) is a number of batches, and local takes no more", _steps),
    Law("messages own memory", "messages and what clients keep are not what they were shown", _own_messages),
    Law("clients apart", "a client's message depends on its own row alone", _clients_apart),
    *COMMON,
    Law("precision", "float32 agrees with float64", _kinds, waivable=True),
    Law("learns", "it comes nearer to the optimum of a quadratic", _learns, waivable=True),
)


def check_algorithm(method: str | Algorithm | type[Algorithm], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """The contract of an algorithm, law by law.

    >>> all(check.passed for check in check_algorithm("fedprox", mu=0.1))
    True
    """
    return run(ALGORITHM_LAWS, _Training(built("algorithm", method, params)), limit=limit)


# --- objectives ------------------------------------------------------------------------------------------------------

CLASSES, SHAPE, BATCH = 3, (1, 4, 4), 6


@dataclass(frozen=True)
class _Losses(Trial[Objective]):
    """An objective, a small network, with branches where it needs them, and a batch of an AT or an ST user."""

    def network(self, dtype: torch.dtype = torch.float64, *, norm: str = "") -> nn.Module:
        branches = "dual-bn(local=true)" if self.method.needs_branches else "gn(groups=1)"
        scheme = create("norm", norm or branches)
        with torch.random.fork_rng(devices=[]):  # constructors draw from the global generator
            made = nn.Sequential(
                nn.Conv2d(1, 2, 3), scheme.layer(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, CLASSES)
            )  # fmt: skip
        for i, parameter in enumerate(made.parameters()):
            nn.init.normal_(parameter.data, std=0.5, generator=stream(i, "weights"))
        return made.to(dtype).train()

    def batch(self, case: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        x = torch.rand(BATCH, *SHAPE, generator=stream(case, "pixels"), dtype=torch.float64)
        return x.to(dtype), torch.arange(BATCH) % 2  # no image of the last class

    def task(self, *, adversarial: bool, round: int = 20) -> Task:
        return Task(
            round=round,
            adversarial=adversarial,
            prior=torch.tensor([0.5, 0.5, 0.0]),
            evasion=create("evasion", "fgsm(eps=0.1)"),
            generator=stream(1, "objective"),
        )

    def backward(
        self, method: Objective, *, adversarial: bool, case: int = 0, dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, ...]:
        """The loss of a user's second batch, and the gradients of both batches in every parameter."""
        network, (x, y) = self.network(dtype), self.batch(case, dtype)
        task = self.task(adversarial=adversarial)
        method.backward(network, x, y, task)
        loss = tensor(method.backward(network, x, y, task), "what backward returns")
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()]
        return (loss, *grads)

    def outcome(self, method: Objective, case: int = 0) -> tuple[Tensor, ...]:
        found = [self.backward(method, adversarial=role, case=case) for role in (False, True)]
        return tuple(part.detach() for parts in found for part in parts)


def _loss(trial: _Losses) -> str | None:
    for role in (False, True):
        for dtype in (torch.float32, torch.float64):
            loss, *grads = trial.backward(trial.fresh(), adversarial=role, dtype=dtype)
            expect(loss, grads[0], (), "what backward returns (the mean loss of the batch)", graph=True)
            if loss.requires_grad:
                raise Broken("the loss that backward returns requires a gradient; return loss.detach()")
            if not any(bool(g.any()) for g in grads):
                raise Broken(f"no parameter got a gradient from a batch of an {'AT' if role else 'ST'} user")
    return None


def _batch_untouched(trial: _Losses) -> str | None:
    x, y = trial.batch()
    for role in (False, True):
        task, network = trial.task(adversarial=role), trial.network()
        values = {f"parameter {n}": p.detach() for n, p in network.named_parameters()}
        with untouched(x=x, y=y, prior=task.prior, **values):
            trial.fresh().backward(network, x, y, task)
        if x.requires_grad or x.grad is not None:
            raise Broken("x was made to require a gradient; work on x.detach().clone()")
    return None


def _network_as_before(trial: _Losses) -> str | None:
    x, y = trial.batch()
    for role in (False, True):
        network = trial.network()
        trial.fresh().backward(network, x, y, trial.task(adversarial=role))  # gradients are there from here on
        for parameter in network.parameters():
            parameter.grad = None
        modes = {n: m.training for n, m in network.named_modules()}
        flags = {n: p.requires_grad for n, p in network.named_parameters()}
        trial.fresh().backward(network, x, y, trial.task(adversarial=role))
        wrong = [n or "the network" for n, m in network.named_modules() if m.training != modes[n]]
        wrong += [n for n, p in network.named_parameters() if p.requires_grad != flags[n]]
        if wrong:
            raise Broken(f"mode or requires_grad of {wrong[0]} is not as before; put back what you switch")
    return None


def _per_sample(trial: _Losses) -> str | None:
    """The engine computes plain objectives for all clients in one call, so each sample's loss must be its own."""
    method = trial.fresh()
    if not method.plain:
        return "it is not plain: clients are trained one after another"
    x, y = trial.batch()
    network, prior = trial.network(), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    logits = network(x).detach()
    each = expect(method.per_sample(logits, y, prior), logits, (BATCH,), "per_sample", graph=True)
    rows = expect(
        method.per_sample(logits, y, prior.expand(BATCH, -1)), logits, (BATCH,), "per_sample, prior [b c]", graph=True
    )
    if not torch.allclose(each, rows, rtol=1e-9, atol=1e-12):
        raise Differs("per_sample gives other losses for class shares [b c] than for the same shares [c]")
    alone = torch.cat([method.per_sample(logits[k : k + 1], y[k : k + 1], prior) for k in range(BATCH)])
    if not torch.allclose(each, alone, rtol=1e-9, atol=1e-12):
        raise Differs(
            "a sample's loss depends on the rest of the batch, which holds the samples of all clients of a round"
        )
    return None


def _mean(trial: _Losses) -> str | None:
    method = trial.fresh()
    if not method.plain:
        return "it is not plain"
    x, y = trial.batch()
    network, task = trial.network(), trial.task(adversarial=False)
    loss = method.backward(network, x, y, task)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()]
    network.zero_grad()
    expected = method.per_sample(network(x), y, task.prior).mean()
    expected.backward()  # type: ignore[no-untyped-call]
    if not torch.allclose(loss, expected.detach(), rtol=1e-9):
        raise Differs(f"backward returns {float(loss):.6g}, the mean of per_sample is {float(expected.detach()):.6g}")
    for (name, p), found in zip(network.named_parameters(), grads, strict=True):
        if p.grad is not None and not torch.allclose(found, p.grad, rtol=1e-7, atol=1e-10):
            raise Differs(f"the gradient of {name} is not that of the mean of per_sample")
    return None


def _replays(trial: _Losses) -> str | None:
    count: Any = trial.method.replays
    if type(count) is not int or count < 1:
        raise Broken(f"replays is {count!r}; a whole number ≥ 1 is needed")
    return f"{count} steps on every batch" if count > 1 else None


def _roles(trial: _Losses) -> str | None:
    st, at = (trial.backward(trial.fresh(), adversarial=role) for role in (False, True))
    alike = same(tuple(p.detach() for p in st), tuple(p.detach() for p in at))
    if alike and trial.method.needs_adversaries:
        raise Broken("needs_adversaries is True, but AT users and ST users train alike")
    return "fact: AT users and ST users train alike" if alike else None


def _trains_clean(trial: _Losses) -> str | None:
    network, (x, y) = trial.network(norm="dual-bn(local=true)"), trial.batch()
    trial.fresh().backward(network, x, y, trial.task(adversarial=True))
    seen = any(bool(m.clean.report()[2].any()) for m in network.modules() if isinstance(m, DualBatchNorm))
    if seen != trial.method.trains_clean:
        way = "train" if seen else "never go through"
        raise Broken(f"trains_clean is {trial.method.trains_clean}, but batches of AT users {way} the clean branch")
    return None if seen else "fact: AT users train no clean branch"


OBJECTIVE_LAWS = (
    *FIRST,
    Law("loss", "backward returns the detached loss, and gradients reach the parameters", _loss),
    Law("inputs untouched", "batch, class shares and parameters are not written to", _batch_untouched),
    Law("model untouched", "modes and requires_grad of the network are as before", _network_as_before),
    Law("samples apart", "a plain objective's loss of a sample is its own, for shares [c] and [b c]", _per_sample),
    Law("mean", "backward of a plain objective is that of the mean of per_sample", _mean),
    Law("replays", "replays is a number of local steps", _replays),
    Law("clean branch", "of layers with branches AT users train the clean one, if trains_clean", _trains_clean),
    Law("roles", "users with adversarial training train otherwise, where it is made for them", _roles),
    *COMMON,
)


def check_objective(method: str | Objective | type[Objective], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """The contract of an objective, law by law.

    >>> all(check.passed for check in check_objective("wsm"))
    True
    """
    return run(OBJECTIVE_LAWS, _Losses(built("objective", method, params)), limit=limit)
