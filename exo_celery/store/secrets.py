"""The secret that nodes share through Redis where no cluster secret was set.

Redis is the border then: whoever can read it can send tasks anyway.
"""

import secrets

from redis import Redis

from exo_celery.store import keys


def shared(redis: Redis, ns: str) -> str:
    """Return the namespace's secret, made by whoever asks first."""
    redis.set(keys.secret(ns), secrets.token_hex(32), nx=True)
    return str(redis.get(keys.secret(ns)))
