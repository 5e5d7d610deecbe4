"""The threads pool of our workers: a slot that gets free is filled at once.

With `worker_disable_prefetch` the event loop asks Redis for the next message only while a slot is free.
Nothing wakes the loop when a thread finishes (with early ack there is nothing left to ack), so it would
sleep until its next timer, up to a second. Set by `worker_pool = "exo_celery.pool:TaskPool"`; `-P threads`
is the stock pool.
"""

from concurrent.futures import Future
from typing import Any

from celery.concurrency import thread
from kombu.asynchronous import get_event_loop


class TaskPool(thread.TaskPool):  # type: ignore[misc]  # celery has no types
    """Run tasks in threads and wake the event loop after each."""

    def on_apply(self, *args: Any, **kwargs: Any) -> thread.ApplyResult:
        """Submit a task and return its handle."""
        result = super().on_apply(*args, **kwargs)
        result.f.add_done_callback(wake_loop)
        return result


def wake_loop(_: "Future[Any]") -> None:
    """Make the event loop turn once, so that it sees the free slot."""
    hub = get_event_loop()
    if hub is not None:  # None while the worker shuts down
        hub.call_soon(nothing)


def nothing() -> None:
    """Do nothing: the turn of the loop is what is wanted."""
