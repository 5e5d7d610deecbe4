"""Search along links until a path closes: right where few sets of nodes are rings."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from exo_celery.placement.bound import price
from exo_celery.placement.fines import Fines, Stakes
from exo_celery.placement.found import Found, Steps
from exo_celery.placement.graph import members, set_of
from exo_celery.placement.home import LINKS_PER_STEP, Home
from exo_celery.placement.terrain import Group, Terrain
from exo_celery.placement.ways import best_way

SEEN_AT_MOST = 50_000  # remembered (set, end) pairs: bounds memory, costs only repeated work
# About as much work as one step.
MOVES_PER_STEP = 2
NODES_PER_EFFORT = 500  # so many more nodes make each step take as long again, for sets are longer integers
STEPS_WITHOUT_FINES = 500  # fines pay off where a root takes more


class Path(NamedTuple):
    """A path from the root: its last node, how many nodes are still to come and from which set, its set and sums.

    `gain` is a bound with fines: with what the nodes to come gain, it is at least the score of the ring.
    """

    node: int
    left: int
    free: int
    mask: int
    worth: int
    room: int
    score: int
    gain: int


class PathSearch:
    """Depth-first walk over the rings of `size` nodes of a block, each from its most promising node, the root.

    Nodes are renumbered in order of score, required ones first. A root is cut by the highest scores and largest rooms
    among the nodes around it, a path by the best way home, with fines (fines.py) where a root takes long. Twins (nodes
    with the same links) could swap places, so they are visited in order, and the better in worth and room first.
    """

    def __init__(self, terrain: Terrain, group: Group, size: int, found: Found, steps: Steps) -> None:
        steps.take(sum(terrain.links[i].bit_count() for i in group.nodes) // LINKS_PER_STEP)
        self.found, self.size, self.need = found, size, terrain.need
        self.priced = price(group.nodes, size, terrain.need, terrain.worth, terrain.room)
        if self.priced is None:
            return
        p, self.q = self.priced
        scores = {i: self.q * terrain.worth[i] + p * terrain.room[i] for i in group.nodes}
        self.order = sorted(
            group.nodes,
            key=lambda i: (terrain.required >> i & 1, scores[i], terrain.worth[i]),
            reverse=True,
        )
        self.spend = p * terrain.need
        self.effort = 1 + len(self.order) // NODES_PER_EFFORT
        self.required = (1 << terrain.required.bit_count()) - 1
        self.worths = [terrain.worth[i] for i in self.order]
        self.rooms = [terrain.room[i] for i in self.order]
        self.scores = [scores[i] for i in self.order]
        stakes = Stakes(self.worths, self.rooms, self.q, terrain.need, size)
        self.fines = Fines.of(stakes, p, [0] * len(self.order))
        self.by_room = sorted(range(len(self.order)), key=self.rooms.__getitem__, reverse=True)
        place = {i: j for j, i in enumerate(self.order)}
        self.near = renumbered(terrain.links, self.order, place)
        self.clashes = renumbered(terrain.clashes, self.order, place) if terrain.clashes else [0] * len(place)
        self.find_twins()

    def find_twins(self) -> None:
        """Note for each node its earlier twins, and those of them that are better in worth and room."""
        count = len(self.order)
        self.earlier, self.better = [0] * count, [0] * count
        for own in (0, 1):  # twins that are not linked to each other, then twins that are
            twins: dict[tuple[int, int], list[int]] = {}
            for j in range(count):
                same = twins.setdefault((self.near[j] | own << j, self.clashes[j]), [])
                for i in same:
                    self.earlier[j] |= 1 << i
                    if self.beats(i, j):
                        self.better[j] |= 1 << i
                same.append(j)

    def beats(self, i: int, j: int) -> bool:
        """Tell whether a ring with j and without i would be better with i in the place of j."""
        return self.worths[i] > self.worths[j] and self.rooms[i] >= self.rooms[j] and not self.required >> j & 1

    def run(self, steps: Steps) -> None:
        """Offer the best rings.

        Raises:
            OutOfStepsError: the steps did not suffice.
        """
        if self.priced is None:
            return
        ahead = [0, *accumulate(self.scores)]
        roots = 1 if self.required else len(self.order) - self.size + 1
        for root in range(roots):
            highest = ahead[root + self.size] - ahead[root] - self.spend
            if highest <= self.q * self.found.bar:
                return
            if self.better[root].bit_count() < self.found.keep:
                self.walk(root, steps)

    def walk(self, root: int, steps: Steps) -> None:
        """Offer the best rings in which `root` comes first in order."""
        later = (1 << len(self.order)) - (2 << root) & ~self.clashes[root]
        start = self.start(root, self.distances(root, later)[-1])
        if not self.is_promising(start):
            return
        within = self.distances(root, self.worthwhile(start))
        start = self.start(root, within[-1])
        if not self.is_promising(start):
            return
        self.home = Home(root, self.size, within, self.near, self.fines, self.rooms, steps)
        if steps.suffice(STEPS_WITHOUT_FINES, lambda few: self.explore(start, within, few)):
            return
        self.home.fine(self.q * self.found.bar, steps)
        self.fines = self.home.fines
        self.explore(self.start(root, within[-1]), within, steps)

    def explore(self, start: Path, within: Sequence[int], steps: Steps) -> None:
        """Offer the best rings that the path can become."""
        path = [start]
        moves = [self.moves(start, within, steps)]
        seen: set[tuple[int, int]] = set()
        while path:
            move = next(moves[-1], None)
            if move is None or move[0] <= self.q * self.found.bar:  # the others are no better
                path.pop()
                moves.pop()
                continue
            steps.take(self.effort)
            on = self.step(path[-1], move[1])
            if on.left == 0:
                self.found.offer(on.worth, [self.order[at.node] for at in (*path, on)])
            elif self.is_new(on, seen):
                path.append(on)
                moves.append(self.moves(on, within, steps))

    def start(self, root: int, free: int) -> Path:
        """Return the path that is only the root."""
        score = self.scores[root] - self.spend
        gain = self.fines.start(root, members(free))
        return Path(root, self.size - 1, free, 1 << root, self.worths[root], self.rooms[root], score, gain)

    def distances(self, root: int, usable: int) -> list[int]:
        """Return for d = 0, 1, … half the size the usable nodes that are at most d links away from the root.

        No node of a ring is farther away.
        """
        within = [0, self.near[root] & usable]
        while len(within) <= self.size // 2:
            wider = within[-1]
            for j in members(within[-1] & ~within[-2]):
                wider |= self.near[j] & usable
            within.append(wider)
        return within

    def worthwhile(self, start: Path) -> int:
        """Return the nodes that can be in a ring above the bar: with the highest scores beside them."""
        others = start.score + self.highest_score(start.free, start.left - 1)
        lowest = self.q * self.found.bar - others
        return self.required & start.free | set_of(j for j in members(start.free) if self.scores[j] > lowest)

    def moves(self, at: Path, within: Sequence[int], steps: Steps) -> Iterator[tuple[int, int]]:
        """Return the nodes to go to with the score that each can lead to at most, the highest first.

        Whether the nodes in reach could lift the path at all is not asked: ways home tell nearly as much for less.
        """
        usable = at.free & within[at.left] if at.left < len(within) else at.free
        missing = self.required & ~at.mask
        if usable.bit_count() < at.left or missing & ~usable:
            return iter(())
        if missing.bit_count() == at.left:  # no place is left for others
            usable = missing
        around = self.near[at.node] & usable
        steps.take(around.bit_count() // MOVES_PER_STEP)
        return iter(sorted(self.ways_on(at, around), reverse=True))

    def is_promising(self, start: Path) -> bool:
        """Tell whether nodes in reach can lift a path above the bar and give it the room, whatever the links."""
        if start.free.bit_count() < start.left or self.required & ~(start.free | start.mask):
            return False
        if start.score + self.highest_score(start.free, start.left) <= self.q * self.found.bar:
            return False
        return start.room + self.largest_room(start.free, start.left) >= self.need

    def ways_on(self, at: Path, around: int) -> Iterator[tuple[int, int]]:
        """Yield the nodes around from which a best way home lifts the path above the bar, with the score it can get."""
        home_gains, home_rooms, gains = self.home.gains[at.left - 1], self.home.rooms[at.left - 1], self.fines.gains
        bar, lack = self.q * self.found.bar - at.gain, self.need - at.room
        for node in members(around):
            more = best_way(home_gains, node, at.node)
            if more is None or more + gains[node] <= bar:
                continue
            room = best_way(home_rooms, node, at.node)
            if room is None or room + self.rooms[node] < lack:
                continue
            if (self.better[node] & ~at.mask).bit_count() < self.found.keep:
                yield at.gain + gains[node] + more, node

    def highest_score(self, usable: int, count: int) -> int:
        """Sum the highest scores of `count` usable nodes; required ones come first in order, so they are among them."""
        total = 0
        for _ in range(count):
            low = usable & -usable
            total += self.scores[low.bit_length() - 1]
            usable ^= low
        return total

    def largest_room(self, usable: int, count: int) -> int:
        """Sum the largest rooms of `count` usable nodes."""
        total = 0
        for j in self.by_room:
            if usable >> j & 1:
                total += self.rooms[j]
                count -= 1
                if not count:
                    break
        return total

    def step(self, at: Path, node: int) -> Path:
        """Return the path one node longer."""
        return Path(
            node,
            at.left - 1,
            at.free & ~(1 << node | self.earlier[node] | self.clashes[node]),
            at.mask | 1 << node,
            at.worth + self.worths[node],
            at.room + self.rooms[node],
            at.score + self.scores[node],
            at.gain + self.fines.gains[node],
        )

    def is_new(self, at: Path, seen: set[tuple[int, int]]) -> bool:
        """Tell whether no path with the same nodes to the same end was tried before: it would lead to the same sets."""
        if at.left >= self.size - 3:  # fewer than four nodes: only one order leads here
            return True
        key = (at.mask, at.node)
        if key in seen:
            return False
        if len(seen) < SEEN_AT_MOST:
            seen.add(key)
        return True


def renumbered(masks: Sequence[int], order: Sequence[int], place: dict[int, int]) -> list[int]:
    """Return the sets of the nodes of `order`, in the numbering of `place`."""
    inside = set_of(order)
    return [set_of(place[x] for x in members(masks[i] & inside)) for i in order]
