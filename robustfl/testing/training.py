"""The laws of algorithms and objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from robustfl.contracts import Asked, Contrast, LocalWork, Objective, ServerWork, Task
from robustfl.norms.batch_norm import DualBatchNorm
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.results import pair
from robustfl.testing.attacks import unchanged
from robustfl.testing.common import PRECISION, demand_rowwise, laws_of, network, normal, same, uniform
from robustfl.testing.suite import DOUBLE, Calls, Law, Suite, Trial, demand

# --- algorithms ------------------------------------------------------------------------------------------------------

_D, _CLIENTS, _LR = 5, 3, 0.1


def _goals(like: Tensor = DOUBLE) -> Tensor:
    return normal(_CLIENTS, _D, like=like)


def _train(
    calls: Calls, goals: Tensor, rounds: int = 2, *, start: float = 1.0, noise: float = 0.1
) -> tuple[Tensor, Tensor, int]:
    """Train clients with the losses ``½‖θ - goal_k‖²``, with the mean in the place of a defense.

    Gradients have a noise that differs from batch to batch. Returns the last messages, the model after so many rounds
    from (start, start, …), and the batches taken.
    """
    method, theta, memory = calls.method, goals.new_full((_D,), start), torch.zeros_like(goals)
    noises, taken = normal(64, _D), 0

    def again(at: Tensor) -> Tensor:
        fits = at.shape == goals.shape
        demand(fits, f"gradients were asked for at {tuple(at.shape)}, not at models {tuple(goals.shape)}")
        return at - goals + noise * noises[taken % 64].to(at)

    def gradient(at: Tensor, contrast: Contrast | None = None, /) -> Tensor:
        nonlocal taken
        taken += 1
        found = again(at)
        if contrast is not None:  # the models stand for their representations
            demand("contrast" in method.asks, "gradient was given a contrast, but asks does not name 'contrast'")
            own = at.detach().clone().requires_grad_(True)
            contrast.term(own, *(m.detach() for m in contrast.models)).sum().backward()  # type: ignore[no-untyped-call]
            found = found if own.grad is None else found + own.grad
        return found

    def private(at: Tensor, clip_norm: float, noise_multiplier: float) -> Tensor:
        found = gradient(at)
        norm: Tensor = found.norm(dim=-1, keepdim=True)
        found = found * (clip_norm / norm.clamp(min=clip_norm))
        return found + noise * noise_multiplier * clip_norm * noises[taken % 64].to(at)

    state: Mapping[str, Tensor] = method.server_state(theta)
    for _ in range(rounds):
        own = calls(method.broadcast, theta.clone(), state, wanted=[theta]).expand(len(goals), -1)
        remembered, twice = memory if method.remembers else None, again if "again" in method.asks else None
        by_examples = private if "examples" in method.asks else None
        work = LocalWork(own, _LR, method.steps(40, 16), gradient, remembered, state, twice, private=by_examples)
        made = calls(method.local, work, wanted=[own, own], own=True)
        messages, kept = pair(made, "messages, what clients keep", method, "local()")
        lost = kept is not None and not method.remembers
        demand(not lost, "local returns something to keep, but remembers is False, so it would be lost")
        memory = memory if kept is None else kept.clone()
        theta, state = _serve(calls, theta, messages, state)
    return messages, theta, taken


def _serve(
    calls: Calls, theta: Tensor, messages: Tensor, state: Mapping[str, Tensor]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    method = calls.method

    def again(make: Callable[[Tensor, Mapping[str, Tensor]], Tensor]) -> Tensor:
        return make(messages, state).mean(0)

    draws = stream(0, "server", device=theta.device) if "draws" in method.asks else None
    twice, steps = again if "aggregates" in method.asks else None, [method.steps(40, 16)] * len(messages)
    work = ServerWork(theta, messages.mean(0), _LR, state, twice, steps, len(messages), draws)
    made = calls(method.server_step, work, wanted=[theta] * (1 + len(state)))
    new, after = pair(made, "the model, the server's state", method, "server_step()")
    named = set(after) == set(state)
    demand(named, f"the server's state was {sorted(state)} and is {sorted(after)} a round later")
    return new, after


def _training(calls: Calls) -> None:
    _train(calls, _goals(calls.like), start=1.0 + calls.case)


def _asks(trial: Trial) -> str:
    """steps(samples, batch) is a number of batches, local takes no more, and asks has names."""
    method, allowed = trial.method, get_args(Asked)
    unknown = ", ".join(map(repr, sorted(method.asks - {*allowed})))
    demand(not unknown, f"asks names {unknown}; it may name {', '.join(sorted(allowed))}")
    for sizes in ((40, 16), (16, 16), (3, 16), (1, 1)):
        count: Any = method.steps(*sizes)
        whole = type(count) is int and count >= 1
        demand(whole, f"steps{sizes} is {count!r}; a whole number of batches ≥ 1 is needed")
        one = count == 1 or "one_batch" not in method.asks
        demand(one, f"asks names 'one_batch', and steps{sizes} is {count}")
    steps, taken = method.steps(40, 16), _train(Calls(method), _goals(), rounds=1)[2]
    demand(taken <= steps, f"local takes {taken} batches, steps says {steps}; the engine counts and pays by steps")
    return f"{taken} of {steps} batches"


def _clients_apart(trial: Trial) -> None:
    """A client's message depends on its own row alone."""
    remedy = "norms and sums are over the last dimension (gradient.norm(dim=-1, keepdim=True))"
    what = f"a client's message depends on the other rows; {remedy}"
    demand_rowwise(lambda goals: _train(Calls(trial.method), goals, rounds=1)[0], _goals(), what)


def _learns(trial: Trial) -> str:
    """It comes nearer to the optimum of a quadratic."""
    best, made = _goals().mean(0), _train(Calls(trial.method), _goals(), rounds=40, noise=0.0)[1]
    start, end = float((1.0 - best).norm()), float((made - best).norm())
    way = f"take the model from {start:.3g} to {end:.3g} from the optimum; is a sign wrong?"
    demand(end < start, f"40 rounds on a convex quadratic, without attackers, {way}")
    return f"from {start:.3g} to {end:.3g} from a quadratic's optimum in 40 rounds"


ALGORITHM = Suite(
    laws_of(
        Law("steps", _asks), Law("clients apart", _clients_apart), PRECISION, Law("learns", _learns, waivable=True)
    ),
    _training,
)


# --- objectives ------------------------------------------------------------------------------------------------------

_CLASSES, _BATCH = 3, 6


def _user(
    method: Objective, adversarial: bool, case: int = 0, like: Tensor = DOUBLE, norm: str = ""
) -> tuple[nn.Module, Tensor, Tensor, Task]:
    """A small network, with branches where the objective needs them, a batch without the last class, and the task."""
    scheme = create("norm", norm or ("dual-bn(local=true)" if method.needs_branches else "gn(groups=1)"))
    made = network(lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3), scheme.layer(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, _CLASSES)
    ), like)  # fmt: skip
    prior, draws = torch.tensor([0.5, 0.5, 0.0], device=like.device), stream(1, "objective", device=like.device)
    task = Task(20, adversarial, prior, create("evasion", "fgsm(eps=0.1)"), draws)
    x = uniform(_BATCH, 1, 4, 4, like=like, seed=case)
    return made.train(), x, torch.arange(_BATCH, device=like.device) % 2, task


def _trained(calls: Calls, adversarial: bool) -> tuple[Tensor, ...]:
    method, (model, x, y, task) = calls.method, _user(calls.method, adversarial, calls.case, calls.like)
    parameters = {f"parameter {name}": p.detach() for name, p in model.named_parameters()}
    method.backward(model, x, y, task)
    loss = calls(method.backward, model, x, y, task, wanted=[x.new_empty(())], also=parameters)
    calls.found.extend(_gradients(model))
    return loss.detach(), *_gradients(model)


def _backward(calls: Calls) -> None:
    for adversarial in (False, True):
        _trained(calls, adversarial)


def _gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def _model_as_before(trial: Trial) -> None:
    """Modes and flags of the network are as before, and gradients reach it."""
    for role in ("ST", "AT"):
        model, x, y, task = _user(trial.method, role == "AT")
        with unchanged(model, gradients=False):
            trial.method.backward(model, x, y, task)
        reached = any(bool(gradient.any()) for gradient in _gradients(model))
        demand(reached, f"no parameter got a gradient from a batch of an {role} user")


def _per_sample(trial: Trial) -> str | None:
    """A plain objective's loss of a sample is its own, and backward that of their mean."""
    method = trial.method
    if not method.plain:
        return "it is not plain: clients are trained one after another"
    model, x, y, task = _user(method, adversarial=False)
    logits, prior = model(x).detach(), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    each, shares = (method.per_sample(logits, y, p) for p in (prior, prior.expand(_BATCH, -1)))
    alike = each.shape == (_BATCH,) and torch.allclose(each, shares, rtol=1e-9, atol=1e-12)
    demand(alike, f"per_sample must give one loss [b] a sample, the same for class shares [c] and [b c]: {each}")
    what = "a sample's loss depends on the rest of the batch, which holds the samples of all clients of a round"
    demand_rowwise(lambda z: method.per_sample(z, z.new_ones(len(z)).long(), prior), logits, what)
    loss, found = method.backward(model, x, y, task), _gradients(model)
    model.zero_grad()
    expected = method.per_sample(model(x), y, task.prior).mean()
    expected.backward()
    equal = all(map(torch.allclose, [loss.float(), *found], [expected.detach().float(), *_gradients(model)]))
    demand(equal, f"backward returns {float(loss):.6g}, the mean of per_sample is {float(expected.detach()):.6g}")
    return None


def _roles(trial: Trial) -> str | None:
    """Users with adversarial training train otherwise, where it is made for them."""
    alike = same(*(_trained(Calls(trial.method), adversarial) for adversarial in (False, True)))
    made_for_them = alike and trial.method.needs_adversaries
    demand(not made_for_them, "needs_adversaries is True, but AT users and ST users train alike")
    return "fact: AT users and ST users train alike" if alike else None


def _trains_clean(trial: Trial) -> str | None:
    """Of layers with branches AT users train the clean one, if trains_clean."""
    model, x, y, task = _user(trial.method, adversarial=True, norm="dual-bn(local=true)")
    trial.method.backward(model, x, y, task)
    seen = any(bool(m.clean.report()[2].any()) for m in model.modules() if isinstance(m, DualBatchNorm))
    said, way = trial.method.trains_clean, "train" if seen else "never go through"
    demand(seen == said, f"trains_clean is {said}, but batches of AT users {way} the clean branch")
    return None if seen else "fact: AT users train no clean branch"


OBJECTIVE = Suite(
    laws_of(
        Law("model untouched", _model_as_before),
        Law("samples apart", _per_sample),
        Law("clean branch", _trains_clean),
        Law("roles", _roles),
    ),
    _backward,
)
