"""Lists of jobs: pages of them, how many there are, and what is dropped once they have been kept long enough."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from redis import Redis

from exo_celery.records.job import Job, JobState
from exo_celery.store import keys
from exo_celery.store.jobs import many, waiting

LOOKED_AT: Final = 2000  # jobs that are read for one page, at most
EXPIRED_AT_ONCE: Final = 1000


@dataclass(frozen=True)
class Filter:
    """Which jobs a list shows: of a state, a model, an owner; None and '' ask for nothing."""

    state: JobState | None = None
    model: str | None = None
    owner: str = ""

    def holds(self, job: Job) -> bool:
        """Tell whether a job is one of them."""
        return self.state in (None, job.state) and self.model in (None, job.model) and self.owner in ("", job.owner)


def page(redis: Redis, ns: str, wanted: Filter, limit: int, before: float | None) -> tuple[list[Job], float | None]:
    """Return a page of jobs, newest first, and from where the next goes on (None: that was the last).

    A filter that no index serves is asked of at most `LOOKED_AT` jobs: a page may then be short, or even empty, and
    still not be the last.
    """
    index = keys.owned_jobs(ns, wanted.owner) if wanted.owner else keys.jobs(ns, wanted.state or "all")
    found: list[Job] = []
    for _ in range(max(1, LOOKED_AT // limit)):
        top = "+inf" if before is None else f"({before:.6f}"
        part = redis.zrevrangebyscore(index, top, "-inf", 0, limit + 1, withscores=True)
        jobs = {job.id: job for job in many(redis, ns, [job_id for job_id, _ in part])}
        for at, (job_id, score) in enumerate(part, 1):
            if job_id in jobs and wanted.holds(jobs[job_id]):
                found.append(jobs[job_id])
            if len(found) == limit:
                return found, score if at < len(part) or len(part) > limit else None
        if len(part) <= limit:
            return found, None
        before = part[-1][1]
    return found, before


def counts(redis: Redis, ns: str) -> dict[JobState, int]:
    """Return how many jobs are in each state, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for state in JobState:
            pipe.zcard(keys.jobs(ns, state))
        return dict(zip(JobState, pipe.execute(), strict=True))


def unfinished(redis: Redis, ns: str, model: str) -> int:
    """Return how many jobs of a model are queued or running, in three round trips."""
    running = redis.zrange(keys.jobs(ns, JobState.RUNNING), 0, -1)
    with redis.pipeline(transaction=False) as pipe:
        for job_id in running:
            pipe.hget(keys.job(ns, job_id), "model")
        running_models = list(pipe.execute())
    return waiting(redis, ns, [model])[model] + running_models.count(model)


def forget_expired(redis: Redis, ns: str, now: float) -> None:
    """Drop index entries of jobs whose records have expired."""
    expired = redis.zrangebyscore(keys.expiring(ns), "-inf", now, 0, EXPIRED_AT_ONCE)
    drop(redis, ns, [(job_id, owner) for job_id, _, owner in (entry.partition(" ") for entry in expired)])


def drop(redis: Redis, ns: str, ended: Iterable[tuple[str, str]]) -> None:
    """Delete ended jobs, given as (id, owner), and all that leads to them."""
    with redis.pipeline(transaction=False) as pipe:
        for job_id, owner in ended:
            pipe.delete(keys.job(ns, job_id), keys.tokens(ns, job_id))
            for state in ("all", JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
                pipe.zrem(keys.jobs(ns, state), job_id)
            pipe.zrem(keys.owned_jobs(ns, owner), job_id)
            pipe.zrem(keys.expiring(ns), f"{job_id} {owner}")
        pipe.execute()
