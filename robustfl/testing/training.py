"""The laws of algorithms and objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from robustfl.contracts import Algorithm, Asked, Contrast, LocalWork, Objective, ServerWork, Task
from robustfl.norms.dual import DualBatchNorm
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.results import pair
from robustfl.testing.attacks import unchanged
from robustfl.testing.common import PRECISION, laws_of, same
from robustfl.testing.suite import DOUBLE, Broken, Law, Suite, Trial, just

# --- algorithms ------------------------------------------------------------------------------------------------------

_D, _CLIENTS, _LR = 5, 3, 0.1


@dataclass
class _Batches:
    """Gradients of ``½‖θ - goal_k‖²`` with a noise that differs from batch to batch, as clients would compute them."""

    goals: Tensor
    noise: float
    asks: frozenset[str]
    taken: int = 0

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
        draw = torch.randn(64, _D, generator=stream(0, "batches"), dtype=torch.float64)[self.taken % 64]
        return at - self.goals + self.noise * draw.to(at)


def _goals(like: Tensor = DOUBLE) -> Tensor:
    return torch.randn(_CLIENTS, _D, generator=stream(0, "goals"), dtype=torch.float64).float().to(like)


def _train(
    method: Algorithm, goals: Tensor, rounds: int = 2, *, ask: Callable[..., Any] = just, start: float = 1.0,
    noise: float = 0.1,
) -> tuple[Tensor, Tensor, int]:  # fmt: skip
    """Train clients with a quadratic loss of their own each, with the mean in the place of a defense.

    Returns the last messages, the model after so many rounds from (start, start, …), and the batches taken.
    """
    batches = _Batches(goals, noise, frozenset(method.asks))
    theta, memory = goals.new_full((_D,), start), torch.zeros_like(goals)
    state: Mapping[str, Tensor] = method.server_state(theta)
    for _ in range(rounds):
        received = ask("broadcast", lambda: method.broadcast(theta.clone(), state), [theta], {"theta": theta})  # noqa: B023
        messages, kept = _local(method, received.expand(len(goals), -1), state, memory, batches, ask)
        memory = memory if kept is None else kept.clone()
        theta, state = _serve(method, theta, messages, state, ask)
    return messages, theta, batches.taken


def _local(
    method: Algorithm, theta: Tensor, state: Mapping[str, Tensor], memory: Tensor, batches: _Batches,
    ask: Callable[..., Any],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Messages and what clients keep, from work that holds what the algorithm asks for and no more."""
    again = batches.again if "again" in method.asks else None
    remembered = memory if method.remembers else None
    work = LocalWork(theta, _LR, method.steps(40, 16), batches.gradient, remembered, state, again)
    shown = {"work.theta": theta, "work.memory": memory}
    made = ask("local", lambda: method.local(work), [theta, theta], shown, own=True)
    messages, kept = pair(made, "messages, what clients keep", method, "local()")
    if kept is not None and not method.remembers:
        raise Broken("local returns something to keep, but remembers is False, so it would be lost")
    return messages, kept


def _serve(
    method: Algorithm, theta: Tensor, messages: Tensor, state: Mapping[str, Tensor], ask: Callable[..., Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    def again(make: Callable[[Tensor, Mapping[str, Tensor]], Tensor]) -> Tensor:
        return make(messages, state).mean(0)

    draws = stream(0, "server", device=theta.device) if "draws" in method.asks else None
    twice, steps = again if "aggregates" in method.asks else None, [method.steps(40, 16)] * len(messages)
    work = ServerWork(theta, messages.mean(0), _LR, state, twice, steps, len(messages), draws)
    shown = {"work.theta": theta, "work.aggregate": work.aggregate}
    shown |= {f"work.state[{name!r}]": value for name, value in state.items()}
    made = ask("server_step", lambda: method.server_step(work), [theta] * (1 + len(state)), shown)
    new, after = pair(made, "the model, the server's state", method, "server_step()")
    if set(after) != set(state):
        raise Broken(f"the server's state was {sorted(state)} and is {sorted(after)} a round later")
    return new, after


def _training(method: Algorithm, ask: Callable[..., Any], case: int, like: Tensor) -> None:
    _train(method, _goals(like), ask=ask, start=1.0 + case)


def _asks(trial: Trial) -> str | None:
    """steps(samples, batch) is a number of batches, local takes no more, and asks has names."""
    method, allowed = trial.method, get_args(Asked)
    if unknown := sorted(method.asks - {*allowed}):
        raise Broken(f"asks names {unknown[0]!r}; it may name {', '.join(sorted(allowed))}")
    for samples, batch in ((40, 16), (16, 16), (3, 16), (1, 1)):
        count: Any = method.steps(samples, batch)
        if type(count) is not int or count < 1:
            raise Broken(f"steps({samples}, {batch}) is {count!r}; a whole number of batches ≥ 1 is needed")
        if count > 1 and "one_batch" in method.asks:
            raise Broken(f"asks names 'one_batch', and steps({samples}, {batch}) is {count}")
    steps, taken = method.steps(40, 16), _train(method, _goals(), rounds=1)[2]
    if taken > steps:
        raise Broken(f"local takes {taken} batches, steps says {steps}; the engine counts and pays by steps")
    return f"{taken} of {steps} batches"


def _clients_apart(trial: Trial) -> str | None:
    """A client's message depends on its own row alone."""
    together, *alone = (_train(trial.method, goals, rounds=1)[0] for goals in (_goals(), *torch.split(_goals(), 1)))
    off = float((together - torch.cat(alone)).abs().max())
    if off > 1e-9:
        raise Broken(
            f"a client's message depends on the other rows (by up to {off:.2g}); norms and sums are over the last "
            "dimension (gradient.norm(dim=-1, keepdim=True))"
        )
    return None


def _learns(trial: Trial) -> str | None:
    """It comes nearer to the optimum of a quadratic."""
    best = _goals().mean(0)
    made = _train(trial.method, _goals(), rounds=40, noise=0.0)[1]
    start, end = float((1.0 - best).norm()), float((made - best).norm())
    if not end < start:
        raise Broken(
            f"40 rounds on a convex quadratic, without attackers, take the model from {start:.3g} to {end:.3g} from "
            "the optimum; is a sign wrong?"
        )
    return f"from {start:.3g} to {end:.3g} from a quadratic's optimum in 40 rounds"


ALGORITHM = Suite(
    laws_of(
        Law("steps", _asks),
        Law("clients apart", _clients_apart),
        PRECISION,
        Law("learns", _learns, waivable=True),
    ),
    _training,
)


# --- objectives ------------------------------------------------------------------------------------------------------

_CLASSES, _BATCH = 3, 6


def _user(
    method: Objective, adversarial: bool, case: int = 0, like: Tensor = DOUBLE, *, norm: str = ""
) -> tuple[nn.Module, Tensor, Tensor, Task]:
    """A small network, with branches where the objective needs them, a batch without the last class, and the task."""
    scheme = create("norm", norm or ("dual-bn(local=true)" if method.needs_branches else "gn(groups=1)"))
    with torch.random.fork_rng(devices=[]):  # constructors draw from the global generator
        made = nn.Sequential(nn.Conv2d(1, 2, 3), scheme.layer(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, _CLASSES))
    for i, parameter in enumerate(made.parameters()):
        nn.init.normal_(parameter.data, std=0.5, generator=stream(i, "weights"))
    x = torch.rand(_BATCH, 1, 4, 4, generator=stream(case, "pixels"), dtype=torch.float64).to(like)
    prior, draws = torch.tensor([0.5, 0.5, 0.0], device=like.device), stream(1, "objective", device=like.device)
    task = Task(20, adversarial, prior, create("evasion", "fgsm(eps=0.1)"), draws)
    return made.to(like).train(), x, torch.arange(_BATCH, device=like.device) % 2, task


def _trained(
    method: Objective, adversarial: bool, ask: Callable[..., Any] = just, case: int = 0, like: Tensor = DOUBLE
) -> tuple[Tensor, ...]:
    """The loss of a user's second batch, and the gradients of both."""
    network, x, y, task = _user(method, adversarial, case, like)
    shown = {"x": x, "y": y, "prior": task.prior}
    shown |= {f"parameter {n}": p.detach() for n, p in network.named_parameters()}
    method.backward(network, x, y, task)
    loss = ask("backward", lambda: method.backward(network, x, y, task), [x.new_empty(())], shown)
    gradients = _gradients(network)
    return loss.detach(), *ask("gradients", lambda: gradients, gradients, {})


def _backward(method: Objective, ask: Callable[..., Any], case: int, like: Tensor) -> None:
    for adversarial in (False, True):
        _trained(method, adversarial, ask, case, like)


def _gradients(network: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()]


def _network_as_before(trial: Trial) -> str | None:
    """Modes and flags of the network are as before, and gradients reach it."""
    for adversarial in (False, True):
        network, x, y, task = _user(trial.method, adversarial)
        with unchanged(network, gradients=False):
            trial.method.backward(network, x, y, task)
        if not any(bool(g.any()) for g in _gradients(network)):
            raise Broken(f"no parameter got a gradient from a batch of an {'AT' if adversarial else 'ST'} user")
    return None


def _per_sample(trial: Trial) -> str | None:
    """A plain objective's loss of a sample is its own, and backward that of their mean."""
    method = trial.method
    if not method.plain:
        return "it is not plain: clients are trained one after another"
    network, x, y, task = _user(method, adversarial=False)
    logits, prior = network(x).detach(), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    each, shares = (method.per_sample(logits, y, p) for p in (prior, prior.expand(_BATCH, -1)))
    if each.shape != (_BATCH,) or not torch.allclose(each, shares, rtol=1e-9, atol=1e-12):
        raise Broken(f"per_sample must give one loss [b] a sample, the same for class shares [c] and [b c]: {each}")
    alone = torch.cat([method.per_sample(logits[k : k + 1], y[k : k + 1], prior) for k in range(_BATCH)])
    if not torch.allclose(each, alone, rtol=1e-9, atol=1e-12):
        raise Broken(
            "a sample's loss depends on the rest of the batch, which holds the samples of all clients of a round"
        )
    loss, found = method.backward(network, x, y, task), _gradients(network)
    network.zero_grad()
    expected = method.per_sample(network(x), y, task.prior).mean()
    expected.backward()
    if not all(map(torch.allclose, [loss.float(), *found], [expected.detach().float(), *_gradients(network)])):
        raise Broken(f"backward returns {float(loss):.6g}, the mean of per_sample is {float(expected.detach()):.6g}")
    return None


def _roles(trial: Trial) -> str | None:
    """Users with adversarial training train otherwise, where it is made for them."""
    alike = same(_trained(trial.method, False), _trained(trial.method, True))
    if alike and trial.method.needs_adversaries:
        raise Broken("needs_adversaries is True, but AT users and ST users train alike")
    return "fact: AT users and ST users train alike" if alike else None


def _trains_clean(trial: Trial) -> str | None:
    """Of layers with branches AT users train the clean one, if trains_clean."""
    network, x, y, task = _user(trial.method, adversarial=True, norm="dual-bn(local=true)")
    trial.method.backward(network, x, y, task)
    seen = any(bool(m.clean.report()[2].any()) for m in network.modules() if isinstance(m, DualBatchNorm))
    if seen != trial.method.trains_clean:
        way = "train" if seen else "never go through"
        raise Broken(f"trains_clean is {trial.method.trains_clean}, but batches of AT users {way} the clean branch")
    return None if seen else "fact: AT users train no clean branch"


OBJECTIVE = Suite(
    laws_of(
        Law("model untouched", _network_as_before),
        Law("samples apart", _per_sample),
        Law("clean branch", _trains_clean),
        Law("roles", _roles),
    ),
    _backward,
)
