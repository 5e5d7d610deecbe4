"""What stands in the way of taking a model away from a node: instances placed there, jobs that wait for it."""

from exo_celery.context import Context
from exo_celery.errors import ConflictError
from exo_celery.records.download import DownloadStatus
from exo_celery.records.instance import Instance
from exo_celery.store import downloads, instances, job_lists, nodes


def refuse_for_instances(cluster: Context, node: str, model: str) -> None:
    """Raise ConflictError while instances have a rank of the model on this node; it names them."""
    users = [one.id for one in instances.every(cluster.redis, cluster.ns) if has_rank(one, node, model)]
    if users:
        raise ConflictError(f"{model} on {node} is needed by {', '.join(users)}: delete the instance first")


def has_rank(instance: Instance, node: str, model: str) -> bool:
    """Tell whether an instance has a rank of this model on this node."""
    return instance.model == model and any(rank.node == node for rank in instance.ring)


def refuse_for_jobs(cluster: Context, node: str, model: str) -> None:
    """Raise ConflictError while jobs are queued or running and no other live node has the whole model."""
    jobs = job_lists.unfinished(cluster.redis, cluster.ns, model)
    others = sorted(nodes.live_boots(cluster.redis, cluster.ns).keys() - {node})
    held = downloads.of_model(cluster.redis, cluster.ns, model, others) if jobs else {}
    if jobs and not any(one.status is DownloadStatus.COMPLETED for one in held.values()):
        raise ConflictError(
            f"{model} on {node} is the only whole copy on a live node, and jobs need it ({jobs} queued or running): "
            "let them end, cancel them, or download it to another node first"
        )
