"""Jobs: taken, read, followed, cancelled, run again."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from exo_celery import submission
from exo_celery.cluster.health import Cluster
from exo_celery.errors import InvalidRequestError
from exo_celery.records.job import TERMINAL, Job, JobRequest, JobState, TokenEvent
from exo_celery.store import cards, job_lists, tokens
from exo_celery.store import jobs as job_store
from exo_celery.store.job_lists import Filter
from exo_celery.store.jobs import Outcome
from exo_celery.submission import Terms

CURSOR: Final = re.compile(r"[0-9]{1,15}\.[0-9]{6}")
KEEPALIVE_SECONDS: Final = 3.0  # below the socket's timeout


def submit(cluster: Cluster, request: JobRequest, owner: str = "", idempotency_key: str = "") -> Job:
    """Take a job: once this returns it survives any crash.

    Raises:
        ModelNotFoundError: the model has no card.
        IdempotencyError: the owner has used the key for another request.
    """
    cards.need(cluster.redis, cluster.ns, request.model)
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
    if cursor and not CURSOR.fullmatch(cursor):
        raise InvalidRequestError(f"{cursor!r:.40} is not a cursor that a list gave", param="cursor")
    before = float(cursor) if cursor else None
    found, rest = job_lists.page(cluster.redis, cluster.ns, Filter(state, **wanted), limit, before)
    return found, None if rest is None else f"{rest:.6f}"


def jobs_by_id(cluster: Cluster, ids: Sequence[str]) -> list[Job]:
    """Return those of these jobs that exist."""
    return job_store.many(cluster.redis, cluster.ns, ids)


def job_counts(cluster: Cluster) -> dict[JobState, int]:
    """Return how many jobs are in each state."""
    return job_lists.counts(cluster.redis, cluster.ns)


def waiting_jobs(cluster: Cluster) -> dict[str, int]:
    """Return how many jobs wait for each known model."""
    return job_store.waiting(cluster.redis, cluster.ns, sorted(cards.ids(cluster.redis, cluster.ns)))


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
