"""Instances: written by compare-and-set on their version; each rank's state by its own node, fenced by the epoch."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from exo_celery.errors import NotFoundError, StaleWriteError
from exo_celery.records.instance import Instance, InstanceStatus, RankState
from exo_celery.records.job import JobState
from exo_celery.store import events, keys
from exo_celery.store.hashes import decode, encode
from exo_celery.store.scripts import run

GONE_TTL: Final = 3600  # seconds that a gone instance can still be read
SCRIPT_OWNS: Final = frozenset({"version", "ranks", "created_at", "updated_at", "used_at"})


@dataclass(frozen=True)
class Promise:
    """The memory that an instance was promised, by node, and whether measurements can show it by now."""

    instance: str
    status: InstanceStatus
    ready_at: float
    reserved_bytes: dict[str, int]


def placements(redis: Redis, ns: str) -> int:
    """Return how many decisions have promised memory so far; read it before what a decision is made from."""
    return int(redis.get(keys.placements(ns)) or 0)


def save(redis: Redis, ns: str, instance: Instance, *, decided_on: int | None = None) -> Instance:
    """Write an instance that was read at `instance.version` (0: a new one) and return it as it now stands.

    `decided_on` is the count of placements that a promise of memory was decided on.

    Raises:
        StaleWriteError: somebody wrote the instance, or promised memory, in between: read and decide again.
    """
    keep = GONE_TTL if instance.status is InstanceStatus.GONE else ""
    head: list[Any] = [instance.id, instance.version, "" if decided_on is None else decided_on, keep]
    where = [keys.instance(ns, instance.id), keys.instances(ns), keys.placements(ns)]
    outcome, number = run(redis, "instance_save", where, head + pairs_of(instance))
    if outcome == 0:
        raise StaleWriteError(f"instance {instance.id}: version {instance.version} was read, {number} is there")
    if outcome == -1:
        raise StaleWriteError(f"instance {instance.id}: {number} placements were made, decided on {decided_on}")
    events.add(redis, ns, "instance", describe(instance), instance=instance.id, model=instance.model)
    return get(redis, ns, instance.id)


def create(
    redis: Redis, ns: str, fresh: Sequence[Instance], *, decided_on: int | None = None, only: bool = False
) -> list[Instance]:
    """Write new instances, all or none, and return them; or, with `only`, the one of their model that is there.

    `decided_on` is the count of placements that their promise of memory was decided on. With `only` nothing is written
    where the model has an instance already, however many ask at the same moment; one that is draining does not count.

    Raises:
        StaleWriteError: somebody promised memory in between: decide again.
    """
    head = [ns, "" if decided_on is None else decided_on, fresh[0].model if only else ""]
    written = [[one.id, *pairs_of(one)] for one in fresh]
    where = [keys.placements(ns), keys.instances(ns)]
    outcome, found = run(redis, "instance_create", where, [*head, *map(json.dumps, written)])
    if outcome == -1:
        raise StaleWriteError(f"{found} placements were made, decided on {decided_on}")
    if outcome == 0:
        return [get(redis, ns, found)]
    for one in fresh:
        events.add(redis, ns, "instance", describe(one), instance=one.id, model=one.model)
    return [get(redis, ns, one.id) for one in fresh]


def drain(redis: Redis, ns: str, instance: Instance, note: str) -> bool:
    """Let a ready instance go, unless it was written or used since it was read; from then on it is given no job."""
    args = [instance.version, f"{instance.used_at:.6f}", note]
    if not run(redis, "instance_drain", [keys.instance(ns, instance.id)], args):
        return False
    events.add(redis, ns, "unload", f"{instance.model}: {note}", instance=instance.id, model=instance.model)
    return True


def busy(redis: Redis, ns: str) -> Counter[str]:
    """Return how many jobs run on each instance that runs any, in two round trips."""
    running = redis.zrange(keys.jobs(ns, JobState.RUNNING), 0, -1)
    with redis.pipeline(transaction=False) as pipe:
        for job_id in running:
            pipe.hget(keys.job(ns, job_id), "instance")
        return Counter(instance for instance in pipe.execute() if instance)


def pairs_of(instance: Instance) -> list[str]:
    """Return what a caller writes of an instance, as field, value, …"""
    return [part for pair in encode(instance, without=SCRIPT_OWNS).items() for part in pair]


def describe(instance: Instance) -> str:
    """Return one line on where the instance stands."""
    ring = " → ".join(rank.node for rank in instance.ring)
    detail = instance.error or instance.note or (f"ring {ring}" if ring else "")
    return f"{instance.model} epoch {instance.epoch}: {instance.status}" + (f" ({detail})" if detail else "")


def save_rank(redis: Redis, ns: str, instance_id: str, rank: int, state: RankState) -> bool:
    """Write a rank's state; False if the instance has gone on to another epoch."""
    where = [keys.instance(ns, instance_id)]
    return bool(run(redis, "rank_save", where, [state.epoch, rank, state.model_dump_json()]))


def find(redis: Redis, ns: str, instance_id: str) -> Instance | None:
    """Return an instance, or None."""
    return read(redis.hgetall(keys.instance(ns, instance_id)))


def get(redis: Redis, ns: str, instance_id: str) -> Instance:
    """Return an instance.

    Raises:
        NotFoundError: no such instance; the message lists those there are.
    """
    if found := find(redis, ns, instance_id):
        return found
    known = ", ".join(sorted(redis.smembers(keys.instances(ns)))) or "none"
    raise NotFoundError(f"instance {instance_id!r} does not exist; there are: {known}")


def every(redis: Redis, ns: str) -> list[Instance]:
    """Return all instances that are not gone, oldest first, in two round trips."""
    with redis.pipeline(transaction=False) as pipe:
        for instance_id in redis.smembers(keys.instances(ns)):
            pipe.hgetall(keys.instance(ns, instance_id))
        found = [read(fields) for fields in pipe.execute()]
    return sorted((one for one in found if one), key=lambda one: (one.created_at, one.replica, one.id))


def promises(redis: Redis, ns: str) -> list[Promise]:
    """Return what all instances were promised, in two round trips; cheap enough for every decision."""
    ids = sorted(redis.smembers(keys.instances(ns)))
    with redis.pipeline(transaction=False) as pipe:
        for instance_id in ids:
            pipe.hmget(keys.instance(ns, instance_id), "status", "ready_at", "reserved_bytes")
        answers = zip(ids, pipe.execute(), strict=True)
    return [
        Promise(instance_id, InstanceStatus(status), float(ready_at or 0), json.loads(reserved))
        for instance_id, (status, ready_at, reserved) in answers
        if status
    ]


def read(fields: dict[str, str]) -> Instance | None:
    """Read an instance from its hash, its ranks' states included."""
    if not fields:
        return None
    ranks = {int(n[5:]): RankState.model_validate_json(t) for n, t in fields.items() if n.startswith("rank:")}
    return decode(Instance, fields).evolve(ranks=ranks)
