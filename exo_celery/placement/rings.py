"""The best rings of the smallest size that has any: exact, within a bound on work.

Sizes 1 and 2 are looked at directly; the leaf rule matters only there, for a node with one out-neighbour lies on no
longer ring. Longer rings are searched block by block (graph.py), over sets where most sets are rings (sets.py), along
links where few are (paths.py).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

from exo_celery.placement.found import Found, OutOfStepsError, Steps
from exo_celery.placement.graph import members, ring_in_dense, ring_through
from exo_celery.placement.greedy import greedy_ring
from exo_celery.placement.paths import PathSearch
from exo_celery.placement.sets import SetSearch
from exo_celery.placement.terrain import Group, Terrain

STEPS: Final = 110_000  # well below a second of one core
STEPS_AT_LEAST: Final = 500  # with fewer left, no further size is begun
# Where not every set is a ring, some are tried before walking along links: few where links are few, for then most fail;
# all where there are not many. The figures are those that kept any graph of 16 nodes fastest.
THIN: Final = 3.5  # links per node
THIN_GUESSES: Final = 200
GUESSES: Final = 1_000
FEW_SETS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Answer:
    """Rings of one size, best first. `exact` False: the search stopped at its bound, a better one may exist.

    `passed` are rings of that size that the search found on its way.
    """

    rings: tuple[tuple[int, ...], ...]
    exact: bool
    steps: int = 0
    passed: tuple[tuple[int, ...], ...] = ()


def best_rings(terrain: Terrain, sizes: Sequence[int], *, keep: int = 1, steps: int = STEPS) -> Answer:
    """Return the `keep` best rings of the smallest of `sizes` (ascending) that has one.

    A ring is a tuple of nodes in ring order. No rings and `exact`: there is none of any of these sizes.
    """
    short = {1: best_singles, 2: best_pairs}
    for size in sizes[:2]:
        if size in short and (rings := short[size](terrain, keep)):
            return Answer(tuple(rings), exact=True)
    return best_long_rings(terrain, [size for size in sizes if size > 2], keep, steps)


def best_singles(terrain: Terrain, keep: int) -> list[tuple[int, ...]]:
    """Return the best single nodes that can hold the model alone: leaves first, then by worth."""
    fit = [i for i in members(terrain.nodes) if terrain.room[i] >= terrain.need and not terrain.required & ~(1 << i)]
    fit.sort(key=lambda i: (terrain.leaves >> i & 1, terrain.worth[i]), reverse=True)
    return [(i,) for i in fit[:keep]]


def best_pairs(terrain: Terrain, keep: int) -> list[tuple[int, ...]]:
    """Return the best linked pairs: those that hold a leaf first, then by worth."""
    with_leaf, others = Found(keep), Found(keep)
    for i in members(terrain.leaves & terrain.nodes):
        for j in members(terrain.links[i]):
            if terrain.room[i] + terrain.room[j] >= terrain.need and is_allowed_pair(terrain, i, j):
                with_leaf.offer(terrain.worth[i] + terrain.worth[j], sorted((i, j)))
    if len(with_leaf.best) < keep:
        find_pairs(terrain, others)
    return [*with_leaf.rings, *(ring for ring in others.rings if ring not in with_leaf.rings)][:keep]


def is_allowed_pair(terrain: Terrain, i: int, j: int) -> bool:
    """Tell whether a pair has all required nodes and does not clash."""
    return not terrain.required & ~(1 << i | 1 << j) and terrain.at_peace((i, j))


def find_pairs(terrain: Terrain, found: Found) -> None:
    """Offer the best linked pairs: for each node in falling worth its best partners, while the bar can be passed."""
    order = sorted(members(terrain.nodes), key=terrain.worth.__getitem__, reverse=True)
    by_room = sorted(order, key=terrain.room.__getitem__)
    rooms = [terrain.room[i] for i in by_room]
    roomy = [0]  # roomy[n]: the n nodes with the most room
    for i in reversed(by_room):
        roomy.append(roomy[-1] | 1 << i)
    for at, i in enumerate(order[:-1]):
        if terrain.worth[i] + terrain.worth[order[at + 1]] <= found.bar:
            return
        enough = len(rooms) - bisect_left(rooms, terrain.need - terrain.room[i])
        if partners := roomy[enough] & terrain.links[i]:
            offer_partners(terrain, found, i, order[at + 1 :], partners)


def offer_partners(terrain: Terrain, found: Found, i: int, order: Sequence[int], partners: int) -> None:
    """Offer a node with those of its partners that come after it in order of worth."""
    for j in order:
        worth = terrain.worth[i] + terrain.worth[j]
        if worth <= found.bar:
            return
        if partners >> j & 1 and is_allowed_pair(terrain, i, j):
            found.offer(worth, sorted((i, j)))


def best_long_rings(terrain: Terrain, sizes: Sequence[int], keep: int, steps: int) -> Answer:
    """Search rings of three and more, each size with at most half of the steps that are left."""
    exact, left = True, steps
    for size in sizes:
        groups = [
            group for group in terrain.groups if size < len(group.most_room) and group.most_room[size] >= terrain.need
        ]
        if not groups:
            continue
        found, share = Found(keep), Steps(left // 2)
        try:
            for group in sorted(groups, key=lambda group: (-group.most_room[size], group.mask)):
                search_group(terrain, group, size, found, share)
        except OutOfStepsError:
            exact = False
        left -= left // 2 - max(0, share.left)
        if found.best:
            return Answer(tuple(found.rings), exact, steps - left, tuple(found.passed))
        if left < STEPS_AT_LEAST:
            break
    if exact or not (ring := greedy_ring(terrain, sizes)):
        return Answer((), exact, steps - left)
    return Answer((ring,), exact, steps - left)


def search_group(terrain: Terrain, group: Group, size: int, found: Found, steps: Steps) -> None:
    """Offer the best rings of a block.

    Raises:
        OutOfStepsError: the steps did not suffice.
    """
    if group.greatest_degree == 2:  # the block is one ring
        if size == len(group.nodes) and group.peaceful:
            found.offer(terrain.total_worth(group.nodes), ring_through(group.nodes, terrain.links, steps) or ())
    elif group.any_are_a_ring(size):
        search_dense(terrain, group, size, found, steps)
    else:
        for part in group.dense_parts(terrain, size):  # good rings early, for a high bar
            search_dense(terrain, part, size, found, steps)
        if not guess(terrain, group, size, found, steps):
            PathSearch(terrain, group, size, found, steps).run(steps)


def search_dense(terrain: Terrain, group: Group, size: int, found: Found, steps: Steps) -> None:
    """Offer the best rings where any `size` nodes are one."""
    if not terrain.required & ~group.mask:
        SetSearch(terrain, group, size, found, RingIn(terrain), every=True).run(steps)


def guess(terrain: Terrain, group: Group, size: int, found: Found, steps: Steps) -> bool:
    """Try the most promising sets, all where they are few; return whether that settled it."""

    def search(few: Steps) -> None:
        SetSearch(terrain, group, size, found, RingIn(terrain, few), every=False).run(few)

    return steps.suffice(allowed_guesses(group, size, steps.left), search)


def allowed_guesses(group: Group, size: int, most: int) -> int:
    """Return how many steps may go into sets of a block before its links are walked."""
    if group.mean_degree < THIN:
        return THIN_GUESSES
    return most if comb(len(group.nodes), size) <= FEW_SETS else GUESSES


@dataclass(frozen=True, slots=True)
class RingIn:
    """Finds the ring through a set of nodes: by search within `steps`, or straight where any set is one (None)."""

    terrain: Terrain
    steps: Steps | None = None

    def __call__(self, some: Sequence[int]) -> Sequence[int] | None:
        """Return the nodes in ring order, or None."""
        if self.steps is None:
            return ring_in_dense(some, self.terrain.links)
        return ring_through(some, self.terrain.links, self.steps) if self.terrain.at_peace(some) else None


def in_rank_order(ring: Sequence[int]) -> tuple[int, ...]:
    """Turn a ring so that its first node is the smallest and the second the smaller of that one's neighbours."""
    start = ring.index(min(ring))
    forth = [*ring[start:], *ring[:start]]
    back = [forth[0], *reversed(forth[1:])]
    return tuple(min(forth, back))
