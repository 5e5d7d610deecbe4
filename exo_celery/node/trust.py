"""Keys derived from the cluster secret, one per purpose; the secret itself is never sent."""

import hashlib
import hmac

from exo_celery.settings import Settings
from exo_celery.store import secrets
from exo_celery.store.client import Redis


def cluster_secret(settings: Settings, redis: Redis) -> str:
    """Return the secret that was set, else the one that the nodes share through Redis."""
    return settings.cluster_secret or secrets.shared(redis, settings.namespace)


def proof(secret: str) -> str:
    """Return what shows in a node's record whether two nodes have the same secret, and nothing more of it."""
    return purpose_key(secret, "proof").hex()[:16]


def purpose_key(secret: str, purpose: str) -> bytes:
    """Return the 32 byte key of one purpose."""
    return hmac.new(secret.encode(), f"exo_celery/{purpose}".encode(), hashlib.sha256).digest()
