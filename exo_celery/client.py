"""Submit jobs from any Python program, a Celery app of your own included.

    from exo_celery.client import submit
    job = submit(redis, app, "exo", JobRequest(model="org/name", prompt="…"))

Needs queues and the store only; never touches the host's environment or its current Celery app.
"""

import logging
import secrets
import uuid

from celery import Celery
from kombu.exceptions import OperationalError

from exo_celery import queues
from exo_celery.records.job import Job, JobRequest
from exo_celery.store import jobs
from exo_celery.store.client import Redis

log = logging.getLogger(__name__)


def submit(redis: Redis, app: Celery, ns: str, request: JobRequest, owner: str = "") -> Job:
    """Write a job's record and send its message. Once this returns, the job survives whatever happens.

    The seed is chosen here if the request names none, so that every attempt says the same.
    """
    job = Job(
        id=f"job-{uuid.uuid4().hex}",
        model=request.model,
        request=request,
        priority=request.priority,
        owner=owner,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
    )
    written = jobs.submit(redis, ns, job)
    publish(app, written.id, written.model, written.priority, written.published_at)
    return written


def publish(app: Celery, job_id: str, model: str, priority: int, published_at: float) -> None:
    """Send the message that a job waits in its model's queue; if it gets lost, the reaper sends it again."""
    headers = {queues.PUBLISHED: published_at}
    try:
        queues.send(app, "exo.generate", job_id, queue=queues.model_queue(model), priority=priority, headers=headers)
    except OperationalError as error:
        log.warning("the message of %s was not sent, the reaper will: %s", job_id, error)
