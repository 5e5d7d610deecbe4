"""Instances: carry out what plan() says is due, and load shards on this node."""

import logging
from typing import Final

from exo_celery import queues
from exo_celery.celery import app
from exo_celery.context import Context
from exo_celery.errors import StaleWriteError
from exo_celery.node import hosted
from exo_celery.plan import (
    Action,
    DropRing,
    End,
    FormRing,
    GiveUp,
    LoadShard,
    NeedDownload,
    SetStatus,
    UnloadShard,
    plan,
)
from exo_celery.records.download import Wish
from exo_celery.records.instance import Instance, InstanceStatus
from exo_celery.store import client, downloads, instances, nodes, ticks
from exo_celery.tasks import idle
from exo_celery.tasks.here import context
from worker_config.celeryconfig import WATCH_SECONDS

log = logging.getLogger(__name__)
MAX_CONFLICTS: Final = 5


@app.task(name="exo.watch_nodes")
def watch_nodes() -> None:
    """Look at every instance: whatever was lost, late or never sent is due again now; what was idle too long goes."""
    cluster = context()
    if not ticks.take(cluster.redis, cluster.ns, "watch_nodes", WATCH_SECONDS, hosted.agent().node_id):
        return
    for instance in instances.every(cluster.redis, cluster.ns):
        reconcile(cluster, instance.id)
    if not hosted.agent().in_grace():
        idle.unload_idle(cluster)


@app.task(name="exo.reconcile_instance")
def reconcile_instance(instance_id: str) -> None:
    """Look at one instance."""
    reconcile(context(), instance_id)


@app.task(name="exo.load_shard")
def load_shard(instance_id: str, epoch: int, rank: int) -> None:
    """Bring this node's shard of an instance one step on."""
    hosted.agent().shards.advance(instance_id, epoch, rank)


@app.task(name="exo.unload_shard")
def unload_shard(instance_id: str) -> None:
    """End this node's shard of an instance."""
    hosted.agent().shards.unload(instance_id)


def reconcile(cluster: Context, instance_id: str) -> None:
    """Ask plan() what is due and do it; a conflict means that somebody else was faster: ask again."""
    for _ in range(MAX_CONFLICTS):
        instance = instances.find(cluster.redis, cluster.ns, instance_id)
        if instance is None:
            return
        try:
            for action in due(cluster, instance):
                instance = carry_out(cluster, instance, action)
        except StaleWriteError as conflict:
            log.info("looking again: %s", conflict)
        else:
            return


def due(cluster: Context, instance: Instance) -> list[Action]:
    """Return what plan() says. In the grace after an outage of Redis nobody is taken for lost."""
    redis, ns = cluster.redis, cluster.ns
    held = downloads.of_model(redis, ns, instance.model, [rank.node for rank in instance.ring])
    boots = instance.boot_ids if hosted.agent().in_grace() else nodes.live_boots(redis, ns)
    return plan(instance, held, boots, client.now(redis))


def carry_out(cluster: Context, instance: Instance, action: Action) -> Instance:
    """Do one thing that is due and return the instance as it then stands."""
    match action:
        case SetStatus(status=status):
            ready_at = client.now(cluster.redis) if status is InstanceStatus.READY else instance.ready_at
            return save(cluster, instance.evolve(status=status, ready_at=ready_at))
        case DropRing(reason=reason, failures=failures, backoff_seconds=seconds):
            return save(cluster, without_ring(instance, reason, failures, client.now(cluster.redis) + seconds))
        case GiveUp(reason=reason):
            return save(cluster, without_ring(instance, reason, instance.failures, 0, InstanceStatus.FAILED))
        case End():
            gone = end(cluster, instance)
            place_waiting(cluster)
            return gone
    ask(cluster, instance, action)
    return instance


def ask(cluster: Context, instance: Instance, action: Action) -> None:
    """Ask those for it whose part it is; asked twice, they do it once."""
    match action:
        case NeedDownload(node=node):
            wish = Wish(action="download", by=instance.id, since=client.now(cluster.redis))
            downloads.set_wish(cluster.redis, cluster.ns, node, instance.model, wish)
            cluster.hint("exo.work_off_wanted", queue=queues.node_queue(node))
        case LoadShard(rank=rank, node=node):
            cluster.hint("exo.load_shard", instance.id, instance.epoch, rank, queue=queues.node_queue(node))
        case UnloadShard(node=node):
            cluster.hint("exo.unload_shard", instance.id, queue=queues.node_queue(node))
        case FormRing():
            cluster.hint("exo.place_model", instance.id)


def end(cluster: Context, instance: Instance) -> Instance:
    """End an instance: its own wishes for downloads are withdrawn, its nodes unload what they hold of it."""
    gone = save(cluster, instance.evolve(status=InstanceStatus.GONE, reserved_bytes={}))
    for node in downloads.drop_wishes_by(cluster.redis, cluster.ns, instance.id):
        cluster.hint("exo.work_off_wanted", queue=queues.node_queue(node))
    for rank in instance.ring:
        cluster.hint("exo.unload_shard", instance.id, queue=queues.node_queue(rank.node))
    return gone


def place_waiting(cluster: Context) -> None:
    """Hasten the instances that wait for memory: some has just become free."""
    for one in instances.every(cluster.redis, cluster.ns):
        if one.status is InstanceStatus.PLACING and not one.ring:
            cluster.hint("exo.place_model", one.id)


def without_ring(
    instance: Instance,
    reason: str,
    failures: int,
    retry_at: float,
    status: InstanceStatus = InstanceStatus.PLACING,
) -> Instance:
    """Return the instance with its ring taken away."""
    return instance.evolve(
        status=status,
        ring=(),
        reserved_bytes={},
        boot_ids={},
        error=reason,
        failures=failures,
        retry_at=retry_at,
        ready_at=0.0,
    )


def save(cluster: Context, instance: Instance) -> Instance:
    """Write an instance that was just read."""
    return instances.save(cluster.redis, cluster.ns, instance)
