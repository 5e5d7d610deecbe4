"""The ways home from the nodes around a root, as long as its paths are walked: bounds on gain and on room."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from exo_celery.placement.fines import Fines
from exo_celery.placement.found import Steps
from exo_celery.placement.graph import members
from exo_celery.placement.ways import Ways, best_way_round, ways_by_length

LINKS_PER_STEP: Final = 16  # about as much work as one step
# By what sparse graphs of 64 nodes and rings of up to 12 took least time with.
ROUNDS_OF_FINES: Final = 10
LIKELY_PERCENT: Final = 93  # of a bound is what the best ring may have, as long as none better is known
PART_FOR_FINES: Final = 6  # of the steps left one in so many, or none


class Home:
    """What ways home from the usable nodes around `root` can add to a path: `gains` with fines, and `rooms`.

    `within[d]` are the nodes that are at most d links away from the root. Only nodes that are near enough to both ends
    of a ring of `size` are in the tables.
    """

    def __init__(
        self,
        root: int,
        size: int,
        within: Sequence[int],
        near: Sequence[int],
        fines: Fines,
        rooms: Sequence[int],
        steps: Steps,
    ) -> None:
        self.root, self.fines = root, fines
        self.free = within[-1]
        self.around = {j: list(members(near[j] & self.free)) for j in members(self.free)}
        self.near_enough = [list(members(within[min(d + 1, size - 1 - d, len(within) - 1)])) for d in range(size - 1)]
        self.table_steps = sum(len(self.around[j]) for nodes in self.near_enough for j in nodes) // LINKS_PER_STEP
        self.gains = self.tables(fines.gains, steps)
        self.rooms = self.tables(rooms, steps)

    def tables(self, gain: Sequence[int], steps: Steps) -> Ways:
        """Tabulate what ways home can add of one quantity."""
        steps.take(self.table_steps)
        return ways_by_length(self.near_enough, self.around, gain)

    def fine(self, bar: int, steps: Steps) -> None:
        """Keep, of some rounds of ever stricter fines, those with the lowest bound; without steps to spare do nothing.

        Rings must score above the bar to be of interest.
        """
        if ROUNDS_OF_FINES * self.table_steps > steps.left // PART_FOR_FINES:
            return
        tried: list[tuple[int, Fines, Ways]] = []
        while True:
            way = best_way_round(self.gains, self.around, self.fines.gains, self.root, self.near_enough[0])
            bound = self.fines.start(self.root, members(self.free)) + sum(self.fines.gains[j] for j in way)
            tried.append((bound, self.fines, self.gains))
            gap = bound - max(bar, bound * LIKELY_PERCENT // 100)
            stricter = self.fines.stricter(self.root, way, gap) if len(tried) <= ROUNDS_OF_FINES else None
            if stricter is None:
                break
            self.fines = stricter
            self.gains = self.tables(stricter.gains, steps)
        _, self.fines, self.gains = min(tried, key=itemgetter(0))
