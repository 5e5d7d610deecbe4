"""Rings that are good enough, for where the exact search stopped at its bound without one."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from exo_celery.placement.graph import members, set_of
from exo_celery.placement.terrain import Terrain

STARTS: Final = 8


def greedy_ring(terrain: Terrain, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the smallest ring that has the room among those that greed finds, the one of greater worth on a tie.

    From each of the nodes with the most room (from a required one, if any) a path goes on to the neighbour with the
    most room that has a way home, and could go home from everywhere; and a triangle grows by the node with the most
    room that fits between two neighbours.
    """
    wanted = frozenset(sizes)
    best: tuple[int, int, tuple[int, ...]] | None = None
    by_room = sorted(members(terrain.nodes), key=lambda i: dearness(terrain, i), reverse=True)
    for start in by_room[: 1 if terrain.required else STARTS]:
        for way in (closing_paths, growing_rings):
            ring = first_that_holds(terrain, way(terrain, start), wanted)
            key = (len(ring), -terrain.total_worth(ring), ring) if ring else None
            if key and (best is None or key < best):
                best = key
    return best[2] if best else None


def first_that_holds(
    terrain: Terrain, rings: Iterator[Sequence[int]], sizes: Collection[int]
) -> tuple[int, ...] | None:
    """Return the first ring of an allowed size that has the room and the required nodes, and in which none clash."""
    for ring in rings:
        fits = len(ring) in sizes and sum(terrain.room[i] for i in ring) >= terrain.need
        if fits and not terrain.required & ~set_of(ring) and terrain.at_peace(ring):
            return tuple(ring)
    return None


def dearness(terrain: Terrain, node: int) -> tuple[int, int, int]:
    """Return by what the next node is taken: required ones first, then those with the most room."""
    return (terrain.required >> node & 1, terrain.room[node], -node)


def peers(terrain: Terrain, node: int) -> int:
    """Return the nodes that may share a ring with this one."""
    return terrain.nodes & ~(terrain.clashes[node] if terrain.clashes else 0) & ~(1 << node)


def closing_paths(terrain: Terrain, start: int) -> Iterator[Sequence[int]]:
    """Yield the rings that close by the shortest way home while a path goes on from node to node."""
    path, free = [start], peers(terrain, start)
    while True:
        doors = terrain.links[start] & free
        ways = sorted(members(terrain.links[path[-1]] & free), key=lambda i: dearness(terrain, i), reverse=True)
        for node in ways:
            rest = free & peers(terrain, node)
            home = [] if doors >> node & 1 else way_home(terrain, node, rest, doors & rest)
            if home is not None:
                break
        else:
            return
        path.append(node)
        free = rest
        if len(path) + len(home) > 2:
            yield [*path, *home]


def way_home(terrain: Terrain, node: int, free: int, doors: int) -> list[int] | None:
    """Return the nodes of a shortest way over free nodes to one of the doors, or None."""
    layers = [1 << node]
    seen = layers[0]
    while not layers[-1] & doors:
        layer = 0
        for i in members(layers[-1]):
            layer |= terrain.links[i]
        layer &= free & ~seen
        if not layer:
            return None
        seen |= layer
        layers.append(layer)
    way: list[int] = []
    ahead = doors
    for layer in reversed(layers[1:]):
        way.insert(0, max(members(layer & ahead), key=lambda i: dearness(terrain, i)))
        ahead = terrain.links[way[0]]
    return way


def growing_rings(terrain: Terrain, start: int) -> Iterator[Sequence[int]]:
    """Yield the rings that grow from a triangle, one node at a time."""
    around = terrain.links[start] & peers(terrain, start)
    second = max(
        (i for i in members(around) if terrain.links[i] & around), key=lambda i: dearness(terrain, i), default=None
    )
    if second is None:
        return
    ring, free = [start, second], peers(terrain, start) & peers(terrain, second)
    while True:
        gaps = [terrain.links[a] & terrain.links[b] & free for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
        fitting = 0
        for gap in gaps:
            fitting |= gap
        if not fitting:
            return
        node = max(members(fitting), key=lambda i: dearness(terrain, i))
        ring.insert(1 + next(i for i, gap in enumerate(gaps) if gap >> node & 1), node)
        free &= peers(terrain, node)
        yield ring
