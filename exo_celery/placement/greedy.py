"""Rings that are good enough, for where the exact search stopped at its bound without one."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from exo_celery.placement.graph import members
from exo_celery.placement.terrain import Terrain

STARTS: Final = 24


def greedy_ring(terrain: Terrain, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the smallest ring that has the room among those that greed finds, the one of greater worth on a tie.

    From each of the nodes with the most room (from a required one, if any) a path goes on to the free neighbour with
    the most room and closes wherever it can; and a triangle grows by the node with the most room that fits between two
    neighbours.
    """
    wanted = frozenset(sizes)
    best: tuple[int, int, tuple[int, ...]] | None = None
    starts = sorted(members(terrain.nodes), key=lambda i: (terrain.required >> i & 1, terrain.room[i]), reverse=True)
    for start in starts[: 1 if terrain.required else STARTS]:
        for way in (closing_paths, growing_rings):
            ring = first_that_holds(terrain, way(terrain, start), wanted)
            key = (len(ring), -terrain.total_worth(ring), ring) if ring else None
            if key and (best is None or key < best):
                best = key
    return best[2] if best else None


def first_that_holds(
    terrain: Terrain, rings: Iterator[Sequence[int]], sizes: Collection[int]
) -> tuple[int, ...] | None:
    """Return the first ring of an allowed size that has the room and the required nodes."""
    for ring in rings:
        if len(ring) in sizes and sum(terrain.room[i] for i in ring) >= terrain.need:
            missing = terrain.required
            for i in ring:
                missing &= ~(1 << i)
            if not missing:
                return tuple(ring)
    return None


def largest(terrain: Terrain, some: int) -> int:
    """Return the node of a set to take next: required, then with the most room."""
    return max(members(some), key=lambda i: (terrain.required >> i & 1, terrain.room[i], -i))


def peers(terrain: Terrain, node: int) -> int:
    """Return the nodes that may share a ring with this one."""
    return terrain.nodes & ~(terrain.clashes[node] if terrain.clashes else 0) & ~(1 << node)


def closing_paths(terrain: Terrain, start: int) -> Iterator[list[int]]:
    """Yield the rings that close while a path goes on from node to node."""
    path, free = [start], peers(terrain, start)
    while ways := terrain.links[path[-1]] & free:
        node = largest(terrain, ways)
        free &= peers(terrain, node)
        path.append(node)
        if len(path) > 2 and terrain.links[node] >> start & 1:
            yield path


def growing_rings(terrain: Terrain, start: int) -> Iterator[list[int]]:
    """Yield the rings that grow from a triangle, one node at a time."""
    free = peers(terrain, start)
    seconds = terrain.links[start] & free
    second = next(
        (j for j in sorted(members(seconds), key=lambda j: -terrain.room[j]) if terrain.links[j] & seconds), None
    )
    if second is None:
        return
    ring, free = [start, second], free & peers(terrain, second)
    while True:
        gaps = [terrain.links[a] & terrain.links[b] & free for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
        fitting = 0
        for gap in gaps:
            fitting |= gap
        if not fitting:
            return
        node = largest(terrain, fitting)
        at = next(i for i, gap in enumerate(gaps) if gap >> node & 1)
        ring.insert(at + 1, node)
        free &= peers(terrain, node)
        yield ring
