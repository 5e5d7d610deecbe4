"""Fines: they lower the bound of a search along links where the best ways pass the best nodes again and again.

Of a ring, which has every node once and the needed room, with any fines f >= 0 and any price p >= 0 on room:
q * worth(ring) <= sum over its nodes of (q * worth + p * room - f), plus all fines, less p * need. Fines that lower
this bound over all ways round are found as Held and Karp (1971) did for tours: by what the best way has in excess.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stakes:
    """What a search of rings of `size` is about: worth (times q) and room of each node, the room that is needed."""

    worths: Sequence[int]
    rooms: Sequence[int]
    q: int
    need: int
    size: int


@dataclass(frozen=True, slots=True)
class Fines:
    """A price on room, a fine on each node, and what each node then gains."""

    stakes: Stakes
    price: int
    fines: Sequence[int]
    gains: Sequence[int]

    @classmethod
    def of(cls, stakes: Stakes, price: int, fines: Sequence[int]) -> "Fines":
        """Return the gains at this price, with these fines."""
        nodes = zip(stakes.worths, stakes.rooms, fines, strict=True)
        return cls(stakes, price, fines, [stakes.q * worth + price * room - fine for worth, room, fine in nodes])

    def start(self, root: int, free: Iterable[int]) -> int:
        """Return what a ring has beyond the gains of the free nodes in it: the root, the fines given back, the need."""
        stakes = self.stakes
        refund = sum(self.fines[j] for j in free)
        return stakes.q * stakes.worths[root] - self.price * (stakes.need - stakes.rooms[root]) + refund

    def stricter(self, root: int, way: Sequence[int], gap: int) -> "Fines | None":
        """Return fines that bring the bound of this way round down by about `gap`; None if they cannot.

        Fined are the nodes that it has more than once, and relieved those that it has not; the price on room follows
        what the way lacks of it. Fines count in nodes and the price in the room of a mean node, so that both matter.
        """
        stakes = self.stakes
        times = Counter(way)
        excess = {j: count - 1 for j, count in times.items() if count > 1}
        excess |= {j: -1 for j, fine in enumerate(self.fines) if fine and j not in times}
        lack = stakes.need - sum(stakes.rooms[j] for j in (root, *way))
        if lack < 0 and not self.price:
            lack = 0
        mean = max(1, stakes.need // stakes.size)
        norm = sum(n * n for n in excess.values()) * mean**2 + lack**2
        if not norm:
            return None
        fines = list(self.fines)
        for j, n in excess.items():
            fines[j] = max(0, fines[j] + gap * n * mean**2 // norm)
        return Fines.of(stakes, max(0, self.price + gap * lack // norm), fines)
