"""One bound for all searches: a price on room.

With any price p/q >= 0 on room, a set of k nodes that has the needed room is worth at most what the k nodes dearest by
q * worth + p * room have, less p * need (Lagrange's relaxation of the need): q * worth(set) <= sum of the k highest
scores - p * need. It holds whatever the links are.
"""

from collections.abc import Iterable, Sequence
from heapq import heappush, heapreplace, nlargest


def price(
    nodes: Sequence[int], size: int, need: int, worth: Sequence[int], room: Sequence[int]
) -> tuple[int, int] | None:
    """Return the price (p, q) with the tightest bound for `size` of these nodes; None if none of them have the room.

    The sums (room, worth) of the dearest sets, for all prices, are the corners of a convex line. The best price is the
    slope of its edge across the need; it is found from the line's ends by looking for a corner beyond the chord until
    there is none. Integers throughout: nothing is rounded.
    """

    def sums(key: "Sequence[int]") -> tuple[int, int]:
        top = nlargest(size, range(len(nodes)), key.__getitem__)
        return sum(worths[i] for i in top), sum(rooms[i] for i in top)

    worths = [worth[i] for i in nodes]
    rooms = [room[i] for i in nodes]
    low = sums(worths)
    above = max(worths, default=0) + 1
    high = sums([r * above + w for w, r in zip(worths, rooms, strict=True)])
    if high[1] < need:
        return None
    if low[1] >= need:
        return 0, 1
    while True:
        p, q = low[0] - high[0], high[1] - low[1]
        corner = sums([q * w + p * r for w, r in zip(worths, rooms, strict=True)])
        if q * corner[0] + p * corner[1] <= q * low[0] + p * low[1]:
            return p, q
        if corner[1] >= need:
            high = corner
        else:
            low = corner


def undominated(nodes: Iterable[int], size: int, worth: Sequence[int], room: Sequence[int]) -> list[int]:
    """Return the nodes that fewer than `size` others beat in both worth and room.

    Where any `size` nodes are a ring, no other node is in the best one: it could be swapped for one that beats it.
    """
    keep: list[int] = []
    largest: list[int] = []
    for i in sorted(nodes, key=worth.__getitem__, reverse=True):
        if len(largest) < size:
            heappush(largest, room[i])
        elif room[i] > largest[0]:
            heapreplace(largest, room[i])
        else:
            continue
        keep.append(i)
    return keep
