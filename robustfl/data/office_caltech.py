"""Office-Caltech10's domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.data.listed import Listed
from robustfl.parameters import param
from robustfl.registry import register

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    "back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug",
    "projector",
)  # fmt: skip


@register("office-caltech", version=1)
@dataclass(frozen=True)
class OfficeCaltech(Listed):
    """One domain of Office-Caltech10 in FedBN's layout, 3×256×256.

    Expected under the data root: ``office_caltech_10/<domain>_train.pkl`` and ``_test.pkl`` (paths, class names or
    numbers) and the images they name.

    >>> OfficeCaltech(domain="dslr").domain
    'dslr'

    Reference: Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012.
    """

    paper: ClassVar[str] = "@gong2012geodesic; layout of @li2021fedbn"
    folder: ClassVar[str] = "office_caltech_10"
    classes: ClassVar[tuple[str, ...]] = CLASSES

    domain: str = param("amazon", choices=DOMAINS, doc="the domain")
