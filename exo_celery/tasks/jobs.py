"""Jobs: run one on this serving worker; bring back those whose run or message was lost; place models that wait."""

import logging

from exo_celery import queues, submission
from exo_celery.celery import app
from exo_celery.context import Context
from exo_celery.errors import PlacementError
from exo_celery.node import hosted
from exo_celery.records.instance import InstanceStatus
from exo_celery.store import cards, client, instances, job_lists, jobs, ticks
from exo_celery.tasks import placement
from exo_celery.tasks.here import context
from worker_config.celeryconfig import REAP_SECONDS

log = logging.getLogger(__name__)


@app.task(name="exo.generate")
def generate(job_id: str) -> None:
    """Run a job on the instance that this worker serves."""
    hosted.serving().generate(job_id)


@app.task(name="exo.reap_jobs")
def reap_jobs() -> None:
    """Bring back jobs whose run or message was lost, and place the models that jobs wait for."""
    cluster = context()
    if not ticks.take(cluster.redis, cluster.ns, "reap_jobs", REAP_SECONDS, hosted.agent().node_id):
        return
    now = client.now(cluster.redis)
    if not hosted.agent().in_grace():
        requeue_lapsed(cluster, now)
        resend_lost(cluster, now)
    jobs.fail_overdue(cluster.redis, cluster.ns, now)
    place_waiting(cluster)
    job_lists.forget_expired(cluster.redis, cluster.ns, now)


def requeue_lapsed(cluster: Context, now: float) -> None:
    """Queue the running jobs whose lease has run out."""
    for job_id in jobs.lapsed(cluster.redis, cluster.ns, now):
        published = jobs.requeue(cluster.redis, cluster.ns, job_id, None, "its worker stopped renewing the lease")
        if published is not None:
            job = jobs.get(cluster.redis, cluster.ns, job_id)
            submission.publish(cluster.app, job.id, job.model, job.priority, published)


def resend_lost(cluster: Context, now: float) -> None:
    """Send the messages of queued jobs again that can no longer be in their list."""
    for model in waiting_models(cluster):
        for priority in jobs.PRIORITIES:
            queue = queues.model_queue(model)
            for job in jobs.lost(cluster.redis, cluster.ns, queue, model, priority, now, queues.PUBLISHED):
                published = jobs.republish(cluster.redis, cluster.ns, job)
                if published is not None:
                    submission.publish(cluster.app, job.id, model, priority, published)


def place_waiting(cluster: Context) -> None:
    """Ask for an instance of each model that jobs wait for and that has none; tell the jobs what they wait for.

    One that failed for good stays until somebody deletes it: else it would be made again and again.
    """
    placed = [one for one in instances.every(cluster.redis, cluster.ns) if one.status is not InstanceStatus.DRAINING]
    for model in waiting_models(cluster):
        theirs = [one for one in placed if one.model == model]
        if not theirs and cluster.settings.auto_place:
            tell(cluster, model, place_for_jobs(cluster, model))
        elif all(one.status is not InstanceStatus.READY for one in theirs):
            tell(cluster, model, next((said for one in theirs if (said := one.error or one.note)), ""))


def place_for_jobs(cluster: Context, model: str) -> str:
    """Ask for an instance of a model; return why it fits nowhere, if it does not."""
    try:
        placement.place_for_work(cluster, model)
    except PlacementError as refusal:
        return refusal.message
    return ""


def tell(cluster: Context, model: str, message: str) -> None:
    """Tell a model's queued jobs why they wait."""
    if message:
        jobs.note(cluster.redis, cluster.ns, model, message)


def waiting_models(cluster: Context) -> list[str]:
    """Return the models that queued jobs wait for."""
    known = sorted(cards.ids(cluster.redis, cluster.ns))
    counts = jobs.waiting(cluster.redis, cluster.ns, known)
    return [model for model in known if counts[model]]
