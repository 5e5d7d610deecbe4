"""Small clusters for tests, in the snapshot format."""

import json
import random
from typing import Any

from exo_celery.placement.snapshot import answer

Case = dict[str, Any]


def cluster(memory: dict[str, int | None], edges: Any = "all", **changes: Any) -> Case:
    """A cluster with these available bytes, a model of 90 bytes in 9 layers, and changes to the case or its model."""
    model = {"id": "org/model", "storage_bytes": 90, "n_layers": 9, "hidden_size": 12, "num_key_value_heads": 4}
    model |= {"supports_tensor": True} | changes.pop("model", {})
    nodes = [{"id": name, "ram_available_bytes": free} for name, free in memory.items()]
    case = {"nodes": nodes, "edges": edges, "undirected": True, "downloads": {}, "model": model}
    return case | {"sharding": "Pipeline", "instance_meta": "MlxRing", "min_nodes": 1} | changes


def done(total: int = 90) -> dict[str, Any]:
    return {"status": "completed", "downloaded": total, "total": total}


def part(status: str, downloaded: int, total: int = 90) -> dict[str, Any]:
    return {"status": status, "downloaded": downloaded, "total": total}


def placed(case: Case) -> dict[str, Any]:
    found = answer(json.dumps(case))
    assert found["ok"], found["error"]
    return found


def refused(case: Case) -> dict[str, Any]:
    found = answer(json.dumps(case))
    assert not found["ok"], found["why"]
    return found["error"] | {"numbers": found["decision"]}


def random_case(rng: random.Random) -> Case:
    """A cluster of up to six nodes: sparse or dense, one-way links, ties, no memory, no report, any request."""
    ids = [f"n{i}" for i in range(rng.randint(1, 6))]
    rng.shuffle(ids)
    size = rng.choice([10, 60, 97, 100, 1000])
    case = cluster({name: random_memory(rng, size) for name in ids}, random_edges(rng, ids))
    for node in case["nodes"]:
        if rng.random() < 0.15:
            node["backends"] = rng.sample(["MlxMetal", "MlxCuda", "MlxCpu"], rng.randint(1, 2))
        node["rdma_enabled"] = rng.random() < 0.7
    case["undirected"] = rng.random() < 0.6
    case["model"] |= {
        "storage_bytes": size,
        "n_layers": rng.choice([1, 2, 3, 6, 7, 12, 28]),
        "hidden_size": rng.choice([12, 8, 60]),
        "num_key_value_heads": rng.choice([None, 2, 4, 6]),
        "supports_tensor": rng.random() < 0.9,
    }
    case["downloads"] = {name: random_download(rng, size) for name in ids if rng.random() < 0.7}
    return case | random_request(rng, ids)


def random_memory(rng: random.Random, size: int) -> int | None:
    if rng.random() < 0.06:
        return None
    few = rng.randint(0, size // 2)
    return rng.choice([0, size // 3, size // 2, size, few, few, rng.randint(0, size)])


def random_edges(rng: random.Random, ids: list[str]) -> list[list[str]]:
    density = rng.choice([0.3, 0.6, 0.8, 1.0])
    edges = []
    for a in ids:
        for b in ids:
            if a != b and rng.random() < density:
                edges.append([a, b, "both"] if rng.random() < 0.1 else [a, b])
                if rng.random() < 0.6:
                    edges.append([a, b, "rdma"])
    rng.shuffle(edges)
    return edges


def random_download(rng: random.Random, size: int) -> dict[str, Any]:
    total = rng.choice([size, 100])
    status = rng.choice(["completed", "ongoing", "pending", "failed"])
    return part(status, rng.choice([0, total // 2, total, total + total // 5, rng.randint(0, total)]), total)


def random_request(rng: random.Random, ids: list[str]) -> Case:
    request: Case = {
        "sharding": rng.choice(["Pipeline", "Pipeline", "Tensor"]),
        "instance_meta": rng.choice(["MlxRing", "MlxRing", "MlxJaccl"]),
        "min_nodes": rng.choice([1, 1, 1, 2, 2, 3, 4]),
    }
    if rng.random() < 0.25:
        request["required_nodes"] = rng.sample(ids, rng.randint(1, min(2, len(ids))))
    if rng.random() < 0.2:
        request["excluded_nodes"] = rng.sample(ids, 1)
    if rng.random() < 0.15:
        request["max_nodes"] = rng.randint(2, 5)
    return request
