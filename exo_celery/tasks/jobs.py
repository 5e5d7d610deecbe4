"""Jobs: run one on this serving worker; bring back those whose run or message was lost; place models that wait."""

import logging

from exo_celery import queues, submission
from exo_celery.celery import app
from exo_celery.context import Context
from exo_celery.errors import PlacementError
from exo_celery.node import agent, serving
from exo_celery.records.instance import PlacementRequest
from exo_celery.store import cards, client, events, instances, job_lists, jobs, ticks
from exo_celery.tasks import placement
from exo_celery.tasks.here import context
from worker_config.celeryconfig import REAP_SECONDS

log = logging.getLogger(__name__)


@app.task(name="exo.generate")
def generate(job_id: str) -> None:
    """Run a job on the instance that this worker serves."""
    serving.here().generate(job_id)


@app.task(name="exo.reap_jobs")
def reap_jobs() -> None:
    """Bring back jobs whose run or message was lost, and place the models that jobs wait for."""
    cluster = context()
    if not ticks.take(cluster.redis, cluster.ns, "reap_jobs", REAP_SECONDS, agent.here().node_id):
        return
    now = client.now(cluster.redis)
    if not agent.here().in_grace():
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
    placed = {one.model: one for one in instances.every(cluster.redis, cluster.ns)}
    for model in waiting_models(cluster):
        if model in placed:
            if placed[model].error:
                jobs.note(cluster.redis, cluster.ns, model, placed[model].error)
        elif cluster.settings.auto_place:
            place_for_jobs(cluster, model)


def place_for_jobs(cluster: Context, model: str) -> None:
    """Ask for an instance of a model; where it fits nowhere, its jobs say so."""
    try:
        instance = placement.request_instance(cluster, PlacementRequest(model=model))
    except PlacementError as refusal:
        jobs.note(cluster.redis, cluster.ns, model, refusal.message)
    else:
        events.add(cluster.redis, cluster.ns, "auto_place", f"jobs wait for {model}: placing {instance.id}")


def waiting_models(cluster: Context) -> list[str]:
    """Return the models that queued jobs wait for."""
    known = sorted(cards.ids(cluster.redis, cluster.ns))
    counts = jobs.waiting(cluster.redis, cluster.ns, known)
    return [model for model in known if counts[model]]
