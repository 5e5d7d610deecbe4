"""Keys derived from the cluster secret, one per purpose; the secret itself is never sent."""

import hashlib
import hmac

from exo_celery.settings import Settings
from exo_celery.store import secrets
from exo_celery.store.client import Redis


def ring_key(settings: Settings, redis: Redis) -> bytes:
    """Return the key that ranks prove to each other on their links."""
    secret = settings.cluster_secret or secrets.shared(redis, settings.namespace)
    return purpose_key(secret, "ring")


def purpose_key(secret: str, purpose: str) -> bytes:
    """Return the 32 byte key of one purpose."""
    return hmac.new(secret.encode(), f"exo_celery/{purpose}".encode(), hashlib.sha256).digest()
