"""Users of several domains: who has which samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from robustfl.data.checks import Array
from robustfl.errors import Refused, UsageError
from robustfl.parameters import check, param


@dataclass(frozen=True)
class UserSlice:
    """One user's samples: indices into the training and test images of all domains, one domain after another."""

    domain: int
    train: Array
    validation: Array
    test: Array


@dataclass(frozen=True)
class DirichletSizes:
    """Training blocks of unequal length: every user gets ``least`` images and a share of the others, ``q ~ Dir(α·1)``.

    A domain's users share its images by one draw. With α = 1 all shares are equally likely; the smaller α, the more
    unequal the users. What rounding leaves over belongs to the last user. Test blocks stay equal, since they only
    measure (the released code of FedRBN, with α = 1 and 100 images at least, draws their lengths too).
    """

    name: ClassVar[str] = "dirichlet"

    alpha: float = param(1.0, gt=0, doc="concentration of the shares")
    least: int = param(2, ge=1, doc="images every user has at least")

    def __post_init__(self) -> None:
        check(self)

    def lengths(self, total: int, users: int, generator: np.random.Generator) -> list[int]:
        """The lengths of ``users`` blocks of ``total`` images. Raises ``Refused`` where these are too few."""
        spare = total - users * self.least
        if spare < 0:
            raise Refused(f"user_sizes: {users} users of {self.least} images at least, and the domain has {total}")
        shares = generator.dirichlet([self.alpha] * users)
        lengths = [self.least + int(share * spare) for share in shares]
        lengths[-1] += total - sum(lengths)
        return lengths


def equal_blocks(total: int, users: int) -> list[int]:
    """The lengths of ``users`` equal blocks; what the division leaves over is not used."""
    return [total // users] * users


def domain_split(
    sizes: Sequence[int],
    test_sizes: Sequence[int],
    *,
    users: int | Sequence[int],
    share: float = 1.0,
    validation: float = 0.0,
    blocks: Callable[[int, int], list[int]] = equal_blocks,
) -> list[UserSlice]:
    """Consecutive blocks of every domain for its ``users``, domain by domain.

    ``sizes`` and ``test_sizes`` are the domains' numbers of images, ``users`` of their users (one number: equally
    many). Domains are truncated to the smallest; of what is left ``share`` of the training images is cut into equal
    blocks, one per user of the domain, so that few users have long ones, and so are all test images. The last
    ``validation`` share of every training block is kept aside. Images left over by the division are not used (the
    released code of FedRBN gives them to the last user, and cuts up whole test sets, which makes users unequal).
    ``blocks(total, users)`` gives the lengths of a domain's training blocks. Raises ``Refused`` if a user would be left
    without training or test images.

    >>> first, second = domain_split([10, 8], [4, 6], users=1, validation=0.5)
    >>> second.train.tolist(), second.validation.tolist(), second.test.tolist()
    ([10, 11, 12, 13], [14, 15, 16, 17], [4, 5, 6, 7])
    """
    counts = [users] * len(sizes) if isinstance(users, int) else list(users)
    _check_domains(sizes, test_sizes, users, counts, share=share, validation=validation)
    usable = int(min(sizes) * share + 1e-9)
    slices, start, test_start = [], 0, 0
    for domain, n in enumerate(counts):
        lengths = blocks(usable, n)
        each_test = min(test_sizes) // n
        shortest = min(lengths)
        kept = shortest - _held(shortest, validation)
        if kept < 1 or each_test < 1:
            raise Refused(
                f"{n} users per domain get {kept} training and {each_test} test images each: the smallest "
                f"domain has {min(sizes)} and {min(test_sizes)}; share={share:g} of the former is used, "
                f"validation={validation:g} of that kept aside"
            )
        at = start
        for user, length in enumerate(lengths):
            block = np.arange(at, at + length, dtype=np.int64)
            test = np.arange(test_start + user * each_test, test_start + (user + 1) * each_test, dtype=np.int64)
            trained = length - _held(length, validation)
            slices.append(UserSlice(domain, block[:trained], block[trained:], test))
            at += length
        start += sizes[domain]
        test_start += test_sizes[domain]
    return slices


def _check_domains(
    sizes: Sequence[int],
    test_sizes: Sequence[int],
    users: int | Sequence[int],
    counts: Sequence[int],
    *,
    share: float,
    validation: float,
) -> None:
    if not len(sizes) == len(test_sizes) == len(counts) or not sizes:
        raise UsageError(
            f"{len(sizes)} training and {len(test_sizes)} test sets, {len(counts)} with users, are no domains"
        )
    if min(counts) < 1 or not 0 < share <= 1 or not 0 <= validation < 1:
        raise UsageError(f"users={users} must be ≥ 1, share={share:g} in (0, 1], validation={validation:g} in [0, 1)")


def _held(length: int, validation: float) -> int:
    """The images of a block that are kept aside."""
    return int(length * validation + 1e-9)
