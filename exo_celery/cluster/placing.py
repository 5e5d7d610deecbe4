"""Instances: models that are placed, or would be."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from exo_celery.cluster.health import Cluster
from exo_celery.placement.place import Placement
from exo_celery.plan import lost_note, rank_status, unloads_at
from exo_celery.records.download import Download
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest
from exo_celery.store import client
from exo_celery.store import downloads as download_store
from exo_celery.store import instances as instance_store
from exo_celery.store import nodes as node_store
from exo_celery.tasks import instances as instance_tasks
from exo_celery.tasks import placement

LOADED_SOON: Final = frozenset(InstanceStatus) - {
    InstanceStatus.GONE,
    InstanceStatus.FAILED,
    InstanceStatus.DRAINING,
    InstanceStatus.READY,
}


def preview(cluster: Cluster, request: PlacementRequest) -> dict[str, Any]:
    """Decide without placing anything, and return the decision with its reasons; `replicas` has it for each of them.

    Raises:
        ModelNotFoundError, PlacementError: as `create_instances`.
    """
    rings = [decision(one) for one in placement.decide(cluster, request)]
    return {"model": request.model} | rings[0] | {"replicas": rings}


def place(cluster: Cluster, request: PlacementRequest) -> dict[str, Any]:
    """Place a model as `create_instances` does, and return what `preview` does, with ids and statuses."""
    rings = [decision(one) | {"id": one.id, "status": one.status} for one in create_instances(cluster, request)]
    return {"model": request.model} | rings[0] | {"replicas": rings}


def decision(found: Placement | Instance) -> dict[str, Any]:
    """Return a ring with the reasons for it."""
    ring = [rank.model_dump() for rank in found.ring]
    what = {"ring": ring, "sharding": found.sharding, "reserved_bytes": found.reserved_bytes, "why": found.why}
    return found.decision | what


def create_instances(cluster: Cluster, request: PlacementRequest) -> list[Instance]:
    """Place all replicas of a model or none; their records exist as `placing`, with their rings, when this returns.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: not all fit, in numbers.
    """
    return placement.request_instances(cluster, request)


def place_for_work(cluster: Cluster, model_id: str) -> Instance:
    """Return the instance of a model that a request waits for, asked for by the first that does.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: it fits nowhere, not even once idle instances have gone.
    """
    return placement.place_for_work(cluster, model_id)


def instances(cluster: Cluster) -> list[dict[str, Any]]:
    """Return all instances that are not gone, oldest first, as `GET /api/instances` shows them."""
    found = instance_store.every(cluster.redis, cluster.ns)
    boots = node_store.live_boots(cluster.redis, cluster.ns)
    held = {(one.node, one.model): one for one in download_store.every(cluster.redis, cluster.ns, sorted(boots))}
    around = surroundings(cluster, found, boots, held)
    return [view(one, around) for one in found]


def instance(cluster: Cluster, instance_id: str) -> dict[str, Any]:
    """Return one instance as `GET /api/instances/<id>` shows it."""
    found = instance_store.get(cluster.redis, cluster.ns, instance_id)
    ring = [rank.node for rank in found.ring]
    of_model = download_store.of_model(cluster.redis, cluster.ns, found.model, ring)
    held = {(node, found.model): one for node, one in of_model.items()}
    return view(found, surroundings(cluster, [found], node_store.live_boots(cluster.redis, cluster.ns), held))


@dataclass(frozen=True)
class Surroundings:
    """What is shown of instances besides their records: downloads by node and model, boot ids of live nodes, running
    jobs by instance, when nodes that are away were last heard, Redis time.
    """

    held: dict[tuple[str, str], Download]
    boots: dict[str, str]
    busy: Counter[str]
    seen_at: dict[str, float]
    now: float


def surroundings(
    cluster: Cluster, shown: list[Instance], boots: dict[str, str], held: dict[tuple[str, str], Download]
) -> Surroundings:
    """Read what is shown of instances besides their records; nodes that are away are few."""
    redis, ns = cluster.redis, cluster.ns
    away = {rank.node for one in shown for rank in one.ring} - boots.keys()
    records = [node_store.record(redis, ns, node) for node in sorted(away)]
    seen_at = {record.id: record.seen_at for record in records if record}
    return Surroundings(held, boots, instance_store.busy(redis, ns), seen_at, client.now(redis))


def view(found: Instance, around: Surroundings) -> dict[str, Any]:
    """Return an instance with each rank's status as people see it."""
    ring = []
    for rank in found.ring:
        download = around.held.get((rank.node, found.model))
        state = found.ranks.get(rank.rank)
        said = state.model_dump(mode="json", exclude={"epoch", "boot_id", "engine"}) if state else {}
        seen = {
            "status": rank_status(found, rank, download, around.boots),
            "downloaded_fraction": download.fraction if download else 0.0,
        }
        ring.append(rank.model_dump() | said | seen)
    shown = found.model_dump(mode="json", exclude={"ring", "ranks", "boot_ids", "request"})
    first = found.ranks.get(0)
    measured = first.engine if first and first.epoch == found.epoch else None
    engine = measured.model_dump(mode="json") if measured else None
    request = found.request.model_dump(mode="json")
    return shown | work_of(found, around) | {"request": request, "ring": ring, "engine": engine}


def work_of(found: Instance, around: Surroundings) -> dict[str, Any]:
    """Return what an instance does now, since when it does nothing, and when it goes if that stays so."""
    running = around.busy[found.id]
    idle = found.status is InstanceStatus.READY and not running
    return {
        "running_jobs": running,
        "idle_since": max(found.used_at, found.ready_at) if idle else None,
        "unloads_at": unloads_at(found) if idle else None,
        "note": lost_note(found, around.boots, around.seen_at, around.now) or found.note,
    }


def delete_instance(cluster: Cluster, instance_id: str) -> dict[str, Any]:
    """End an instance: its ranks unload, its own wishes for downloads are withdrawn, its jobs wait in the queue."""
    gone = instance_tasks.end(cluster, instance_store.get(cluster.redis, cluster.ns, instance_id))
    return {"id": gone.id, "status": gone.status}


def serving_state(cluster: Cluster, model_id: str) -> tuple[str, str]:
    """Return `ready`, `loading` or `absent`: whether an instance of the model answers now, soon, or not; and what one
    that is on its way waits for, if that is known.
    """
    theirs = [one for one in instance_store.every(cluster.redis, cluster.ns) if one.model == model_id]
    if any(one.status is InstanceStatus.READY for one in theirs):
        return "ready", ""
    coming = [one for one in theirs if one.status in LOADED_SOON]
    return "loading" if coming else "absent", next((said for one in coming if (said := one.error or one.note)), "")
