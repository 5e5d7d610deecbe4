"""The order of a ring's nodes: each token goes round once, so the slowest hop counts."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from exo_celery.placement.found import OutOfStepsError, Steps
from exo_celery.placement.graph import ring_through, set_of

STEPS: Final = 2_000  # for each order that is looked for

Hops = Mapping[tuple[int, int], float]


def hops_of(ring: Sequence[int], ids: Sequence[str], rtt_ms: Mapping[str, Mapping[str, float]]) -> Hops:
    """Return the round trip between any two nodes of a ring, the slower of the two directions; unknown is infinite."""
    known: dict[tuple[int, int], float] = {}
    for i in ring:
        for j in ring:
            there, back = rtt_ms.get(ids[i], {}).get(ids[j], inf), rtt_ms.get(ids[j], {}).get(ids[i], inf)
            known[i, j] = max(there, back)
    return known


def with_fastest_hops(ring: Sequence[int], links: Sequence[int], hops: Hops) -> list[int]:
    """Return the nodes in the order around a ring whose slowest hop is the fastest (bottleneck tour).

    The slowest hop is found by halving: a ring over the links up to a time, or none. Where the steps do not suffice to
    tell, the order found so far stays.
    """
    best = list(ring)
    if len(ring) < 4:  # there is only one order
        return best
    times = sorted({hops[i, j] for i in ring for j in ring if links[i] >> j & 1})
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        fast = list(links)
        for i in ring:
            fast[i] = set_of(j for j in ring if links[i] >> j & 1 and hops[i, j] <= times[middle])
        if found := order_over(ring, fast):
            best, high = found, middle
        else:
            low = middle + 1
    return best


def order_over(ring: Sequence[int], links: Sequence[int]) -> list[int] | None:
    """Return an order over these links, or None if there is none or it was not found."""
    try:
        return ring_through(sorted(ring), links, Steps(STEPS))
    except OutOfStepsError:
        return None


def slowest_hop(ring: Sequence[int], hops: Hops) -> float | None:
    """Return the slowest hop of a ring in milliseconds; None where one is unknown, or there is none."""
    slowest = max((hops[i, j] for i, j in zip(ring, [*ring[1:], ring[0]], strict=True) if i != j), default=inf)
    return None if slowest == inf else slowest
