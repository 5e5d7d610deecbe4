"""Instances over their life on a live cluster: replicas share a queue, go when they are idle, and make room for work.

One cluster of two nodes serves the whole module, in order. Each node has memory for one ring of the demo model, and an
instance computes one sequence at a time.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import DEMO, Live, eventually
from redis import Redis

from exo_celery.store import events

pytestmark = pytest.mark.timeout(300)
KEEP_ALIVE_SECONDS = 5
FIRST, SECOND = "test/first", "test/second"  # the demo model under other names, on node-1


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    told = {"EXO_SERVE_SLOTS": "1", "EXO_MEMORY_LIMIT": "600M", "EXO_REPORT_SECONDS": "3"}
    cluster = Live(tmp_path_factory.mktemp("up"), "--nodes", "2", **told)
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture(scope="module")
def replicas(live: Live) -> list[str]:
    """Two instances of the demo model, ready, that may go when they are idle."""
    asked = {"model": DEMO, "replicas": 2, "keep_alive": KEEP_ALIVE_SECONDS}
    answer = live.http.post("/api/instances", json=asked)
    assert answer.status_code == 202, answer.text
    ids = [one["id"] for one in answer.json()["replicas"]]
    for instance in ids:
        live.ready(instance)
    return ids


def node_of(live: Live, instance: str) -> str:
    """Return the node of an instance with one rank."""
    (rank,) = live.instance(instance)["ring"]
    return str(rank["node"])


def endless(live: Live) -> str:
    """Submit a job that runs until it is cancelled: a plain list that the model goes on with."""
    body = {"model": DEMO, "prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10,", "max_tokens": 8000}
    return str(live.http.post("/api/jobs", json=body).json()["id"])


def of_model(live: Live, model: str) -> list[Any]:
    return [one for one in live.get("/api/instances")["instances"] if one["model"] == model]


def unload_events(live: Live) -> list[str]:
    redis = Redis.from_url(live.facts["redis_url"], decode_responses=True)
    told = [one["text"] for one in events.latest(redis, "exo", 500) if one["kind"] == "unload"]
    redis.close()
    return told


def link_model(live: Live, model: str) -> None:
    """Let node-1 have the demo model under another name too."""
    folder = Path(live.facts["nodes"]["node-1"]["models_dir"])
    target = folder / model.replace("/", "--")
    shutil.copytree(folder / DEMO.replace("/", "--"), target, copy_function=os.link)
    eventually(lambda: live.download("node-1", model), lambda one: one and one["status"] == "completed", 30)


def test_replicas_are_on_nodes_of_their_own(live: Live, replicas: list[str]) -> None:
    assert {node_of(live, one) for one in replicas} == {"node-1", "node-2"}
    shown = [live.instance(one) for one in replicas]
    assert shown[0]["group"] == shown[1]["group"] != ""
    assert [one["replica"] for one in shown] == [1, 2]
    assert {one["placed_by"] for one in shown} == {"user"}


def test_no_replica_stands_idle_beside_waiting_jobs(live: Live, replicas: list[str]) -> None:
    long = endless(live)
    taken = live.job(long, "running")["instance"]
    short = [live.submit(max_tokens=4) for _ in range(5)]
    ended = [live.job(one, "succeeded", "failed") for one in short]
    assert {one["state"] for one in ended} == {"succeeded"}
    # None of them was kept waiting behind the long one: the other replica took each as soon as it was free.
    assert {one["instance"] for one in ended} == set(replicas) - {taken}
    assert live.get(f"/api/jobs/{long}")["state"] == "running"
    assert live.http.delete(f"/api/jobs/{long}").json()["state"] == "cancelled"


def test_idle_instances_go_after_their_keep_alive(live: Live, replicas: list[str]) -> None:
    for one in replicas:
        gone = eventually(lambda: live.instance(one), lambda found: found["status"] == "gone", 90)  # noqa: B023
        assert gone["note"] == f"{one} is unloaded: no work for its keep-alive of {KEEP_ALIVE_SECONDS} s"
    assert live.get("/api/instances")["instances"] == []


def test_idle_work_makes_room_for_work_and_what_somebody_placed_stays(live: Live, replicas: list[str]) -> None:
    pinned = live.place(required_nodes=["node-2"])  # holds the other node's memory from now on
    for model in (FIRST, SECOND):
        link_model(live, model)
    assert "Paris" in live.job(live.submit(model=FIRST), "succeeded", "failed", seconds=150)["text"]
    (first,) = of_model(live, FIRST)
    assert (first["placed_by"], first["request"]["keep_alive"]) == ("work", None)
    job = live.submit(model=SECOND)
    waiting = eventually(lambda: live.get(f"/api/jobs/{job}"), lambda one: bool(one["note"]), 60)
    assert waiting["state"] == "queued"
    assert "Paris" in live.job(job, "succeeded", "failed", seconds=150)["text"]
    assert of_model(live, FIRST) == []
    gone = live.instance(first["id"])
    assert gone["status"] == "gone"
    assert f"makes room for {SECOND}, which work waits for" in gone["note"]
    assert any(f"{first['id']} makes room for {SECOND}" in text for text in unload_events(live))
    assert live.ready(pinned)["epoch"] == 1
