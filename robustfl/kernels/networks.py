"""Sorting networks that put chosen order statistics on known wires, with every comparator nobody needs removed.

Comparators come from Batcher's merge exchange sort (Knuth, The Art of Computer Programming, vol. 3, algorithm 5.2.2M),
which works for any number of wires.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

MIN, MAX = 0, 1


@dataclass(frozen=True)
class Network:
    """A network on ``n`` wires after which the wires ``kept`` hold the values of ranks ``low`` to ``high - 1``.

    A comparator ``(i, j, minimum, maximum)`` with ``i < j`` puts the smaller value on ``i`` and the larger on ``j``; a
    flag that is False marks an output nobody reads. The kept values are in no particular order.
    """

    n: int
    comparators: tuple[tuple[int, int, bool, bool], ...]
    kept: tuple[int, ...]


@lru_cache(maxsize=256)
def network(n: int, low: int, high: int) -> Network:
    """The network for ranks ``low ≤ rank < high`` of ``n`` values.

    Walking backwards, two wires are interchangeable while both lead only to kept outputs, or both to dropped ones: a
    comparator between such wires changes nothing and goes. One with a single live output loses the other.
    """
    label = ["kept" if low <= i < high else "dropped" for i in range(n)]
    chosen: list[tuple[int, int, bool, bool]] = []
    for i, j in reversed(list(_merge_exchange(n))):
        if label[i] == label[j] != "single":
            continue
        chosen.append((i, j, label[i] != "dropped", label[j] != "dropped"))
        label[i] = label[j] = "single"
    return Network(n, tuple(reversed(chosen)), tuple(range(low, high)))


def _merge_exchange(n: int) -> Iterator[tuple[int, int]]:
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while p > 0 and n > 1:
        q, r, distance = top, 0, p
        while True:
            yield from ((i, i + distance) for i in range(n - distance) if i & p == r)
            if q == p:
                break
            distance, q, r = q - p, q >> 1, p
        p >>= 1


@dataclass(frozen=True)
class Program:
    """A network as elementwise instructions ``(MIN | MAX, a, b, out)`` on registers.

    Registers ``0 … n-1`` are the input rows and never written; the following ``buffers`` are scratch. ``kept`` are the
    registers that hold the chosen ranks at the end.
    """

    instructions: tuple[tuple[int, int, int, int], ...]
    buffers: int
    kept: tuple[int, ...]


@lru_cache(maxsize=256)
def program(n: int, low: int, high: int) -> Program:
    """``network(n, low, high)`` with registers assigned so that few buffers are needed."""
    plan = network(n, low, high)
    held = list(range(n))
    free: list[int] = []
    count = 0
    instructions: list[tuple[int, int, int, int]] = []

    def take() -> int:
        nonlocal count
        if free:
            return free.pop()
        count += 1
        return n + count - 1

    for i, j, minimum, maximum in plan.comparators:
        a, b = held[i], held[j]
        own = [register for register in (a, b) if register >= n]
        if minimum and maximum:
            smaller = take()
            larger = own.pop() if own else take()
            instructions += [(MIN, a, b, smaller), (MAX, a, b, larger)]
            held[i], held[j] = smaller, larger
        else:
            out = own.pop() if own else take()
            instructions.append((MIN if minimum else MAX, a, b, out))
            held[i if minimum else j] = out
            held[j if minimum else i] = -1
        free += own
    return Program(tuple(instructions), count, tuple(held[k] for k in plan.kept))
