"""Each search by itself against all subsets, on graphs too large for the restatement; and what both rest on."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from exo_celery.placement.found import Found, OutOfStepsError, Steps
from exo_celery.placement.graph import blocks, members, ring_in_dense, ring_through, set_of
from exo_celery.placement.greedy import greedy_ring
from exo_celery.placement.paths import PathSearch
from exo_celery.placement.rings import RingIn, best_rings, in_rank_order
from exo_celery.placement.sets import SetSearch
from exo_celery.placement.terrain import Group, Terrain

Search = Callable[[Terrain, Group, int, Found], None]


def random_terrain(rng: random.Random, count: int) -> Terrain:
    density = rng.choice([0.3, 0.5, 0.7, 0.9])
    links, clashes = [0] * count, [0] * count
    clashing = rng.random() < 0.3
    for i in range(count):
        for j in range(i):
            if rng.random() < density:
                links[i] |= 1 << j
                links[j] |= 1 << i
            elif clashing and rng.random() < 0.5:
                clashes[i] |= 1 << j
                clashes[j] |= 1 << i
    room = [rng.randint(1, 9) for _ in range(count)]
    worth = [(rng.choice([0, 5, rng.randint(0, 9)]) << count) | 1 << count - 1 - i for i in range(count)]
    required = set_of(rng.sample(range(count), rng.choice([0, 0, 0, 1, 2])))
    return Terrain(
        (1 << count) - 1, links, worth, room, rng.randint(0, 5 * count), required, 0, clashes if any(clashes) else ()
    )


def ring_sets(links: list[int] | tuple[int, ...]) -> set[int]:
    """All sets that a ring passes through, by the smallest node's paths (Held and Karp 1962)."""
    count = len(links)
    ends: dict[int, int] = {1 << i: 1 << i for i in range(count)}
    for mask in range(1, 1 << count):
        start = mask & -mask
        for end in members(ends.get(mask, 0)):
            for j in members(links[end] & ~mask & ~(start - 1)):
                ends[mask | 1 << j] = ends.get(mask | 1 << j, 0) | 1 << j
    return {
        mask
        for mask, last in ends.items()
        if mask.bit_count() > 2 and any(links[i] & mask & -mask for i in members(last))
    }


def wanted_sets(terrain: Terrain, size: int, keep: int) -> list[int]:
    fitting = [
        mask
        for mask in ring_sets(list(terrain.links))
        if mask.bit_count() == size
        and not terrain.required & ~mask
        and terrain.at_peace(members(mask))
        and sum(terrain.room[i] for i in members(mask)) >= terrain.need
    ]
    return sorted(fitting, key=lambda mask: -terrain.total_worth(members(mask)))[:keep]


def by_sets(terrain: Terrain, group: Group, size: int, found: Found) -> None:
    steps = Steps(10**6)
    if group.any_are_a_ring(size):
        SetSearch(terrain, group, size, found, RingIn(terrain), every=True).run(steps)
    else:
        SetSearch(terrain, group, size, found, RingIn(terrain, steps), every=False).run(steps)


def by_paths(terrain: Terrain, group: Group, size: int, found: Found) -> None:
    PathSearch(terrain, group, size, found, steps := Steps(10**6)).run(steps)


def by_fined_paths(terrain: Terrain, group: Group, size: int, found: Found) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exo_celery.placement.paths.STEPS_WITHOUT_FINES", 1)
        by_paths(terrain, group, size, found)


@pytest.mark.parametrize("search", [by_sets, by_paths, by_fined_paths])
@pytest.mark.parametrize("seed", range(30))
def test_search_finds_the_best_rings(search: Search, seed: int) -> None:
    rng = random.Random(seed)
    terrain = random_terrain(rng, rng.randint(6, 9))
    for size in range(3, terrain.nodes.bit_count() + 1):
        for keep in (1, 3):
            found = Found(keep)
            for group in terrain.groups:
                if size <= len(group.nodes):
                    search(terrain, group, size, found)
            assert [set_of(ring) for ring in found.rings] == wanted_sets(terrain, size, keep)
            assert all(is_ring(terrain, ring) for ring in found.rings)


def is_ring(terrain: Terrain, ring: tuple[int, ...]) -> bool:
    return all(terrain.links[a] >> b & 1 for a, b in pairwise((*ring, ring[0])))


@pytest.mark.parametrize("seed", range(40))
def test_blocks_hold_every_ring(seed: int) -> None:
    rng = random.Random(seed)
    terrain = random_terrain(rng, 9)
    found = blocks(terrain.links, terrain.nodes)
    assert all(block.bit_count() > 2 for block in found)
    assert all((a & b).bit_count() <= 1 for a in found for b in found if a != b)
    for mask in ring_sets(list(terrain.links)):
        assert any(not mask & ~block for block in found)


def test_blocks_of_a_long_chain_of_triangles() -> None:
    links = [0] * 2001
    for i in range(0, 2000, 2):
        for a, b in ((i, i + 1), (i + 1, i + 2), (i, i + 2)):
            links[a] |= 1 << b
            links[b] |= 1 << a
    assert len(blocks(links, (1 << 2001) - 1)) == 1000


@pytest.mark.parametrize("seed", range(20))
def test_ring_in_dense_closes_every_gap(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(3, 30)
    links = [((1 << count) - 1) ^ 1 << i for i in range(count)]
    for i in range(count):
        for j in range(i):
            if rng.random() < 0.7 and all(2 * (links[x].bit_count() - 1) >= count for x in (i, j)):
                links[i] ^= 1 << j
                links[j] ^= 1 << i
    ring = ring_in_dense(range(count), links)
    assert sorted(ring) == list(range(count))
    assert all(links[a] >> b & 1 for a, b in pairwise((*ring, ring[0])))


def test_ring_through_says_no_where_there_is_none() -> None:
    star_of_triangles = [0b11110, 0b00101, 0b00011, 0b10001, 0b01001]
    assert ring_through(range(5), star_of_triangles, Steps(1000)) is None


def test_steps_run_out_at_the_same_place() -> None:
    steps = Steps(2)
    steps.take(2)
    with pytest.raises(OutOfStepsError):
        steps.take()


def test_rank_order_starts_at_the_smallest_and_goes_to_the_smaller_neighbour() -> None:
    assert in_rank_order((3, 1, 4, 2)) == (1, 3, 2, 4)
    assert in_rank_order((5,)) == (5,)
    assert in_rank_order((7, 2)) == (2, 7)


def sparse_terrain(seed: int, count: int, degree: int) -> Terrain:
    rng = random.Random(seed)
    links = [0] * count
    for _ in range(count * degree // 2):
        a, b = rng.sample(range(count), 2)
        links[a] |= 1 << b
        links[b] |= 1 << a
    room = [rng.randint(1, 9) for _ in range(count)]
    worth = [(rng.randint(0, 10**6) << count) | 1 << count - 1 - i for i in range(count)]
    return Terrain((1 << count) - 1, links, worth, room, 40, 0, 0)


def test_a_stop_at_the_bound_is_flagged_and_repeatable() -> None:
    terrain = sparse_terrain(3, 200, 6)
    full = best_rings(terrain, range(8, 20))
    assert full.exact
    short = [best_rings(terrain, range(8, 20), steps=5000) for _ in range(2)]
    assert short[0] == short[1]
    assert not short[0].exact
    assert short[0].steps <= 5000


def test_a_greedy_ring_stands_in_where_the_bound_stops_the_search_without_one() -> None:
    terrain = sparse_terrain(4, 200, 8)
    terrain = Terrain(terrain.nodes, terrain.links, terrain.worth, terrain.room, 120, 1 << 7, 0)
    answer = best_rings(terrain, range(14, 60), steps=1500)
    assert not answer.exact
    (ring,) = answer.rings
    assert ring == greedy_ring(terrain, range(14, 60))
    assert is_ring(terrain, ring)
    assert 7 in ring
    assert sum(terrain.room[i] for i in ring) >= 120
