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
        # What a way adds that goes on to i, and what it adds if i must not turn back to `by`.
        onward = {
            i: (gain[i] + most, by, None if other is None else gain[i] + other)
            for i, (most, by, other) in tables[-1].items()
        }
        table: dict[int, Way] = {}
        for j in some:
            most, by, other = None, -1, None
            for i in around[j]:
                value = best_way(onward, i, j)
                if value is None:
                    continue
                if most is None or value > most:
                    most, by, other = value, i, most
                elif other is None or value > other:
                    other = value
            if most is not None:
                table[j] = most, by, other
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
