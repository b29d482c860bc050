"""Cells that methods did wrong together, though each alone was right: told in the key, as a version would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from robustfl.algorithms import FedACG
from robustfl.attacks.byzantine import ROP, Lazy, Mimic, ModelReplacement, Neurotoxin, Opt, PoisonedFL
from robustfl.contracts import Attack
from robustfl.norms import HBN
from robustfl.objectives import WSM
from robustfl.registry import origin_of

from .cell import Cell


def _poisoned_priors(cell: Cell) -> bool:
    """Attackers with wrong labels weighed their classes by the right ones."""
    return isinstance(cell.methods.objective, WSM) and cell.f > 0 and cell.methods.attack.poisons_data


def _late_first_update(cell: Cell) -> bool:
    """HBN's first update took the λ of later ones where the first round drew attackers alone."""
    return isinstance(cell.methods.norm, HBN) and cell.participants <= cell.f and not cell.quota


def _clean_statistics(cell: Cell) -> bool:
    """HBN's pass over their data showed attackers what they had poisoned as it was before."""
    poisons = cell.f > 0 and cell.methods.attack.poisons_data
    return poisons and isinstance(cell.methods.norm, HBN) and cell.methods.norm.collection == "pass"


def _copied_server_data(cell: Cell) -> bool:
    """The server's images were drawn from those of all clients, attackers' copies among them."""
    return cell.server_samples > 0 and cell.attackers_data == "copied" and cell.f > 0


def _copied_validation(cell: Cell) -> bool:
    """Attackers who copy honest clients trained on a part of what these hold out."""
    return cell.validation > 0 and cell.attackers_data == "copied" and cell.f > 0


def _searched_first_push(cell: Cell) -> bool:
    """A search kept to the strength that it had found for poisonedfl's first round, in which that sends zeros."""
    return cell.f > 0 and any(isinstance(one, Opt) and "poisonedfl" in one.attack for one in _layers(cell))


def _attack_while_off(cell: Cell) -> bool:
    """A wrapper searched or scaled the honest work of rounds in which the attack it wraps is off."""
    changers = [one for one in _layers(cell) if isinstance(one, (Opt, ModelReplacement, Neurotoxin))]
    return cell.f > 0 and any(not one.on(t) for one in changers for t in range(cell.end))


def _rounded_weights(cell: Cell) -> bool:
    """Weights of a float64 file were rounded to float32 on the way into a float64 cell."""
    return cell.dtype == "float64" and cell.methods.init is not None


def _tested_round(cell: Cell) -> bool:
    """Where tests collect statistics anew or hand them on, attackers acted as in the round that was to come."""
    m, plan = cell.methods, cell.methods.norm.statistics_pass
    anew = m.propagation is not None or (plan is not None and plan.refreshes != "none")
    acts = cell.f > 0 and (cell.scope != "update" or m.attack.poisons_data)
    return anew and acts and any(m.attack.on(t) != m.attack.on(t - 1) for t in range(1, cell.end + 1))


def _forgetful_sources(cell: Cell) -> bool:
    """Attackers who forge what users hand on knew no last aggregate, and before tests nothing that they remember."""
    if cell.methods.propagation is None or not cell.methods.propagation.propagation.every_round:
        return False
    forged = cell.scope != "update" and bool(cell.settings.byzantine() & cell.adversarial)
    return forged and any(_remembers(one) for one in _layers(cell))


def _remembers(attack: Attack) -> bool:
    """True of an attack that looks back; what one from elsewhere does is not known."""
    if isinstance(attack, Mimic):
        return attack.variant == "variance"
    return isinstance(attack, (Lazy, PoisonedFL, ROP)) or bool(origin_of(attack))


def _outputs_elsewhere(cell: Cell) -> bool:
    """A defense that looks at outputs was shown clients' updates of a model that the server had not sent."""
    return isinstance(cell.methods.algorithm, FedACG) and cell.methods.defense.aggregator.sees_outputs


def _layers(cell: Cell) -> Iterator[Attack]:
    """The attack of a cell and those that it wraps, one within the other."""
    attack: Attack | None = cell.methods.attack
    while attack is not None:
        yield attack
        attack = attack.inner


MENDS: dict[str, Callable[[Cell], bool]] = {
    "poisoned-priors": _poisoned_priors,
    "late-first-update": _late_first_update,
    "copied-server-data": _copied_server_data,
    "clean-statistics": _clean_statistics,
    "copied-validation": _copied_validation,
    "searched-first-push": _searched_first_push,
    "attack-while-off": _attack_while_off,
    "rounded-weights": _rounded_weights,
    "tested-round": _tested_round,
    "forgetful-sources": _forgetful_sources,
    "outputs-elsewhere": _outputs_elsewhere,
}


def mends(cell: Cell) -> list[str]:
    """The names of what was mended in a cell without a new version of any of its methods."""
    return [name for name, concerns in MENDS.items() if concerns(cell)]
