"""Turns: one caller at a time, where doing it together would only be waste. Nothing depends on it being kept."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redis import Redis
from redis.exceptions import LockError

from exo_celery.store import keys


@contextmanager
def turn(redis: Redis, ns: str, name: str, seconds: float) -> Iterator[None]:
    """Wait for one's turn, at most so many seconds, and give it back; a turn ends by itself after as long."""
    lock = redis.lock(keys.turn(ns, name), timeout=seconds, sleep=0.02)
    lock.acquire(blocking_timeout=seconds)
    try:
        yield
    finally:
        with suppress(LockError):  # it was never ours, or ended by itself
            lock.release()
