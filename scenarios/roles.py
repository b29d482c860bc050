"""Which users train adversarially, by a rule such as ``ratio(rho=0.2)``."""

from __future__ import annotations

from collections.abc import Sequence

from robustfl.errors import UsageError, closest
from robustfl.registry import parse

RULES: dict[str, tuple[str, ...]] = {
    "none": (),
    "all": (),
    "ratio": ("rho", "domains"),
    "domains": ("first",),
    "users": ("ids",),
}

_MOST = 10**7


def at_users(rule: str, users: Sequence[int]) -> frozenset[int]:
    """The AT users among the clients, of which ``users`` gives the number in every domain, in order.

    ``none``; ``all``; ``ratio(rho=ρ)``: the first ⌊ρU⌋ of each domain's U users, in the first ``domains`` domains if
    given; ``domains(first=D)``: everybody in the first D domains; ``users(ids=(0, 3))``: these. Raises ``UsageError``.

    >>> sorted(at_users("ratio(rho=0.5)", [4, 2]))
    [0, 1, 4]
    """
    clients, domains = sum(users), len(users)
    name, params = parse(rule)
    if name not in RULES:
        raise UsageError(f"at={rule!r}: no such rule; {closest(name, RULES)}")
    for key in params:
        if key not in RULES[name]:
            allowed = ", ".join(RULES[name]) or "nothing"
            raise UsageError(f"at={rule!r}: {name!r} takes {allowed}, not {key!r}")
    if name == "none":
        return frozenset()
    if clients > _MOST:
        raise UsageError(f"at={rule!r} of clients={clients}: at most {_MOST} can be told apart")
    if name == "all":
        return frozenset(range(clients))
    if name == "users":
        return _listed(rule, params.get("ids"), clients)
    first = params.get("first" if name == "domains" else "domains", domains if name == "ratio" else None)
    if not isinstance(first, int) or isinstance(first, bool) or not 1 <= first <= domains:
        raise UsageError(f"at={rule!r}: {first!r} domains; there are {domains}, so 1 to {domains} are allowed")
    rho = params.get("rho", 1.0 if name == "domains" else None)
    if not isinstance(rho, (int, float)) or isinstance(rho, bool) or not 0 < rho <= 1:
        raise UsageError(f"at={rule!r}: rho={rho!r} must be a number in (0, 1]")
    most = max(users[:first])
    if int(rho * most + 1e-9) == 0:
        raise UsageError(
            f"at={rule!r}: rho={rho} of {most} users per domain is nobody; at least {1 / most:.3g} is needed"
        )
    starts = [sum(users[:d]) for d in range(first)]
    return frozenset(start + u for start, n in zip(starts, users, strict=False) for u in range(int(rho * n + 1e-9)))


def _listed(rule: str, ids: object, clients: int) -> frozenset[int]:
    listed = [ids] if isinstance(ids, int) else ids
    if not isinstance(listed, (list, tuple)) or not listed:
        raise UsageError(f"at={rule!r}: write users(ids=(0, 3))")
    for k in listed:
        if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k < clients:
            raise UsageError(f"at={rule!r}: there is no user {k!r}; users are 0 to {clients - 1}")
    return frozenset(listed)
