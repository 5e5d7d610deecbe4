"""Ticks: a periodic job runs once per period, however many beats ask for it."""

from redis import Redis

from exo_celery.store import client, keys


def take(redis: Redis, ns: str, name: str, period_seconds: float, who: str) -> bool:
    """Tell whether this caller runs the tick of the current period; everybody else gets False."""
    bucket = int(client.now(redis) / period_seconds)
    return bool(redis.set(keys.tick(ns, name, bucket), who, nx=True, px=int(period_seconds * 3000) + 1000))
