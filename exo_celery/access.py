"""API keys: made, listed, revoked, and asked at each request that brings one.

A key is `sk-exo-` and 32 random bytes. It is shown once; its SHA-256 is kept, which needs no salt: nobody guesses it.
"""

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exo_celery.context import Context
from exo_celery.errors import InvalidKeyError, NotFoundError, RateLimitError
from exo_celery.records.access import AccessKey, Scope
from exo_celery.store import access, client
from exo_celery.store.access import Use

PREFIX: Final = "sk-exo-"
RANDOM_BYTES: Final = 32
WINDOW_SECONDS: Final = 60


@dataclass(frozen=True)
class Terms:
    """What a new key is to be: `expires_seconds` from now and `rate_per_minute` are 0 for no limit."""

    name: str
    scopes: tuple[Scope, ...]
    models: tuple[str, ...] = ()
    expires_seconds: float = 0.0
    rate_per_minute: int = 0


def digest(secret: str) -> str:
    """Return the SHA-256 under which a key or a session is kept."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_key(cluster: Context, terms: Terms) -> tuple[AccessKey, str]:
    """Make a key and return its record and itself; it cannot be read again."""
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    expires_at = client.now(cluster.redis) + terms.expires_seconds if terms.expires_seconds else 0.0
    key = AccessKey(
        id=f"key-{secrets.token_hex(4)}",
        name=terms.name,
        scopes=terms.scopes,
        models=terms.models,
        rate_per_minute=terms.rate_per_minute,
        expires_at=expires_at,
    )
    return access.create(cluster.redis, cluster.ns, key, digest(secret)), secret


def list_keys(cluster: Context) -> list[AccessKey]:
    """Return all keys, revoked ones included, oldest first."""
    return access.every(cluster.redis, cluster.ns)


def keys_exist(cluster: Context) -> bool:
    """Tell whether a key was ever made."""
    return access.count(cluster.redis, cluster.ns) > 0


def revoke_key(cluster: Context, named: str) -> list[AccessKey]:
    """Revoke the key of an id, or all of a name, and return them; they are refused from the next request on.

    Raises:
        NotFoundError: no key that still lives is called so.
    """
    alive = [key for key in list_keys(cluster) if not key.revoked_at]
    found = [key for key in alive if named in (key.id, key.name)]
    if not found:
        there = ", ".join(f"{key.id} ({key.name})" for key in alive) or "none"
        raise NotFoundError(f"no key is called {named!r}; there are: {there}")
    for key in found:
        access.revoke(cluster.redis, cluster.ns, key.id)
    return found


def admit(cluster: Context, secret: str) -> AccessKey | None:
    """Return the key that a request brought, or None where no key was ever made.

    Raises:
        InvalidKeyError: it is unknown, revoked or expired.
        RateLimitError: it has used up its requests of this minute.
    """
    return checked(cluster, access.use(cluster.redis, cluster.ns, digest(secret)))


def checked(cluster: Context, use: Use) -> AccessKey | None:
    """Return the key of a use that is allowed; errors as of `admit`."""
    if use.key is None:
        if not use.configured:
            return None
        why = "is revoked or expired" if use.known else "is not known here"
        raise InvalidKeyError(f"the API key {why}; an admin makes one with `exo-celery keys create`")
    if use.left < 0:
        wait = WINDOW_SECONDS - math.floor(client.now(cluster.redis)) % WINDOW_SECONDS
        raise RateLimitError(
            f"key {use.key.name!r} may make {use.key.rate_per_minute} requests a minute; ask again in {wait} s",
            retry_after_seconds=wait,
        )
    return use.key


def is_good(cluster: Context, key_id: str) -> bool:
    """Tell whether a key is neither revoked nor expired; asking is no use of it."""
    key = access.get(cluster.redis, cluster.ns, key_id)
    return key is not None and not key.revoked_at and not 0 < key.expires_at <= client.now(cluster.redis)


def log_in(cluster: Context, secret: str) -> str:
    """Return a new session for a browser that showed a good key; errors as of `admit`.

    Raises:
        InvalidKeyError: also where no key was ever made.
    """
    if admit(cluster, secret) is None:
        raise InvalidKeyError("there are no API keys yet: make one with `exo-celery keys create --scope admin`")
    session = secrets.token_urlsafe(RANDOM_BYTES)
    access.open_session(cluster.redis, cluster.ns, digest(session), digest(secret))
    return session


def of_session(cluster: Context, session: str) -> AccessKey | None:
    """Return the key that a session was opened with, or None when it is over, as it is with the key.

    Raises:
        RateLimitError: the key has used up its requests of this minute.
    """
    key_digest = access.session_key(cluster.redis, cluster.ns, digest(session))
    used = access.use(cluster.redis, cluster.ns, key_digest) if key_digest else None
    return checked(cluster, used) if used and used.key else None


def log_out(cluster: Context, session: str) -> None:
    """End a session."""
    access.close_session(cluster.redis, cluster.ns, digest(session))


def names(scopes: Sequence[Scope]) -> str:
    """Write scopes as people read them."""
    return ", ".join(scopes)
