"""Placing on a simulated cluster in a real Redis: memory is promised once, at a constant number of round trips."""

import threading
import time
from collections import Counter

import pytest
from redis import Redis

from exo_celery.context import Context, open_context
from exo_celery.errors import PlacementError
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import InstanceStatus, PlacementRequest
from exo_celery.records.model import ModelCard
from exo_celery.records.node import LinkRecord, Node
from exo_celery.settings import Settings
from exo_celery.store import cards, downloads, instances, keys, links, nodes
from exo_celery.tasks import placement

MODEL = "org/model"
GB = 10**9


@pytest.fixture
def cluster(redis_url: str, namespace: str, redis: Redis) -> Context:
    return open_context(Settings(redis_url=redis_url, namespace=namespace))


def simulate(cluster: Context, count: int, free_bytes: int, island: int = 1000) -> None:
    """Register nodes that live, have measured links within their island, and hold part of the model."""
    names = [f"n{number:04}" for number in range(count)]
    at = time.time()
    for number, name in enumerate(names):
        node = Node(
            id=name, boot_id=name, ram_available_bytes=free_bytes, ram_total_bytes=free_bytes, backends=("MlxCpu",),
            links_at=at,
        )  # fmt: skip
        nodes.heartbeat(cluster.redis, cluster.ns, node)
        cluster.redis.persist(keys.alive(cluster.ns, name))  # nobody beats for it
        start = number - number % island
        peers = [peer for peer in names[start : start + island] if peer != name]
        link = LinkRecord(address="10.0.0.1", rtt_ms=1, checked_at=at)
        links.replace(cluster.redis, cluster.ns, name, dict.fromkeys(peers, link))
        part = Download(node=name, model=MODEL, downloaded_bytes=number % 7, total_bytes=10)
        downloads.write(cluster.redis, cluster.ns, part.evolve(status=DownloadStatus.PENDING))


def card(size_bytes: int, layers: int = 10) -> ModelCard:
    return ModelCard(id=MODEL, storage_bytes=size_bytes, n_layers=layers, hidden_size=64)


def test_two_hundred_requests_at_once_promise_no_byte_twice(cluster: Context) -> None:
    simulate(cluster, 10, 10 * GB)
    cards.save(cluster.redis, cluster.ns, card(4 * GB))  # 25 fit: two a node, then pairs of what is left
    outcomes: list[str] = []

    def ask() -> None:
        own = open_context(cluster.settings)
        try:
            asked = placement.request_instance(own, PlacementRequest(model=MODEL))
        except PlacementError as refusal:
            outcomes.append(refusal.code)
            return
        placement.place_instance(own, asked.id)
        outcomes.append("asked")

    threads = [threading.Thread(target=ask) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not any(thread.is_alive() for thread in threads)
    assert len(outcomes) == 200
    found = instances.every(cluster.redis, cluster.ns)
    promised = Counter[str]()
    for one in found:
        promised.update(one.reserved_bytes)
    assert max(promised.values()) <= 10 * GB
    placed = [one for one in found if one.ring]
    waiting = [one for one in found if not one.ring]
    assert len(placed) <= 25
    assert all(one.status is InstanceStatus.PLACING for one in found)
    assert set(outcomes) <= {"asked", "insufficient_memory"}
    assert all("short" in one.error or one.error == "" for one in waiting)
    for one in waiting:  # the tick asks again those whom conflicts kept from deciding
        placement.place_instance(cluster, one.id)
    settled = instances.every(cluster.redis, cluster.ns)
    assert sum(bool(one.ring) for one in settled) == 25
    assert all(one.ring or "short" in one.error for one in settled)


def test_facts_of_a_thousand_nodes_cost_as_many_round_trips_as_of_ten(
    cluster: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards.save(cluster.redis, cluster.ns, card(GB))
    trips = Counter[str]()
    connection = cluster.redis.connection_pool.connection_class
    send = connection.send_packed_command

    def counted(self: object, *args: object, **kwargs: object) -> object:
        trips["sent"] += 1
        return send(self, *args, **kwargs)

    needed = []
    for count in (10, 300):
        simulate(cluster, count, 2 * GB, island=32)
        with monkeypatch.context() as patch:
            patch.setattr(connection, "send_packed_command", counted)
            placement.gather(cluster, PlacementRequest(model=MODEL))
        needed.append(trips.pop("sent"))
    assert needed[0] == needed[1] <= 12


def test_one_way_links_make_no_ring(cluster: Context) -> None:
    simulate(cluster, 2, GB)
    cards.save(cluster.redis, cluster.ns, card(2 * GB - 10**8))
    links.replace(cluster.redis, cluster.ns, "n0001", {})
    with pytest.raises(PlacementError) as refused:
        placement.request_instance(cluster, PlacementRequest(model=MODEL, min_nodes=2))
    assert refused.value.code == "no_two_way_ring"


def test_a_node_that_has_not_measured_yet_is_taken_at_its_word(cluster: Context) -> None:
    simulate(cluster, 2, GB)
    cards.save(cluster.redis, cluster.ns, card(2 * GB - 10**8))
    for name in ("n0000", "n0001"):
        links.replace(cluster.redis, cluster.ns, name, {})
        fresh = Node(id=name, boot_id=name, ram_available_bytes=GB, backends=("MlxCpu",))
        cluster.redis.delete(keys.node(cluster.ns, name))
        nodes.heartbeat(cluster.redis, cluster.ns, fresh)
    assert placement.request_instance(cluster, PlacementRequest(model=MODEL)).status is InstanceStatus.PLACING


def test_a_tensor_ring_is_refused_before_anything_is_loaded(cluster: Context) -> None:
    simulate(cluster, 2, GB)
    whole = card(GB).evolve(supports_tensor=True, num_key_value_heads=2)
    cards.save(cluster.redis, cluster.ns, whole)
    with pytest.raises(PlacementError, match="pipeline") as refused:
        placement.request_instance(cluster, PlacementRequest(model=MODEL, sharding="tensor", min_nodes=2))
    assert refused.value.code == "tensor_not_served"
    assert instances.every(cluster.redis, cluster.ns) == []
