"""Events: what happened, for people. A capped stream; nothing decides by it."""

from typing import Any

from redis import Redis

from exo_celery.store import keys


def add(redis: Redis, ns: str, kind: str, text: str, **facts: Any) -> None:
    """Append one event; the stream keeps about the last two thousand."""
    fields = {"kind": kind, "text": text} | {name: str(value) for name, value in facts.items()}
    redis.xadd(keys.events(ns), fields, maxlen=keys.EVENTS_LENGTH, approximate=True)


def latest(redis: Redis, ns: str, count: int = 50) -> list[dict[str, Any]]:
    """Return the newest events first, each with its `id` in the stream and the seconds of Redis time it is `at`."""
    return [
        {"id": event_id, "at": int(event_id.partition("-")[0]) / 1000, **fields}
        for event_id, fields in redis.xrevrange(keys.events(ns), count=count)
    ]
