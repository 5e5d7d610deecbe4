"""Instances without work on a simulated cluster in a real Redis: who goes, when, for whom, and what is told of it."""

import json
import re
import threading

import pytest
from redis import Redis

from exo_celery import cluster as asked
from exo_celery import queues
from exo_celery.context import Context, open_context
from exo_celery.errors import PlacementError
from exo_celery.node.serving import Serving
from exo_celery.plan import End
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest, Rank
from exo_celery.records.job import Job, JobRequest
from exo_celery.records.model import ModelCard
from exo_celery.records.node import Node
from exo_celery.settings import Settings
from exo_celery.store import cards, client, events, instances, jobs, keys, nodes
from exo_celery.tasks import idle, placement
from exo_celery.tasks import instances as instance_tasks
from exo_celery.tasks import jobs as job_tasks

OLD, YOUNG, WANTED = "org/old", "org/young", "org/wanted"
GB = 10**9


@pytest.fixture
def cluster(redis_url: str, namespace: str, redis: Redis) -> Context:
    """Two nodes with a gigabyte left each, and three models of three gigabytes."""
    here = open_context(Settings(redis_url=redis_url, namespace=namespace, keep_alive_s=600))
    for name in ("a", "b"):
        beat(here, name, GB)
    for model in (OLD, YOUNG, WANTED):
        cards.save(redis, namespace, ModelCard(id=model, storage_bytes=3 * GB, n_layers=9, hidden_size=64))
    return here


def beat(cluster: Context, name: str, free_bytes: int) -> None:
    node = Node(id=name, boot_id=f"boot-{name}", ram_available_bytes=free_bytes, backends=("MlxCpu",))
    nodes.heartbeat(cluster.redis, cluster.ns, node)
    cluster.redis.persist(keys.alive(cluster.ns, name))


def loaded(cluster: Context, model: str, node: str, idle_seconds: float, keep_alive: float | None = None) -> Instance:
    """A ready instance that work placed on a node and used last so long ago."""
    now = client.now(cluster.redis)
    rank = Rank(node=node, rank=0, start_layer=0, end_layer=9)
    request = PlacementRequest(model=model, keep_alive=keep_alive)
    fresh = Instance(
        id=f"inst-{model[4:]}", model=model, status=InstanceStatus.READY, epoch=1, request=request, ring=(rank,),
        boot_ids={node: f"boot-{node}"}, reserved_bytes={node: 3 * GB}, ready_at=now - 5000, placed_by="work",
    )  # fmt: skip
    saved = instances.save(cluster.redis, cluster.ns, fresh)
    cluster.redis.hset(keys.instance(cluster.ns, saved.id), "used_at", f"{now - idle_seconds:.6f}")
    return instances.get(cluster.redis, cluster.ns, saved.id)


def submit(cluster: Context, model: str, name: str) -> None:
    jobs.submit(cluster.redis, cluster.ns, Job(id=name, model=model, request=JobRequest(model=model, prompt="x")))


def status(cluster: Context, instance: Instance) -> InstanceStatus:
    return instances.get(cluster.redis, cluster.ns, instance.id).status


def unloaded(cluster: Context, instance: Instance) -> None:
    """Let the node of a draining instance have given its memory back, as its agent tells it."""
    beat(cluster, instance.ring[0].node, 4 * GB)
    instance_tasks.carry_out(cluster, instances.get(cluster.redis, cluster.ns, instance.id), End())


def told(cluster: Context, kind: str) -> list[str]:
    return [one["text"] for one in events.latest(cluster.redis, cluster.ns) if one["kind"] == kind]


def test_what_had_no_work_for_its_keep_alive_goes(cluster: Context) -> None:
    old, young = loaded(cluster, OLD, "a", 700, keep_alive=600), loaded(cluster, YOUNG, "b", 500, keep_alive=600)
    idle.unload_idle(cluster)
    assert (status(cluster, old), status(cluster, young)) == (InstanceStatus.DRAINING, InstanceStatus.READY)
    assert told(cluster, "unload") == [f"{OLD}: inst-old is unloaded: no work for its keep-alive of 600 s"]


def test_what_works_or_has_work_or_is_to_stay_does_not_go(cluster: Context) -> None:
    busy, stays = loaded(cluster, OLD, "a", 700, keep_alive=600), loaded(cluster, YOUNG, "b", 10**6)
    submit(cluster, OLD, "j1")
    idle.unload_idle(cluster)  # a job waits
    assert jobs.claim(cluster.redis, cluster.ns, "j1", busy.id, ["a"], "token")
    cluster.redis.hset(keys.instance(cluster.ns, busy.id), "used_at", f"{client.now(cluster.redis) - 700:.6f}")
    idle.unload_idle(cluster)  # it runs
    assert {status(cluster, busy), status(cluster, stays)} == {InstanceStatus.READY}


def test_work_takes_the_place_of_what_was_not_used_for_longest(cluster: Context) -> None:
    old, young = loaded(cluster, OLD, "a", 700), loaded(cluster, YOUNG, "b", 60)
    submit(cluster, WANTED, "j1")
    job_tasks.place_waiting(cluster)
    (wanted,) = [one for one in instances.every(cluster.redis, cluster.ns) if one.model == WANTED]
    assert (wanted.placed_by, wanted.request.keep_alive) == ("work", 600)
    placement.place_instance(cluster, wanted.id)
    assert (status(cluster, old), status(cluster, young)) == (InstanceStatus.DRAINING, InstanceStatus.READY)
    (event,) = told(cluster, "unload")
    assert f"makes room for {WANTED}, which work waits for: it was idle for 7" in event
    job_tasks.place_waiting(cluster)
    note = jobs.get(cluster.redis, cluster.ns, "j1").note
    assert note == "waits for the memory of inst-old, idle and being unloaded"
    assert asked.serving_state(cluster, WANTED) == ("loading", note)
    placement.place_instance(cluster, wanted.id)  # until the memory is there, nobody else goes
    assert status(cluster, young) is InstanceStatus.READY
    unloaded(cluster, old)
    assert status(cluster, old) is InstanceStatus.GONE
    placement.place_instance(cluster, wanted.id)
    placed = instances.get(cluster.redis, cluster.ns, wanted.id)
    assert [rank.node for rank in placed.ring] == ["a"]
    assert (placed.note, placed.error) == ("", "")


def test_what_somebody_placed_or_uses_is_never_taken(cluster: Context) -> None:
    pinned = loaded(cluster, OLD, "a", 10**6)
    instances.save(cluster.redis, cluster.ns, pinned.evolve(placed_by="user"))
    busy = loaded(cluster, YOUNG, "b", 10**6)
    submit(cluster, YOUNG, "j1")
    with pytest.raises(PlacementError, match="short") as refused:
        placement.place_for_work(cluster, WANTED)
    assert refused.value.code == "insufficient_memory"
    assert {status(cluster, pinned), status(cluster, busy)} == {InstanceStatus.READY}
    assert len(instances.every(cluster.redis, cluster.ns)) == 2
    submit(cluster, WANTED, "j2")
    job_tasks.place_waiting(cluster)
    assert "short" in jobs.get(cluster.redis, cluster.ns, "j2").note


def test_a_person_s_wish_takes_nothing_from_others(cluster: Context) -> None:
    idle_one = loaded(cluster, OLD, "a", 10**6)
    with pytest.raises(PlacementError, match="short"):
        placement.request_instances(cluster, PlacementRequest(model=WANTED))
    assert status(cluster, idle_one) is InstanceStatus.READY


def test_a_model_on_its_way_out_is_placed_anew_when_work_comes(cluster: Context) -> None:
    old = loaded(cluster, OLD, "a", 700, keep_alive=600)
    idle.unload_idle(cluster)
    assert asked.serving_state(cluster, OLD) == ("absent", "")
    again = placement.place_for_work(cluster, OLD)
    assert again.id != old.id
    placement.place_instance(cluster, again.id)
    assert instances.get(cluster.redis, cluster.ns, again.id).note.startswith("waits for the memory of inst-old")
    unloaded(cluster, old)
    placement.place_instance(cluster, again.id)
    assert instances.get(cluster.redis, cluster.ns, again.id).ring


def test_a_job_that_a_draining_instance_may_not_have_is_passed_on_at_once(cluster: Context) -> None:
    old = loaded(cluster, OLD, "a", 700)
    submit(cluster, OLD, "j1")
    serving = object.__new__(Serving)  # without a runner and its socket
    serving.redis, serving.ns, serving.app, serving.instance = cluster.redis, cluster.ns, cluster.app, old.id
    serving.stopping = threading.Event()
    serving.stopping.set()
    waiting = keys.messages(cluster.ns, queues.model_queue(OLD), queues.JOB)
    serving.pass_on("j1")  # refused for another reason, which is not to be tried again
    assert cluster.redis.llen(waiting) == 0
    assert instances.drain(cluster.redis, cluster.ns, old, "idle")
    serving.pass_on("j1")
    assert cluster.redis.llen(waiting) == 1
    message = json.loads(cluster.redis.lindex(waiting, 0))
    assert message["headers"][queues.PUBLISHED] == jobs.get(cluster.redis, cluster.ns, "j1").published_at
    serving.pass_on("gone")


def test_what_is_shown_of_an_idle_one_a_busy_one_and_one_that_lost_its_node(cluster: Context) -> None:
    old, young = loaded(cluster, OLD, "a", 100, keep_alive=600), loaded(cluster, YOUNG, "b", 60)
    shown = asked.instance(cluster, old.id)
    assert (shown["running_jobs"], shown["idle_since"], shown["note"]) == (0, old.used_at, "")
    assert shown["unloads_at"] == pytest.approx(old.used_at + 600)
    submit(cluster, YOUNG, "j1")
    assert jobs.claim(cluster.redis, cluster.ns, "j1", young.id, ["b"], "token")
    nodes.leave(cluster.redis, cluster.ns, "b", "boot-b")
    listed = {one["id"]: one for one in asked.instances(cluster)}
    busy = listed[young.id]
    assert (busy["running_jobs"], busy["idle_since"], busy["unloads_at"]) == (1, None, None)
    assert busy["status"] == "ready"
    assert busy["ring"][0]["status"] == "lost"
    assert re.match(r"rank 0 is lost, b has not been heard for \d+ s: a new ring is placed within", busy["note"])
    assert listed[old.id]["note"] == ""
