"""The rules of placement restated by brute force, to judge the search: every set of nodes, every order around a ring.

Reads the snapshot format, shares no code with the package, and is only fit for a handful of nodes.
"""

from fractions import Fraction
from itertools import combinations, permutations
from typing import Any

ENGINES = {"MlxRing": {"MlxMetal", "MlxCuda", "MlxCpu"}, "MlxJaccl": {"MlxMetal"}}
Case = dict[str, Any]
Edge = tuple[str, str]


def edges_of(case: Case) -> tuple[set[Edge], set[Edge]]:
    """All directed edges, and those with RDMA."""
    edges: set[Edge] = set()
    rdma: set[Edge] = set()
    for a, b, *words in case["edges"]:
        for edge in [(a, b), (b, a)] if case.get("undirected") or "both" in words else [(a, b)]:
            edges.add(edge)
            if "rdma" in words:
                rdma.add(edge)
    return edges, rdma


def fraction(case: Case, node: str) -> Fraction:
    entries = case["downloads"].get(node, [])
    for entry in entries if isinstance(entries, list) else [entries]:
        if entry.get("model", case["model"]["id"]) != case["model"]["id"]:
            continue
        if entry["status"] == "completed":
            return Fraction(1)
        if entry["status"] == "failed" or not entry["total"]:
            return Fraction(0)
        return min(Fraction(1), Fraction(entry["downloaded"], entry["total"]))
    return Fraction(0)


def is_ring(nodes: tuple[str, ...], edges: set[Edge]) -> bool:
    if len(nodes) == 1:
        return True
    first, *rest = nodes
    return any(
        all((a, b) in edges and (b, a) in edges for a, b in zip((first, *order), (*order, first), strict=True))
        for order in permutations(rest)
    )


def may_take_part(case: Case, node: Case) -> bool:
    model, engine = case["model"], case.get("instance_meta", "MlxRing")
    everything = ["MlxMetal", "MlxCuda", "MlxCpu"]
    if node["ram_available_bytes"] is None or node["id"] in case.get("excluded_nodes", []):
        return False
    shared = set(node.get("backends", everything)) & set(model.get("backends", everything)) & ENGINES[engine]
    return bool(shared) and (engine != "MlxJaccl" or bool(node.get("rdma_enabled")))


def holds(case: Case, memory: list[int]) -> bool:
    model, size = case["model"], len(memory)
    layers, needed = model["n_layers"], model["storage_bytes"]
    if case["sharding"] == "Tensor":
        heads = model.get("num_key_value_heads")
        divides = model["hidden_size"] % size == 0 and (heads is None or heads % size == 0)
        return model["supports_tensor"] and divides and all(free * size >= needed for free in memory)
    capacity = [free * layers // needed for free in memory]
    return min(capacity) >= 1 and sum(capacity) >= layers


def rings_that_hold(case: Case) -> list[tuple[str, ...]]:
    """The sorted node sets that are rings and pass every filter, of any allowed size."""
    edges, rdma = edges_of(case)
    memory = {node["id"]: node["ram_available_bytes"] for node in case["nodes"] if may_take_part(case, node)}
    largest = min(case["model"]["n_layers"], case.get("max_nodes", len(case["nodes"])))
    found = []
    for size in range(case["min_nodes"], largest + 1):
        for nodes in combinations(sorted(memory), size):
            inside = {(a, b) for a, b in edges if a in nodes and b in nodes}
            if case.get("instance_meta") == "MlxJaccl" and not inside <= rdma:
                continue
            if not set(case.get("required_nodes", [])) <= set(nodes) or not holds(case, [memory[n] for n in nodes]):
                continue
            if is_ring(nodes, edges):
                found.append(nodes)
    return found


def best_nodes(case: Case, rings: list[tuple[str, ...]] | None = None) -> tuple[str, ...] | None:
    """The sorted node ids of the ring that the rules choose (of these rings, if given), or None."""
    rings = rings_that_hold(case) if rings is None else rings
    if not rings:
        return None
    smallest = min(map(len, rings))
    rings = [ring for ring in rings if len(ring) == smallest]
    edges, _ = edges_of(case)
    leaves = {node["id"] for node in case["nodes"] if sum(a == node["id"] for a, _ in edges) <= 1}
    rings = [ring for ring in rings if leaves & set(ring)] or rings
    memory = {node["id"]: node["ram_available_bytes"] for node in case["nodes"]}
    return min(rings, key=lambda ring: (-sum(fraction(case, n) for n in ring), -sum(memory[n] for n in ring), ring))


def layer_counts(case: Case, nodes: tuple[str, ...]) -> dict[str, int]:
    """Layers by largest remainder, at least one each, and which ranks are then above their capacity is cut."""
    layers, needed = case["model"]["n_layers"], case["model"]["storage_bytes"]
    memory = {n["id"]: n["ram_available_bytes"] for n in case["nodes"] if n["id"] in nodes}
    total = sum(memory.values())
    exact = {n: Fraction(memory[n] * layers, total) for n in nodes}
    counts = {n: int(exact[n]) for n in nodes}
    for n in sorted(nodes, key=lambda n: (counts[n] - exact[n], n))[: layers - sum(counts.values())]:
        counts[n] += 1
    for n in sorted(nodes):
        if counts[n] == 0:
            counts[min(nodes, key=lambda m: (-counts[m], m))] -= 1
            counts[n] = 1
    return {n: min(counts[n], memory[n] * layers // needed) for n in nodes}
