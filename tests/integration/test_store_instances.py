"""Instances on a real Redis: compare-and-set on the version, one promise of memory at a time, ranks fenced by epoch."""

import pytest
from redis import Redis

from exo_celery.errors import NotFoundError, StaleWriteError
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest, Rank, RankState, RankStatus
from exo_celery.records.job import Job, JobRequest, JobState
from exo_celery.store import events, instances, jobs, keys
from exo_celery.store.jobs import Outcome

MODEL = "org/model"
RING = (Rank(node="a", rank=0, start_layer=0, end_layer=4),)


def fresh(name: str = "inst-1") -> Instance:
    return Instance(id=name, model=MODEL, request=PlacementRequest(model=MODEL))


def state(epoch: int, status: RankStatus = RankStatus.LOADED) -> RankState:
    return RankState(epoch=epoch, boot_id="boot", status=status, port=7)


def test_what_is_saved_is_read_back(redis: Redis, namespace: str) -> None:
    saved = instances.save(redis, namespace, fresh().evolve(ring=RING, reserved_bytes={"a": 5}, why="it fits"))
    assert (saved.version, saved.ring, saved.reserved_bytes) == (1, RING, {"a": 5})
    assert saved.created_at > 0
    assert instances.every(redis, namespace) == [saved]
    assert "it fits" in redis.hget(keys.instance(namespace, "inst-1"), "why")


def test_an_old_version_is_refused(redis: Redis, namespace: str) -> None:
    first = instances.save(redis, namespace, fresh())
    instances.save(redis, namespace, first.evolve(status=InstanceStatus.LOADING))
    with pytest.raises(StaleWriteError, match="version 1 was read, 2 is there"):
        instances.save(redis, namespace, first.evolve(status=InstanceStatus.FAILED))
    with pytest.raises(StaleWriteError):
        instances.save(redis, namespace, fresh())


def test_two_decisions_on_the_same_facts_promise_memory_once(redis: Redis, namespace: str) -> None:
    one, two = (instances.save(redis, namespace, fresh(name)) for name in ("inst-1", "inst-2"))
    count = instances.placements(redis, namespace)
    instances.save(redis, namespace, one.evolve(ring=RING, reserved_bytes={"a": 5}), decided_on=count)
    with pytest.raises(StaleWriteError, match="placements"):
        instances.save(redis, namespace, two.evolve(ring=RING, reserved_bytes={"a": 5}), decided_on=count)


def test_a_rank_speaks_for_its_own_epoch_and_a_new_epoch_forgets_the_old(redis: Redis, namespace: str) -> None:
    saved = instances.save(redis, namespace, fresh().evolve(epoch=1, ring=RING))
    assert instances.save_rank(redis, namespace, "inst-1", 0, state(1))
    assert not instances.save_rank(redis, namespace, "inst-1", 0, state(2))
    assert instances.get(redis, namespace, "inst-1").ranks[0].port == 7
    again = instances.get(redis, namespace, "inst-1")
    assert again.version == saved.version  # ranks do not disturb who decides
    assert instances.save(redis, namespace, again.evolve(epoch=2)).ranks == {}


def test_a_gone_instance_leaves_the_list_and_can_still_be_read(redis: Redis, namespace: str) -> None:
    saved = instances.save(redis, namespace, fresh())
    instances.save(redis, namespace, saved.evolve(status=InstanceStatus.GONE))
    assert instances.every(redis, namespace) == []
    assert instances.get(redis, namespace, "inst-1").status is InstanceStatus.GONE
    assert 0 < redis.ttl(keys.instance(namespace, "inst-1")) <= instances.GONE_TTL


def test_each_change_is_an_event(redis: Redis, namespace: str) -> None:
    saved = instances.save(redis, namespace, fresh())
    instances.save(redis, namespace, saved.evolve(status=InstanceStatus.FAILED, error="no memory"))
    newest = events.latest(redis, namespace)[0]
    assert newest["instance"] == "inst-1"
    assert "failed (no memory)" in newest["text"]


def test_an_unknown_instance_is_named_with_those_there_are(redis: Redis, namespace: str) -> None:
    instances.save(redis, namespace, fresh())
    with pytest.raises(NotFoundError, match=r"inst-9.*inst-1"):
        instances.get(redis, namespace, "inst-9")


def test_new_instances_are_written_all_or_none_and_once(redis: Redis, namespace: str) -> None:
    pair = [fresh("inst-1").evolve(ring=RING, reserved_bytes={"a": 5}), fresh("inst-2")]
    count = instances.placements(redis, namespace)
    saved = instances.create(redis, namespace, pair, decided_on=count)
    assert [(one.id, one.version, one.ring) for one in saved] == [("inst-1", 1, RING), ("inst-2", 1, ())]
    assert {one.id: one for one in instances.every(redis, namespace)} == {one.id: one for one in saved}
    with pytest.raises(StaleWriteError, match="placements"):
        instances.create(redis, namespace, [fresh("inst-3"), fresh("inst-4")], decided_on=count)
    assert len(instances.every(redis, namespace)) == 2
    assert instances.create(redis, namespace, pair, decided_on=count) == saved  # the same command, sent again


def test_work_gets_the_instance_that_is_there(redis: Redis, namespace: str) -> None:
    (first,) = instances.create(redis, namespace, [fresh("inst-1")], only=True)
    assert instances.create(redis, namespace, [fresh("inst-2")], only=True) == [first]
    other = fresh("inst-3").evolve(model="org/other")
    assert instances.create(redis, namespace, [other], only=True)[0].id == "inst-3"
    failed = instances.save(redis, namespace, first.evolve(status=InstanceStatus.FAILED))
    assert instances.create(redis, namespace, [fresh("inst-4")], only=True) == [failed]
    instances.save(redis, namespace, failed.evolve(status=InstanceStatus.DRAINING))
    assert instances.create(redis, namespace, [fresh("inst-5")], only=True)[0].id == "inst-5"


def ready(redis: Redis, namespace: str) -> Instance:
    return instances.save(redis, namespace, fresh().evolve(status=InstanceStatus.READY, ring=RING))


def submit(redis: Redis, namespace: str, name: str) -> None:
    jobs.submit(redis, namespace, Job(id=name, model=MODEL, request=JobRequest(model=MODEL, prompt="x")))


def claim(redis: Redis, namespace: str, name: str) -> Job | None:
    return jobs.claim(redis, namespace, name, "inst-1", ["a"], name)


def test_a_claim_and_an_end_are_a_use_and_a_running_job_is_counted(redis: Redis, namespace: str) -> None:
    unused = ready(redis, namespace)
    submit(redis, namespace, "j1")
    assert claim(redis, namespace, "j1")
    claimed = instances.get(redis, namespace, "inst-1")
    assert claimed.used_at > unused.used_at == 0
    assert claimed.version == unused.version
    assert instances.busy(redis, namespace) == {"inst-1": 1}
    assert jobs.finish(redis, namespace, "j1", 1, Outcome(JobState.SUCCEEDED))
    ended = instances.get(redis, namespace, "inst-1")
    assert ended.used_at > claimed.used_at
    assert instances.save(redis, namespace, ended.evolve(used_at=0)).used_at == ended.used_at
    assert not instances.busy(redis, namespace)
    again = instances.save(redis, namespace, instances.get(redis, namespace, "inst-1").evolve(epoch=1))
    assert again.used_at == 0  # nobody has used the new ring


def test_only_what_was_not_used_meanwhile_drains_and_then_gets_no_job(redis: Redis, namespace: str) -> None:
    seen_idle = ready(redis, namespace)
    submit(redis, namespace, "j1")
    assert claim(redis, namespace, "j1")
    assert not instances.drain(redis, namespace, seen_idle, "idle")
    assert jobs.finish(redis, namespace, "j1", 1, Outcome(JobState.SUCCEEDED))
    assert not instances.drain(redis, namespace, seen_idle, "idle")
    assert instances.drain(redis, namespace, instances.get(redis, namespace, "inst-1"), "idle")
    draining = instances.get(redis, namespace, "inst-1")
    assert (draining.status, draining.note) == (InstanceStatus.DRAINING, "idle")
    assert events.latest(redis, namespace)[0]["text"] == f"{MODEL}: idle"
    submit(redis, namespace, "j2")
    assert claim(redis, namespace, "j2") is None
    assert jobs.get(redis, namespace, "j2").state is JobState.QUEUED
    assert not instances.drain(redis, namespace, draining, "again")


def test_an_instance_that_is_no_more_is_not_brought_back_by_a_late_end(redis: Redis, namespace: str) -> None:
    ready(redis, namespace)
    submit(redis, namespace, "j1")
    assert claim(redis, namespace, "j1")
    redis.delete(keys.instance(namespace, "inst-1"))
    assert jobs.finish(redis, namespace, "j1", 1, Outcome(JobState.SUCCEEDED))
    assert not redis.exists(keys.instance(namespace, "inst-1"))
