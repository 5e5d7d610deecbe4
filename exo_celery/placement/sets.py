"""Search over sets of nodes, most promising first: right where most sets are rings."""

from bisect import insort
from collections.abc import Callable, Sequence
from itertools import accumulate

from exo_celery.placement.bound import price, undominated
from exo_celery.placement.found import Found, Steps
from exo_celery.placement.graph import members
from exo_celery.placement.terrain import Group, Terrain

RingOf = Callable[[Sequence[int]], Sequence[int] | None]


class SetSearch:
    """Branch and bound over the sets of `size` nodes of a block, required nodes taken beforehand.

    Nodes stand in order of score, that is worth plus price times room (bound.py). A branch is cut when the next highest
    scores cannot lift it above the bar, or the largest rooms left cannot give what it lacks. `ring_of` tells whether a
    full set is a ring, and in which order; `every`: any set is one, so a node that beats another in worth and room must
    be in each best set that has the other.
    """

    def __init__(
        self, terrain: Terrain, group: Group, size: int, found: Found, ring_of: RingOf, *, every: bool
    ) -> None:
        self.found, self.ring_of, self.every = found, ring_of, every
        self.base = list(members(terrain.required))
        self.free = size - len(self.base)
        self.lacking = terrain.need - sum(terrain.room[i] for i in self.base)
        self.base_worth = terrain.total_worth(self.base)
        self.order: list[int] = []
        self.priced: tuple[int, int] | None = None
        if self.free:
            self.prepare(terrain, [i for i in group.nodes if not terrain.required >> i & 1])

    def prepare(self, terrain: Terrain, nodes: list[int]) -> None:
        """Put the nodes in order and sum up what lies ahead of each."""
        if self.every:
            nodes = undominated(nodes, self.free + self.found.keep - 1, terrain.worth, terrain.room)
        self.priced = price(nodes, self.free, self.lacking, terrain.worth, terrain.room)
        if self.priced is None:
            return
        p, q = self.priced
        scores = {i: q * terrain.worth[i] + p * terrain.room[i] for i in nodes}
        self.order = sorted(nodes, key=lambda i: (scores[i], terrain.worth[i]), reverse=True)
        self.worths = [terrain.worth[i] for i in self.order]
        self.rooms = [terrain.room[i] for i in self.order]
        self.scores = [scores[i] for i in self.order]
        self.score_ahead = [0, *accumulate(self.scores)]
        self.room_ahead = largest_sums_ahead(self.rooms, self.free)
        self.beaten_by: list[int | None] = [None] * len(self.order)

    def run(self, steps: Steps) -> None:
        """Offer the best sets that are rings.

        Raises:
            OutOfStepsError: the steps did not suffice.
        """
        if self.free == 0:
            self.offer([], self.base_worth)
        elif self.priced is not None:
            self.branch(steps)

    def branch(self, steps: Steps) -> None:
        """Go through the sets depth first: take a node or leave it."""
        p, q = self.priced or (0, 1)
        chosen: list[int] = []
        mask, worth, lacking, score = 0, self.base_worth, self.lacking, q * self.base_worth - p * self.lacking
        position = 0
        while True:
            left = self.free - len(chosen)
            if self.hopeless(position, left, score, lacking, q):
                if not chosen:
                    return
                position = chosen.pop()
                mask ^= 1 << position
                worth -= self.worths[position]
                lacking += self.rooms[position]
                score -= self.scores[position]
            elif not self.outclassed(position, mask):
                steps.take()
                if left == 1:
                    self.close(chosen, position, worth, lacking)
                else:
                    chosen.append(position)
                    mask ^= 1 << position
                    worth += self.worths[position]
                    lacking -= self.rooms[position]
                    score += self.scores[position]
            position += 1

    def hopeless(self, position: int, left: int, score: int, lacking: int, q: int) -> bool:
        """Tell whether no `left` nodes from this position on make a set above the bar that has the room."""
        end = position + left
        if end > len(self.order):
            return True
        if score + self.score_ahead[end] - self.score_ahead[position] <= q * self.found.bar:
            return True
        return self.room_ahead[position][left] < lacking

    def outclassed(self, position: int, mask: int) -> bool:
        """Tell whether so many better nodes are missing that as many better sets exist as are to be kept."""
        if not self.every:
            return False
        better = self.beaten_by[position]
        if better is None:
            worth, room = self.worths[position], self.rooms[position]
            better = 0
            for i in range(position):
                if self.worths[i] > worth and self.rooms[i] >= room:
                    better |= 1 << i
            self.beaten_by[position] = better
        return (better & ~mask).bit_count() >= self.found.keep

    def close(self, chosen: list[int], position: int, worth: int, lacking: int) -> None:
        """Offer the set that this node completes."""
        worth += self.worths[position]
        if self.rooms[position] >= lacking and worth > self.found.bar:
            self.offer([self.order[i] for i in (*chosen, position)], worth)

    def offer(self, nodes: list[int], worth: int) -> None:
        """Offer a set with the required nodes if it is a ring."""
        if self.free == 0 and self.lacking > 0:
            return
        if ring := self.ring_of([*self.base, *nodes]):
            self.found.offer(worth, ring)


def largest_sums_ahead(rooms: Sequence[int], count: int) -> list[list[int]]:
    """Return for each position the sums of the 0, 1, … `count` largest rooms from there on."""
    sums: list[list[int]] = []
    largest: list[int] = []  # negated, so ascending order puts the largest first
    for room in reversed(rooms):
        insort(largest, -room)
        del largest[count:]
        sums.append([0, *accumulate(-value for value in largest)])
    sums.reverse()
    return sums
