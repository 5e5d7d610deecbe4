"""Jobs: each transition is one script, each write of a run is fenced by its attempt.

A queued job's Celery message may be lost, late or doubled: the record alone says what is to be done.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis import Redis

from exo_celery.errors import NotFoundError
from exo_celery.records.job import Job, JobState, Usage
from exo_celery.records.logprobs import TokenLogprobs
from exo_celery.records.tools import ToolCall
from exo_celery.store import keys
from exo_celery.store.hashes import decode, encode, text
from exo_celery.store.scripts import run

SCRIPT_OWNS: Final = frozenset(
    {"attempts_before", "created_at", "deadline_at", "published_at", "request", "usage", "webhook_tries"}
)
EMPTY: Final = frozenset({"", "[]", "0.0"})  # what a new record leaves out, so that a long queue stays small
PRIORITIES: Final = (0, 5, 9)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: what becomes of the record and of the stream's end event."""

    state: JobState
    text: str = ""
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    error: dict[str, Any] | None = None
    tool_calls: Sequence[ToolCall] = ()
    logprobs: Sequence[TokenLogprobs] = ()

    def fields(self) -> dict[str, Any]:
        """Return the record's fields that an end sets."""
        return {
            "text": self.text,
            "tool_calls": [call.model_dump() for call in self.tool_calls],
            "logprobs": [token.model_dump() for token in self.logprobs],
            "finish_reason": self.finish_reason,
            "usage": self.usage.model_dump(),
            "error": self.error,
        }


def submit(redis: Redis, ns: str, job: Job) -> Job:
    """Write a new job as queued and return it with its times; of a known id, return what is there."""
    fields = {name: text for name, text in encode(job, without=SCRIPT_OWNS).items() if text not in EMPTY}
    fields["request"] = job.request.model_dump_json(exclude_none=True)
    pairs = [part for pair in fields.items() for part in pair]
    head = [ns, job.id, job.model, job.priority, job.owner, text(job.request.deadline_seconds)]
    new, published = run(redis, "job_submit", [keys.job(ns, job.id)], head + pairs)
    if not int(new):
        return get(redis, ns, job.id)
    at, seconds = float(published), job.request.deadline_seconds
    return job.evolve(created_at=at, published_at=at, deadline_at=at + seconds if seconds else 0.0)


def retry(redis: Redis, ns: str, job: Job) -> float | None:
    """Queue a failed or cancelled job again and return when it was published; None in any other state."""
    where = [keys.job(ns, job.id), keys.tokens(ns, job.id)]
    outcome, published = run(redis, "job_retry", where, [ns, job.id, text(job.request.deadline_seconds)])
    return float(published) if int(outcome) else None


def claim(redis: Redis, ns: str, job_id: str, instance: str, ring: Sequence[str], token: str) -> Job | None:
    """Take a queued job to run; None when it is not to be run (any more). The same token claims once."""
    where = [keys.job(ns, job_id), keys.tokens(ns, job_id)]
    answer = run(redis, "job_claim", where, [ns, job_id, keys.LEASE, instance, json.dumps(ring), token])
    return get(redis, ns, job_id) if int(answer[0]) else None


def renew(redis: Redis, ns: str, held: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Renew the leases of (job, attempt) in one round trip; return those that are lost."""
    asked = list(held)
    with redis.pipeline(transaction=False) as pipe:
        for job_id, attempt in asked:
            run(pipe, "job_renew", [keys.job(ns, job_id)], [ns, job_id, attempt, keys.LEASE])
        answers = pipe.execute()
    return [one for one, renewed in zip(asked, answers, strict=True) if not renewed]


def finish(redis: Redis, ns: str, job_id: str, attempt: int | None, outcome: Outcome) -> bool:
    """Bring a job to its one terminal state; False when this attempt no longer may. None: whatever the attempt."""
    fields = outcome.fields()
    event = {"state": outcome.state} | {name: fields[name] for name in ("finish_reason", "usage", "error")}
    pairs = [part for name, value in fields.items() for part in (name, text(value))]
    fence = "" if attempt is None else attempt
    head = [ns, job_id, fence, outcome.state, json.dumps(event), keys.TOKENS_TTL]
    return bool(run(redis, "job_finish", [keys.job(ns, job_id), keys.tokens(ns, job_id)], head + pairs))


def requeue(
    redis: Redis, ns: str, job_id: str, attempt: int | None, reason: str, *, planned: bool = False
) -> float | None:
    """Queue a running job again (attempt None: only if its lease has lapsed) and return when it was published.

    None: nothing to do. A job at its cap of attempts fails instead, its reasons in the error; one that is handed back
    as planned has not used an attempt.
    """
    fence = "" if attempt is None else attempt
    args = [ns, job_id, fence, reason, keys.ATTEMPTS, int(planned)]
    outcome, *published = run(redis, "job_requeue", [keys.job(ns, job_id)], args)
    if int(outcome) == 2:
        fail_for_good(redis, ns, job_id)
    return float(published[0]) if published else None


def fail_for_good(redis: Redis, ns: str, job_id: str) -> None:
    """Fail a job whose attempts are used up, with the history of reasons."""
    job = get(redis, ns, job_id)
    message = f"all {keys.ATTEMPTS} attempts failed: " + "; ".join(job.reasons)
    error = {"message": message, "type": "server_error", "param": None, "code": "attempts_exhausted"}
    finish(redis, ns, job_id, job.attempt, Outcome(JobState.FAILED, error=error))


def fail_overdue(redis: Redis, ns: str, now: float) -> None:
    """Fail the jobs, queued or running, whose deadline has passed."""
    for job in many(redis, ns, redis.zrangebyscore(keys.deadlines(ns), "-inf", now, 0, 200)):
        asked = f"{job.request.deadline_seconds:g} s" if job.request.deadline_seconds else "its time"
        message = f"the job was not done within {asked}, it was {job.state}; submit it with a later deadline"
        error = {"message": message, "type": "server_error", "param": "deadline_seconds", "code": "deadline_exceeded"}
        finish(redis, ns, job.id, None, Outcome(JobState.FAILED, error=error))


def lapsed(redis: Redis, ns: str, now: float, limit: int = 200) -> list[str]:
    """Return running jobs whose lease has run out."""
    return list(redis.zrangebyscore(keys.jobs(ns, JobState.RUNNING), "-inf", now, 0, limit))


def lost(redis: Redis, ns: str, queue: str, model: str, priority: int, now: float, published: str) -> list[Job]:
    """Return queued jobs whose message is lost: older than the next to be popped by more than the slack.

    `published` names the message header with the time of publishing. A message that was put into the list later
    cannot be popped earlier, so whatever is older than the tail is no longer in the list.
    """
    tail = redis.lindex(keys.messages(ns, queue, priority), -1)
    youngest = now if tail is None else float(json.loads(tail)["headers"].get(published) or 0)
    limit = youngest - keys.TAIL_SLACK
    ids = redis.zrangebyscore(keys.queued(ns, model, priority), "-inf", limit, 0, 200)
    return many(redis, ns, ids)


def republish(redis: Redis, ns: str, job: Job) -> float | None:
    """Mark a lost message as sent again now; None if somebody else did, or the job is no longer queued."""
    where = [keys.job(ns, job.id)]
    outcome, *published = run(redis, "job_republish", where, [ns, job.id, f"{job.published_at:.6f}"])
    return float(published[0]) if int(outcome) else None


def note(redis: Redis, ns: str, model: str, message: str, limit: int = 1000) -> None:
    """Tell on the model's queued jobs why they wait."""
    with redis.pipeline(transaction=False) as pipe:
        for priority in PRIORITIES:
            for job_id in redis.zrange(keys.queued(ns, model, priority), 0, limit):
                pipe.hset(keys.job(ns, job_id), "note", message)
        pipe.execute()


def waiting(redis: Redis, ns: str, models: Sequence[str]) -> dict[str, int]:
    """Return how many jobs are queued for each of these models, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for model in models:
            for priority in PRIORITIES:
                pipe.zcard(keys.queued(ns, model, priority))
        counts = pipe.execute()
    step = len(PRIORITIES)
    return {model: sum(counts[at * step : (at + 1) * step]) for at, model in enumerate(models)}


def get(redis: Redis, ns: str, job_id: str) -> Job:
    """Return a job.

    Raises:
        NotFoundError: no such job, or its retention is over.
    """
    fields = redis.hgetall(keys.job(ns, job_id))
    if not fields:
        raise NotFoundError(f"job {job_id[:80]!r} does not exist, or its retention is over; GET /api/jobs lists jobs")
    return decode(Job, fields)


def many(redis: Redis, ns: str, ids: Sequence[str]) -> list[Job]:
    """Return the jobs of these ids that still exist, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hgetall(keys.job(ns, job_id))
        return [decode(Job, fields) for fields in pipe.execute() if fields]
