"""A tensor ring on a real cluster: placed, asked, formed again after one of its runners is killed.

The demo model has 9 heads and 3 KV heads, so it can be cut into three.
"""

from collections.abc import Iterator

import pytest
from live import DEMO, Live
from redis import Redis
from test_survival import runners

from exo_celery.store import instances

pytestmark = pytest.mark.timeout(300)
NODES = ["node-1", "node-2", "node-3"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    cluster = Live(tmp_path_factory.mktemp("up"))
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture(scope="module")
def placed(live: Live) -> str:
    instance = live.place(sharding="tensor", min_nodes=2)
    live.ready(instance, seconds=180)
    return instance


def test_two_nodes_are_refused_with_the_sizes_that_fit(live: Live) -> None:
    asked = {"model": DEMO, "sharding": "tensor", "min_nodes": 2, "max_nodes": 2}
    answer = live.http.post("/api/instances", json=asked)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["code"] == "tensor_not_divisible"
    assert "1, 3" in error["message"]


def test_three_nodes_hold_slices_of_all_layers_and_answer(live: Live, placed: str) -> None:
    instance = live.instance(placed)
    assert instance["sharding"] == "tensor"
    assert sorted(rank["node"] for rank in instance["ring"]) == NODES
    assert {(rank["start_layer"], rank["end_layer"]) for rank in instance["ring"]} == {(0, 30)}
    job = live.ask()
    assert job["state"] == "succeeded"
    assert "Paris" in job["text"]


def test_only_slices_stay_in_memory(live: Live, placed: str) -> None:
    redis = Redis.from_url(live.facts["redis_url"], decode_responses=True)
    embedding = 49_152 * 576 * 4
    layers = 134_515_008 * 4 - embedding
    for state in instances.get(redis, "exo", placed).ranks.values():
        assert state.weights_bytes <= (layers / 3 + embedding) * 1.01
    redis.close()
    for node in NODES:
        (runner,) = runners(live, node)
        assert runner.memory_info().rss < layers + embedding  # interpreter, MLX and caches included


def test_a_killed_rank_ends_the_ring_and_another_is_formed(live: Live, placed: str) -> None:
    before = live.instance(placed)
    old = [process for node in NODES for process in runners(live, node)]
    runners(live, before["ring"][1]["node"])[0].kill()
    after = live.ready(placed, before["epoch"] + 1)
    assert after["sharding"] == "tensor"
    assert not any(process.is_running() for process in old)
    assert "Paris" in live.ask()["text"]
