"""Instances: models that are placed, or would be."""

from typing import Any, Final

from exo_celery import queues
from exo_celery.cluster.health import Cluster
from exo_celery.plan import rank_status
from exo_celery.records.download import Download
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest
from exo_celery.store import downloads as download_store
from exo_celery.store import instances as instance_store
from exo_celery.store import nodes as node_store
from exo_celery.tasks import placement

LOADED_SOON: Final = frozenset(InstanceStatus) - {
    InstanceStatus.GONE,
    InstanceStatus.FAILED,
    InstanceStatus.DRAINING,
    InstanceStatus.READY,
}


def preview(cluster: Cluster, request: PlacementRequest) -> dict[str, Any]:
    """Decide without placing anything, and return the decision with its reasons.

    Raises:
        ModelNotFoundError, PlacementError: as `create_instance`.
    """
    found = placement.decide(cluster, request)
    ring = [rank.model_dump() for rank in found.ring]
    what = {"model": request.model, "ring": ring, "sharding": found.sharding, "reserved_bytes": found.reserved_bytes}
    return what | {"why": found.why} | found.decision


def create_instance(cluster: Cluster, request: PlacementRequest) -> Instance:
    """Place a model; the record exists as `placing` when this returns.

    Raises:
        ModelNotFoundError: the model has no card.
        PlacementError: it fits nowhere, in numbers.
    """
    return placement.request_instance(cluster, request)


def instances(cluster: Cluster) -> list[dict[str, Any]]:
    """Return all instances that are not gone, oldest first, as `GET /api/instances` shows them."""
    found = instance_store.every(cluster.redis, cluster.ns)
    boots = node_store.live_boots(cluster.redis, cluster.ns)
    held = {(one.node, one.model): one for one in download_store.every(cluster.redis, cluster.ns, sorted(boots))}
    return [view(one, held, boots) for one in found]


def instance(cluster: Cluster, instance_id: str) -> dict[str, Any]:
    """Return one instance as `GET /api/instances/<id>` shows it."""
    found = instance_store.get(cluster.redis, cluster.ns, instance_id)
    ring = [rank.node for rank in found.ring]
    of_model = download_store.of_model(cluster.redis, cluster.ns, found.model, ring)
    held = {(node, found.model): one for node, one in of_model.items()}
    return view(found, held, node_store.live_boots(cluster.redis, cluster.ns))


def view(found: Instance, held: dict[tuple[str, str], Download], boots: dict[str, str]) -> dict[str, Any]:
    """Return an instance with each rank's status as people see it."""
    ring = []
    for rank in found.ring:
        download = held.get((rank.node, found.model))
        state = found.ranks.get(rank.rank)
        said = state.model_dump(mode="json", exclude={"epoch", "boot_id", "engine"}) if state else {}
        seen = {
            "status": rank_status(found, rank, download, boots),
            "downloaded_fraction": download.fraction if download else 0.0,
        }
        ring.append(rank.model_dump() | said | seen)
    shown = found.model_dump(mode="json", exclude={"ring", "ranks", "boot_ids", "request"})
    first = found.ranks.get(0)
    measured = first.engine if first and first.epoch == found.epoch else None
    engine = measured.model_dump(mode="json") if measured else None
    return shown | {"request": found.request.model_dump(mode="json"), "ring": ring, "engine": engine}


def delete_instance(cluster: Cluster, instance_id: str) -> dict[str, Any]:
    """End an instance: its ranks unload, its own wishes for downloads are withdrawn, its jobs wait in the queue."""
    found = instance_store.get(cluster.redis, cluster.ns, instance_id)
    gone = instance_store.save(cluster.redis, cluster.ns, found.evolve(status=InstanceStatus.GONE, reserved_bytes={}))
    for node in download_store.drop_wishes_by(cluster.redis, cluster.ns, instance_id):
        cluster.hint("exo.work_off_wanted", queue=queues.node_queue(node))
    for rank in found.ring:
        cluster.hint("exo.unload_shard", instance_id, queue=queues.node_queue(rank.node))
    return {"id": gone.id, "status": gone.status}


def serving_state(cluster: Cluster, model_id: str) -> str:
    """Return `ready`, `loading` or `absent`: whether an instance of the model answers now, soon, or not."""
    states = {one.status for one in instance_store.every(cluster.redis, cluster.ns) if one.model == model_id}
    if InstanceStatus.READY in states:
        return "ready"
    return "loading" if states & LOADED_SOON else "absent"
