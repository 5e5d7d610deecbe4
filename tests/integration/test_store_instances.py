"""Instances on a real Redis: compare-and-set on the version, one promise of memory at a time, ranks fenced by epoch."""

import pytest
from redis import Redis

from exo_celery.errors import NotFoundError, StaleWriteError
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest, Rank, RankState, RankStatus
from exo_celery.store import events, instances, keys

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
