"""Search along links until a path closes: right where few sets of nodes are rings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from exo_celery.placement.bound import price
from exo_celery.placement.found import Found, Steps
from exo_celery.placement.graph import members, set_of
from exo_celery.placement.terrain import Group, Terrain

SEEN_AT_MOST = 50_000  # remembered (set, end) pairs: bounds memory, costs only repeated work
EDGES_PER_STEP = 20  # links looked at in about the time of one step


@dataclass(frozen=True, slots=True)
class Path:
    """A path from the root: its last node, how many nodes are still to come and from which set, its set and sums."""

    node: int
    left: int
    free: int
    mask: int
    worth: int
    room: int
    score: int


@dataclass(frozen=True, slots=True)
class Home:
    """What a way home can add: `score[d][j]` is the most that d more nodes after j have on a way back to the root.

    A way may pass a node twice, so this is a bound. A node without a way of that length is absent.
    """

    score: list[dict[int, int]]
    room: list[dict[int, int]]


class PathSearch:
    """Depth-first walk over the rings of `size` nodes of a block, each from its most promising node, the root.

    Nodes are renumbered in order of score, required ones first. A path is cut by the highest scores and largest rooms
    among the nodes it can still reach, and by the best way home. Twins (nodes with the same links) could swap places,
    so they are visited in order, and the better in worth and room first.
    """

    def __init__(self, terrain: Terrain, group: Group, size: int, found: Found) -> None:
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
        self.required = (1 << terrain.required.bit_count()) - 1
        self.worths = [terrain.worth[i] for i in self.order]
        self.rooms = [terrain.room[i] for i in self.order]
        self.scores = [scores[i] for i in self.order]
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
        within = self.distances(root)
        free = within[self.size // 2]
        if free.bit_count() < self.size - 1 or self.required & ~(free | 1 << root):
            return
        home = self.ways_home(root, free, steps)
        start = Path(
            root,
            self.size - 1,
            free,
            1 << root,
            self.worths[root],
            self.rooms[root],
            self.scores[root] - self.spend,
        )
        path = [start]
        seen: set[tuple[int, int]] = set()
        moves = [self.moves(start, within)]
        while path:
            at = path[-1]
            if (node := next(moves[-1], None)) is None:
                path.pop()
                moves.pop()
                continue
            if not self.worth_going(at, node, home):
                continue
            steps.take()
            on = self.step(at, node)
            if on.left == 0:
                self.found.offer(on.worth, [self.order[at.node] for at in (*path, on)])
            elif self.is_new(on, seen):
                path.append(on)
                moves.append(self.moves(on, within))

    def distances(self, root: int) -> list[int]:
        """Return for d = 0, 1, … the nodes after the root in order that are at most d links away from it.

        Nodes that clash with the root are left out. No node of a ring is farther away than half its size.
        """
        later = (1 << len(self.order)) - (2 << root) & ~self.clashes[root]
        within = [0, self.near[root] & later]
        while len(within) <= self.size // 2:
            wider = within[-1]
            for j in members(within[-1] & ~within[-2]):
                wider |= self.near[j] & later
            within.append(wider)
        return within

    def ways_home(self, root: int, free: int, steps: Steps) -> Home:
        """Tabulate what ways home add, by their length."""
        around = {j: list(members(self.near[j] & free)) for j in members(free)}
        steps.take(self.size * sum(map(len, around.values())) // EDGES_PER_STEP)
        ends = {j: 0 for j in around if self.near[j] >> root & 1}
        return Home(longer_ways(ends, around, self.scores, self.size), longer_ways(ends, around, self.rooms, self.size))

    def moves(self, at: Path, within: list[int]) -> Iterator[int]:
        """Return the nodes to go to, none if the nodes in reach cannot lift the path above the bar."""
        usable = at.free & within[at.left] if at.left < len(within) else at.free
        if usable.bit_count() < at.left or self.required & ~(usable | at.mask):
            return iter(())
        if at.score + self.highest_score(usable, at.left) <= self.q * self.found.bar:
            return iter(())
        if at.room + self.largest_room(usable, at.left) < self.need:
            return iter(())
        return members(self.near[at.node] & usable)

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

    def worth_going(self, at: Path, node: int, home: Home) -> bool:
        """Tell whether the best way home through a node is above the bar and has the room."""
        score = home.score[at.left - 1].get(node)
        if score is None or (self.better[node] & ~at.mask).bit_count() >= self.found.keep:
            return False
        if at.score + self.scores[node] + score <= self.q * self.found.bar:
            return False
        return at.room + self.rooms[node] + home.room[at.left - 1][node] >= self.need

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


def longer_ways(
    ends: dict[int, int], around: dict[int, list[int]], gain: Sequence[int], size: int
) -> list[dict[int, int]]:
    """Return the greatest gains of ways of 0, 1, … `size` - 2 nodes, each from the ways one shorter."""
    tables = [ends]
    for _ in range(size - 2):
        last = tables[-1]
        table = {}
        for j, others in around.items():
            ways = [gain[i] + last[i] for i in others if i in last]
            if ways:
                table[j] = max(ways)
        tables.append(table)
    return tables
