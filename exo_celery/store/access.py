"""API keys and browser sessions. A key is found by its SHA-256; revoked ones stay known, so that they are refused."""

from dataclasses import dataclass

from redis import Redis

from exo_celery.records.access import AccessKey
from exo_celery.store import client, keys
from exo_celery.store.hashes import decode, encode
from exo_celery.store.scripts import run


@dataclass(frozen=True)
class Use:
    """What is known of a key that came: `configured` keys there are; `key` is None unless it may be used now.

    `left` are the requests that it may still make in this minute; below 0 this one is too many.
    """

    configured: int
    known: bool = False
    key: AccessKey | None = None
    left: int = 0


def create(redis: Redis, ns: str, key: AccessKey, digest: str) -> AccessKey:
    """Keep a new key under its SHA-256."""
    made = key.evolve(created_at=client.now(redis))
    with redis.pipeline() as pipe:
        pipe.hset(keys.access_key(ns, made.id), mapping=encode(made))
        pipe.hset(keys.access_keys(ns), digest, made.id)
        pipe.execute()
    return made


def use(redis: Redis, ns: str, digest: str) -> Use:
    """Count one use of a key in this minute and return what is known of it, in one round trip."""
    configured, *found = run(redis, "key_use", [keys.access_keys(ns)], [ns, digest])
    if len(found) < 2:
        return Use(int(configured), known=bool(found))
    fields = dict(zip(found[2::2], found[3::2], strict=True))
    return Use(int(configured), True, decode(AccessKey, fields), int(found[1]))


def count(redis: Redis, ns: str) -> int:
    """Return how many keys were ever made."""
    return int(redis.hlen(keys.access_keys(ns)))


def every(redis: Redis, ns: str) -> list[AccessKey]:
    """Return all keys, revoked ones included, oldest first."""
    with redis.pipeline(transaction=False) as pipe:
        for key_id in redis.hvals(keys.access_keys(ns)):
            pipe.hgetall(keys.access_key(ns, key_id))
        found = [decode(AccessKey, fields) for fields in pipe.execute() if fields]
    return sorted(found, key=lambda key: (key.created_at, key.id))


def get(redis: Redis, ns: str, key_id: str) -> AccessKey | None:
    """Return a key by its id, without counting a use of it."""
    fields = redis.hgetall(keys.access_key(ns, key_id))
    return decode(AccessKey, fields) if fields else None


def revoke(redis: Redis, ns: str, key_id: str) -> None:
    """Refuse a key from now on, and end the sessions that it opened."""
    redis.hset(keys.access_key(ns, key_id), "revoked_at", f"{client.now(redis):.6f}")


def open_session(redis: Redis, ns: str, session_digest: str, key_digest: str) -> None:
    """Let a browser in as the key that it showed, for as long as a session lasts."""
    redis.set(keys.session(ns, session_digest), key_digest, ex=keys.SESSION_TTL)


def session_key(redis: Redis, ns: str, session_digest: str) -> str | None:
    """Return the SHA-256 of the key that a session was opened with; None when it is over."""
    found = redis.get(keys.session(ns, session_digest))
    return None if found is None else str(found)


def close_session(redis: Redis, ns: str, session_digest: str) -> None:
    """End a session."""
    redis.delete(keys.session(ns, session_digest))
