"""/api/jobs: durable generation requests."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

from flask import Blueprint, Response, request
from pydantic import Field, StringConstraints
from pydantic_core import to_json

from exo_celery import cluster
from exo_celery.errors import InvalidRequestError
from exo_celery.records.base import ModelId, Request
from exo_celery.records.job import JobRequest, JobState, TokenEvent
from web import access, sse
from web.answers import Jobs, JobView
from web.context import the_cluster
from web.operation import idempotency_key, json_response, operation

blueprint: Final = Blueprint("jobs", __name__, url_prefix="/api/jobs")

EVENT_ID: Final = re.compile(r"[0-9]{1,15}-[0-9]{1,19}")
JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class JobsQuery(Request):
    """Which jobs to list."""

    state: JobState | None = None
    model: ModelId | None = None
    ids: tuple[JobId, ...] = Field((), max_length=500)
    limit: int = Field(50, ge=1, le=500)
    cursor: Annotated[str, StringConstraints(max_length=200)] | None = None


@blueprint.post("")
@operation(JobView, status=202, body=JobRequest, errors=(404, 422, 503))
def submit(body: JobRequest) -> Response:
    """Submit a job; it is durable once this answers. The same Idempotency-Key again answers the same job."""
    job = access.submit(body, idempotency_key())
    response = json_response(JobView.of(job), 202)
    response.headers["Location"] = f"/api/jobs/{job.id}"
    return response


@blueprint.get("")
@operation(Jobs, query=JobsQuery, errors=(503,))
def page(query: JobsQuery) -> Jobs:
    """List jobs, newest first, or those of some ids. The last page is the one whose `next` is null."""
    if query.ids:
        found = [job for job in cluster.jobs_by_id(the_cluster(), query.ids) if access.is_visible(job)]
        return Jobs(jobs=[JobView.of(job) for job in found], next=None)
    wanted = {"owner": access.owner_to_list()} | ({"model": query.model} if query.model else {})
    jobs, after = cluster.jobs(the_cluster(), query.state, query.limit, query.cursor, **wanted)
    return Jobs(jobs=[JobView.of(job) for job in jobs], next=after)


@blueprint.get("/<record_id:job_id>")
@operation(JobView, errors=(404, 503))
def show(job_id: str) -> JobView:
    """Show a job: its state and, once it has ended, its text and usage."""
    return JobView.of(access.own_job(job_id))


@blueprint.delete("/<record_id:job_id>")
@operation(JobView, errors=(404, 409, 503))
def cancel(job_id: str) -> JobView:
    """Cancel a job; what it has written so far stays readable."""
    access.own_job(job_id)
    return JobView.of(cluster.cancel_job(the_cluster(), job_id))


@blueprint.post("/<record_id:job_id>/retry")
@operation(JobView, status=202, errors=(404, 409, 503))
def retry(job_id: str) -> JobView:
    """Run a failed or cancelled job again, under its own id and with all its attempts before it."""
    access.own_job(job_id)
    return JobView.of(cluster.retry_job(the_cluster(), job_id))


@blueprint.get("/<record_id:job_id>/stream")
@operation(TokenEvent, errors=(404, 503), media_type="text/event-stream", streams=True)
def follow(job_id: str) -> Response:
    """Stream a job's events (`attempt`, `delta`, `end`); resumes after the Last-Event-ID that a client sends."""
    after = last_event_id()
    access.own_job(job_id)
    return sse.stream(frames(cluster.follow(the_cluster(), job_id, after)))


def last_event_id() -> str:
    """Return the id after which the client wants to go on; browsers send it by themselves when they reconnect."""
    given = request.headers.get("Last-Event-ID") or "0-0"
    if not EVENT_ID.fullmatch(given):
        raise InvalidRequestError(
            f"Last-Event-ID {given[:60]!r} is not the id of an event: send one that this stream gave, or none"
        )
    return given


def frames(events: Iterator[TokenEvent | None]) -> Iterator[str]:
    """Write token events as server-sent events."""
    for event in events:
        if event is None:
            yield sse.KEEP_ALIVE
        else:
            yield sse.frame(to_json(facts(event)).decode(), event=event.kind, event_id=event.id)


def facts(event: TokenEvent) -> dict[str, Any]:
    """Return what an event says: a delta its text or tool_calls, the others their data; all of them their attempt."""
    attempt = {"attempt": int(event.id.partition("-")[0])}
    return attempt | ({"text": event.text} if event.kind == "delta" else {}) | event.data
