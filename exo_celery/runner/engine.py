"""The engine on rank 0: takes requests, leads the ring step by step, hands out tokens. Asleep when there is nothing."""

import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from exo_celery.runner.caller import Caller
from exo_celery.runner.protocol import Connection, Event, Generate, GenerateRequest
from exo_celery.runner.reply import Reply
from exo_celery.runner.ring import Ring
from exo_celery.runner.scheduler import Scheduler
from exo_celery.runner.step import Sampling, Step
from exo_celery.runner.text import Text


class Engine:
    """Requests from any number of callers, one ring."""

    def __init__(self, ring: Ring, text: Text, slots: int) -> None:
        self._ring = ring
        self._text = text
        self._scheduler = Scheduler(slots)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._decode_seconds = 0.0

    def serve(self, listener: socket.socket) -> None:
        """Take callers at the runner's socket, from now on."""
        threading.Thread(target=self._accept, args=(listener,), name="callers", daemon=True).start()

    def run(self) -> None:
        """Lead the ring; returns never.

        Raises:
            LinkError: a rank is gone.
        """
        while True:
            self._drain()
            self._lead(self._scheduler.next_step())

    def _accept(self, listener: socket.socket) -> None:
        while True:
            sock, _ = listener.accept()
            Caller(Connection(sock), self._prepare, self._submit, self._cancel)

    def _submit(self, reply: Reply) -> None:
        self._inbox.put(partial(self._scheduler.submit, reply))

    def _cancel(self, reply: Reply) -> None:
        self._inbox.put(partial(self._scheduler.cancel, reply))

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
            speller=self._text,
            emit=emit,
        )

    def _drain(self) -> None:
        """Do what callers asked for; sleep while there is nothing else to do."""
        if self._scheduler.idle:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _lead(self, step: Step) -> None:
        started = time.monotonic()
        choices = self._ring.lead(step)
        seconds = time.monotonic() - started
        if choices and step.prefill is None:
            self._decode_seconds = seconds
        elif choices and step.prefill is not None:
            self._scheduler.note_prefill(step.prefill.size, max(seconds - self._decode_seconds, 1e-4))
        if choices:
            self._scheduler.take(self._ring.executor.rows, choices)


def sampling_of(request: GenerateRequest) -> Sampling:
    """Return how a request's tokens are chosen; without a seed it gets one of its own."""
    asked = request.model_dump(include=set(Sampling.model_fields))
    return Sampling.model_validate(asked | {"seed": secrets.randbits(63) if request.seed is None else request.seed})
