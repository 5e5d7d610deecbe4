"""Take jobs: their records are written, then a message says that they wait. Needs queues and the store only."""

import hashlib
import logging
import secrets
import uuid
from dataclasses import dataclass
from typing import Final

from celery import Celery
from kombu.exceptions import OperationalError

from exo_celery import queues
from exo_celery.errors import ConflictError, IdempotencyError
from exo_celery.records.job import RETRYABLE, Continuation, Job, JobRequest, JobState
from exo_celery.store import jobs
from exo_celery.store.client import Redis

log = logging.getLogger(__name__)
SEED_BITS: Final = 53  # what a JSON number holds in every language
DAY_SECONDS: Final = 86_400
KEEP_DAYS: Final = 30.0


@dataclass(frozen=True)
class Terms:
    """What goes with a request: whose job it is, what names it, what follows it, how long it is kept."""

    owner: str = ""
    idempotency_key: str = ""
    then: Continuation | None = None
    keep_days: float = KEEP_DAYS


def submit(redis: Redis, app: Celery, ns: str, request: JobRequest, terms: Terms) -> Job:
    """Write a job's record and send its message. Once this returns, the job survives whatever happens.

    The seed is chosen here if the request names none, so that every attempt says the same. With an idempotency key
    the same request again is the same job, for as long as its record is kept.

    Raises:
        IdempotencyError: the owner has used the key for another request.
    """
    job = Job(
        id=job_id(terms),
        model=request.model,
        request=request,
        priority=request.priority,
        owner=terms.owner,
        seed=secrets.randbits(SEED_BITS) if request.seed is None else request.seed,
        then=terms.then,
        webhook=request.webhook or "",
        keep_seconds=max(1, int(terms.keep_days * DAY_SECONDS)),
    )
    written = jobs.submit(redis, ns, job)
    if written.request != request:
        raise IdempotencyError(
            f"Idempotency-Key {terms.idempotency_key[:80]!r} was used for another request, which is {written.id}: "
            "take a new key for a new request"
        )
    if written.state is JobState.QUEUED:
        publish(app, written.id, written.model, written.priority, written.published_at)
    return written


def job_id(terms: Terms) -> str:
    """Return the id of a new job: made from its idempotency key and owner, so that it can exist only once."""
    if not terms.idempotency_key:
        return f"job-{uuid.uuid4().hex}"
    named = f"{terms.owner}\n{terms.idempotency_key}".encode()
    return f"job-{hashlib.sha256(named).hexdigest()[:32]}"


def retry(redis: Redis, app: Celery, ns: str, found: Job) -> Job:
    """Queue a failed or cancelled job again, with as many attempts as a new one; its deadline begins anew.

    Raises:
        ConflictError: it is in another state.
    """
    published = jobs.retry(redis, ns, found)
    if published is None:
        now = jobs.get(redis, ns, found.id)
        raise ConflictError(f"{found.id} is {now.state}: only {' and '.join(sorted(RETRYABLE))} jobs are run again")
    publish(app, found.id, found.model, found.priority, published)
    return jobs.get(redis, ns, found.id)


def publish(app: Celery, job_id: str, model: str, priority: int, published_at: float) -> None:
    """Send the message that a job waits in its model's queue; if it gets lost, the reaper sends it again."""
    headers = {queues.PUBLISHED: published_at}
    try:
        queues.send(app, "exo.generate", job_id, queue=queues.model_queue(model), priority=priority, headers=headers)
    except OperationalError as error:
        log.warning("the message of %s was not sent, the reaper will: %s", job_id, error)
