"""What decisions are made from, read in a constant number of round trips."""

from collections.abc import Collection
from typing import Final

from exo_celery import plan
from exo_celery.context import Context
from exo_celery.placement.question import Question, ask
from exo_celery.placement.room import Held
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest
from exo_celery.records.node import NodeView
from exo_celery.store import cards, client, downloads, instances, jobs, links, nodes
from exo_celery.store.instances import Promise
from exo_celery.store.links import RoundTrips

PROMISED: Final = frozenset(InstanceStatus) - {InstanceStatus.GONE, InstanceStatus.FAILED, InstanceStatus.DRAINING}


def gather(cluster: Context, request: PlacementRequest, instance_id: str = "") -> Question:
    """Read what a placement depends on; what this instance was promised itself does not count.

    Raises:
        ModelNotFoundError: the model has no card.
    """
    redis, ns = cluster.redis, cluster.ns
    card = cards.get(redis, ns, request.model)
    alive = nodes.placeable(redis, ns)
    ids = [node.id for node in alive]
    held = downloads.of_model(redis, ns, request.model, ids)
    rtt_ms = links.round_trips(redis, ns, ids)
    others = [one for one in instances.promises(redis, ns) if one.instance != instance_id]
    return ask(
        card,
        request,
        alive,
        held,
        reach=reach(alive, rtt_ms),
        rtt_ms=rtt_ms,
        reserved_bytes=promised(others, alive),
        download_bps={node: one.speed_bps for node, one in held.items() if one.speed_bps},
        load_bps={node.id: node.load_bps for node in alive if node.load_bps},
    )


def reach(alive: list[NodeView], measured: RoundTrips) -> dict[str, Collection[str]]:
    """Return whom each node reaches by its own measurement; one that has not measured yet is taken at its word."""
    everybody = {node.id for node in alive}
    return {node.id: measured.peers(node.id) if node.links_at else everybody for node in alive}


def promised(others: list[Promise], alive: list[NodeView]) -> dict[str, int]:
    """Return the bytes per node that instances were promised and no measurement shows yet.

    An instance that is ready holds its memory: the node's next heartbeat has measured it.
    """
    seen_at = {node.id: node.seen_at for node in alive}
    total: dict[str, int] = {}
    for one in others:
        for node, size in one.reserved_bytes.items() if one.status in PROMISED else ():
            if one.status is not InstanceStatus.READY or seen_at.get(node, 0) <= one.ready_at:
                total[node] = total.get(node, 0) + size
    return total


def idle(cluster: Context) -> list[Instance]:
    """Return the ready instances that run nothing and whose model no job waits for, least recently used first.

    They are read before the jobs: whoever is used after that has another `used_at`, so that draining it is refused.
    """
    redis, ns = cluster.redis, cluster.ns
    ready = [one for one in instances.every(redis, ns) if one.status is InstanceStatus.READY]
    running = instances.busy(redis, ns)
    waiting = jobs.waiting(redis, ns, sorted({one.model for one in ready}))
    return sorted(
        (one for one in ready if not running[one.id] and not waiting[one.model]),
        key=lambda one: (plan.idle_since(one), one.id),
    )


def may_make_room(cluster: Context) -> list[Instance]:
    """Return the idle instances that may go for a model that work waits for, least recently used first."""
    now = client.now(cluster.redis)
    return [one for one in idle(cluster) if plan.may_make_room(one, now)]


def leaving(cluster: Context) -> list[Held]:
    """Return the memory of the instances that are being unloaded."""
    found = instances.every(cluster.redis, cluster.ns)
    return [held(one) for one in found if one.status is InstanceStatus.DRAINING]


def held(instance: Instance) -> Held:
    """Return the memory that an instance holds, as it was promised."""
    return Held(instance.id, instance.reserved_bytes)
