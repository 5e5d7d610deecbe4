"""The engine on rank 0: takes requests from callers, prepares them, and hands them to the lanes."""

import secrets
import socket
import threading
from collections.abc import Callable

from exo_celery.runner.caller import Caller
from exo_celery.runner.dispatcher import Dispatcher
from exo_celery.runner.meter import Load, Meter
from exo_celery.runner.protocol import Event, Generate, GenerateRequest
from exo_celery.runner.reply import Reply
from exo_celery.runner.step import Sampling
from exo_celery.runner.text import Text
from exo_celery.runner.wire import Connection


class Engine:
    """Requests from any number of callers, one ring."""

    def __init__(self, dispatcher: Dispatcher, text: Text, meter: Meter) -> None:
        self._text = text
        self._meter = meter
        self._dispatcher = dispatcher

    def load(self) -> Load:
        """Return what is going on."""
        return self._dispatcher.load()

    def serve(self, listener: socket.socket) -> None:
        """Take callers at the runner's socket, from now on."""
        threading.Thread(target=self._accept, args=(listener,), name="callers", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            sock, _ = listener.accept()
            Caller(Connection(sock), self._prepare, self._dispatcher.submit, self._dispatcher.cancel)

    def _prepare(self, message: Generate, emit: Callable[[Event], None]) -> Reply:
        """Turn a request into a reply that can be scheduled; runs in its caller's thread."""
        request = message.request
        prompt = self._text.encode(request)
        return Reply(
            message.id,
            prompt,
            sampling_of(request),
            max_tokens=min(request.max_tokens, self._text.context_length - len(prompt)),
            stops=tuple(stop for stop in request.stop if stop),
            end_tokens=self._text.end_tokens,
            speller=self._text if request.messages is not None else self._text.going_on(),
            emit=emit,
            on_finish=self._done,
            reader=self._text.reader(message.id, request, prompt),
            priority=request.priority,
        )

    def _done(self, reply: Reply) -> None:
        self._meter.ended(reply.ended)
        self._dispatcher.done(reply)


def sampling_of(request: GenerateRequest) -> Sampling:
    """Return how a request's tokens are chosen; without a seed it gets one of its own."""
    asked = request.model_dump(include=set(Sampling.model_fields))
    return Sampling.model_validate(asked | {"seed": secrets.randbits(63) if request.seed is None else request.seed})
