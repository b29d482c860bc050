"""Users of several domains: who has which samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustfl.data.checks import Array
from robustfl.errors import Refused, UsageError


@dataclass(frozen=True)
class UserSlice:
    """One user's samples: indices into the training and test images of all domains, one domain after another."""

    domain: int
    train: Array
    validation: Array
    test: Array


def domain_split(
    sizes: Sequence[int], test_sizes: Sequence[int], *, users: int, share: float = 1.0, validation: float = 0.0
) -> list[UserSlice]:
    """Consecutive blocks of every domain for its ``users``, domain by domain.

    ``sizes`` and ``test_sizes`` are the domains' numbers of images. Domains are truncated to the smallest; of what is
    left ``share`` of the training images is cut into equal blocks, one per user, and so are all test images. The last
    ``validation`` share of every training block is kept aside. Images left over by the division are not used (the
    released code of FedRBN gives them to the last user, and cuts up whole test sets, which makes users unequal).
    Raises ``Refused`` if a user would be left without training or test images.

    >>> first, second = domain_split([10, 8], [4, 6], users=1, validation=0.5)
    >>> second.train.tolist(), second.validation.tolist(), second.test.tolist()
    ([10, 11, 12, 13], [14, 15, 16, 17], [4, 5, 6, 7])
    """
    if len(sizes) != len(test_sizes) or not sizes:
        raise UsageError(f"{len(sizes)} training and {len(test_sizes)} test sets are no domains")
    if users < 1 or not 0 < share <= 1 or not 0 <= validation < 1:
        raise UsageError(f"users={users} must be ≥ 1, share={share:g} in (0, 1], validation={validation:g} in [0, 1)")
    each = int(min(sizes) * share + 1e-9) // users
    each_test = min(test_sizes) // users
    held = int(each * validation + 1e-9)
    if each - held < 1 or each_test < 1:
        raise Refused(
            f"{users} users per domain get {each - held} training and {each_test} test images each: the smallest "
            f"domain has {min(sizes)} and {min(test_sizes)}; share={share:g} of the former is used, "
            f"validation={validation:g} of that kept aside"
        )
    slices, start, test_start = [], 0, 0
    for domain, (size, test_size) in enumerate(zip(sizes, test_sizes, strict=True)):
        for user in range(users):
            block = np.arange(start + user * each, start + (user + 1) * each, dtype=np.int64)
            test = np.arange(test_start + user * each_test, test_start + (user + 1) * each_test, dtype=np.int64)
            slices.append(UserSlice(domain, block[: each - held], block[each - held :], test))
        start += size
        test_start += test_size
    return slices
