"""Server-sent events: frames, responses that stream, a cap on open ones, and whether the client is still there."""

import logging
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from threading import BoundedSemaphore
from typing import Final

from flask import Response, request
from pydantic_core import to_json

from exo_celery.errors import InvalidKeyError, UnavailableError
from exo_celery.openai.refusal import error_body
from web import access
from web.errors import OUTAGES

log = logging.getLogger(__name__)

KEEP_ALIVE: Final = ": keep-alive\n\n"  # a comment, so that no proxy takes a long prefill for a dead connection
MAX_STREAMS: Final = 500  # per process; each holds a connection of ours and one to Redis
RETRY_SECONDS: Final = 5
ALLOWED_SECONDS: Final = 5.0  # between two looks at the key that a stream was begun with
OUTAGE: Final = ": Redis does not answer now; come again with Last-Event-ID\n\n"

open_streams: Final = BoundedSemaphore(MAX_STREAMS)


def frame(data: str, *, event: str = "", event_id: str = "") -> str:
    """Return one event; several lines of data stay one event."""
    head = f"id: {event_id}\n" * bool(event_id) + f"event: {event}\n" * bool(event)
    return head + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n"


def stream(frames: Iterable[str]) -> Response:
    """Answer with events as they come.

    Raises:
        UnavailableError: too many streams are open.
    """
    if not open_streams.acquire(blocking=False):
        raise UnavailableError(
            f"{MAX_STREAMS} streams are open, more are not taken; close some or ask again",
            retry_after_seconds=RETRY_SECONDS,
        )
    allowed = while_allowed(frames, access.still_allowed())
    response = Response(until_outage(allowed), mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(open_streams.release)
    return response


def while_allowed(frames: Iterable[str], allowed: Callable[[], bool]) -> Iterator[str]:
    """Give the frames on; when the key is revoked or expires, end with an error that says so."""
    looked_at = time.monotonic()
    for one in frames:
        yield one
        if time.monotonic() - looked_at >= ALLOWED_SECONDS:
            looked_at = time.monotonic()
            if not allowed():
                refusal = InvalidKeyError("the API key of this stream was revoked or has expired")
                yield frame(to_json(error_body(refusal)).decode(), event="error")
                return


def until_outage(frames: Iterable[str]) -> Iterator[str]:
    """Give the frames on; when Redis goes away, end cleanly: clients come again and resume by their last event's id."""
    try:
        yield from frames
    except OUTAGES as error:
        log.warning("a stream ends early, Redis does not answer: %s", error)
        yield OUTAGE


def client_watch() -> Callable[[], bool]:
    """Return a question: has the client of this request hung up? A server that hides its socket never says so."""
    connection: socket.socket | None = request.environ.get("gunicorn.socket") or request.environ.get("werkzeug.socket")

    def gone() -> bool:
        if connection is None:
            return False
        try:
            readable, _, _ = select.select([connection], [], [], 0)
            return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):  # reset by the peer, or closed already
            return True

    return gone
