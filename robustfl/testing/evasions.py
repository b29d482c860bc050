"""The laws of evasion attacks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustfl.contracts import Evasion
from robustfl.randomness import stream
from robustfl.testing.common import COMMON, FIRST, built
from robustfl.testing.guards import Broken, Differs, devices, expect, untouched
from robustfl.testing.suite import LIMIT, Check, Law, Trial, run

CLASSES, SHAPE = 5, (3, 8, 8)
ROUNDING = 1e-5


@dataclass(frozen=True)
class EvasionTrial(Trial[Evasion]):
    """An evasion attack, a small network it may not change, and images partly on the border of the pixel range."""

    def perturb(
        self,
        method: Evasion | None = None,
        *,
        model: nn.Module | None = None,
        batch: tuple[Tensor, Tensor] | None = None,
        seed: int = 1,
    ) -> Any:
        x, y = images() if batch is None else batch
        chosen = self.method if method is None else method
        network = model if model is not None else small_network(x.dtype, x.device)
        return chosen.perturb(network, x, y, generator=stream(seed, "evasion", device=x.device))

    def outcome(self, method: Evasion, case: int = 0) -> tuple[Tensor, ...]:
        x, y = images()
        return (self.perturb(method, batch=(x, y) if case == 0 else (x[:3].flip(-1), y[:3])),)


def images(dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
    """Four images and their labels."""
    x = torch.rand(4, *SHAPE, generator=stream(0, "pixels"), dtype=torch.float64)
    x[0], x[1, 0] = 0.0, 1.0
    return x.to(device, dtype), torch.tensor([0, 1, 2, 3], device=device)


def small_network(dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> nn.Sequential:
    """A network in training mode whose normalization and dropout show whether it is attacked in evaluation mode."""
    with torch.random.fork_rng(devices=[]):  # constructors draw from the global generator
        network = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(),
            nn.Linear(36, CLASSES),
        )  # fmt: skip
    for i, parameter in enumerate(network.parameters()):
        nn.init.normal_(parameter.data, std=0.5, generator=stream(i, "weights"))
    network[1].eval()  # one layer is not in the mode of the others, and must stay so
    return network.to(device, dtype)


def _shape(trial: EvasionTrial) -> str | None:
    for device in devices():
        for dtype in (torch.float32, torch.float64):
            x, y = images(dtype, device)
            found = expect(trial.perturb(batch=(x, y)), x, tuple(x.shape), "x_adv", graph=True)
            if found.requires_grad:
                raise Broken("x_adv requires a gradient; return x_adv.detach()")
    return " and ".join(devices())


def _pixels(trial: EvasionTrial) -> str | None:
    for model in (small_network(), small_network().eval()):
        found = trial.perturb(model=model)
        low, high = float(found.min()), float(found.max())
        if not (low >= 0.0 and high <= 1.0):
            raise Broken(f"x_adv reaches from {low:g} to {high:g}; pixels lie in [0, 1]")
    return None


def _ball(trial: EvasionTrial) -> str | None:
    eps = getattr(trial.method, "eps", None)
    if not isinstance(eps, float):
        return "it has no parameter eps"
    norm = getattr(trial.method, "norm", "linf")
    x, _ = images()
    moved = (trial.perturb() - x).flatten(1)
    reach = float((moved.norm(dim=1) if norm == "l2" else moved.abs().amax(dim=1)).max())
    if reach > eps + ROUNDING:
        raise Broken(f"x_adv lies {reach:g} from x ({norm}); eps is {eps:g}")
    return f"{reach:.4g} of {eps:.4g} ({norm})"


def _inputs(trial: EvasionTrial) -> str | None:
    x, y = images()
    with untouched(x=x, y=y):
        trial.perturb(batch=(x, y))
    if x.requires_grad or x.grad is not None:
        raise Broken("x was made to require a gradient; work on x.detach().clone()")
    return None


@contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Raise ``Broken`` unless modes, flags, values, gradients and hooks of the network are as before."""

    def facts() -> dict[str, Any]:
        found: dict[str, Any] = {f"mode of {n or 'model'}": m.training for n, m in network.named_modules()}
        found |= {f"requires_grad of {n}": p.requires_grad for n, p in network.named_parameters()}
        found |= {f"hooks of {n or 'model'}": len(m._forward_hooks) for n, m in network.named_modules()}
        found |= {name: value.clone() for name, value in network.state_dict().items()}
        grads = {f"gradient of {n}": p.grad for n, p in network.named_parameters()}
        return found | {name: None if grad is None else grad.clone() for name, grad in grads.items()}

    before = facts()
    yield
    after = facts()
    for name, was in before.items():
        now = after.get(name)
        if isinstance(was, Tensor) or isinstance(now, Tensor):
            if not (isinstance(was, Tensor) and isinstance(now, Tensor) and torch.equal(was, now)):
                raise Broken(f"{name} changed")
        elif now != was:
            raise Broken(f"{name} was {was} and is {now} afterwards")


def _model(trial: EvasionTrial) -> str | None:
    network = small_network()
    x, _ = images()
    network(x).sum().backward()
    next(network.parameters()).requires_grad_(False)
    with unchanged(network):
        trial.perturb(model=network)
    return None


class _Interrupted(Exception):
    pass


def _after_exception(trial: EvasionTrial) -> str | None:
    """The network fails in its first or third forward; whatever the attack does then, the model is as before."""
    for fails_at in (1, 3):
        network = small_network()
        seen: list[int] = []

        def fail(*_: Any, fails_at: int = fails_at, seen: list[int] = seen) -> None:
            seen.append(1)
            if len(seen) == fails_at:
                raise _Interrupted

        network.register_forward_pre_hook(fail)
        with unchanged(network), suppress(_Interrupted):
            trial.perturb(model=network)
    return None


def _evaluation_mode(trial: EvasionTrial) -> str | None:
    network = small_network()
    modes: list[bool] = []
    network.register_forward_pre_hook(lambda module, inputs: modes.append(any(m.training for m in module.modules())))
    trial.perturb(model=network)
    if any(modes):
        raise Broken("the model was attacked in training mode; its dropout and batch statistics are not what is served")
    return f"{len(modes)} forwards"


def _without_gradients(trial: EvasionTrial) -> str | None:
    with torch.no_grad():
        off = trial.perturb()
    if not torch.equal(off, trial.perturb()):
        raise Differs("under torch.no_grad() it finds another x_adv; switch gradients on where they are needed")
    return None


def _empty(trial: EvasionTrial) -> str | None:
    x, y = images()
    expect(trial.perturb(batch=(x[:0], y[:0])), x, (0, *SHAPE), "x_adv of an empty batch")
    return None


def _no_generator(trial: EvasionTrial) -> str | None:
    x, y = images()
    model = small_network()
    once, again = (trial.fresh().perturb(copy.deepcopy(model), x, y) for _ in range(2))
    if not torch.equal(once, again):
        raise Differs(
            "without a generator two calls differ; take a stream of your own: stream(0, name, device=x.device)"
        )
    return None


def _zero(trial: EvasionTrial) -> str | None:
    if not isinstance(getattr(trial.method, "eps", None), float):
        return "it has no parameter eps"
    try:
        still: Evasion = dataclasses.replace(trial.method, eps=0.0)  # type: ignore[type-var]
    except ValueError as reason:
        return f"eps=0 is refused: {reason}"
    x, _ = images()
    if not torch.equal(trial.perturb(still), x):
        raise Broken("with eps=0 it moves pixels")
    return None


LAWS = (
    *FIRST,
    Law("shape, dtype and device", "x_adv is like x and needs no gradient", _shape),
    Law("pixels", "x_adv lies in [0, 1]", _pixels),
    Law("ball", "x_adv lies within eps of x", _ball, waivable=True),
    Law("zero radius", "with eps=0 x_adv is x", _zero, waivable=True),
    Law("inputs untouched", "x and y are not written to", _inputs),
    Law("model untouched", "modes, requires_grad, values, gradients and hooks are as before", _model),
    Law("model untouched after an error", "also when the model fails in between", _after_exception),
    Law("evaluation mode", "the model is attacked as it is served", _evaluation_mode),
    Law("under no_grad", "the caller's gradient mode does not matter", _without_gradients),
    Law("empty batch", "an empty batch gives an empty batch", _empty),
    Law("no generator", "without a generator it is deterministic too", _no_generator),
    *COMMON,
)


def check_evasion(method: str | Evasion | type[Evasion], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """The contract of an evasion attack, law by law.

    >>> all(check.passed for check in check_evasion("pgd", steps=2))
    True
    """
    return run(LAWS, EvasionTrial(built("evasion", method, params)), limit=limit)
