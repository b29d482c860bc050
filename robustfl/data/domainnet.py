"""DomainNet's domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robustfl.data.listed import Listed
from robustfl.parameters import param
from robustfl.registry import register

DOMAINS = ("real", "clipart", "infograph", "painting", "quickdraw", "sketch")
CLASSES = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip


@register("domainnet", version=1)
@dataclass(frozen=True)
class DomainNet(Listed):
    """One domain of DomainNet's ten classes as FedBN uses them, 3×256×256.

    Expected under the data root: ``DomainNet/<domain>_train.pkl`` and ``_test.pkl`` (FedBN: paths, class names) or the
    official lists ``<domain>_train.txt`` (``path label``, filtered by the folder's class and shuffled), and the images.
    Whatever is not RGB is converted to it; FedBN turns pictures with four channels grey.

    >>> DomainNet(domain="sketch").size
    256

    Reference: Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019, arXiv:1812.01754; classes
    bird, feather, headphones, ice_cream, teapot, tiger, whale, windmill, wine_glass, zebra.
    """

    paper: ClassVar[str] = "@peng2019moment; ten classes of @li2021fedbn"
    folder: ClassVar[str] = "DomainNet"
    classes: ClassVar[tuple[str, ...]] = CLASSES

    domain: str = param("real", choices=DOMAINS, doc="the domain")
