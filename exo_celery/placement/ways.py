"""Ways home: what nodes still to come can add to a path at most, tabulated before it is walked."""

from collections.abc import Mapping, Sequence

# What d more nodes after a node can add on a way back to the root: (most, the next node of that way, most by another).
Way = tuple[int, int, int | None]
Ways = list[dict[int, Way]]  # by d, then by node; a node without a way of that length is absent


def ways_by_length(nodes: Sequence[Sequence[int]], around: Mapping[int, Sequence[int]], gain: Sequence[int]) -> Ways:
    """Return the best ways home of d = 0, 1, … nodes for `nodes[d]`, each from those one node shorter.

    A way may pass a node twice, but does not turn back at once: for this the second best is kept where it goes on
    another way (2-cycle elimination: Christofides, Mingozzi and Toth 1981). What the ways add is a bound.
    """
    tables: Ways = [dict.fromkeys(nodes[0], (0, -1, None))]
    for some in nodes[1:]:
        last = tables[-1]
        table: dict[int, Way] = {}
        for j in some:
            ways = [(gain[i] + more, i) for i in around[j] if (more := best_way(last, i, j)) is not None]
            if ways:
                value, by = max(ways)
                table[j] = value, by, max((other for other, i in ways if i != by), default=None)
        tables.append(table)
    return tables


def best_way(table: Mapping[int, Way], node: int, before: int) -> int | None:
    """Return what the best way home from a node adds that does not turn back to the node before it."""
    way = table.get(node)
    if way is None:
        return None
    return way[2] if way[1] == before else way[0]


def best_way_round(
    tables: Ways, around: Mapping[int, Sequence[int]], gain: Sequence[int], root: int, doors: Sequence[int]
) -> list[int]:
    """Return the nodes of the way from the root, by one of its doors, back to it that adds most; some come twice."""
    way: list[int] = []
    before, here, onward = -1, root, doors
    for table in reversed(tables):
        ends = [(gain[i] + more, i) for i in onward if i != before and (more := best_way(table, i, here)) is not None]
        before, here = here, max(ends)[1]
        way.append(here)
        onward = around[here]
    return way
