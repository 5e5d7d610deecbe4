"""How many layers each rank of a pipeline takes."""

from collections.abc import Sequence

from exo_celery.placement.demand import Demand


def split_layers(free_bytes: Sequence[int], ids: Sequence[str], demand: Demand) -> list[int]:
    """Return the layers of each rank: in proportion to free bytes, at least one, never more than fit.

    Largest remainder (Hamilton's method), ties to the smaller id; then ranks above their capacity give the fewest
    layers that bring them within it. The head counts as layers of the last rank, for it is work of every token; the
    embedding is only looked up, so it takes memory on the first rank, but no share. All capacities together must reach
    the need.
    """
    by_id = sorted(range(len(ids)), key=ids.__getitem__)
    capacities = demand.capacities(free_bytes)
    capacities[0] -= demand.first_layers
    capacities[-1] -= demand.last_layers
    weights = list(free_bytes) if sum(free_bytes) else [1] * len(ids)
    counts = largest_remainder(weights, demand.layers + demand.last_layers, by_id)
    counts[-1] -= demand.last_layers
    at_least_one(counts, by_id)
    move_to_room(counts, capacities, by_id)
    return counts


def largest_remainder(weights: Sequence[int], total: int, by_id: Sequence[int]) -> list[int]:
    """Share out `total` in proportion to the weights, the left-over ones to the largest remainders."""
    whole = sum(weights)
    shares = [divmod(weight * total, whole) for weight in weights]
    counts = [count for count, _ in shares]
    for i in sorted(by_id, key=lambda i: -shares[i][1])[: total - sum(counts)]:
        counts[i] += 1
    return counts


def at_least_one(counts: list[int], by_id: Sequence[int]) -> None:
    """Take from the ranks with the most layers for those that have none."""
    for i in by_id:
        while counts[i] < 1:
            counts[max(by_id, key=counts.__getitem__)] -= 1
            counts[i] += 1


def move_to_room(counts: list[int], capacities: Sequence[int], by_id: Sequence[int]) -> None:
    """Move what is too much for a rank to those with room, in proportion to it; no other layer moves."""
    excess = 0
    for i, capacity in enumerate(capacities):
        excess += max(0, counts[i] - capacity)
        counts[i] = min(counts[i], capacity)
    if excess:
        room = [capacity - count for capacity, count in zip(capacities, counts, strict=True)]
        for i, more in enumerate(largest_remainder(room, excess, by_id)):
            counts[i] += more
