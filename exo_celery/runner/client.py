"""A serving worker's side of a runner: send requests, hear their events. No MLX here."""

import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from exo_celery.errors import InvalidRequestError, RunnerError
from exo_celery.invalid import invalid
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
Hear = Callable[[Event | None], None]


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
        self._asked: dict[str, Hear] = {}
        self._gone = threading.Event()
        threading.Thread(target=self._read, name="engine-client", daemon=True).start()

    def generate(self, request_id: str, request: dict[str, Any]) -> Iterator[Event]:
        """Run a request and yield its events; the last is `Finished` or `Refused`.

        A consumer that stops early cancels the request.

        Raises:
            InvalidRequestError: the request has fields the engine does not know, or is too long.
            RunnerError: the runner is gone, before or during the request.
        """
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        with self.asking(request_id, request, events.put):
            while True:
                event = events.get()
                if event is None:
                    raise RunnerError(GONE)
                yield event
                if isinstance(event, Finished | Refused):
                    return

    @contextmanager
    def asking(self, request_id: str, request: dict[str, Any], hear: Hear) -> Iterator[None]:
        """Run a request; the reading thread calls `hear` with each event, with None when the runner is gone.

        A request that has not ended when the context is left is cancelled.

        Raises:
            InvalidRequestError: as in `generate`.
            RunnerError: the runner is gone already.
        """
        message = Generate(id=request_id, request=checked(request))
        self._register(request_id, hear)
        try:
            self._connection.send(message)
            yield
        finally:
            with self._lock:
                runs_on = self._asked.pop(request_id, None) is not None
            if runs_on and not self._gone.is_set():
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

    def _register(self, request_id: str, hear: Hear) -> None:
        with self._lock:
            if self._gone.is_set():
                raise RunnerError(GONE)
            if request_id in self._asked:
                raise InvalidRequestError(f"a request with the id {request_id!r} is running already")
            self._asked[request_id] = hear

    def _read(self) -> None:
        """Hand each event to whoever asked for it."""
        try:
            while (message := self._connection.receive()) is not None:
                self._dispatch(message)
        except RunnerError as error:
            log.error("the runner is given up: %s", error.message)
        self._connection.close()
        with self._lock:
            self._gone.set()
            for hear in self._asked.values():
                hear(None)

    def _dispatch(self, message: Message) -> None:
        if not isinstance(message, Started | Delta | Finished | Refused):
            raise RunnerError(f"the runner sent {message.type!r} to a serving worker")
        over = isinstance(message, Finished | Refused)
        with self._lock:
            hear = self._asked.pop(message.id, None) if over else self._asked.get(message.id)
        if hear is not None:
            hear(message)


def checked(request: dict[str, Any]) -> GenerateRequest:
    """Return the request in the engine's form.

    Raises:
        InvalidRequestError: a field is unknown or out of range, or there is not exactly one of messages and prompt.
    """
    try:
        parsed = GenerateRequest.model_validate(request)
    except ValidationError as error:
        raise invalid(error, request) from error
    if (parsed.messages is None) == (parsed.prompt is None):
        raise InvalidRequestError("give either messages or prompt")
    return parsed
