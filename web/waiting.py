"""A /v1 request waits for its job: the job lives no longer than its client, and ends as an answer or as an error."""

import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from exo_celery import cluster
from exo_celery.cluster import Cluster
from exo_celery.errors import (
    ExoError,
    ModelLoadingError,
    ModelNotFoundError,
    PlacementError,
    RunnerError,
)
from exo_celery.openai.refusal import JobCancelledError, as_error
from exo_celery.records.instance import InstanceStatus
from exo_celery.records.job import Job, JobRequest, JobState, TokenEvent
from web import access, sse

# A refusal (prompt too long, template error) comes within milliseconds of a job's start and wants its own status, so
# the status line waits for the first text. A job that waits in the queue gets its status line, and keep-alives, then.
HOLD_SECONDS: Final = 10.0
RETRY_AFTER_SECONDS: Final = 5


class ClientGoneError(ExoError):
    """Nobody reads the answer any more; its job was cancelled."""

    code = "client_closed_request"
    status = 499  # nginx's word for it; seen in logs only


def check_model(c: Cluster, model: str) -> None:
    """Let a request for a ready model pass; bring up one that is not, where that is allowed.

    Raises:
        ModelNotFoundError: not known, or known and not to be had here.
        ModelLoadingError: on its way.
    """
    access.check_model(model)
    cluster.model(c, model)
    state, said = cluster.serving_state(c, model)
    if state == "absent":
        bring_up(c, model)
    if state != "ready":
        what = f"model {model!r} is being loaded" + (f" ({said})" if said else "")
        raise ModelLoadingError(
            f"{what}; ask again in {RETRY_AFTER_SECONDS} s",
            param="model",
            retry_after_seconds=RETRY_AFTER_SECONDS,
            loading={"model": model, "state": "loading", "note": said},
        )


def bring_up(c: Cluster, model: str) -> None:
    """Place a model that is not placed, where that is allowed and possible.

    Raises:
        ModelNotFoundError: it is not to be had here, and why.
    """
    if not c.settings.auto_place:
        raise ModelNotFoundError(
            f"model {model!r} is known but not placed, and EXO_AUTO_PLACE is off: place it with POST /api/instances",
            param="model",
        )
    try:
        placed = cluster.place_for_work(c, model)
    except PlacementError as refusal:
        raise ModelNotFoundError(f"model {model!r} cannot be placed: {refusal.message}", param="model") from refusal
    if placed.status is InstanceStatus.FAILED:
        raise ModelNotFoundError(f"model {model!r} is not up: {placed.error}", param="model")


class Waiting:
    """One job and the client that waits for it."""

    def __init__(self, c: Cluster, request: JobRequest) -> None:
        self.cluster = c
        self.client_gone = sse.client_watch()
        self.over = False
        self.job = access.submit(request)

    def events(self, *, may_restart: bool = False) -> Iterator[TokenEvent | None]:
        """Yield the job's events, None when there is none for a while.

        Raises:
            ClientGoneError: the client hung up.
            RunnerError: a new attempt began after text was given on, which cannot be taken back.
            ExoError: the job ended otherwise than well.
        """
        spoken = False
        for event in cluster.follow(self.cluster, self.job.id):
            if self.client_gone():
                raise ClientGoneError("the client has gone")
            kind = event.kind if event else ""
            if event and kind == "end":
                self.over = True
                raise_unless_well(event.data)
            if kind == "attempt" and spoken and not may_restart:
                raise RunnerError("the ring was lost in the middle of the answer; ask again")
            spoken = spoken or kind == "delta"
            yield event

    def held(self) -> Iterator[TokenEvent | None]:
        """Wait for the first text or the end, at most the hold, then give the events; errors as in `events`."""
        events, passed = self.events(), []
        until = time.monotonic() + HOLD_SECONDS
        for event in events:
            passed.append(event)
            if (event is not None and event.kind != "attempt") or time.monotonic() >= until:
                break
        return chain(passed, events)

    def finished(self) -> Job:
        """Wait for the end and return the job, however many attempts it takes; errors as in `events`."""
        for _ in self.events(may_restart=True):
            pass
        return cluster.job(self.cluster, self.job.id)

    def close(self) -> None:
        """Cancel the job unless it has ended."""
        if not self.over:
            self.over = True
            cluster.cancel_job(self.cluster, self.job.id)


def raise_unless_well(end: dict[str, Any]) -> None:
    """Raise a failed or cancelled job's end as the error that it is."""
    if end["state"] == JobState.SUCCEEDED:
        return
    if end["state"] == JobState.CANCELLED:
        raise JobCancelledError("the job was cancelled before its end")
    raise as_error(end.get("error") or {})
