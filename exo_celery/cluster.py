"""What a caller may ask of a cluster: REST, the admin UI and the command line call these and nothing below."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from exo_celery import needs, queues, submission
from exo_celery import settings as configuration
from exo_celery.context import Context, open_context
from exo_celery.errors import ConflictError, InvalidRequestError, NotFoundError
from exo_celery.models import known
from exo_celery.plan import rank_status
from exo_celery.records.download import Download, DownloadStatus, Wish
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest
from exo_celery.records.job import TERMINAL, Job, JobRequest, JobState, TokenEvent
from exo_celery.records.model import AddModel, ModelCard
from exo_celery.records.node import NodeView
from exo_celery.settings import Settings
from exo_celery.store import cards, client, events, job_lists, tokens
from exo_celery.store import downloads as download_store
from exo_celery.store import instances as instance_store
from exo_celery.store import jobs as job_store
from exo_celery.store import nodes as node_store
from exo_celery.store.client import RedisError
from exo_celery.store.job_lists import Filter
from exo_celery.store.jobs import Outcome
from exo_celery.submission import Terms
from exo_celery.tasks import placement

log = logging.getLogger(__name__)
Cluster = Context
KEEPALIVE_SECONDS: Final = 3.0  # below the socket's timeout
LOADED_SOON: Final = frozenset(InstanceStatus) - {
    InstanceStatus.GONE,
    InstanceStatus.FAILED,
    InstanceStatus.DRAINING,
    InstanceStatus.READY,
}


def open_cluster(settings: Settings | None = None) -> Cluster:
    """Return the cluster that the settings (else the environment) name."""
    return open_context(settings or configuration.load())


# Nodes and models


def nodes(cluster: Cluster) -> list[NodeView]:
    """Return all nodes that ever registered, by id."""
    return node_store.every(cluster.redis, cluster.ns)


def models(cluster: Cluster) -> list[ModelCard]:
    """Return all known models, by id."""
    return cards.every(cluster.redis, cluster.ns)


def model(cluster: Cluster, model_id: str) -> ModelCard:
    """Return a model's card, or raise ModelNotFoundError with what is known."""
    return cards.get(cluster.redis, cluster.ns, model_id)


def servable_models(cluster: Cluster) -> list[ModelCard]:
    """Return the models that can be served: whole on some live node, or placed."""
    whole = {one.model for one in downloads(cluster) if one.status is DownloadStatus.COMPLETED}
    placed = {one.model for one in instance_store.every(cluster.redis, cluster.ns)}
    return [card for card in models(cluster) if card.id in whole | placed]


def add_model(cluster: Cluster, asked: AddModel) -> ModelCard:
    """Make a model known and return its card: from a folder, else from the hub, else from what is built in.

    Raises:
        ModelFolderError: the folder is not whole, or mlx-lm cannot run what it holds.
        ModelNotFoundError: the model is nowhere here, and the hub does not have it or may not be asked.
        UnavailableError: the hub cannot be reached now.
    """
    card = known.find_card(cluster.settings, asked.model, Path(asked.path) if asked.path else None)
    cards.save(cluster.redis, cluster.ns, card)
    events.add(cluster.redis, cluster.ns, "model", f"{card.id} is known from {card.source}", model=card.id)
    return card


# Downloads


def downloads(cluster: Cluster) -> list[Download]:
    """Return each known model on each live node; what a node has nothing of is pending with 0 bytes."""
    alive = [node.id for node in nodes(cluster) if node.alive]
    held = {(one.node, one.model): one for one in download_store.every(cluster.redis, cluster.ns, alive)}
    for card in models(cluster):
        for node in alive:
            nothing = Download(node=node, model=card.id, total_bytes=card.storage_bytes)
            held.setdefault((node, card.id), nothing)
    return [held[key] for key in sorted(held)]


def start_download(cluster: Cluster, node: str, model_id: str) -> Download:
    """Wish for a model on a node: it is worked off until complete, cancelled or failed for good."""
    need_node(cluster, node)
    cards.get(cluster.redis, cluster.ns, model_id)
    wish(cluster, node, model_id, "download")
    return download(cluster, node, model_id)


def cancel_download(cluster: Cluster, node: str, model_id: str) -> Download:
    """Withdraw the wish for a model on a node, or for its verification; the bytes stay.

    Raises:
        ConflictError: an instance needs what is still coming, and would only ask for it again.
    """
    need_node(cluster, node)
    if download(cluster, node, model_id).status is not DownloadStatus.COMPLETED:
        needs.refuse_for_instances(cluster, node, model_id)
    download_store.drop_wish(cluster.redis, cluster.ns, node, model_id)
    cluster.hint("exo.work_off_wanted", queue=queues.node_queue(node))
    return download(cluster, node, model_id)


def delete_download(cluster: Cluster, node: str, model_id: str) -> Download:
    """Wish a model away from a node.

    Raises:
        ConflictError: an instance needs it there, jobs wait for it and no other node has it, or its folder is
            read-only.
    """
    need_node(cluster, node)
    held = download(cluster, node, model_id)
    needs.refuse_for_instances(cluster, node, model_id)
    if held.read_only:
        raise ConflictError(f"{model_id} on {node} lies in {held.directory}, which is read-only: remove it there")
    if held.status is DownloadStatus.COMPLETED:
        needs.refuse_for_jobs(cluster, node, model_id)
    wish(cluster, node, model_id, "delete")
    return held


def verify_download(cluster: Cluster, node: str, model_id: str) -> Download:
    """Wish that a node hashes a whole model again; what is wrong is removed there and told in the download.

    Raises:
        ConflictError: it is not whole there.
    """
    need_node(cluster, node)
    held = download(cluster, node, model_id)
    if held.status is not DownloadStatus.COMPLETED:
        raise ConflictError(
            f"{model_id} on {node} is {held.status}, {held.downloaded_bytes} of {held.total_bytes} bytes: only a "
            "whole model can be verified, download it first"
        )
    wish(cluster, node, model_id, "verify")
    return held


def wish(cluster: Cluster, node: str, model_id: str, action: str) -> None:
    """Write a user's wish and tell the node."""
    record = Wish(action=action, since=client.now(cluster.redis))
    download_store.set_wish(cluster.redis, cluster.ns, node, model_id, record)
    cluster.hint("exo.work_off_wanted", queue=queues.node_queue(node))


def download(cluster: Cluster, node: str, model_id: str) -> Download:
    """Return one model on one node; nothing of a known model is pending with 0 bytes.

    Raises:
        ModelNotFoundError: the node has nothing of it, and it has no card.
    """
    if held := download_store.get(cluster.redis, cluster.ns, node, model_id):
        return held
    card = cards.get(cluster.redis, cluster.ns, model_id)
    return Download(node=node, model=model_id, total_bytes=card.storage_bytes)


def need_node(cluster: Cluster, node: str) -> None:
    """Raise NotFoundError unless the node lives; the message lists those that do."""
    alive = sorted(node_store.live_boots(cluster.redis, cluster.ns))
    if node not in alive:
        raise NotFoundError(f"node {node!r} is not alive; alive: {', '.join(alive) or 'none'}", param="node")


# Placement and instances


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
        said = state.model_dump(mode="json", exclude={"epoch", "boot_id"}) if state else {}
        seen = {
            "status": rank_status(found, rank, download, boots),
            "downloaded_fraction": download.fraction if download else 0.0,
        }
        ring.append(rank.model_dump() | said | seen)
    shown = found.model_dump(mode="json", exclude={"ring", "ranks", "boot_ids", "request"})
    return shown | {"request": found.request.model_dump(mode="json"), "ring": ring}


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


# Jobs


def submit(cluster: Cluster, request: JobRequest, owner: str = "", idempotency_key: str = "") -> Job:
    """Take a job: once this returns it survives any crash.

    Raises:
        ModelNotFoundError: the model has no card.
        IdempotencyError: the owner has used the key for another request.
    """
    cards.get(cluster.redis, cluster.ns, request.model)
    terms = Terms(owner, idempotency_key, keep_days=cluster.settings.job_retention_days)
    return submission.submit(cluster.redis, cluster.app, cluster.ns, request, terms)


def job(cluster: Cluster, job_id: str) -> Job:
    """Return a job, or raise NotFoundError."""
    return job_store.get(cluster.redis, cluster.ns, job_id)


def jobs(
    cluster: Cluster, state: JobState | None = None, limit: int = 50, cursor: str | None = None, **wanted: str
) -> tuple[list[Job], str | None]:
    """Return a page of jobs, newest first, and the cursor of the next page; `wanted` may name a model, an owner.

    With a model or an owner a page may be short and still not be the last: that is the one without a cursor.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
    """
    try:
        before = float(cursor) if cursor else None
    except ValueError:
        raise InvalidRequestError(f"{cursor!r:.40} is not a cursor that a list gave", param="cursor") from None
    found, rest = job_lists.page(cluster.redis, cluster.ns, Filter(state, **wanted), limit, before)
    return found, None if rest is None else f"{rest:.6f}"


def jobs_by_id(cluster: Cluster, ids: Sequence[str]) -> list[Job]:
    """Return those of these jobs that exist."""
    return job_store.many(cluster.redis, cluster.ns, ids)


def job_counts(cluster: Cluster) -> dict[JobState, int]:
    """Return how many jobs are in each state."""
    return job_lists.counts(cluster.redis, cluster.ns)


def cancel_job(cluster: Cluster, job_id: str) -> Job:
    """Cancel a job, queued or running; a job that has ended stays as it is."""
    found = job_store.get(cluster.redis, cluster.ns, job_id)
    if found.state not in TERMINAL:
        job_store.finish(cluster.redis, cluster.ns, job_id, None, Outcome(JobState.CANCELLED))
        if found.then or found.webhook:
            cluster.hint("exo.tell_ends")
    return job_store.get(cluster.redis, cluster.ns, job_id)


def retry_job(cluster: Cluster, job_id: str) -> Job:
    """Run a failed or cancelled job again.

    Raises:
        NotFoundError, ConflictError: it does not exist; it is in another state.
    """
    found = job_store.get(cluster.redis, cluster.ns, job_id)
    return submission.retry(cluster.redis, cluster.app, cluster.ns, found)


def follow(cluster: Cluster, job_id: str, after: str = "0-0") -> Iterator[TokenEvent | None]:
    """Yield a job's events after an id as they come, None every few seconds without one; ends after `end`.

    Raises:
        NotFoundError: no such job.
    """
    job_store.get(cluster.redis, cluster.ns, job_id)
    return tokens.follow(cluster.redis, cluster.ns, job_id, after, KEEPALIVE_SECONDS)


# The cluster's own health


def clock(cluster: Cluster) -> float:
    """Return Redis time in seconds: what the times of all records are told in."""
    return client.now(cluster.redis)


def readiness(cluster: Cluster) -> tuple[bool, list[str]]:
    """Tell whether work is taken and done: Redis answers and a node lives; else the reasons."""
    try:
        alive = node_store.live_boots(cluster.redis, cluster.ns)
    except RedisError as error:
        return False, [f"Redis does not answer: {error}"]
    return (True, []) if alive else (False, ["no node is alive: start one with `celery -A exo_celery worker`"])


def latest_events(cluster: Cluster, count: int = 50) -> list[dict[str, str]]:
    """Return the newest events first."""
    return events.latest(cluster.redis, cluster.ns, count)
