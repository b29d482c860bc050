"""Doubts about robust accuracies: odd radii, short ways, and whether gradients are to be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from robustfl.contracts import Evasion
from robustfl.registry import create, describe

from .pgd import PGD

_MARGIN = 0.01


def odd_radius(evasion: Evasion) -> str:
    """A doubt about a radius of 0, or one in units of 255 where pixels reach from 0 to 1; empty without one.

    >>> odd_radius(create("evasion", "fgsm(eps=8)"))
    'fgsm(eps=8) reaches every image: pixels lie in [0, 1]; is eps = 8/255 meant?'
    """
    eps, name = getattr(evasion, "eps", None), _called(evasion)
    if eps == 0:
        return f"{name} changes no image: eps = 0"
    if isinstance(eps, (int, float)) and eps >= 1 and getattr(evasion, "norm", "linf") == "linf":
        return f"{name} reaches every image: pixels lie in [0, 1]; is eps = {eps:g}/255 meant?"
    return ""


_USUAL = {
    ("mnist", "linf"): 0.3, ("cifar10", "linf"): 8 / 255, ("cifar10", "l2"): 0.5, ("cifar100", "linf"): 8 / 255,
}  # fmt: skip
"""Radii at which robust accuracy is usually reported: Madry et al. 2018; RobustBench (Croce et al. 2021)."""


def small_radius(evasions: Iterable[Evasion], dataset: str) -> str:
    """A doubt about attacks all of which stay below the radius usual for a data set; "" where none is known.

    >>> small_radius([create("evasion", "pgd")], "mnist")
    'eps = 8/255 (linf) is small for mnist: robust accuracy is usually reported at 0.3'
    """
    largest: dict[str, float] = {}
    for part in (part for e in evasions for part in ((e,) if hasattr(e, "eps") else _parts(e))):
        eps, norm = getattr(part, "eps", None), getattr(part, "norm", "linf")
        if isinstance(eps, (int, float)):
            largest[norm] = max(eps, largest.get(norm, 0.0))
    return "; ".join(
        f"eps = {radius_text(eps)} ({norm}) is small for {dataset}: robust accuracy is usually reported at "
        f"{radius_text(_USUAL[dataset, norm])}"
        for norm, eps in largest.items()
        if 0 < eps < 0.999 * _USUAL.get((dataset, norm), 0.0)
    )


def radius_text(eps: float) -> str:
    """A radius as papers write it.

    >>> radius_text(8 / 255), radius_text(0.3)
    ('8/255', '0.3')
    """
    text, levels = f"{eps:.3g}", eps * 255
    return f"{levels:.0f}/255" if float(text) != eps and abs(levels - round(levels)) < 1e-6 else text


def short_way(evasion: Evasion) -> str:
    """A doubt about PGD whose steps together are shorter than its radius, or nothing.

    >>> short_way(create("evasion", "pgd(eps=0.1, steps=3)"))
    'pgd(eps=0.1, steps=3) does not cross its ball: 3 steps of 0.025 are less than eps = 0.1'
    """
    if not isinstance(evasion, PGD) or evasion.steps * evasion.step_size >= evasion.eps:
        return ""
    way = f"{evasion.steps} steps of {evasion.step_size:.3g}"
    return f"{_called(evasion)} does not cross its ball: {way} are less than eps = {evasion.eps:.3g}"


def _called(evasion: Evasion) -> str:
    """As it is written, or the name of a class that is not registered."""
    return describe(evasion) if evasion.name else type(evasion).__name__


def masking(report: Mapping[str, float]) -> str | None:
    """A warning where an attack without gradients leaves less robust accuracy than all those with them, or None.

    ``report`` maps specs to robust accuracies in [0, 1]. A black box knows less, so if it wins by more than a point
    gradients are masked, or the white-box attacks are too short. Compared are attacks in balls of one norm, the black
    box in the same ball or a smaller one; ``lsa``, bounded by no ball, with all. Attacks made of both kinds say
    nothing, nor do corruptions.

    Reference: Athalye, Carlini, Wagner, Obfuscated Gradients Give a False Sense of Security: Circumventing Defenses to
    Adversarial Examples, ICML 2018, arXiv:1802.00420.

    >>> masking({"pgd": 0.6, "square": 0.3})
    'gradients may be masked: robust accuracy is 30.0 % under square, without gradients, but 60.0 % under pgd'
    >>> masking({"pgd": 0.3, "square": 0.6})
    """
    built = {spec: made for spec in report if (made := create("evasion", spec)).adversarial}
    warnings = []
    for spec, attack in built.items():
        if not all(_black(part) for part in _parts(attack)):
            continue
        rivals = [other for other, white in built.items() if _rivals(white, attack)]
        strongest = min(rivals, key=report.__getitem__, default=None)
        if strongest is not None and report[spec] < report[strongest] - _MARGIN:
            unbounded = "" if hasattr(attack, "eps") or hasattr(attack, "parts") else " (which no ε bounds)"
            warnings.append(
                f"robust accuracy is {report[spec]:.1%} under {spec}, without gradients{unbounded}, "
                f"but {report[strongest]:.1%} under {strongest}"
            )
    return "gradients may be masked: " + "; ".join(warnings).replace("%", " %") if warnings else None


def _parts(attack: Evasion) -> tuple[Evasion, ...]:
    parts: tuple[Evasion, ...] = getattr(attack, "parts", (attack,))
    return parts


def _black(attack: Evasion) -> bool:
    return bool(getattr(attack, "black_box", False))


def _rivals(white: Evasion, black: Evasion) -> bool:
    """True if ``white`` uses gradients throughout, in a ball where it should do at least as well as ``black``."""
    parts = _parts(white)
    return not any(_black(part) for part in parts) and any(
        all(_holds(part, other) for other in _parts(black)) for part in parts
    )


def _holds(white: Evasion, black: Evasion) -> bool:
    """True if the ball of ``white`` holds that of ``black``; what has no radius is compared with everything."""
    ours, theirs = getattr(white, "eps", None), getattr(black, "eps", None)
    if ours is None or theirs is None:
        return True
    return getattr(white, "norm", "linf") == getattr(black, "norm", "linf") and bool(ours >= theirs)
