"""A serving worker's connection, seen from the runner: its requests come in, their events go out."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from exo_celery.errors import ExoError, RunnerError
from exo_celery.runner.protocol import (
    Cancel,
    Event,
    Finished,
    Generate,
    Message,
    Refused,
)
from exo_celery.runner.reply import Reply
from exo_celery.runner.wire import Connection, encode

log = logging.getLogger(__name__)

# A caller that does not read is cut off: the engine never waits for one.
MAX_UNREAD_EVENTS: Final = 20_000
MAX_REQUESTS: Final = 1024


class Caller:
    """One connection, with a thread for each direction, so that neither side of the engine waits for it.

    `prepare` turns a request into a reply, or raises what is wrong with it; `submit` and `cancel` tell the engine.
    """

    def __init__(
        self,
        connection: Connection,
        prepare: Callable[[Generate, Callable[[Event], None]], Reply],
        submit: Callable[[Reply], None],
        cancel: Callable[[Reply], None],
    ) -> None:
        self._connection = connection
        self._prepare, self._submit, self._cancel = prepare, submit, cancel
        self._replies: dict[str, Reply] = {}
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="caller-out", daemon=True).start()
        threading.Thread(target=self._read, name="caller-in", daemon=True).start()

    def emit(self, event: Event) -> None:
        """Queue an event for the caller."""
        if isinstance(event, Finished):
            self._replies.pop(event.id, None)
        if self._outbox.qsize() > MAX_UNREAD_EVENTS:
            self._connection.close()  # the reading thread cancels its requests
            return
        self._outbox.put(encode(event))

    def _read(self) -> None:
        try:
            while (message := self._connection.receive()) is not None:
                self._hear(message)
        except RunnerError as error:
            log.warning("a caller was cut off: %s", error.message)
            self._connection.close()
        for reply in list(self._replies.values()):
            self._cancel(reply)
        self._outbox.put(None)

    def _write(self) -> None:
        """Send what has gathered at once: what a step said of all rows."""
        more = True
        while more:
            lines = [self._outbox.get()]
            while not self._outbox.empty():
                lines.append(self._outbox.get())
            more = None not in lines
            try:
                self._connection.send_lines(b"".join(line for line in lines if line))
            except RunnerError:
                return  # gone: the reading thread sees it too

    def _hear(self, message: Message) -> None:
        if isinstance(message, Generate):
            self._take(message)
        elif isinstance(message, Cancel):
            reply = self._replies.get(message.id)
            if reply is not None:
                self._cancel(reply)
        else:
            raise RunnerError(f"a serving worker does not send {message.type!r}")

    def _take(self, message: Generate) -> None:
        try:
            if message.id in self._replies or len(self._replies) >= MAX_REQUESTS:
                raise RunnerError(f"request {message.id!r} runs already, or {MAX_REQUESTS} others do")
            reply = self._prepare(message, self.emit)
        except ExoError as error:
            self.emit(Refused(id=message.id, code=error.code, message=error.message, param=error.param))
            return
        self._replies[message.id] = reply
        self._submit(reply)
