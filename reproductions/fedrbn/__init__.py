"""Hong et al., AAAI 2023."""

from __future__ import annotations

from robustfl.scenarios.methods import at_users


def at_users_of_equal_domains(*, at: str, clients: int, domains: int) -> float:
    """The number of ``clients`` in equal blocks, one a domain, that the rule ``at`` makes train adversarially."""
    each, over = divmod(clients, domains)
    assert over == 0
    return float(len(at_users(at, [each] * domains)))
