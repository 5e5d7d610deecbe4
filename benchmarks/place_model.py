"""One whole placement on a simulated cluster in a real Redis: every read, the decision, the write.

`python benchmarks/place_model.py [--nodes 1000] [--island 32] [--json FILE]`: wall milliseconds, median of the rounds,
and the round trips to Redis.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from exo_celery.context import Context, open_context
from exo_celery.local import redis_server
from exo_celery.records.download import Download
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import ModelCard
from exo_celery.records.node import LinkRecord, Node
from exo_celery.settings import Settings
from exo_celery.store import cards, downloads, keys, links, nodes
from exo_celery.tasks import placement

ROUNDS = 9
MODEL = "org/model"
GB = 10**9


def simulate(cluster: Context, count: int, island: int) -> None:
    """Register live nodes in islands, each with random-looking memory and part of the model."""
    names = [f"node-{number:04}" for number in range(count)]
    cards.save(cluster.redis, cluster.ns, ModelCard(id=MODEL, storage_bytes=60 * GB, n_layers=80, hidden_size=8192))
    for number, name in enumerate(names):
        free = (8 + number * 7919 % 25) * GB
        node = Node(
            id=name, boot_id=name, addresses=("10.0.0.1",), port=1, links_at=time.time(), ram_total_bytes=free,
            ram_available_bytes=free, backends=("MlxMetal", "MlxCpu"), versions={"mlx": "0", "python": "3"},
        )  # fmt: skip
        nodes.heartbeat(cluster.redis, cluster.ns, node)
        cluster.redis.persist(keys.alive(cluster.ns, name))
        start = number - number % island
        link = LinkRecord(address="10.0.0.1", rtt_ms=0.4, checked_at=time.time())
        links.replace(cluster.redis, cluster.ns, name, {p: link for p in names[start : start + island] if p != name})
        if number % 10 < 3:
            part = Download(node=name, model=MODEL, downloaded_bytes=number * 31 % 60 * GB, total_bytes=60 * GB)
            downloads.write(cluster.redis, cluster.ns, part)


def measure(count: int, island: int) -> dict[str, object]:
    """Place again and again."""
    with tempfile.TemporaryDirectory() as folder:
        server = redis_server.prepare(Path(folder))
        process = redis_server.start(server, Path(folder) / "log")
        try:
            cluster = open_context(Settings(redis_url=server.url, namespace="benchmark"))
            simulate(cluster, count, island)
            rounds = []
            for _ in range(ROUNDS):
                started = time.perf_counter()
                (placed,) = placement.request_instances(cluster, PlacementRequest(model=MODEL))
                rounds.append((time.perf_counter() - started) * 1000)
                cluster.redis.delete(keys.instance(cluster.ns, placed.id), keys.instances(cluster.ns))
        finally:
            process.terminate()
            process.wait()
    return {"nodes": count, "island": island, "ms": rounds, "median_ms": statistics.median(rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--island", type=int, default=32)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    result = measure(wanted.nodes, wanted.island)
    low, high = min(result["ms"]), max(result["ms"])
    print(f"{wanted.nodes} nodes in islands of {wanted.island}: one placement takes {result['median_ms']:.0f} ms")
    print(f"(median of {ROUNDS}, from {low:.0f} to {high:.0f}), wanted <= 250 at 1,000 in islands of 32")
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
