"""What the search sees of the cluster: numbers and sets, no names."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from exo_celery.placement.graph import blocks, members, set_of

PARTS_AT_MOST: Final = 64


@dataclass(frozen=True)
class Terrain:
    """Nodes that may take part, and what a ring of them must have.

    Node i is the i-th id in order, sets are integers of bits. `links[i]` are the two-way neighbours and `clashes[i]`
    the nodes that i must not share a ring with (empty: none clash). `room` is counted in the unit of `need`; a ring
    needs that much in sum and all of `required`. `leaves` are the nodes with at most one out-neighbour in the whole
    graph.
    """

    nodes: int
    links: Sequence[int]
    worth: Sequence[int]
    room: Sequence[int]
    need: int
    required: int = 0
    leaves: int = 0
    clashes: Sequence[int] = ()

    @cached_property
    def groups(self) -> list["Group"]:
        """The blocks that may hold rings of three and more with all required nodes."""
        found = blocks(self.links, self.nodes)
        return [Group.of(self, block) for block in found if not self.required & ~block]

    def at_peace(self, nodes: Iterable[int]) -> bool:
        """Tell whether no two of the nodes clash."""
        if not self.clashes:
            return True
        some = list(nodes)
        mask = set_of(some)
        return not any(self.clashes[i] & mask for i in some)

    def total_worth(self, ring: Iterable[int]) -> int:
        """Sum the worths of nodes."""
        return sum(self.worth[i] for i in ring)


@dataclass(frozen=True, slots=True)
class Group:
    """One block. `most_room[k]` is the most that k of its nodes have; degrees count links inside the block."""

    mask: int
    nodes: list[int]
    most_room: list[int]
    least_degree: int
    greatest_degree: int
    mean_degree: float
    peaceful: bool

    @classmethod
    def of(cls, terrain: Terrain, mask: int) -> "Group":
        """Measure a block."""
        nodes = list(members(mask))
        degrees = [(terrain.links[i] & mask).bit_count() for i in nodes]
        rooms = sorted((terrain.room[i] for i in nodes), reverse=True)
        return cls(
            mask=mask,
            nodes=nodes,
            most_room=[0, *accumulate(rooms)],
            least_degree=min(degrees),
            greatest_degree=max(degrees),
            mean_degree=sum(degrees) / len(degrees),
            peaceful=terrain.at_peace(nodes),
        )

    def any_are_a_ring(self, size: int) -> bool:
        """Tell whether any `size` nodes have a ring through all of them, by Dirac's condition.

        Of the least node's links at most those to nodes left out are lost, so enough remain: half of `size`.
        """
        lost = len(self.nodes) - size
        return self.peaceful and 2 * (self.least_degree - lost) >= size

    def dense_parts(self, terrain: Terrain, size: int) -> Iterator["Group"]:
        """Yield disjoint parts of the block in which any `size` nodes are a ring, such as cliques of a loose chain.

        Each grows from the node with the most links left: it and its neighbours, without those that have the fewest
        links to the others until Dirac's condition holds.
        """
        rest = self.mask
        for _ in range(PARTS_AT_MOST):
            start = max(members(rest), key=lambda i: (terrain.links[i] & rest).bit_count(), default=-1)
            if start < 0:
                return
            mask = terrain.links[start] & rest | 1 << start
            rest &= ~mask
            while mask.bit_count() >= size:
                part = Group.of(terrain, mask)
                if part.any_are_a_ring(size):
                    yield part
                    break
                mask ^= 1 << min(part.nodes, key=lambda i: (terrain.links[i] & mask).bit_count())


def rounded_need(need: int, rooms: Iterable[int]) -> int:
    """Round a need up to what sums of these rooms can be: a multiple of their greatest common divisor."""
    unit = math.gcd(*rooms) or 1
    return -(-need // unit) * unit
