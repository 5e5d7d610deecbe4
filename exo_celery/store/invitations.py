"""Invitations: a sealed secret that waits a quarter of an hour for the one who has its code."""

from redis import Redis

from exo_celery.store import keys


def leave(redis: Redis, ns: str, name: str, sealed: str) -> None:
    """Leave an invitation under its name."""
    redis.set(keys.invitation(ns, name), sealed, ex=keys.INVITATION_TTL)


def take(redis: Redis, ns: str, name: str) -> str | None:
    """Take an invitation; nobody can take it again."""
    found = redis.getdel(keys.invitation(ns, name))
    return None if found is None else str(found)
