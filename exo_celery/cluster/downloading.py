"""Models on the disks of nodes: what lies where, and wishes for more, for less and for proof."""

from exo_celery import needs, queues
from exo_celery.cluster.catalog import models
from exo_celery.cluster.health import Cluster, nodes
from exo_celery.errors import ConflictError, NotFoundError
from exo_celery.records.download import Download, DownloadStatus, Wish
from exo_celery.store import cards, client
from exo_celery.store import downloads as download_store
from exo_celery.store import nodes as node_store


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
