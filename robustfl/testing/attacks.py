"""The laws of Byzantine attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustfl.attacks import forge_statistics
from robustfl.contracts import Attack, Forged, Rehearsal, View
from robustfl.defenses import parse_pipeline
from robustfl.randomness import stream
from robustfl.testing.common import COMMON, FIRST, D, built, rows
from robustfl.testing.guards import (
    Broken,
    Differs,
    attempt,
    check_pixels,
    check_state,
    devices,
    expect,
    held,
    hinted,
    own_memory,
    same,
    tensor,
    untouched,
)
from robustfl.testing.suite import LIMIT, Check, Law, Trial, run


@dataclass(frozen=True)
class AttackTrial(Trial[Attack]):
    """An attack and the views it gets: what the engine would hand it."""

    def view(
        self, h: int = 7, f: int = 2, *, round: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu"
    ) -> View:
        honest = rows(h, dtype, device)
        return View(
            n=h + f,
            f=f,
            honest=honest,
            own=rows(f, dtype, device, seed=7),
            aggregate=Rehearsal(median()),
            round=round,
            previous=honest.mean(0) if round else None,
        ).redacted(self.method)

    def forged(self, view: View, method: Attack | None = None, seed: int = 1) -> Forged:
        """The rows the attack sends, and the state it wants to be handed next round."""
        device = next((t.device for t in (view.honest, view.own) if t is not None), torch.device("cpu"))
        chosen = self.method if method is None else method
        with hinted(chosen, view):
            made: Any = chosen.forge(view, generator=stream(seed, "attack", device=device))
        result = Forged.of(made)
        tensor(result.rows, "what forge returns")
        return result

    def forge(self, view: View) -> Tensor:
        """The forged rows."""
        return self.forged(view).rows

    def outcome(self, method: Attack, case: int = 0) -> tuple[Tensor, ...]:
        result = self.forged(self.view(7, 2) if case == 0 else self.view(9, 3, round=1), method)
        return (result.rows, *(result.state[k] for k in sorted(result.state)))


def median() -> Callable[[Tensor], Tensor]:
    """The coordinate-wise median as the server's aggregation."""
    pipeline = parse_pipeline("median")
    return lambda stack: pipeline(stack, f=0)


def _knowledge(trial: AttackTrial) -> str | None:
    allowed = ("blind", "partial", "omniscient", "defense")
    if trial.method.knowledge not in allowed:
        raise Broken(f"knowledge={trial.method.knowledge!r} must be one of {', '.join(allowed)}")
    trial.forge(trial.view())
    return f"{trial.method.knowledge}: {held(trial.view())}"


def _shape(trial: AttackTrial) -> str | None:
    refusals = []
    for h, f in ((7, 2), (3, 1), (1, 1)):
        view = trial.view(h, f)
        made, reason = attempt(trial.forge, view)
        if reason is not None and (h, f) == (7, 2):
            raise Broken(f"7 honest rows and 2 attackers are refused: {reason}")
        if reason is not None:
            refusals.append(f"h={h}, f={f}")
        elif tuple(made.shape) != (f, D):
            raise Broken(f"rows for h={h}, f={f}, d={D} have shape {tuple(made.shape)}, not {(f, D)}")
    return f"refused: {'; '.join(refusals)}" if refusals else None


def _kind(trial: AttackTrial) -> str | None:
    for device in devices():
        for dtype in (torch.float32, torch.float64):
            like = torch.empty(0, dtype=dtype, device=torch.device(device, 0) if device == "cuda" else device)
            expect(trial.forge(trial.view(dtype=dtype, device=device)), like, (2, D), "the result for such rows")
    return " and ".join(devices())


def _inputs(trial: AttackTrial) -> str | None:
    for h, round in ((1, 0), (5, 0), (5, 1)):
        view = trial.view(h, 2, round=round)
        shown = {"view.honest": view.honest, "view.own": view.own, "view.previous": view.previous}
        with untouched(**shown):
            made, reason = attempt(trial.forge, view)
        if reason is None:
            own_memory(made, "the result", *shown.values())
    return None


def _statistics(trial: AttackTrial) -> str | None:
    if not trial.method.forges:
        return "it forges nothing"
    mask = torch.arange(D) >= D // 2
    view = trial.view()
    honest, own = (None if t is None else t.abs() for t in (view.honest, view.own))
    aggregate = None if view.aggregate is None else Rehearsal(median(), origin=torch.arange(1.0, D + 1).double())
    view = dataclasses.replace(view, channel="statistics", variance=mask, honest=honest, own=own, aggregate=aggregate)
    with untouched(**{"view.honest": honest, "view.own": own}):
        made: Any = forge_statistics(trial.method, view, target="both", generator=stream(1, "attack"))
    sent = expect(
        Forged.of(made).rows, torch.empty(0, dtype=torch.float64), (2, D), "the result on batch-norm statistics"
    )
    if bool((sent[:, mask] < 0).any()):
        raise Broken("a forged variance is negative")
    return None


def _poison(trial: AttackTrial) -> str | None:
    method = trial.method
    x = torch.rand(6, 3, 8, 8, generator=stream(0, "pixels"))
    y = torch.arange(6) % 5

    def poisoned() -> tuple[Tensor, Tensor]:
        return trial.fresh().poison(x, y, classes=5, generator=stream(1, "poison"), attacker=1, round=2)

    if not method.poisons_data:
        new_x, new_y = poisoned()
        if not (torch.equal(new_x, x) and torch.equal(new_y, y)):
            raise Broken("poison changes the batch, but poisons_data is False")
        return "it poisons no data"
    with untouched(x=x, y=y):
        new_x, new_y = poisoned()
        again = poisoned()
    expect(new_x, x, tuple(x.shape), "poisoned x")
    expect(new_y, y, tuple(y.shape), "poisoned y")
    check_pixels(new_x, "poisoned")
    if not (int(new_y.min()) >= 0 and int(new_y.max()) < 5):
        raise Broken(f"poisoned labels reach from {int(new_y.min())} to {int(new_y.max())}; there are 5 classes")
    if not same((new_x, new_y), again):
        raise Differs("two calls with generators in the same state poison differently")
    return None


def _state(trial: AttackTrial) -> str | None:
    first = trial.forged(trial.view())
    if not first.state:
        return "it keeps no state"
    check_state(first.state)
    view = dataclasses.replace(trial.view(round=1), state=first.state)
    with untouched(**{f"view.state[{k!r}]": v for k, v in first.state.items()}):
        second, again = trial.forged(view), trial.forged(view)
    expect(second.rows, torch.empty(0, dtype=torch.float64), (2, D), "the result of the next round")
    if not same((second.rows,), (again.rows,)):
        raise Differs("two calls with the same state and generator give different results")
    return ", ".join(sorted(first.state))


def _trigger(trial: AttackTrial) -> str | None:
    method = trial.method
    if not method.triggers:
        return "it has no trigger"
    if type(method.target) is not int:
        raise Broken(f"triggers is True and target is {method.target!r}, not a class")
    x = torch.rand(6, 3, 8, 8, generator=stream(0, "pixels"))
    with untouched(x=x):
        stamped = expect(method.trigger(x), x, tuple(x.shape), "what trigger returns")
    if torch.equal(stamped, x):
        raise Broken("trigger leaves images as they are")
    check_pixels(stamped, "stamped")
    return f"target class {method.target}"


LAWS = (
    *FIRST,
    Law("knowledge", "it works with exactly the fields of the view it declares", _knowledge),
    Law("shape", "one row per attacker: [f d]", _shape),
    Law("dtype and device", "the rows are of the honest rows' dtype and on their device", _kind),
    Law("inputs untouched", "the view is neither written to nor handed back", _inputs),
    *COMMON,
    Law("statistics", "on batch-norm statistics it forges rows of the same kind, variances at least 0", _statistics),
    Law("poison", "poisoned batches stay batches: shape, dtype, pixels in [0, 1], known labels", _poison),
    Law("state", "state goes in by the view and out by the result", _state),
    Law("trigger", "stamped images are other images, and the target is a class", _trigger),
)


def check_attack(method: str | Attack | type[Attack], *, limit: float = LIMIT, **params: Any) -> list[Check]:
    """The contract of a Byzantine attack, law by law.

    >>> all(check.passed for check in check_attack("foe", eta=2))
    True
    """
    return run(LAWS, AttackTrial(built("attack", method, params)), limit=limit)
