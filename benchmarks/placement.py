"""Placement: how long one decision takes, against listing every simple cycle and at sizes where that is hopeless.

    python benchmarks/placement.py [--json FILE] [--full] [--rounds N]

Memory is random, 30 % of the nodes have part of the model and 5 % all of it; the seed is fixed. Times are CPU
milliseconds of `decide` (median of the rounds), the explanation is timed beside it. `exact no` means that the search
stopped at its bound and said so.
"""

import argparse
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

from exo_celery.errors import PlacementError
from exo_celery.placement.place import decide, place
from exo_celery.placement.question import NOTHING, WHOLE, Links, NodeFacts, Question
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import ModelCard

GB = 10**9
LAYERS = 80
Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    nodes: int
    ring: int
    milliseconds: float
    target: float
    explained: float
    exact: bool
    megabytes: float


def node_id(i: int) -> str:
    return f"node-{i:04d}"


def random_nodes(rng: random.Random, count: int) -> tuple[NodeFacts, ...]:
    def fraction() -> Fraction:
        chance = rng.random()
        part = Fraction(rng.randint(1, 40 * GB), 40 * GB)
        return part if chance < 0.3 else WHOLE if chance < 0.35 else NOTHING

    return tuple(NodeFacts(node_id(i), rng.randint(8 * GB, 64 * GB), fraction=fraction()) for i in range(count))


def linked(count: int, pairs: Pairs) -> Links:
    both = ((node_id(a), node_id(b)) for pair in pairs for a, b in (pair, pair[::-1]))
    return Links.of([node_id(i) for i in range(count)], both)


def question(nodes: tuple[NodeFacts, ...], links: Links, size: int, *, share: float = 1.0) -> Question:
    """A model that needs `share` of what `size` average nodes have, and at least `size` nodes."""
    average = sum(node.free_bytes for node in nodes) // len(nodes)
    card = ModelCard(id="org/model", storage_bytes=int(average * size * share), n_layers=LAYERS, hidden_size=8192)
    return Question(card, PlacementRequest(model="org/model", min_nodes=size), nodes, links)


def cliques(count: int, size: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(count) for b in range(a + 1, min(count, (a // size + 1) * size))]


def sparse(rng: random.Random, count: int, degree: int) -> Pairs:
    """Random links on top of one ring through all nodes, so that there are rings of every kind."""
    pairs = {(i, (i + 1) % count) for i in range(count)}
    while 2 * len(pairs) < count * degree:
        a, b = rng.sample(range(count), 2)
        if (b, a) not in pairs:
            pairs.add((a, b))
    return sorted(pairs)


def dense_cases(rng: random.Random) -> Iterator[tuple[str, Question, float]]:
    """Name, question and target in milliseconds."""
    for count in (10, 16, 64, 256, 1000):
        nodes, links = random_nodes(rng, count), Links.every(count)
        for size in (1, 2, 8, 24):
            if size <= count:
                target = 5.0 if count <= 10 else 10.0 if size <= 8 else 50.0
                yield "complete", question(nodes, links, size), target
    nodes = random_nodes(rng, 1000)
    islands = cliques(1000, 32)
    chain = [*islands, *((i, i + 1) for i in range(31, 999, 32))]
    for name, pairs in (("islands of 32", islands), ("chain of cliques", chain)):
        links = linked(1000, pairs)
        for size in (1, 2, 8, 24):
            yield name, question(nodes, links, size), 100.0


def sparse_cases(rng: random.Random) -> Iterator[tuple[str, Question, float]]:
    """Name, question and target in milliseconds; the last two may stop at the bound."""
    for count, sizes, degrees, target in (
        (16, (3, 5, 8, 12, 16), (3, 4, 6, 8), 50.0),
        (64, (4, 8, 12), (3, 4, 6), 150.0),
        (256, (4, 8), (3, 4, 6), 400.0),
        (1000, (4, 8), (4, 8), 1000.0),
    ):
        for degree in degrees:
            links = linked(count, sparse(rng, count, degree))
            nodes = random_nodes(rng, count)
            for size in sizes:
                yield f"sparse, {degree} links each", question(nodes, links, size, share=0.9), target
    two = [*cliques(1000, 500), (0, 500), (1, 501)]
    yield "two cliques, two links", question(random_nodes(rng, 1000), linked(1000, two), 24), 1000.0


def cpu_milliseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def measure(name: str, asked: Question, target: float, rounds: int) -> Row:
    size, exact = 0, True
    try:
        choice = decide(asked)
        size, exact = len(choice.ring), choice.exact
    except PlacementError as error:
        exact = error.code != "no_ring_within_bound"

    def quiet(function: Callable[[Question], object]) -> Callable[[], object]:
        def run() -> object:
            try:
                return function(asked)
            except PlacementError as error:
                return error

        return run

    times = [cpu_milliseconds(quiet(decide)) for _ in range(rounds)]
    explained = cpu_milliseconds(quiet(place))
    tracemalloc.start()
    quiet(decide)()
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return Row(name, len(asked.nodes), size, statistics.median(times), target, explained, exact, megabytes)


def every_cycle(count: int) -> Iterator[tuple[int, ...]]:
    """List all simple directed cycles of a complete graph, each once from its smallest node: the obvious way."""

    def grow(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield path
        for node in range(path[0] + 1, count):
            if node not in path:
                yield from grow((*path, node))

    for start in range(count):
        yield from grow((start,))


def enumerate_best(asked: Question) -> tuple[int, ...]:
    """Choose by the rules among all cycles, each looked at."""
    card, nodes = asked.card, asked.nodes
    capacity = [node.free_bytes * card.n_layers // card.storage_bytes for node in nodes]
    best: tuple[tuple[object, ...], tuple[int, ...]] | None = None
    for cycle in every_cycle(len(nodes)):
        if len(cycle) < asked.request.min_nodes or sum(capacity[i] for i in cycle) < card.n_layers:
            continue
        worth = sum(nodes[i].fraction for i in cycle), sum(nodes[i].free_bytes for i in cycle)
        key = (len(cycle), -worth[0], -worth[1], sorted(cycle))
        if best is None or key < best[0]:
            best = key, cycle
    return tuple(sorted(best[1])) if best else ()


def collect(found: list[tuple[int, ...]], asked: Question) -> None:
    found.append(enumerate_best(asked))


def compare(rng: random.Random, most: int) -> list[dict[str, float]]:
    """Time both ways on complete graphs of 2 … `most` nodes, and check that they agree."""
    found = []
    for count in range(2, most + 1):
        asked = question(random_nodes(rng, count), Links.every(count), max(2, count // 2), share=0.9)
        chosen: list[tuple[int, ...]] = []
        slow = cpu_milliseconds(partial(collect, chosen, asked))
        fast = statistics.median(cpu_milliseconds(partial(decide, asked)) for _ in range(5))
        if tuple(sorted(decide(asked).ring)) != chosen[0]:
            raise SystemExit(f"the two ways differ at {count} nodes")
        found.append({"nodes": count, "enumeration_ms": slow, "search_ms": fast})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--full", action="store_true", help="enumerate 10 nodes too (half a minute)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rng = random.Random(4)
    print("complete graph, every simple cycle listed against our search (CPU ms)")
    print(f"{'nodes':>5} {'enumeration':>12} {'search':>8}")
    against = compare(rng, 10 if options.full else 9)
    for line in against:
        print(f"{line['nodes']:>5} {line['enumeration_ms']:>12.1f} {line['search_ms']:>8.2f}")
    print(f"\n{'links':<24} {'nodes':>5} {'ring':>4} {'ms':>8} {'target':>7} {'explained':>9} {'exact':>5} {'MB':>6}")
    rows = []
    for name, asked, target in (*dense_cases(rng), *sparse_cases(rng)):
        row = measure(name, asked, target, options.rounds)
        rows.append(row)
        late = " over" if row.milliseconds > row.target else ""
        print(
            f"{row.name:<24} {row.nodes:>5} {row.ring or '-':>4} {row.milliseconds:>8.1f} {row.target:>7.0f}"
            f" {row.explained:>9.1f} {'yes' if row.exact else 'no':>5} {row.megabytes:>6.2f}{late}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"against_enumeration": against, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
