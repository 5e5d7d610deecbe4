"""A serving worker's side of a runner: send requests, hear their events. No MLX here."""

import logging
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from exo_celery.errors import InvalidRequestError, RunnerError
from exo_celery.runner.protocol import (
    Cancel,
    Delta,
    Event,
    Finished,
    Generate,
    GenerateRequest,
    Message,
    Refused,
    Started,
)
from exo_celery.runner.wire import Connection

log = logging.getLogger(__name__)

GONE: Final = "the runner is gone: its ring is formed again"


class EngineClient:
    """A connection to the first rank of a ready ring; any number of threads may generate over it at once."""

    def __init__(self, socket_path: Path) -> None:
        """Connect.

        Raises:
            RunnerError: no runner listens there.
        """
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(socket_path))
        except OSError as error:
            sock.close()
            raise RunnerError(f"no runner listens at {socket_path}: {error}") from error
        self._connection = Connection(sock)
        self._lock = threading.Lock()
        self._waiting: dict[str, queue.SimpleQueue[Event | None]] = {}
        self._gone = threading.Event()
        threading.Thread(target=self._read, name="engine-client", daemon=True).start()

    def generate(self, request_id: str, request: dict[str, Any]) -> Iterator[Event]:
        """Run a request and yield its events; the last is `Finished` or `Refused`.

        A consumer that stops early cancels the request.

        Raises:
            InvalidRequestError: the request has fields the engine does not know, or is too long.
            RunnerError: the runner is gone, before or during the request.
        """
        message = Generate(id=request_id, request=checked(request))
        events = self._register(request_id)
        ended = False
        try:
            self._connection.send(message)
            while not ended:
                event = events.get()
                if event is None:
                    raise RunnerError(GONE)
                ended = isinstance(event, Finished | Refused)
                yield event
        finally:
            with self._lock:
                del self._waiting[request_id]
            if not ended and not self._gone.is_set():
                self.cancel(request_id)

    def cancel(self, request_id: str) -> None:
        """Give up a request: its events end with `Finished(finish_reason="cancelled")`. Unknown ids are ignored."""
        # A runner that is gone has no requests; whoever waits is told by the reader.
        with suppress(RunnerError):
            self._connection.send(Cancel(id=request_id))

    def wait_gone(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the runner is gone; say whether it is."""
        return self._gone.wait(timeout_seconds)

    def close(self) -> None:
        """Hang up: the runner cancels what is still running."""
        self._connection.close()

    def _register(self, request_id: str) -> "queue.SimpleQueue[Event | None]":
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        with self._lock:
            if self._gone.is_set():
                raise RunnerError(GONE)
            if request_id in self._waiting:
                raise InvalidRequestError(f"a request with the id {request_id!r} is running already")
            self._waiting[request_id] = events
        return events

    def _read(self) -> None:
        """Hand each event to the thread that waits for it."""
        try:
            while (message := self._connection.receive()) is not None:
                self._dispatch(message)
        except RunnerError as error:
            log.error("the runner is given up: %s", error.message)
        self._connection.close()
        with self._lock:
            self._gone.set()
            for events in self._waiting.values():
                events.put(None)

    def _dispatch(self, message: Message) -> None:
        if not isinstance(message, Started | Delta | Finished | Refused):
            raise RunnerError(f"the runner sent {message.type!r} to a serving worker")
        with self._lock:
            events = self._waiting.get(message.id)
        if events is not None:
            events.put(message)


def checked(request: dict[str, Any]) -> GenerateRequest:
    """Return the request in the engine's form.

    Raises:
        InvalidRequestError: a field is unknown or out of range, or there is not exactly one of messages and prompt.
    """
    try:
        parsed = GenerateRequest.model_validate(request)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"])
        raise InvalidRequestError(f"{param}: {first['msg']}", param=param) from error
    if (parsed.messages is None) == (parsed.prompt is None):
        raise InvalidRequestError("give either messages or prompt")
    return parsed
