"""The laws of Byzantine attacks and of evasion attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from robustfl.contracts import Attack, Evasion, Forged, Rehearsal, View
from robustfl.defenses import parse_pipeline
from robustfl.randomness import stream
from robustfl.results import pair
from robustfl.testing.common import D, check_pixels, laws_of, rows
from robustfl.testing.suite import DOUBLE, Broken, Law, Suite, Trial

# --- Byzantine attacks -----------------------------------------------------------------------------------------------

_SIZES = ((7, 2), (9, 3), (7, 2), (1, 1))


def view_of(attack: Attack, case: int = 0, like: Tensor = DOUBLE) -> View:
    """The view that the engine would hand the attack, which in case 2 is of batch-norm statistics."""
    h, f = _SIZES[case]
    honest, own, server = rows(h, like), rows(f, like, seed=7), parse_pipeline("median")
    view = View(
        n=h + f, f=f, honest=honest, own=own, aggregate=Rehearsal(lambda stack: server(stack, f=0)), round=case,
        previous=honest.mean(0) if case else None,
    )  # fmt: skip
    if case == 2:
        mask = torch.arange(D, device=like.device) >= D // 2
        origin = torch.arange(1.0, D + 1).to(like)
        rehearsal = Rehearsal(lambda stack: server(stack, f=0), origin=origin)
        view = dataclasses.replace(
            view, channel="statistics", variance=mask, honest=honest.abs(), own=own.abs(), aggregate=rehearsal
        )
    return view.redacted(attack)


def _forging(method: Attack, ask: Callable[..., Any], case: int, like: Tensor) -> None:
    view = view_of(method, case, like)

    def forge(view: View) -> Forged:
        shown = {f"view.{n}": getattr(view, n) for n in ("honest", "own", "previous")}
        shown |= {f"view.state[{name!r}]": value for name, value in view.state.items()}
        draws, wanted = stream(1, "attack", device=like.device), [like.new_empty(view.f, D)]
        return Forged.of(ask("forge", lambda: method.forge(view, generator=draws), wanted, shown, own=True))

    if state := forge(view).state:
        forge(dataclasses.replace(view, round=view.round + 1, state=state))
    x, y = _batch(like)
    if method.poisons_data:
        ask("poison", lambda: _poisoned(method, x, y), [x, y], {"x": x, "y": y})
    if method.triggers:
        ask("trigger", lambda: method.trigger(x), [x], {"x": x})


def _batch(like: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 3, 8, 8, generator=stream(0, "pixels"), dtype=torch.float64)
    return x.to(like), torch.arange(6, device=like.device) % 5


def _poisoned(method: Attack, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    draws = stream(1, "poison", device=x.device)
    made = method.poison(x, y, classes=5, generator=draws, attacker=1, round=2)
    return pair(made, "images, labels", method, "poison()")


def _images(trial: Trial) -> str | None:
    """Poisoned and stamped images are in [0, 1], labels known; a trigger shows."""
    method = trial.method
    x, y = _batch(DOUBLE)
    images, labels = _poisoned(method, x.clone(), y.clone())
    if not method.poisons_data and not (torch.equal(images, x) and torch.equal(labels, y)):
        raise Broken("poison changes the batch, but poisons_data is False")
    check_pixels(images, "poisoned")
    if not (int(labels.min()) >= 0 and int(labels.max()) < 5):
        raise Broken(f"poisoned labels reach from {int(labels.min())} to {int(labels.max())}; there are 5 classes")
    if not method.triggers:
        return None
    if type(method.target) is not int:
        raise Broken(f"triggers is True and target is {method.target!r}, not a class")
    stamped = method.trigger(x)
    if torch.equal(stamped, x):
        raise Broken("trigger leaves images as they are")
    check_pixels(stamped, "stamped")
    return f"target class {method.target}"


def _lacks(attack: Attack) -> str:
    view = view_of(attack)
    names = (f.name for f in dataclasses.fields(view) if f.name not in ("channel", "round", "state", "shapes"))
    holds = ", ".join(name for name in names if getattr(view, name) is not None)
    return f"; with knowledge={attack.knowledge!r} the view holds {holds} only"


ATTACK = Suite(
    laws_of(Law("images", _images)),
    _forging, more={"statistics": False, "h=1, f=1": True}, lacks=_lacks,
)  # fmt: skip


# --- evasion attacks -------------------------------------------------------------------------------------------------

_CLASSES, _ROUNDING = 5, 1e-5


def _pixels(like: Tensor = DOUBLE) -> tuple[Tensor, Tensor]:
    """Four images, some pixels on the border of their range, and their labels."""
    x = torch.rand(4, 3, 8, 8, generator=stream(0, "pixels"), dtype=torch.float64)
    x[0], x[1, 0] = 0.0, 1.0
    return x.to(like), torch.tensor([0, 1, 2, 3], device=like.device)


def _small_network(like: Tensor = DOUBLE) -> nn.Sequential:
    """A network in training mode whose normalization and dropout show whether it is attacked in evaluation mode."""
    with torch.random.fork_rng(devices=[]):  # constructors draw from the global generator
        network = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(),
            nn.Linear(36, _CLASSES),
        )  # fmt: skip
    for i, parameter in enumerate(network.parameters()):
        nn.init.normal_(parameter.data, std=0.5, generator=stream(i, "weights"))
    network[1].eval()  # one layer is not in the mode of the others, and must stay so
    return network.to(like)


def _perturbing(method: Evasion, ask: Callable[..., Any], case: int, like: Tensor) -> None:
    x, y = _pixels(like)
    x, y = ((x, y), (x[:3].flip(-1), y[:3]), (x[:0], y[:0]))[case]
    draws = stream(1, "evasion", device=like.device)
    ask("perturb", lambda: method.perturb(_small_network(like), x, y, generator=draws), [x], {"x": x, "y": y})


def _perturbed(method: Evasion, network: nn.Module | None = None) -> Tensor:
    network = _small_network() if network is None else network
    return method.perturb(network, *_pixels(), generator=stream(1, "evasion"))


def _ball(trial: Trial) -> str | None:
    """x_adv lies within eps of x and in [0, 1], and is x where eps is 0."""
    for network in (_small_network(), _small_network().eval()):
        check_pixels(_perturbed(trial.method, network), "x_adv: its")
    eps, (x, _) = getattr(trial.method, "eps", None), _pixels()
    if not isinstance(eps, float):
        return "it has no parameter eps"
    norm = getattr(trial.method, "norm", "linf")
    moved = (_perturbed(trial.method) - x).flatten(1)
    reach = float((moved.norm(dim=1) if norm == "l2" else moved.abs().amax(dim=1)).max())
    if reach > eps + _ROUNDING:
        raise Broken(f"x_adv lies {reach:g} from x ({norm}); eps is {eps:g}")
    with suppress(ValueError):  # eps=0 may be refused
        if not torch.equal(_perturbed(dataclasses.replace(trial.method, eps=0.0)), x):
            raise Broken("with eps=0 it moves pixels")
    return f"{reach:.4g} of {eps:.4g} ({norm})"


@contextmanager
def unchanged(network: nn.Module, *, gradients: bool = True) -> Iterator[None]:
    """Raise ``Broken`` unless modes, flags, values, hooks and gradients of the network are as before."""

    def facts() -> dict[str, object]:
        found: dict[str, object] = {}
        for name, module in network.named_modules():
            found[f"mode or hooks of {name or 'model'}"] = module.training, len(module._forward_hooks)
        for name, p in network.named_parameters():
            found[f"requires_grad of {name}"] = p.requires_grad
            found[f"gradient of {name}"] = None if p.grad is None or not gradients else p.grad.tolist()
        return found | {name: value.tolist() for name, value in network.state_dict().items()}

    before = facts()
    yield
    if wrong := [name for name, now in facts().items() if now != before.get(name)]:
        raise Broken(f"{wrong[0]} is not as before; put back what you change")


class _Interrupted(Exception):
    pass


def _model(trial: Trial) -> str | None:
    """Modes, flags, values, gradients and hooks are as before, also after an error."""
    for fails_at in (0, 1, 3):
        network, seen = _small_network(), list[int]()

        def fail(*_: Any, fails_at: int = fails_at, seen: list[int] = seen) -> None:
            seen.append(1)
            if len(seen) == fails_at:
                raise _Interrupted

        network(_pixels()[0]).sum().backward()
        next(network.parameters()).requires_grad_(False)
        network.register_forward_pre_hook(fail)
        with unchanged(network), suppress(_Interrupted):
            _perturbed(trial.method, network)
    return None


def _evaluation_mode(trial: Trial) -> str | None:
    """The model is attacked as it is served."""
    network, modes = _small_network(), list[bool]()
    network.register_forward_pre_hook(lambda module, inputs: modes.append(any(m.training for m in module.modules())))
    _perturbed(trial.method, network)
    if any(modes):
        raise Broken("the model was attacked in training mode; its dropout and batch statistics are not what is served")
    return f"{len(modes)} forwards"


def _callers(trial: Trial) -> str | None:
    """Neither the caller's gradient mode matters nor that there is no generator."""
    with torch.no_grad():
        off = _perturbed(trial.method)
    if not torch.equal(off, _perturbed(trial.method)):
        raise Broken("under torch.no_grad() it finds another x_adv; switch gradients on where they are needed")
    once, again = (trial.method.perturb(_small_network(), *_pixels()) for _ in range(2))
    if not torch.equal(once, again):
        raise Broken(
            "without a generator two calls differ; take a stream of your own: stream(0, name, device=x.device)"
        )
    return None


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
