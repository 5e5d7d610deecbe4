"""Placing: gather what a decision is made from, decide, promise the memory."""

import logging
import uuid
from collections.abc import Collection
from typing import Final

from exo_celery import queues
from exo_celery.celery import app
from exo_celery.context import Context
from exo_celery.errors import PlacementError, StaleWriteError
from exo_celery.placement.place import Placement, place
from exo_celery.placement.question import Question, ask
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest
from exo_celery.records.node import NodeView
from exo_celery.store import cards, client, downloads, instances, links, nodes, turns
from exo_celery.store.instances import Promise
from exo_celery.store.links import RoundTrips
from exo_celery.tasks.here import context

log = logging.getLogger(__name__)
TURN_SECONDS: Final = 10.0  # longer than any decision takes
MAX_CONFLICTS: Final = 20  # decisions that others may void in a row before the next tick has to try
REFUSED_SECONDS: Final = 10.0  # until an instance that fits nowhere is tried again
PROMISED: Final = frozenset(InstanceStatus) - {InstanceStatus.GONE, InstanceStatus.FAILED, InstanceStatus.DRAINING}


@app.task(name="exo.place_model")
def place_model(instance_id: str) -> None:
    """Choose the ring of an instance that has none."""
    place_instance(context(), instance_id)


def place_instance(cluster: Context, instance_id: str) -> None:
    """Decide until nobody has promised memory in between, then save the ring and go on with it.

    Taking turns only spares decisions that would be void; whoever waited too long decides all the same.
    """
    for _ in range(MAX_CONFLICTS):
        try:
            with turns.turn(cluster.redis, cluster.ns, "placing", TURN_SECONDS):
                placed = try_to_place(cluster, instance_id)
            if placed:
                cluster.hint("exo.reconcile_instance", instance_id)
        except StaleWriteError as conflict:
            log.info("deciding again: %s", conflict)
        else:
            return


def try_to_place(cluster: Context, instance_id: str) -> bool:
    """Decide once and save; tell whether there is a ring now.

    Raises:
        StaleWriteError: the instance changed or memory was promised since this decision's facts were read.
    """
    decided_on = instances.placements(cluster.redis, cluster.ns)
    instance = instances.find(cluster.redis, cluster.ns, instance_id)
    if instance is None or instance.status is not InstanceStatus.PLACING or instance.ring:
        return False
    try:
        placement = place(gather(cluster, instance.request, instance_id))
    except PlacementError as refusal:
        retry_at = client.now(cluster.redis) + REFUSED_SECONDS
        instances.save(cluster.redis, cluster.ns, instance.evolve(error=refusal.message, retry_at=retry_at))
        return False
    placed = with_ring(instance, placement, nodes.live_boots(cluster.redis, cluster.ns))
    instances.save(cluster.redis, cluster.ns, placed, decided_on=decided_on)
    ring = [rank.node for rank in placed.ring]
    for node in downloads.drop_wishes_by(cluster.redis, cluster.ns, instance_id, keep=ring):
        cluster.hint("exo.work_off_wanted", queue=queues.node_queue(node))
    return True


def with_ring(instance: Instance, placement: Placement, boots: dict[str, str]) -> Instance:
    """Return the instance in its next epoch, with this ring."""
    return instance.evolve(
        epoch=instance.epoch + 1,
        sharding=placement.sharding,
        ring=placement.ring,
        reserved_bytes=placement.reserved_bytes,
        boot_ids={rank.node: boots.get(rank.node, "") for rank in placement.ring},
        why=placement.why,
        decision=placement.decision,
        error="",
    )


def gather(cluster: Context, request: PlacementRequest, instance_id: str = "") -> Question:
    """Read what a placement depends on, in a constant number of round trips.

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


def decide(cluster: Context, request: PlacementRequest) -> Placement:
    """Decide where a model would go now, and place nothing.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: no ring can hold it, or none that our runners can serve.
    """
    found = place(gather(cluster, request))
    if found.sharding == "tensor":
        raise PlacementError(
            f"{request.model} fits as a tensor ring, but this version's runners serve pipelines only: "
            "ask for sharding auto or pipeline",
            code="tensor_not_served",
        )
    return found


def request_instance(cluster: Context, request: PlacementRequest) -> Instance:
    """Decide first, so that what fits nowhere is refused at once; then write the record and ask for its ring.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: no ring can hold it; the message says which rule leaves none, in numbers.
    """
    decide(cluster, request)
    fresh = Instance(id=f"inst-{uuid.uuid4().hex[:12]}", model=request.model, request=request)
    saved = instances.save(cluster.redis, cluster.ns, fresh)
    cluster.hint("exo.place_model", saved.id)
    return saved
