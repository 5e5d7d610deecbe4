"""Instances over their life on a live cluster: replicas share a queue, one is placed again, idle ones make room and go.

One cluster of two nodes serves the whole module, in order. Each node has memory for one ring of the demo model, and an
instance computes one sequence at a time.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import DEMO, Live, eventually
from redis import Redis

from exo_celery.store import events

pytestmark = pytest.mark.timeout(300)
KEEP_ALIVE_SECONDS = 20  # longer than an instance must have been idle before it makes room
FIRST, SECOND = "test/first", "test/second"  # the demo model under other names, on node-1


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    told = {"EXO_SERVE_SLOTS": "1", "EXO_KEEP_ALIVE_S": str(KEEP_ALIVE_SECONDS), "EXO_MEMORY_LIMIT": "600M"}
    cluster = Live(tmp_path_factory.mktemp("up"), "--nodes", "2", EXO_REPORT_SECONDS="3", **told)
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture(scope="module")
def replicas(live: Live) -> list[str]:
    """Two instances of the demo model that somebody placed, ready."""
    answer = live.http.post("/api/instances", json={"model": DEMO, "replicas": 2})
    assert answer.status_code == 202, answer.text
    ids = [one["id"] for one in answer.json()["replicas"]]
    for instance in ids:
        live.ready(instance)
    return ids


def node_of(live: Live, instance: str) -> str:
    """Return the node of an instance with one rank."""
    (rank,) = live.instance(instance)["ring"]
    return str(rank["node"])


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
    assert all(one["placed_by"] == "user" and one["unloads_at"] is None for one in shown)


def test_no_replica_stands_idle_beside_waiting_jobs(live: Live, replicas: list[str]) -> None:
    long = live.submit(max_tokens=2000, messages=[{"role": "user", "content": "Count from one to ten thousand."}])
    taken = live.job(long, "running")["instance"]
    short = [live.submit(max_tokens=4) for _ in range(5)]
    ended = [live.job(one, "succeeded", "failed") for one in short]
    assert {one["state"] for one in ended} == {"succeeded"}
    # None of them was kept waiting behind the long one: the other replica took each as soon as it was free.
    assert {one["instance"] for one in ended} == set(replicas) - {taken}
    assert live.get(f"/api/jobs/{long}")["state"] == "running"
    assert live.http.delete(f"/api/jobs/{long}").json()["state"] == "cancelled"


def test_a_lost_replica_is_placed_again_and_the_other_goes_on(live: Live, replicas: list[str]) -> None:
    kept, lost = sorted(replicas, key=lambda one: node_of(live, one))  # that on node-2 is lost
    before = {one: live.instance(one)["epoch"] for one in replicas}
    os.kill(live.facts["nodes"]["node-2"]["pid"], signal.SIGKILL)
    note = eventually(lambda: live.instance(lost)["note"], bool, 60)
    assert note.startswith("rank 0 is lost, node-2 ")
    assert "a new ring is placed within" in note
    again = live.ready(lost, before[lost] + 1)
    assert (again["note"], again["error"]) == ("", "")
    assert node_of(live, lost) == "node-2"
    assert live.instance(kept)["epoch"] == before[kept]


def test_idle_work_makes_room_for_work_and_what_somebody_placed_stays(live: Live, replicas: list[str]) -> None:
    here = next(one for one in replicas if node_of(live, one) == "node-1")
    pinned = next(one for one in replicas if one != here)
    assert live.http.delete(f"/api/instances/{here}").status_code == 202
    for model in (FIRST, SECOND):
        link_model(live, model)
    assert "Paris" in live.ask(model=FIRST)["text"]
    (first,) = of_model(live, FIRST)
    assert (first["placed_by"], first["request"]["keep_alive"]) == ("work", KEEP_ALIVE_SECONDS)
    job = live.submit(model=SECOND)
    waiting = eventually(lambda: live.get(f"/api/jobs/{job}"), lambda one: bool(one["note"]), 30)
    assert waiting["state"] == "queued"
    assert "Paris" in live.job(job, "succeeded", "failed")["text"]
    assert of_model(live, FIRST) == []
    gone = live.instance(first["id"])
    assert gone["status"] == "gone"
    assert f"makes room for {SECOND}, which work waits for" in gone["note"]
    assert any(f"{first['id']} makes room for {SECOND}" in text for text in unload_events(live))
    assert live.instance(pinned)["status"] == "ready"


def test_an_idle_instance_goes_after_its_keep_alive_and_work_brings_it_back(live: Live, replicas: list[str]) -> None:
    (second,) = of_model(live, SECOND)
    gone = eventually(lambda: live.instance(second["id"]), lambda one: one["status"] == "gone", 90)
    assert gone["note"] == f"{second['id']} is unloaded: no work for its keep-alive of {KEEP_ALIVE_SECONDS} s"
    assert "Paris" in live.ask(model=SECOND)["text"]
    (again,) = of_model(live, SECOND)
    assert again["id"] != second["id"]
