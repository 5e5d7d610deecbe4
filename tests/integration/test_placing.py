"""Placing on a simulated cluster in a real Redis: memory is promised once, at a constant number of round trips."""

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

from exo_celery.cli import main
from exo_celery.context import Context, open_context
from exo_celery.errors import PlacementError
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import InstanceStatus, PlacementRequest
from exo_celery.records.model import ModelCard
from exo_celery.records.node import LinkRecord, Node
from exo_celery.settings import Settings
from exo_celery.store import cards, downloads, events, instances, keys, links, nodes
from exo_celery.tasks import facts, placement

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


def at_once(cluster: Context, count: int, act: Callable[[Context], object]) -> None:
    """Do something in so many threads, each with a connection of its own; a failure of one is the test's."""
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(act, open_context(cluster.settings)) for _ in range(count)]:
            done.result(timeout=90)


def promised(cluster: Context) -> Counter[str]:
    """Return the bytes that each node was promised to instances."""
    total = Counter[str]()
    for one in instances.every(cluster.redis, cluster.ns):
        total.update(one.reserved_bytes)
    return total


def test_two_hundred_requests_at_once_promise_no_byte_twice(cluster: Context) -> None:
    simulate(cluster, 10, 10 * GB)
    cards.save(cluster.redis, cluster.ns, card(4 * GB))  # 25 fit: two a node, then pairs of what is left
    refused: list[PlacementError] = []

    def ask(own: Context) -> None:
        try:
            placement.request_instances(own, PlacementRequest(model=MODEL))
        except PlacementError as refusal:
            refused.append(refusal)

    at_once(cluster, 200, ask)
    found = instances.every(cluster.redis, cluster.ns)
    assert len(found) == 25
    assert all(one.status is InstanceStatus.PLACING and one.ring for one in found)
    assert len(refused) == 175
    assert all(one.code == "insufficient_memory" and "short" in one.message for one in refused)
    assert max(promised(cluster).values()) <= 10 * GB


def test_replicas_are_placed_all_or_none_also_at_once(cluster: Context) -> None:
    simulate(cluster, 5, 4 * GB)
    cards.save(cluster.redis, cluster.ns, card(3 * GB))
    with pytest.raises(PlacementError, match=r"^6 of 7 replicas fit"):  # five apart, one on five remainders
        placement.request_instances(cluster, PlacementRequest(model=MODEL, replicas=7))
    assert instances.every(cluster.redis, cluster.ns) == []
    refused: list[str] = []

    def ask(own: Context) -> None:
        try:
            placement.request_instances(own, PlacementRequest(model=MODEL, replicas=2, max_nodes=1))
        except PlacementError as refusal:
            refused.append(refusal.message)

    at_once(cluster, 8, ask)
    found = instances.every(cluster.redis, cluster.ns)
    groups = Counter(one.group for one in found)
    assert list(groups.values()) == [2, 2]  # the fifth node would hold one of a third pair: none is placed
    assert max(promised(cluster).values()) <= 4 * GB
    assert len({rank.node for one in found for rank in one.ring}) == 4
    assert len(refused) == 6
    assert all(text.startswith("1 of 2 replicas fit") for text in refused)


def test_the_command_line_shows_and_places_all_replicas(cluster: Context) -> None:
    simulate(cluster, 3, 4 * GB)
    cards.save(cluster.redis, cluster.ns, card(3 * GB))
    env = {"EXO_REDIS_URL": cluster.settings.redis_url, "EXO_NAMESPACE": cluster.ns}
    words = ["place", MODEL, "--replicas", "2", "--keep-alive", "600"]
    dry = CliRunner(env=env).invoke(main, [*words, "--dry-run"])
    assert [line.split(":")[0] for line in dry.stdout.splitlines()] == ["Replica 1 of 2", "Replica 2 of 2"]
    assert instances.every(cluster.redis, cluster.ns) == []
    told = json.loads(CliRunner(env=env).invoke(main, [*words, "--json"]).stdout)
    placed = instances.every(cluster.redis, cluster.ns)
    assert [one["id"] for one in told["replicas"]] == [one.id for one in placed]
    assert [one["ring"][0]["node"] for one in told["replicas"]] == [one.ring[0].node for one in placed]
    assert told["id"] == placed[0].id
    assert {one.request.keep_alive for one in placed} == {600}
    refused = CliRunner(env=env).invoke(main, ["place", MODEL, "--replicas", "2", "--min-nodes", "2"])
    assert refused.exit_code == 1
    assert "1 of 2 replicas fit" in refused.stderr


def test_a_lost_replica_is_placed_again_clear_of_the_other(cluster: Context) -> None:
    simulate(cluster, 3, 4 * GB)
    cards.save(cluster.redis, cluster.ns, card(2 * GB))
    one, two = placement.request_instances(cluster, PlacementRequest(model=MODEL, replicas=2))
    lost = instances.save(cluster.redis, cluster.ns, two.evolve(ring=(), reserved_bytes={}))
    nodes.leave(cluster.redis, cluster.ns, two.ring[0].node, two.ring[0].node)
    placement.place_instance(cluster, lost.id)
    again = instances.get(cluster.redis, cluster.ns, lost.id)
    assert again.ring[0].node not in (one.ring[0].node, two.ring[0].node)
    assert again.why.startswith("Replica 2 of 2")
    # With no third node left it goes where memory is.
    nodes.leave(cluster.redis, cluster.ns, again.ring[0].node, again.ring[0].node)
    bare = instances.save(cluster.redis, cluster.ns, again.evolve(ring=(), reserved_bytes={}))
    placement.place_instance(cluster, bare.id)
    assert instances.get(cluster.redis, cluster.ns, bare.id).ring[0].node == one.ring[0].node


def test_work_places_its_model_once_however_many_ask(cluster: Context) -> None:
    simulate(cluster, 2, 4 * GB)
    cards.save(cluster.redis, cluster.ns, card(GB))
    asked: list[str] = []
    at_once(cluster, 8, lambda own: asked.append(placement.place_for_work(own, MODEL).id))
    assert len(asked) == 8
    (only,) = instances.every(cluster.redis, cluster.ns)
    assert set(asked) == {only.id}
    assert only.placed_by == "work"
    told = [one["text"] for one in events.latest(cluster.redis, cluster.ns) if one["kind"] == "auto_place"]
    assert told == [f"work waits for {MODEL}: placing {only.id}"]


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
            facts.gather(cluster, PlacementRequest(model=MODEL))
        needed.append(trips.pop("sent"))
    assert needed[0] == needed[1] <= 12


def test_one_way_links_make_no_ring(cluster: Context) -> None:
    simulate(cluster, 2, GB)
    cards.save(cluster.redis, cluster.ns, card(2 * GB - 10**8))
    links.replace(cluster.redis, cluster.ns, "n0001", {})
    with pytest.raises(PlacementError) as refused:
        placement.request_instances(cluster, PlacementRequest(model=MODEL, min_nodes=2))
    assert refused.value.code == "no_two_way_ring"


def test_a_node_that_has_not_measured_yet_is_taken_at_its_word(cluster: Context) -> None:
    simulate(cluster, 2, GB)
    cards.save(cluster.redis, cluster.ns, card(2 * GB - 10**8))
    for name in ("n0000", "n0001"):
        links.replace(cluster.redis, cluster.ns, name, {})
        fresh = Node(id=name, boot_id=name, ram_available_bytes=GB, backends=("MlxCpu",))
        cluster.redis.delete(keys.node(cluster.ns, name))
        nodes.heartbeat(cluster.redis, cluster.ns, fresh)
    (placed,) = placement.request_instances(cluster, PlacementRequest(model=MODEL))
    assert {rank.node for rank in placed.ring} == {"n0000", "n0001"}


def test_a_tensor_ring_holds_slices_of_all_layers(cluster: Context) -> None:
    simulate(cluster, 3, GB)
    cards.save(cluster.redis, cluster.ns, card(GB).evolve(supports_tensor=True, num_key_value_heads=2))
    asked = PlacementRequest(model=MODEL, sharding="tensor", min_nodes=2)
    (placed,) = placement.request_instances(cluster, asked)
    assert placed.sharding == "tensor"
    assert [(rank.start_layer, rank.end_layer) for rank in placed.ring] == [(0, 10), (0, 10)]
    assert set(placed.reserved_bytes.values()) == {GB // 2}


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"supports_tensor": False}, "tensor_unsupported"),
        ({"num_key_value_heads": 3}, "tensor_not_divisible"),
        ({"tensor_parts": 27}, "tensor_not_divisible"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_anything_is_loaded(
    cluster: Context, facts: dict[str, Any], code: str
) -> None:
    simulate(cluster, 2, GB)
    cards.save(cluster.redis, cluster.ns, card(GB).evolve(**{"supports_tensor": True, **facts}))
    with pytest.raises(PlacementError, match="pipeline") as refused:
        placement.request_instances(cluster, PlacementRequest(model=MODEL, sharding="tensor", min_nodes=2))
    assert refused.value.code == code
    assert instances.every(cluster.redis, cluster.ns) == []
