"""The laws of Byzantine attacks and of evasion attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from robustfl.contracts import Attack, Evasion, Forged, Rehearsal, View
from robustfl.defenses import parse_pipeline
from robustfl.randomness import stream
from robustfl.results import pair
from robustfl.testing.common import D, check_pixels, laws_of, network, rows, uniform
from robustfl.testing.suite import DOUBLE, Calls, Law, Suite, Trial, demand

_CLASSES, _SIZES = 5, ((7, 2), (9, 3), (7, 2), (1, 1))  # h and f of every case

# --- Byzantine attacks -----------------------------------------------------------------------------------------------


def view_of(attack: Attack, case: int = 0, like: Tensor = DOUBLE) -> View:
    """The view that the engine would hand the attack, which in case 2 is of batch-norm statistics."""
    h, f = _SIZES[case]
    honest, own, server, origin = rows(h, like), rows(f, like, seed=7), parse_pipeline("median"), None
    more: dict[str, Any] = {}
    if case == 2:
        honest, own, origin = honest.abs(), own.abs(), torch.arange(1.0, D + 1).to(like)
        more = {"channel": "statistics", "variance": torch.arange(D, device=like.device) >= D // 2}
    aggregate, previous = Rehearsal(lambda stack: server(stack, f=0), origin=origin), honest.mean(0) if case else None
    view = View(n=h + f, f=f, honest=honest, own=own, aggregate=aggregate, round=case, previous=previous, **more)
    return view.redacted(attack)


def _forging(calls: Calls) -> None:
    """Forge twice where the attack keeps a state; poison and stamp a batch of images."""
    method, like, view = calls.method, calls.like, view_of(calls.method, calls.case, calls.like)

    def forge(view: View) -> Forged:
        draws, wanted = stream(1, "attack", device=like.device), [like.new_empty(view.f, D)]
        return Forged.of(calls(method.forge, view, generator=draws, wanted=wanted, own=True))

    if state := forge(view).state:
        later = forge(dataclasses.replace(view, round=view.round + 1, state=state)).state
        demand(later.keys() == state.keys(), f"state was {sorted(state)} and is {sorted(later)} a round later")
    x, y = _batch(like)
    if method.poisons_data:
        _poisoned(calls, x, y)
    if method.triggers:
        calls(method.trigger, x, wanted=[x])


def _batch(like: Tensor = DOUBLE) -> tuple[Tensor, Tensor]:
    return uniform(6, 3, 8, 8, like=like), torch.arange(6, device=like.device) % _CLASSES


def _poisoned(calls: Calls, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    draws, method = stream(1, "poison", device=x.device), calls.method
    made = calls(method.poison, x, y, classes=_CLASSES, generator=draws, attacker=1, round=2, wanted=[x, y])
    return pair(made, "images, labels", method, "poison()")


def _images(trial: Trial) -> str | None:
    """Poisoned and stamped images are in [0, 1], labels known; a trigger shows."""
    method, (x, y) = trial.method, _batch()
    images, labels = _poisoned(Calls(method), x.clone(), y.clone())
    declared = method.poisons_data or (torch.equal(images, x) and torch.equal(labels, y))
    demand(declared, "poison changes the batch, but poisons_data is False")
    check_pixels(images, "poisoned")
    low, high = int(labels.min()), int(labels.max())
    demand(0 <= low <= high < _CLASSES, f"poisoned labels reach from {low} to {high}; there are {_CLASSES} classes")
    if not method.triggers:
        return None
    demand(type(method.target) is int, f"triggers is True and target is {method.target!r}, not a class")
    stamped = method.trigger(x)
    demand(not torch.equal(stamped, x), "trigger leaves images as they are")
    check_pixels(stamped, "stamped")
    return f"target class {method.target}"


def _reference(trial: Trial) -> str | None:
    """It sends what its reference says, up to rounding."""
    for case in (0, 1):
        view = view_of(trial.method, case)
        wanted = trial.method.reference_row(view)
        if wanted is None:
            return "it has none: the attack itself reads like the paper"
        made = Forged.of(trial.method.forge(view, generator=stream(1, "attack"))).rows
        away = float((made - wanted).abs().max())
        demand(away <= 1e-6 * float(wanted.abs().max()), f"it is {away:.3g} away from its reference")
    return None


def _lacks(attack: Attack) -> str:
    view = view_of(attack)
    names = (f.name for f in dataclasses.fields(view) if f.name not in ("channel", "round", "state", "tensors"))
    holds = ", ".join(name for name in names if getattr(view, name) is not None)
    return f"; with knowledge={attack.knowledge!r} the view holds {holds} only"


ATTACK = Suite(
    laws_of(Law("images", _images), Law("reference", _reference)), _forging,
    more={"statistics": False, "h=1, f=1": True}, lacks=_lacks,
)  # fmt: skip


# --- evasion attacks -------------------------------------------------------------------------------------------------


def _pixels(like: Tensor = DOUBLE) -> tuple[Tensor, Tensor]:
    """Four images, some pixels on the border of their range, and their labels."""
    x = uniform(4, 3, 8, 8, like=like)
    x[0], x[1, 0] = 0.0, 1.0
    return x, torch.arange(4, device=like.device)


def _victim(like: Tensor = DOUBLE) -> nn.Sequential:
    """A network in training mode whose normalization and dropout show whether it is attacked in evaluation mode."""
    made = network(lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(36, _CLASSES),
    ), like)  # fmt: skip
    made[1].eval()  # one layer is not in the mode of the others, and must stay so
    return made


def _perturbing(calls: Calls) -> None:
    x, y = _pixels(calls.like)
    x, y = ((x, y), (x[:3].flip(-1), y[:3]), (x[:0], y[:0]))[calls.case]
    draws = stream(1, "evasion", device=x.device)
    calls(calls.method.perturb, _victim(calls.like), x, y, generator=draws, wanted=[x])


def _perturbed(method: Evasion, victim: nn.Module | None = None) -> Tensor:
    return method.perturb(_victim() if victim is None else victim, *_pixels(), generator=stream(1, "evasion"))


def _ball(trial: Trial) -> str:
    """x_adv lies within eps of x and in [0, 1], and is x where eps is 0."""
    for victim in (_victim(), _victim().eval()):
        check_pixels(_perturbed(trial.method, victim), "x_adv: its")
    eps, norm, (x, _) = getattr(trial.method, "eps", None), getattr(trial.method, "norm", "linf"), _pixels()
    if not isinstance(eps, float):
        return "it has no parameter eps"
    order = 2 if norm == "l2" else torch.inf
    reach = float((_perturbed(trial.method) - x).flatten(1).norm(order, dim=1).max())
    demand(reach <= eps + 1e-5, f"x_adv lies {reach:g} from x ({norm}); eps is {eps:g}")
    with suppress(ValueError):  # eps=0 may be refused
        still = _perturbed(dataclasses.replace(trial.method, eps=0.0))
        demand(torch.equal(still, x), "with eps=0 it moves pixels")
    return f"{reach:.4g} of {eps:.4g} ({norm})"


@contextmanager
def unchanged(model: nn.Module, *, gradients: bool = True) -> Iterator[None]:
    """Raise ``Broken`` unless modes, flags, values, hooks and gradients of the network are as before."""

    def facts() -> dict[str, object]:
        found: dict[str, object] = {name: value.tolist() for name, value in model.state_dict().items()}
        for name, module in model.named_modules():
            found[f"mode or hooks of {name or 'model'}"] = module.training, len(module._forward_hooks)
        for name, p in model.named_parameters():
            found[f"requires_grad of {name}"] = p.requires_grad
            found[f"gradient of {name}"] = None if p.grad is None or not gradients else p.grad.tolist()
        return found

    before = facts()
    yield
    for name, now in facts().items():
        demand(now == before.get(name), f"{name} is not as before; put back what you change")


class _Interrupted(Exception):
    pass


def _model(trial: Trial) -> None:
    """Modes, flags, values, gradients and hooks are as before, also after an error."""
    for fails_at in (0, 1, 3):
        victim, forwards = _victim(), iter(range(1, 1_000_000))

        def fail(*_: Any, fails_at: int = fails_at, forwards: Iterator[int] = forwards) -> None:
            if next(forwards) == fails_at:
                raise _Interrupted

        victim(_pixels()[0]).sum().backward()
        next(victim.parameters()).requires_grad_(False)
        victim.register_forward_pre_hook(fail)
        with unchanged(victim), suppress(_Interrupted):
            _perturbed(trial.method, victim)


def _evaluation_mode(trial: Trial) -> str:
    """The model is attacked as it is served."""
    victim, modes = _victim(), list[bool]()
    victim.register_forward_pre_hook(lambda module, inputs: modes.append(any(m.training for m in module.modules())))
    _perturbed(trial.method, victim)
    why = "its dropout and batch statistics are not what is served"
    demand(not any(modes), f"the model was attacked in training mode; {why}")
    return f"{len(modes)} forwards"


def _callers(trial: Trial) -> None:
    """Neither the caller's gradient mode matters nor that there is no generator."""
    with torch.no_grad():
        off = _perturbed(trial.method)
    mode = "under torch.no_grad() it finds another x_adv; switch gradients on where they are needed"
    demand(torch.equal(off, _perturbed(trial.method)), mode)
    once, again = (trial.method.perturb(_victim(), *_pixels()) for _ in range(2))
    own = "without a generator two calls differ; take a stream of your own: stream(0, name, device=x.device)"
    demand(torch.equal(once, again), own)


EVASION = Suite(
    laws_of(
        Law("ball", _ball, waivable=True),
        Law("model untouched", _model),
        Law("evaluation mode", _evaluation_mode),
        Law("callers", _callers),
    ),
    _perturbing,
    more={"an empty batch": False},
)
