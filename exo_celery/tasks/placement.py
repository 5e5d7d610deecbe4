"""Placing: decide where models go and promise them the memory; place what lost its ring or waits for room again."""

import logging
import uuid
from typing import Final

from exo_celery import queues
from exo_celery.celery import app
from exo_celery.context import Context
from exo_celery.errors import ConflictError, PlacementError, StaleWriteError
from exo_celery.placement.place import Placement
from exo_celery.placement.question import Question
from exo_celery.placement.replicas import place_beside, place_replicas
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest
from exo_celery.store import client, downloads, events, instances, nodes, turns
from exo_celery.tasks import facts, idle
from exo_celery.tasks.here import context

log = logging.getLogger(__name__)
TURN_SECONDS: Final = 10.0  # longer than any decision takes
MAX_CONFLICTS: Final = 20  # decisions that others may void in a row before the next tick has to try
REFUSED_SECONDS: Final = 10.0  # until an instance that fits nowhere is tried again


@app.task(name="exo.place_model")
def place_model(instance_id: str) -> None:
    """Go on with an instance that was given its ring, choose one for an instance that has none."""
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
        return instance is not None and bool(instance.ring)
    question = facts.gather(cluster, instance.request, instance_id)
    try:
        placement = place_beside(question, instance.replica, nodes_of_others(cluster, instance))
    except PlacementError as refusal:
        wait(cluster, instance, question, refusal)
        return False
    placed = with_ring(instance, placement, nodes.live_boots(cluster.redis, cluster.ns))
    instances.save(cluster.redis, cluster.ns, placed, decided_on=decided_on)
    ring = [rank.node for rank in placed.ring]
    for node in downloads.drop_wishes_by(cluster.redis, cluster.ns, instance_id, keep=ring):
        cluster.hint("exo.work_off_wanted", queue=queues.node_queue(node))
    return True


def nodes_of_others(cluster: Context, instance: Instance) -> set[str]:
    """Return the nodes that the other replicas of an instance are on."""
    found = instances.every(cluster.redis, cluster.ns) if instance.group else []
    return {rank.node for one in found if one.group == instance.group and one.id != instance.id for rank in one.ring}


def wait(cluster: Context, instance: Instance, question: Question, refusal: PlacementError) -> None:
    """Write down why an instance has no ring yet; where work waits for it, idle instances make room."""
    note = idle.make_room(cluster, instance.model, question) if instance.placed_by == "work" else ""
    retry_at = client.now(cluster.redis) + REFUSED_SECONDS
    waiting = instance.evolve(error="" if note else refusal.message, note=note, retry_at=retry_at)
    instances.save(cluster.redis, cluster.ns, waiting)


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
        note="",
    )


def decide(cluster: Context, request: PlacementRequest) -> list[Placement]:
    """Decide where a model's replicas would go now, and place nothing.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: not all have a ring that can hold it.
    """
    return place_replicas(facts.gather(cluster, request))


def request_instances(cluster: Context, request: PlacementRequest) -> list[Instance]:
    """Place all replicas of a model or none: decide, promise the memory and write the records in one step.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: not all have a ring; the message says which rule leaves none, in numbers.
        ConflictError: others were faster again and again.
    """
    for _ in range(MAX_CONFLICTS):
        try:
            with turns.turn(cluster.redis, cluster.ns, "placing", TURN_SECONDS):
                placed = promise(cluster, request)
        except StaleWriteError as conflict:
            log.info("deciding again: %s", conflict)
        else:
            for one in placed:
                cluster.hint("exo.place_model", one.id)
            return placed
    raise ConflictError(f"{MAX_CONFLICTS} placements came between while {request.model} was placed: try again")


def promise(cluster: Context, request: PlacementRequest) -> list[Instance]:
    """Decide once and write the instances with their rings; raises as `request_instances`, and StaleWriteError."""
    decided_on = instances.placements(cluster.redis, cluster.ns)
    rings = decide(cluster, request)
    boots = nodes.live_boots(cluster.redis, cluster.ns)
    group = new_id("group") if len(rings) > 1 else ""
    fresh = [
        with_ring(Instance(id=new_id(), model=request.model, request=request, group=group, replica=number), ring, boots)
        for number, ring in enumerate(rings, 1)
    ]
    return instances.create(cluster.redis, cluster.ns, fresh, decided_on=decided_on)


def place_for_work(cluster: Context, model: str) -> Instance:
    """Return the instance of a model that work waits for; ask for one where there is none.

    However many ask at the same moment, they get the same one. Where it fits once idle instances have gone, it waits
    for their room.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: no ring can hold it, not even then.
    """
    request = PlacementRequest(model=model, keep_alive=cluster.settings.keep_alive_s)
    question = facts.gather(cluster, request)
    try:
        place_replicas(question)
    except PlacementError:
        if idle.to_unload(cluster, question) is None:
            raise
    fresh = Instance(id=new_id(), model=model, request=request, placed_by="work")
    (there,) = instances.create(cluster.redis, cluster.ns, [fresh], only=True)
    if there.id == fresh.id:
        events.add(cluster.redis, cluster.ns, "auto_place", f"work waits for {model}: placing {fresh.id}")
        cluster.hint("exo.place_model", fresh.id)
    return there


def new_id(kind: str = "inst") -> str:
    """Return an id that nobody has had."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"
