"""Ticks: a periodic job runs once per period, however many beats ask for it."""

from typing import Final

from redis import Redis

from exo_celery.store import keys

# A beat is never exact: the guard ends a little before its next tick is due.
GUARDED_PART: Final = 0.9


def take(redis: Redis, ns: str, name: str, period_seconds: float, who: str) -> bool:
    """Tell whether this caller runs the tick now due; everybody else in the same period gets False."""
    return bool(redis.set(keys.tick(ns, name), who, nx=True, px=int(period_seconds * GUARDED_PART * 1000)))
