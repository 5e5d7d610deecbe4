"""Sets of nodes as integers, and what is known about rings in them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from exo_celery.placement.found import Steps


def members(mask: int) -> Iterator[int]:
    """Yield the nodes of a set in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def set_of(nodes: Iterable[int]) -> int:
    """Return the set of these nodes."""
    mask = 0
    for i in nodes:
        mask |= 1 << i
    return mask


def reachable(start: int, links: Sequence[int]) -> int:
    """Return the connected component of a node."""
    group = new = 1 << start
    while new:
        low = new & -new
        around = links[low.bit_length() - 1]
        new = (new | around & ~group) ^ low
        group |= around
    return group


def blocks(links: Sequence[int], nodes: int) -> list[int]:
    """Return the biconnected components of three nodes and more; every ring of three or more lies inside one.

    `links` leave the set `nodes` nowhere. A component in which each node is linked to at least half of it has a ring
    through all (Dirac 1952), so it is one block and need not be searched.
    """
    found = []
    while nodes:
        start = (nodes & -nodes).bit_length() - 1
        group = reachable(start, links)
        nodes &= ~group
        size = group.bit_count()
        if size < 3:
            continue
        if all(2 * links[i].bit_count() >= size for i in members(group)):
            found.append(group)
        else:
            found += Tarjan(links).blocks(start)
    return found


@dataclass(slots=True)
class Tarjan:
    """Depth-first search for biconnected components (Hopcroft and Tarjan 1973), without recursion.

    `low[i]` is the number of the earliest node that i and its descendants are linked to. What is linked to a node and
    has been seen before it lies on the path to it.
    """

    links: Sequence[int]
    number: dict[int, int] = field(default_factory=dict)
    low: dict[int, int] = field(default_factory=dict)
    path: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    seen: int = 0

    def blocks(self, start: int) -> list[int]:
        """Return the blocks of three nodes and more of the component of `start`."""
        self.enter(start)
        found = []
        while self.path:
            node = self.path[-1]
            if new := self.links[node] & ~self.seen:
                self.enter((new & -new).bit_length() - 1)
            elif (block := self.leave()).bit_count() > 2:
                found.append(block)
        return found

    def enter(self, node: int) -> None:
        """Number a node that is seen for the first time and go on from it."""
        self.number[node] = len(self.number)
        back = self.links[node] & self.seen
        if self.path:
            back &= ~(1 << self.path[-1])
            self.pending.append(node)
        self.low[node] = min(self.number[node], self.earliest(back))
        self.path.append(node)
        self.seen |= 1 << node

    def earliest(self, back: int) -> int:
        """Return the least number of a set of nodes on the path."""
        if back.bit_count() > 16:  # so many that one of the first nodes of the path is soon hit
            return self.number[next(i for i in self.path if back >> i & 1)]
        return min((self.number[i] for i in members(back)), default=len(self.number))

    def leave(self) -> int:
        """Go back from a node; return the block that ends with the link to it, or the empty set."""
        node = self.path.pop()
        if not self.path:
            return 0
        parent = self.path[-1]
        self.low[parent] = min(self.low[parent], self.low[node])
        if self.low[node] < self.number[parent]:
            return 0
        block = 1 << parent | 1 << node
        while (last := self.pending.pop()) != node:
            block |= 1 << last
        return block


def ring_in_dense(nodes: Sequence[int], links: Sequence[int]) -> list[int]:
    """Return a ring through nodes of which each is linked to at least half of them (Palmer 1997).

    Put them in any circle. Where two neighbours are not linked, the degrees ensure a stretch that closes this gap
    without opening another when it is turned round, so the number of gaps falls to none.
    """
    ring = list(nodes)
    size = len(ring)

    def linked(i: int, j: int) -> int:
        return links[ring[i]] >> ring[j] & 1

    while gap := next((i + 1 for i in range(size) if not linked(i, (i + 1) % size)), 0):
        ring = ring[gap:] + ring[:gap]  # the gap is now between the last and the first
        turn = next(j for j in range(size - 1) if linked(size - 1, j) and linked(0, j + 1))
        ring[: turn + 1] = ring[turn::-1]
    return ring


def ring_through(nodes: Sequence[int], links: Sequence[int], steps: Steps) -> list[int] | None:
    """Return these nodes in an order around a ring, or None if no ring passes through all of them.

    Depth first from the node with the fewest links, to the neighbours with the fewest ways on first.

    Raises:
        OutOfStepsError: the steps did not suffice to tell.
    """
    every = set_of(nodes)
    start = min(nodes, key=lambda i: (links[i] & every).bit_count())
    if (links[start] & every).bit_count() < 2:
        return None
    free = every ^ 1 << start
    path, ways = [start], [ways_on(start, free, links)]
    while ways:
        if (node := next(ways[-1], None)) is None:
            ways.pop()
            free |= 1 << path.pop()
            continue
        steps.take()
        rest = free ^ 1 << node
        if not rest and links[node] >> start & 1:
            return [*path, node]
        if links[start] & rest and not cut_off(path[-1], rest, rest | 1 << node | 1 << start, links):
            free = rest
            path.append(node)
            ways.append(ways_on(node, free, links))
    return None


def cut_off(left: int, rest: int, open_ends: int, links: Sequence[int]) -> bool:
    """Tell whether a node still to come has fewer than two links to go through, now that a path has left a node."""
    return any((links[i] & open_ends).bit_count() < 2 for i in members(links[left] & rest))


def ways_on(node: int, free: int, links: Sequence[int]) -> Iterator[int]:
    """Return the free neighbours of a node, those with the fewest free neighbours first."""
    return iter(sorted(members(links[node] & free), key=lambda i: (links[i] & free).bit_count()))
