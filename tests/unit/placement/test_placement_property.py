"""The search against a brute-force restatement of the rules, on thousands of small random clusters."""

import json
import random

import pytest
from clusters import Case, random_case
from restatement import best_nodes, layer_counts, rings_that_hold

from exo_celery.placement.snapshot import answer

PER_SEED = 400


@pytest.mark.parametrize("seed", range(10))
def test_same_ring_as_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    rings = 0
    for _ in range(PER_SEED):
        case = random_case(rng)
        wanted = best_nodes(case)
        found = answer(json.dumps(case))
        assert found["exact"]
        assert (tuple(sorted(found["nodes"])) if found["ok"] else None) == wanted, json.dumps(case)
        if found["ok"]:
            rings += 1
            check_split(case, found["nodes"], found["layer_counts"], found["sharding"])
            check_memory(case, found["reserved_bytes"])
            check_rivals(case, found["decision"]["rings"])
    assert rings > PER_SEED // 10


def check_split(case: Case, nodes: list[str], counts: dict[str, int], sharding: str) -> None:
    layers = case["model"]["n_layers"]
    if sharding == "Tensor":
        assert counts == dict.fromkeys(nodes, layers)
        return
    fewest = layer_counts(case, tuple(sorted(nodes)))
    assert sum(counts.values()) == layers
    assert all(counts[node] >= fewest[node] >= 1 for node in nodes)
    if sum(fewest.values()) == layers:
        assert counts == fewest


def check_memory(case: Case, reserved: dict[str, int]) -> None:
    memory = {node["id"]: node["ram_available_bytes"] for node in case["nodes"]}
    assert all(0 < held <= memory[node] for node, held in reserved.items())
    assert sum(reserved.values()) >= case["model"]["storage_bytes"]


def check_rivals(case: Case, shown: list[Case]) -> None:
    """The rings shown are the best by the rules, in order, as if each before had been forbidden."""
    rings = rings_that_hold(case)
    wanted = []
    while rings and len(wanted) < 5:
        best = best_nodes(case, rings)
        assert best is not None
        wanted.append(best)
        rings.remove(best)
    assert [tuple(sorted(ring["nodes"])) for ring in shown] == wanted, json.dumps(case)


@pytest.mark.parametrize("seed", range(4))
def test_order_of_input_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        case = random_case(rng)
        turned = json.loads(json.dumps(case))
        for name in ("nodes", "edges"):
            rng.shuffle(turned[name])
        downloads = list(turned["downloads"].items())
        rng.shuffle(downloads)
        turned["downloads"] = dict(downloads)
        assert answer(json.dumps(turned)) == answer(json.dumps(case))
