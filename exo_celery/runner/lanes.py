"""Lanes: micro-batches of one ring, so that its ranks compute at once. Each lane is a thread with links of its own."""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial

import mlx.core as mx

from exo_celery.runner.meter import Meter
from exo_celery.runner.prefix import PrefixIndex
from exo_celery.runner.reply import Reply
from exo_celery.runner.ring import Ring
from exo_celery.runner.scheduler import Scheduler
from exo_celery.runner.step import Step
from exo_celery.runner.tensor import TensorRing


class Lane(threading.Thread):
    """Rank 0's side of a lane: leads its steps, asleep while it has no rows."""

    def __init__(self, number: int, ring: Ring | TensorRing, prefixes: PrefixIndex, meter: Meter) -> None:
        super().__init__(name=f"lane-{number}", daemon=True)
        self._ring = ring
        self._scheduler = Scheduler(prefixes)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._meter = meter

    def submit(self, reply: Reply) -> None:
        """Take a request."""
        self._inbox.put(partial(self._scheduler.submit, reply))

    def cancel(self, reply: Reply) -> None:
        """Give up a request."""
        self._inbox.put(partial(self._scheduler.cancel, reply))

    def run(self) -> None:
        """Lead the lane for ever.

        Raises:
            LinkError: a rank is gone.
        """
        with mx.stream(mx.new_stream(mx.default_device())):
            while True:
                self._drain()
                self._lead(self._scheduler.next_step())

    def _drain(self) -> None:
        """Do what was asked for; sleep while there is nothing else to do."""
        if self._scheduler.idle:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _lead(self, step: Step) -> None:
        started = time.monotonic()
        choices = self._ring.lead(step)
        self._scheduler.note(step, time.monotonic() - started)
        if choices:
            self._meter.stepped(len(choices), self._scheduler.take(choices))


class Follower(threading.Thread):
    """Another rank's side of a lane."""

    def __init__(self, number: int, ring: Ring | TensorRing, on_step: Callable[[], None]) -> None:
        super().__init__(name=f"lane-{number}", daemon=True)
        self._ring = ring
        self._on_step = on_step

    def run(self) -> None:
        """Follow the lane for ever; `on_step` hears of each step.

        Raises:
            LinkError: a neighbour is gone.
        """
        with mx.stream(mx.new_stream(mx.default_device())):
            while True:
                self._ring.follow()
                self._on_step()
